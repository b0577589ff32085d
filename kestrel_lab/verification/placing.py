"""Checks of places: files that are named, and lines that are pointed at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kestrel_lab.core.spans import Citation, citations, resolve
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.files import whole_word
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.naming import Name, files_in, names_in
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.symbols import Definition
from kestrel_lab.verification.wording import PLACEHOLDER, stance
from kestrel_lab.verification.words import telling

SLACK: Final = 2
"""Lines that a place may be off and still be the one meant."""
_DEFINES: Final = re.compile(
    r"\b(?:defin(?:ed|ition)|declar(?:ed|ation)|implement(?:ed|ation)|lives?|located|starts?|begins?|sits?|resides?)\b", re.IGNORECASE
)
QUOTE: Final = re.compile(r"[\"“]([^\"“”\n]{8,400})[\"”]")


def files_exist(subject: Subject) -> Iterator[Issue]:
    """Every file that is named is there, was told of in the run, or is to be made; one said to be missing is not there."""
    to_be = to_be_made(subject)
    for said in subject.claims:
        for name in files_in(said):
            how = "to be made" if name.text in to_be else stance(said.text, name.start, name.end, said.lead)
            there = subject.files.exists(name.text)
            if how == "denied":
                if there and _denies_existence(said.text, name) and "/" in name.text:
                    yield issue(
                        "major",
                        said.text,
                        f"the file {name.text} is said not to be there, and it is",
                        "look at the file, or leave the sentence out",
                    )
            elif not there and not _excused(subject, said, name) and how == "asserted" and subject.files.whole:
                yield issue(
                    "critical", said.text, f"the file {name.text} does not exist", f"name a file that exists{_like(subject, name.text)}"
                )


def to_be_made(subject: Subject) -> set[str]:
    """Files that some sentence of the answer proposes to make, or says not to be there, and that are not there."""
    return {
        name.text
        for said in subject.claims
        for name in files_in(said)
        if stance(said.text, name.start, name.end, said.lead) in ("to be made", "denied") and not subject.files.exists(name.text)
    }


def _denies_existence(sentence: str, name: Name) -> bool:
    return re.match(r"[`*_\"')\]\s]*(?:does not|doesn't|did not) exist\b", sentence[name.end :]) is not None


def _excused(subject: Subject, said: Said, name: Name) -> bool:
    """A pattern, a file that a tool told of, or one that the workspace's own texts name in full."""
    around = said.text[max(0, name.start - 1) : name.end + 1]
    if PLACEHOLDER.search(name.text) or (set("*<{") & set(around)) or (name.text.startswith("~") or name.text.startswith("../")):
        return True
    if any(name.text in span.text for span in subject.whole_spans) or any(
        _written(made.args, name.text) for made in subject.calls or () if made.ok
    ):
        return True
    if "/" not in name.text and re.fullmatch(r"\.[a-z]+|[a-z]\.[a-z]", name.text):
        return True
    return bool(subject.files.having(name.text)) and (name.text.startswith(".") or _GENERATED.search(said.text) is not None)


_GENERATED: Final = re.compile(
    r"\b(?:config\w*|settings?|reads?|looks? for|loads?|writes?|wrote|written|creates?|generated?|outputs?|optional|default|environment|named)\b",
    re.IGNORECASE,
)


def _written(args: object, name: str) -> bool:
    return any(
        isinstance(value, str) and (value == name or value.endswith(f"/{name}"))
        for value in (args.values() if hasattr(args, "values") else ())
    )


def _like(subject: Subject, name: str) -> str:
    import difflib

    last = name.rpartition("/")[2]
    near = difflib.get_close_matches(last, {path.rpartition("/")[2]: path for path in subject.files.paths}, n=1, cutoff=0.6)
    found = next((path for path in subject.files.paths if near and path.rpartition("/")[2] == near[0]), "")
    return f", such as {found}" if found else ""


def lines_hold(subject: Subject) -> Iterator[Issue]:
    """Every line that is pointed at is there, and has to do with what is said of it."""
    for place, said in enumerate(subject.claims):
        if said.kind == "code" or (
            said.text.endswith(":") and place + 1 < len(subject.claims) and subject.claims[place + 1].kind == "code"
        ):
            continue
        told = _with_names(subject, place)
        for cited in _cited(subject, told):
            if cited.path and (found := _line_issue(subject, told, cited)) is not None:
                yield found
            elif cited.call and subject.calls is not None and cited.call not in {made.call for made in subject.calls}:
                yield issue("major", said.text, f"there was no tool call {cited.call}", "cite a call of this run, or say where it is from")


def _with_names(subject: Subject, place: int) -> Said:
    """The claim; where it names nothing, with the names of what is said just before in its lead."""
    said = subject.claims[place]
    if place == 0 or any(True for _ in names_in(said)):
        return said
    named: set[str] = set()
    for before in reversed(subject.claims[max(0, place - 3) : place]):
        found = re.findall(r"[A-Za-z_]\w{3,}", before.text) if before.kind == "code" else [name.text for name in names_in(before)]
        named |= set(found)
        if named:
            break
    return replace(said, lead=" ".join(f"`{name}`" for name in sorted(named)) + f" {said.lead}")


def _cited(subject: Subject, said: Said) -> Iterator[Citation]:
    """The places in a claim; `line 12` alone is one of the only file that the claim names."""
    found = citations(said.text)
    yield from found
    files = {name.text for name in files_in(said)}
    if len(files) == 1:
        text = said.text
        for one in found:
            text = text.replace(one.text, " " * len(one.text))
        for match in _LINE.finditer(text):
            first = int(match["first"])
            yield Citation(text=match[0], at=match.start(), path=next(iter(files)), first=first, last=int(match["last"] or first))


_LINE: Final = re.compile(
    r"\b(?:from |at |in |on )?lines?\\?\W{1,3}(?P<first>\d+)(?:\s?(?:-|–|to|through|and)\s?(?P<last>\d+))?(?! (?:lines|of output))",
    re.IGNORECASE,
)


def _line_issue(subject: Subject, said: Said, cited: Citation) -> Issue | None:
    text = subject.files.read(cited.path) if subject.files.named(cited.path) else None
    lines = [] if text is None else text.splitlines()
    if text is None or stance(said.text, cited.at, cited.at + len(cited.text), said.lead) != "asserted":
        seen = resolve(cited, subject.spans, subject.files.read)
        lines = [""] * (cited.first - 1) + seen.text.splitlines() if seen is not None and text is None else lines
        if seen is None or text is not None:
            return None  # the file itself is looked at by `files_exist`
    where = f"{cited.path}:{cited.first}" + (f"-{cited.last}" if cited.last != cited.first else "")
    if cited.last < cited.first or cited.last > len(lines):
        return issue(
            "critical", said.text, f"{where} is not there: the file has {len(lines)} lines", "read the file and name the right lines"
        )
    first, last = max(1, cited.first - SLACK), min(len(lines), cited.last + SLACK)
    if _fits(subject, said, cited, lines, first, last):
        return None
    return issue(
        "major",
        said.text,
        f"{where} has nothing of what the sentence says of it{_rather(subject, said, cited)}",
        "read the file and name the right lines",
    )


def _fits(subject: Subject, said: Said, cited: Citation, lines: list[str], first: int, last: int) -> bool:
    """Whether the lines hold what the sentence names: a definition, a name, a quote, or at least its words."""
    shown = "\n".join(lines[first - 1 : last])
    found_names = [name.text for name in names_in(_about(said, cited))]
    defines = _DEFINES.search(said.text) is not None
    found_names = found_names or _names_before(subject, said, cited, anywhere=defines)
    names = [name.rpartition(".")[2] for name in found_names]
    whole = "\n".join(lines)
    named = [name for name in names if _stands(name, whole)]
    if defines and found_names and not named and all(subject.symbols.defined(name) for name in names):
        return False
    module = subject.symbols.module(next(iter(subject.files.named(cited.path)), ""))
    plain = QUOTE.sub(lambda match: " " * len(match[0]), said.text)
    places = [] if module is None else _owners(subject, found_names, module.path)
    if places and not _USES.search(plain):
        begins = any(abs(first - cited.first) <= SLACK for place in places for first in place.firsts or (place.first,))
        within = re.search(
            rf"\b(?:on|in|inside|within|of) (?:the )?(?:class )?[`*]*(?:{'|'.join(re.escape(place.name) for place in places)})\b", plain
        )
        if begins or (
            _DEFINES.search(plain[max(0, cited.at - 60) : cited.at])
            and not within
            and not _GOES_ON.search(plain[: cited.at])
            and cited.last - cited.first < 3
        ):
            return begins
        if not any(_overlap(place, cited) for place in places):
            return cited.last - cited.first < _LONG and any("." not in name and _stands(name, shown) for name in found_names)
        others = [name for name in named if name not in {place.name for place in places}]
        if not others and any(place.kind == "function" or abs(place.last - cited.last) <= SLACK for place in places):
            return True
        return any(_stands(name, shown) for name in others) or bool(telling(plain, but=(*names, cited.path)) & telling(shown))
    if named:
        inside = any(_overlap(place, cited) for place in places) and bool(telling(plain, but=(*names, cited.path)) & telling(shown))
        return inside or any(_stands(name, shown) for name in named)
    words = (telling(said.text, but=(cited.path,)) - telling(cited.path)) & telling(whole)
    numbers = set(re.findall(r"(?<![\w.:])\d+(?:\.\d+)?(?![\w:])", said.text.replace(cited.text, " ")))
    shown_words = telling(shown)
    here = len(words & shown_words)
    return (
        not words
        or here >= 2
        or (here >= 1 and len(words) <= 2)
        or any(re.search(rf"(?<![\w.]){re.escape(n)}(?![\w.])", shown) for n in numbers)
    )


_LONG: Final = 5
"""Lines from which on a range is held against where a definition is, not only against whether its name is in it."""
_GOES_ON: Final = re.compile(r"\b(?:goes on|ends?|until|up to|continues|through|down to)(?: \w+){0,2} ?$", re.IGNORECASE)
_USES: Final = re.compile(
    r"\b(?:call(?:s|ed|ing)?|us(?:e|es|ed|ing)|import(?:s|ed)?|invok\w*|referenc\w*|instantiat\w*|pass(?:es|ed)|registered|patched|overrid\w*|inherit\w*|subclass\w*|wrapped|exported|re-exported)\b",
    re.IGNORECASE,
)


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
    methods = [one for one in found if one.kind == "function"]
    return methods or found


def _names_before(subject: Subject, said: Said, cited: Citation, *, anywhere: bool) -> list[str]:
    """Names of what was said before that something is called: in the file, or anywhere."""
    names = [name.text for name in names_in(Said(text=said.lead, at=0))]
    files = subject.files.named(cited.path)
    return [name for name in names if any(anywhere or one.path in files for one in subject.symbols.defined(name) if one.kind != "name")]


def _overlap(place: Definition, cited: Citation) -> bool:
    """Whether most of the lines are of the definition, or most of the definition is among the lines."""
    shared = min(place.last, cited.last) - max(place.first, cited.first) + 1 + SLACK
    return shared > 0 and 5 * shared >= 4 * (min(cited.last - cited.first, place.last - place.first) + 1)


def _stands(name: str, text: str) -> bool:
    return name in text and whole_word(name).search(text) is not None


def _about(said: Said, cited: Citation) -> Said:
    """The part of a sentence that a place belongs to, where it points at several."""
    others = [other for other in citations(said.text) if other.path]
    if len(others) < 2:
        return said
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
    for place, said in enumerate(subject.claims):
        files = () if said.kind == "code" else tuple(files_in(said))
        paths = [path for name in files for path in subject.files.named(name.text)]
        if not paths or any(stance(said.text, file.start, file.end, said.lead) != "asserted" for file in files):
            continue
        if _ITSELF.search(said.text) and not any(True for _ in names_in(said)):
            yield from _itself(subject, place, paths)
        named = [
            name
            for name in names_in(said)
            if (name.sure or subject.symbols.defined(name.text)) and stance(said.text, name.start, name.end, said.lead) == "asserted"
        ]
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
