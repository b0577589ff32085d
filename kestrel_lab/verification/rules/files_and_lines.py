"""Checks of places: files that are named, and lines that are pointed at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kestrel_lab.core.citations import PATH, Citation, citations
from kestrel_lab.language.words import claim_terms
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.code.symbols import Definition
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.prose.names import Name, code_in, files_in, names_in
from kestrel_lab.verification.prose.stance import PLACEHOLDER, covered, stance
from kestrel_lab.verification.rules.text_match import coded_in, quoted_in
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.work_limit import ALIKE, TOKEN
from kestrel_lab.verification.workspace_files import whole_word

SLACK: Final = 2
"""Lines that a place may be off and still be the one meant."""
_DEFINES: Final = re.compile(
    r"\b(?:defin(?:ed|ition)|declar(?:ed|ation)|lives?|located|starts?|starting|begins?|sits?|resides?|definiert|beginnt|steht|défini\w*|definid\w*)\b",
    re.IGNORECASE,
)
_WITHIN: Final = re.compile(
    r"\b(?:goes on|ends?|until|up to|continues|through|down to|inside|within|on|endet)(?: \w+){0,2} ?$", re.IGNORECASE
)
QUOTE: Final = re.compile(r"[\"“]([^\"“”\n]{8,400})[\"”]")


def files_exist(subject: Subject) -> Iterator[Issue]:
    """Every file that is named is there, was told of in the run, or is to be made; one said to be missing is not there."""
    for said in subject.paid():
        for name in files_in(said):
            how, there = subject.stance(said, name), subject.files.exists(name.text)
            if there:
                if stance(said.text, name.start, name.end) == "denied" and _denies_existence(said.text, name) and "/" in name.text:
                    what = f"the file {name.text} is said not to be there, and it is"
                    yield issue("major", said.text, what, "look at the file, or leave the sentence out")
            elif how == "asserted" and subject.files.whole and not _excused(subject, name, said):
                sure = (
                    (_is_source(name.text) and not _is_argument(said, name))
                    or _LOCATES.search(covered(said.text)[: name.start]) is not None
                    or _relied_on(subject, said, name)
                )
                fix = f"name a file that exists{_like(subject, name.text)}"
                yield issue("critical" if sure else "minor", said.text, f"the file {name.text} does not exist", fix)


def _relied_on(subject: Subject, said: Said, name: Name) -> bool:
    """Whether the answer points at a file for what it says, or places it in a folder that is there: then it is none of the reader's."""
    folder = name.text.removeprefix("./").rpartition("/")[0]
    cited = any(one.path == name.text for one in citations(said.text))
    return cited or _POINTS.search(covered(said.text)[: name.start]) is not None or bool(folder and subject.files.exists(folder))


_POINTS: Final = re.compile(
    r"\b(?:see(?: also)?|cf\.?|according to|as per|source|siehe|vgl\.?|laut|gemäß|voir|selon|d'après|véase|según|vedi|secondo)\W+$",
    re.IGNORECASE,
)


def _is_argument(said: Said, name: Name) -> bool:
    """Whether a command is shown with it: `tool -o out.txt x.py` takes a file of the reader's."""
    codes = ((code, at) for code, at in code_in(said) if at <= name.start < at + len(code))
    return "/" not in name.text and any(re.match(r"(?!python)[a-z][\w-]* .*(?<!\S)$", code[: name.start - at]) for code, at in codes)


def _is_source(name: str) -> bool:
    """Whether it is code, of which a workspace's own is meant; other files are often the reader's."""
    return name.endswith(_SOURCES) and name.rpartition("/")[2] not in _READERS


_SOURCES: Final = (
    ".py",
    ".pyi",
    ".pyx",
    ".js",
    ".ts",
    ".tsx",
    ".jsx",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".rs",
    ".go",
    ".java",
    ".kt",
    ".rb",
    ".md",
    ".rst",
)
_READERS: Final = frozenset(
    {
        "manage.py",
        "setup.py",
        "conftest.py",
        "settings.py",
        "app.py",
        "main.py",
        "wsgi.py",
        "asgi.py",
        "config.py",
        "script.py",
        "test.py",
        "index.js",
        "main.js",
        "app.js",
        "README.md",
    }
)
"""What everybody's project has: where the workspace has none, the reader's is meant unless it is said what is in it."""
_LOCATES: Final = re.compile(
    r"\b(?:defined|declared|implemented|handled|located|lives?|sits?|found|documented|set|registered|exported|written|definiert|steht|liegt|implementiert|défini|definid[oa]|(?:is|are|ist|sind|stands?) (?:in|from))\b\W+(?:\w+\W+){0,2}$",
    re.IGNORECASE,
)


def to_be_made(subject: Subject) -> frozenset[str]:
    """Files that some sentence of the answer proposes to make, or says not to be there, and that are not there."""
    return frozenset(name for name in subject.introduced if not subject.files.exists(name))


def _denies_existence(sentence: str, name: Name) -> bool:
    return re.match(r"[`*_\"')\]\s]*(?:does not|doesn't|did not) exist\b", sentence[name.end :]) is not None


def _excused(subject: Subject, name: Name, said: Said) -> bool:
    """A pattern, a file that a tool told of, or one that the workspace's own texts name in full."""
    around = said.text[max(0, name.start - 1) : name.end + 1]
    if PLACEHOLDER.search(name.text) or (set("*<{") & set(around)) or name.text.startswith(("~", "../", "/")):
        return True
    if any(name.text in span.text for span in subject.whole_spans) or any(
        _written(made.args, name.text) for made in subject.calls or () if made.ok
    ):
        return True
    if any(one.spaced and one.path == name.text and subject.files.exists(one.spaced) for one in citations(said.text)):
        return True
    return re.fullmatch(r"\.[a-z]+|[a-z]\.[a-z]", name.text) is not None or bool(subject.files.having(name.text))


def _written(args: Mapping[str, object], name: str) -> bool:
    return any(isinstance(value, str) and (value == name or value.endswith(f"/{name}")) for value in args.values())


def _like(subject: Subject, name: str) -> str:
    import difflib

    last = name.rpartition("/")[2]
    subject.pay(ALIKE * len(subject.files.paths))
    near = difflib.get_close_matches(last, {path.rpartition("/")[2]: path for path in subject.files.paths}, n=1, cutoff=0.6)
    found = next((path for path in subject.files.paths if near and path.rpartition("/")[2] == near[0]), "")
    return f", such as {found}" if found else ""


def lines_hold(subject: Subject) -> Iterator[Issue]:
    """Every line that is pointed at is there, and what is said to be there is not only elsewhere in the file."""
    for place, said in enumerate(subject.paid()):
        if said.kind == "code":
            continue
        shows = place + 1 < len(subject.claims) and subject.claims[place + 1].kind == "code"
        for cited in _cited(said):
            if cited.path and (found := _line_issue(subject, said, cited, shows=shows)) is not None:
                yield found
            elif cited.call and subject.calls is not None and cited.call not in {made.call for made in subject.calls}:
                yield issue("major", said.text, f"there was no tool call {cited.call}", "cite a call of this run, or say where it is from")


def _cited(said: Said) -> Iterator[Citation]:
    """The places in a claim; `line 12` alone is one of the only file that the claim names, or that introduces it."""
    plain = covered(said.text)
    found = [one for one in citations(said.text) if " " not in _quoted(said.text, one.at) or one.text.startswith(("[", "http"))]
    yield from found
    files = {name.text for name in files_in(said)} or {name.text for name in files_in(Said(text=said.lead, at=0))}
    if len(files) == 1:
        for one in found:
            plain = (
                plain.replace(one.text, " " * len(one.text))
                if one.text in plain
                else plain[: one.at] + " " * len(one.text) + plain[one.at + len(one.text) :]
            )
        for match in _LINE.finditer(plain):
            first = int(match["first"])
            yield Citation(text=match[0], at=match.start(), path=next(iter(files)), first=first, last=int(match["last"] or first))


def _quoted(text: str, at: int) -> str:
    """The code or quote that the place is in the middle of."""
    return next((match[0] for match in _INSIDE.finditer(text) if match.start() <= at < match.end()), "")


_INSIDE: Final = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”")
_LINE: Final = re.compile(
    r"(?<![\w.])(?:lines?|zeilen?|lignes?|l[ií]neas?|ll?\.|L(?=\d))\W{0,3}(?P<first>\d+)(?:\s?(?:-|–|to|through|and|bis|und|à|a|y)\s?L?(?P<last>\d+))?(?!\w| (?:lines|of output))",
    re.IGNORECASE,
)


def _line_issue(subject: Subject, said: Said, cited: Citation, *, shows: bool) -> Issue | None:
    text = subject.files.read(cited.path) if subject.files.named(cited.path) else None
    if text is None:
        return None  # the file itself is looked at by `files_exist`
    lines = text.splitlines()
    where = f"{cited.path}:{cited.first}" + (f"-{cited.last}" if cited.last != cited.first else "")
    if stance(said.text, cited.at, cited.at + len(cited.text), said.lead) != "asserted":
        return None
    if cited.last < cited.first or cited.last > len(lines):
        what, fix = f"{where} is not there: the file has {len(lines)} lines", "read the file and name the right lines"
        return issue("critical" if cited.last >= cited.first else "minor", said.text, what, fix)
    if (shows and said.text.endswith(":")) or _fits(subject, said, cited, text):
        return None
    what = f"{where} has nothing of what the sentence says of it{_rather(subject, said, cited)}"
    sure = not _within(subject, said, cited) and not said.text.startswith("(")  # which is of the sentence before
    return issue("major" if sure else "minor", said.text, what, "read the file and name the right lines")


_BEGINNING: Final = 20
"""Lines."""


def _within(subject: Subject, said: Said, cited: Citation) -> bool:
    """Whether the place is where a class or function that a row names begins: it may be of something else there."""
    places = _owners(subject, [name.text for name in names_in(said)], next(iter(subject.files.named(cited.path)), ""))
    return said.kind == "row" and any(_overlap(place, cited) and cited.first - place.first <= _BEGINNING for place in places)


def _fits(subject: Subject, said: Said, cited: Citation, text: str) -> bool:
    """Whether something that the sentence speaks of is in the lines, or nothing of it is in the file at all."""
    subject.pay(TOKEN * len(text))
    lines = text.splitlines()
    shown = "\n".join(lines[max(0, cited.first - 1 - SLACK) : cited.last + SLACK])
    about = _about(said, cited)
    shift = about.at - said.at
    quoted = [code for code, _ in code_in(about) if not _PLAIN.fullmatch(code) and coded_in(code, [text])]
    quoted += [quote for match in QUOTE.finditer(about.text) if quoted_in(quote := match[1], [text])]
    if any(coded_in(one, [shown]) or quoted_in(one, [shown]) for one in quoted):
        return True
    names = [name for name in names_in(about) if not _is_place(name, cited, shift)]
    if not names and _DEFINES.search(covered(about.text)):
        return _begins_there(subject, said, cited)
    words = {name.text: name.text.rpartition(".")[2] for name in names}
    named = {full: word for full, word in words.items() if _stands(word, text)}
    places = _owners(subject, list(named), next(iter(subject.files.named(cited.path)), ""))
    if places and _defines(said, cited, [name for name in names if name.text in named], shift, places):
        return any(abs(first - cited.first) <= SLACK for place in places for first in place.firsts or (place.first,)) or any(
            _overlap(place, cited) for place in places if cited.last > cited.first
        )
    if not named and not quoted:
        return True
    if any(
        _stands(word, shown)
        for full, word in named.items()
        if cited.last - cited.first < _LONG or not places or full not in {p.name for p in places}
    ):
        return cited.last == cited.first or not places or any(_overlap(place, cited) for place in places) or len(named) > len(places)
    told = claim_terms(covered(about.text)) & claim_terms(shown)
    if any(_overlap(place, cited) for place in places) and not quoted and (len(told) >= 2 or len(places) >= len(named)):
        return True
    return not quoted and len(told) >= 2


_PLAIN: Final = re.compile(rf"[\w.]+(?:\(\))?|.{{0,3}}|(?:{PATH})(?:[:#]L?\d+\S*)?")
"""What is named in backticks but no code that could be quoted."""
_LONG: Final = 5
"""Lines from which on a range is held against where a definition is, not only against whether its name is in it."""


def _begins_there(subject: Subject, said: Said, cited: Citation) -> bool:
    """Whether what was spoken of before begins in the lines; where nothing was that the file defines, it may be anything."""
    before = [other for other in subject.claims if other.at < said.at][-3:]
    words = [
        word
        for other in before
        for word in re.findall(r"[A-Za-z_]\w{3,}", other.text if other.kind == "code" else " ".join(name.text for name in names_in(other)))
    ]
    places = _owners(subject, list(dict.fromkeys(words)), next(iter(subject.files.named(cited.path)), ""))
    return not places or any(abs(first - cited.first) <= SLACK for place in places for first in place.firsts or (place.first,))


def _is_place(name: Name, cited: Citation, shift: int) -> bool:
    return cited.at <= name.start + shift < cited.at + len(cited.text)


def _defines(said: Said, cited: Citation, names: list[Name], shift: int, places: list[Definition]) -> bool:
    """Whether the place is said to be where something begins: in so many words, or right beside the name of a class."""
    plain = covered(said.text)
    before = plain[max(0, cited.at - 60) : cited.at]
    holder = re.search(
        rf"\b(?:on|in|inside|within|of) (?:the )?(?:class )?[`*]*(?:{'|'.join(re.escape(place.name) for place in places)})\b",
        said.text[: cited.at],
    )
    if _DEFINES.search(before) and not holder and not _WITHIN.search(before) and cited.last - cited.first < 3:
        return True
    last = max((name for name in names if name.end + shift <= cited.at), key=lambda name: name.end, default=None)
    if last is None or last.text.rpartition(".")[2] not in {place.name for place in places}:
        return False
    ends = last.end + shift
    beside = (
        re.fullmatch(r"[`\s(,|*:–—)-]*(?:(?:see|at|in|file|lines?|of|from) ?[`\s(]*)*", plain[ends : cited.at].replace("x", "")) is not None
    )
    return beside and cited.last == cited.first and all(place.kind == "class" for place in places)


def _owners(subject: Subject, names: list[str], path: str) -> list[Definition]:
    """The classes and functions of the file that are named; of `Class.method` the method of that class."""
    found: list[Definition] = []
    for name in names:
        holder, _, last = name.rpartition(".")
        known = [one for one in subject.symbols.defined(last) if one.path == path and one.kind != "name"]
        if holder:
            classes = [one for one in subject.symbols.defined(holder.rpartition(".")[2]) if one.path == path and one.kind == "class"]
            known = [one.members[last] for one in classes if last in one.members] or known
        found += known
    return [one for one in found if one.kind == "function"] or found


def _overlap(place: Definition, cited: Citation) -> bool:
    """Whether most of the lines are of the definition, or most of the definition is among the lines."""
    shared = min(place.last, cited.last) - max(place.first, cited.first) + 1 + SLACK
    return shared > 0 and 5 * shared >= 4 * (min(cited.last - cited.first, place.last - place.first) + 1)


def _stands(name: str, text: str) -> bool:
    return name in text and whole_word(name).search(text) is not None


def _about(said: Said, cited: Citation) -> Said:
    """The part of a sentence that a place belongs to, where it points at several."""
    others = [other for other in _cited(said) if other.path]
    if len(others) < 2:
        return said
    others.sort(key=lambda other: other.at)
    position = [other.at for other in others].index(cited.at)
    begin = 0 if position == 0 else others[position - 1].at + len(others[position - 1].text)
    end = len(said.text) if position == len(others) - 1 else others[position + 1].at
    return Said(text=said.text[begin:end], at=said.at + begin, kind=said.kind, lead=said.lead)


def _rather(subject: Subject, said: Said, cited: Citation) -> str:
    for name in names_in(said):
        for found in subject.symbols.defined(name.text.rpartition(".")[2]):
            if found.path in subject.files.named(cited.path) and found.kind != "name":
                return f"; {found.name} is at {found.path}:{found.first}"
    return ""


def definitions_are_there(subject: Subject) -> Iterator[Issue]:
    """A name that is said to be in a file is in it."""
    for place, said in enumerate(subject.paid()):
        files = () if said.kind == "code" else tuple(files_in(said))
        paths = [path for name in files for path in subject.files.named(name.text)]
        if not paths or any(subject.stance(said, file) != "asserted" for file in files):
            continue
        if _ITSELF.search(said.text) and not any(True for _ in names_in(said)):
            yield from _itself(subject, place, paths)
        named = [
            name
            for name in names_in(said)
            if (name.sure or subject.symbols.defined(name.text)) and subject.stance(said, name) == "asserted"
        ]
        named = [name for name in named if name.text.lower() not in subject.home]  # what the package is called is in no file of it
        if named:
            yield from _not_in(subject, said, named, paths)


def _not_in(subject: Subject, said: Said, named: list[Name], paths: list[str]) -> Iterator[Issue]:
    words = [name.text.rpartition(".")[2] for name in named]
    if not any(_stands(word, subject.files.read(path) or "") for word in words for path in paths):
        if all(subject.files.having(word) for word in words):
            there = list(dict.fromkeys(found.path for found in subject.symbols.defined(words[0])))[:2] or subject.files.having(words[0])[:1]
            yield issue("major", said.text, f"{words[0]} is not in {paths[0]}", f"name the file it is in: {', '.join(there)}")
        return
    verb = _DEFINED_IN.search(said.text)
    if verb is not None:
        words = [name.text.rpartition(".")[2] for name in named if name.end <= verb.start()] or words
    if len(set(paths)) == 1 and len(set(words)) == 1 and verb is not None and paths[0].endswith(".py"):
        defined = subject.symbols.defined(words[0])
        places = {found.path for found in defined if found.kind != "name" or found.path == paths[0]}
        others = sorted({found.path for found in defined if found.kind != "name"} - {paths[0]})[:2]
        if places and paths[0] not in places:
            yield issue(
                "major", said.text, f"{words[0]} is not defined in {paths[0]}", f"name the file it is in: {', '.join(sorted(places)[:2])}"
            )
        elif others and paths[0] in places and all(_imported(subject, found.path, words[0]) for found in defined if found.path == paths[0]):
            yield issue(
                "major", said.text, f"{words[0]} is only imported in {paths[0]}", f"name the file it is defined in: {', '.join(others)}"
            )


_ITSELF: Final = re.compile(r"\b(?:the|this|that) (?:function|class|method|definition|helper)\b", re.IGNORECASE)


def _itself(subject: Subject, place: int, paths: list[str]) -> Iterator[Issue]:
    """The function that was spoken of before is in one of the files."""
    said = subject.claims[place]
    for before in reversed(subject.claims[max(0, place - 3) : place]):
        found = re.findall(r"[A-Za-z_]\w{3,}", before.text) if before.kind == "code" else [name.text for name in names_in(before)]
        known = [name for name in dict.fromkeys(found) if any(one.kind != "name" for one in subject.symbols.defined(name))]
        if known:
            if not any(_stands(name, subject.files.read(path) or "") for name in known for path in paths):
                there = subject.symbols.defined(known[0])[0].path
                yield issue("major", said.text, f"{known[0]} is not in {paths[0]}", f"name the file it is in: {there}")
            return


_DEFINED_IN: Final = re.compile(r"\b(?:defined|implemented|declared|lives|located|definition|implementation)\b", re.IGNORECASE)


def _imported(subject: Subject, path: str, word: str) -> bool:
    module = subject.symbols.module(path)
    member = None if module is None else module.members.get(word)
    line = (subject.files.read(path) or "").splitlines()[member.first - 1] if member is not None else ""
    return member is not None and member.kind == "name" and bool(re.match(r"\s*(?:from\b.*\bimport|import)\b", line))
