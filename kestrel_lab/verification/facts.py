"""Checks of facts: names of code, numbers, addresses, and what the answer says was done."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from typing import Final

from kestrel_lab.core.spans import citations, resolve
from kestrel_lab.core.syntax import tree_of
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.issues import Issue, Severity, issue
from kestrel_lab.verification.naming import Name, files_in, names_in
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.symbols import BUILTINS, installed, source_of
from kestrel_lab.verification.wording import PLACEHOLDER, stance
from kestrel_lab.verification.words import telling

_NUMBER: Final = re.compile(
    r"(?<![\w.,/:#@=+-])[-+]?\$?(?P<number>\d{1,3}(?:[,_]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?:e[-+]?\d+)?(?P<unit>%| ?(?:ms|s|kB|KB|MB|GB|KiB|MiB|GiB|px|x)\b)?(?![\w/]|[.,:]\d|-\w)"
)
_COUNTED: Final = re.compile(
    r"^\W{0,3}(?:\w+ ){0,2}(?:functions?|class(?:es)?|methods?|files?|modules?|tests?|places?|callers?|times|steps?|options?|ways?|cases?|parameters?|arguments?|fields?|"
    r"imports?|occurrences?|matches|hits?|references?|usages?|items?|entries|points?|parts?|reasons?|things?|changes?|issues?|errors?|things|others?|subclasses|exceptions|names?|"
    r"keys|members|attributes|lines?|sentences?|examples?|bullets?|kinds?|types?|layers?|levels?|commits?|variants?|branches|checks?|calls?|helpers?|folders?|directories|packages)\b",
    re.IGNORECASE,
)
_ROUGH: Final = re.compile(
    r"(?:\babout|\baround|\broughly|\bapproximately|\bsome|\bover|\bunder|\bless than|\bmore than|\bat least|\bup to|\bnearly|\balmost|~|≈|\blines?|\bline\W{1,4}|\blines? \d+\s?(?:to|-|–|and|through)|\bgoes on to|\bstep|\bsection|\boption|\bphase|\bcase|\bissue #?|\bpart|\bPython|\bversion|\bRFC|\bPEP|\bHTTP/?)\s*$",
    re.IGNORECASE,
)
_SUGGESTS: Final = re.compile(
    r"\b(?:for example|e\.g\.|such as|say,|could|should|would|suggest\w*|recommend\w*|try|consider|change|raise it|lower it|increase|decrease|set it|instead|if you|passing|let's|imagine)\b",
    re.IGNORECASE,
)
_LINE_COUNT: Final = re.compile(r"(?<![\w.])(?P<n>[\d,]+) lines\b(?! (?:of output|later|above|below|after|before|apart|further|up|down))")
_KINDS: Final = re.compile(r"(?<![\w.])(?P<n>\d+) (?:top-level |public )?(?P<what>classes|functions)\b")
_SOURCED: Final = re.compile(
    r"\b(?:according to|source|see|documented at|as described|reports?|per the|cited|read at|from)\b[^.]{0,40}$", re.IGNORECASE
)
_DID: Final = re.compile(
    r"\b(?:I|we)(?:'ve| have)?(?: also| then| just| now)? (?P<verb>ran|run|executed|created|wrote|written|edited|modified|updated|deleted|moved|read|opened)\b",
    re.IGNORECASE,
)
_CVE: Final = re.compile(r"\bCVE-\d{4}-\d{4,7}\b")
_HOSTS: Final = re.compile(r"https?://(?:[\w.-]*\.)?(?:example\.(?:com|org|net)|localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])")


def names_resolve(subject: Subject) -> Iterator[Issue]:
    """Every name of code that is named is defined: in the workspace, in an installed package, or a tool told of it."""
    seen: set[str] = set()
    for said in subject.claims:
        for name in names_in(said):
            if name.text in seen or stance(said.text, name.start, name.end, said.lead) != "asserted":
                continue
            seen.add(name.text)
            if (found := _unresolved(subject, said, name)) is not None:
                yield found


def _unresolved(subject: Subject, said: Said, name: Name) -> Issue | None:
    text = name.text
    first, _, last = text.rpartition(".")
    if not last or PLACEHOLDER.search(text) or last in BUILTINS or text in os.environ or not subject.files.whole:
        return None
    if first and first not in ("self", "cls") and (found := _member(subject, said, text)) is not None:
        return found
    if "." in text and first not in ("self", "cls") and subject.symbols.resolves(text) == "yes":
        return None
    if subject.names(last) or subject.tells(text) or _installed(text.split(".")) or _known_word(said, name):
        return None
    if not name.sure and shutil.which(last, path=subject.path):
        return None
    severity: Severity = "critical" if name.sure else "minor"
    return issue(severity, said.text, f"nothing here is called {text}", "use a name that the code has" + _like(subject, last))


def _member(subject: Subject, said: Said, text: str) -> Issue | None:
    """The issue with `Class.member` or `module.name` where the holder is known and has no such member."""
    if subject.tells(text) or subject.symbols.resolves(text) != "no":
        return None
    holder, _, last = text.rpartition(".")
    return issue("critical", said.text, f"{holder} has no {last}", "use a name that it has" + _like(subject, last))


def _installed(names: list[str]) -> bool:
    if source_of(names[0]) is None and names[0] not in sys.stdlib_module_names:
        return False
    return len(names) == 1 or "no" not in installed(names)


def _known_word(said: Said, name: Name) -> bool:
    """A word of another language or format rather than a name: `GET`, `utf-8`, a header."""
    return not name.sure and (name.text.isupper() or len(name.text) <= 2)


def _like(subject: Subject, word: str) -> str:
    import difflib

    known: dict[str, str] = {}
    for path in subject.files.paths[:400]:
        module = subject.symbols.module(path) if word[:3].lower() in (subject.files.read(path) or "").lower() else None
        if module is not None:
            known |= {name: path for member in (module, *module.members.values()) for name in member.members}
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f", such as {near[0]} of {known[near[0]]}" if near else ""


def numbers_are_there(subject: Subject) -> Iterator[Issue]:
    """A number stands where the sentence says that it is from, near to what the sentence is about.

    Counts, rough numbers and suggestions are not looked up, except counts of lines, classes and functions of a file.
    """
    for said in subject.claims:
        if said.kind == "code":
            continue
        yield from _counts(subject, said)
        text = _without_places(said.text)
        for match in _NUMBER.finditer(text):
            number, before, after = match["number"], text[: match.start()], text[match.end() :]
            if (
                _COUNTED.match(after)
                or _ROUGH.search(before)
                or _SUGGESTS.search(before)
                or (match["unit"] or "").strip() in ("%", "x")
                or _harmless(number, before)
                or re.match(r"\s?ff?\b", after)
            ):
                continue
            verdict = _looked_up(subject, said, number)
            if verdict is not None:
                severity, where = verdict
                yield issue(severity, said.text, f"the number {match[0].strip()} is not in {where}", "look the number up")  # type: ignore[arg-type]  # one of the severities


def _without_places(text: str) -> str:
    for found in citations(text):
        text = text.replace(found.text, " " * len(found.text))
    return re.sub(r"^\s*\d+[.)]\s", lambda match: " " * len(match[0]), re.sub(r"`[^`]*`", _numbers_of_code, text))


def _numbers_of_code(match: re.Match[str]) -> str:
    """A literal in backticks counts as a number, code with a number in it does not."""
    inner = match[0][1:-1].strip()
    plain = re.fullmatch(r"(?:\w+ ?(?:=|:) ?)?(\d[\d_,]*(?:\.\d+)?)", inner)
    return f" {plain[1]} ".rjust(len(match[0])) if plain else " " * len(match[0])


def _harmless(number: str, before: str) -> bool:
    return (number in ("0", "1", "2") and not re.search(r"\b(?:is|to|of|=|defaults?|after|for)\s*`?$", before)) or (
        len(number) == 4 and number.startswith(("19", "20"))
    )


def _looked_up(subject: Subject, said: Said, number: str) -> tuple[str, str] | None:
    """How bad it is that the number is not found, and where it was looked for; `None` where it is found or nothing speaks of it."""
    plain = number.replace(",", "").replace("_", "")
    forms = {
        number,
        plain,
        f"{int(plain):_}" if plain.isdigit() else plain,
        f"{int(plain):,}" if plain.isdigit() else plain,
        plain.removesuffix(".0"),
        f"{plain}.0",
    }
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(form)}(?!\w|\.\d)" for form in sorted(forms)))
    about = telling(said.text, but=[found.text for found in citations(said.text)]) | telling(said.lead)
    cited = [span for found in citations(said.text) if (span := resolve(found, subject.spans, subject.files.read)) is not None]
    named = [path for file in files_in(said) for path in subject.files.named(file.text)]
    if pattern.search(subject.goal):
        return None
    if cited and any(pattern.search(_around(subject, span.path, span.first, span.last) or span.text) for span in cited):
        return None
    names = [name.text.rpartition(".")[2] for name in names_in(said)] + re.findall(r"[A-Za-z_]\w*(?= ?=)", said.text)
    if any(found.path for found in cited):
        bodies = [body for span in cited if span.path and (body := _body(subject, span.path, span.first))]
        return (
            None if any(pattern.search(body) for body in bodies) or _near(pattern, subject.told, about, names) else ("major", cited[0].id)
        )
    if named:
        if any(_near(pattern, subject.files.read(path) or "", about, names) for path in named) or _near(
            pattern, subject.told, about, names
        ):
            return None
        return "major", named[0]
    if cited:
        return "major", cited[0].id
    if _near(pattern, subject.told, about, names):
        return None
    holding = list(dict.fromkeys(path for name in names for path in subject.files.having(name)))[:400]
    if any(_near(pattern, subject.files.read(path) or "", about, names) for path in holding):
        return None
    if holding:
        return ("major" if any(_speaks(subject.files.read(path) or "", names) for path in holding) else "minor"), holding[0]
    spoken = len(about & telling(subject.told)) >= 2 and bool(subject.whole_spans)
    return ("major", "what the tools answered") if spoken else None


def _body(subject: Subject, path: str, line: int) -> str:
    """The text of the function or class that begins at the line."""
    path = next(iter(subject.files.named(path)), path)
    module = subject.symbols.module(path)
    found = (
        []
        if module is None
        else [one for member in module.members.values() for one in (member, *member.members.values()) if abs(one.first - line) <= 2]
    )
    lines = (subject.files.read(path) or "").splitlines()
    return "\n".join("\n".join(lines[one.first - 1 : one.last]) for one in found if one.kind != "name")


def _around(subject: Subject, path: str, first: int, last: int) -> str:
    lines = (subject.files.read(path) or "").splitlines() if path else []
    return "\n".join(lines[max(0, first - 4) : last + 3])


def _speaks(text: str, names: list[str]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names)


def _near(pattern: re.Pattern[str], text: str, about: frozenset[str], names: list[str]) -> bool:
    """Whether the number stands in lines that speak of the same."""
    if not pattern.search(text):
        return False
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if pattern.search(line):
            near = "\n".join(lines[max(0, place - 3) : place + 3])
            if telling(line) & about or any(name in near for name in names) or len(telling(near) & about) >= 2:
                return True
    return False


def _counts(subject: Subject, said: Said) -> Iterator[Issue]:
    paths = {path for file in files_in(said) for path in subject.files.named(file.text)}
    if len(paths) != 1 or any(found.path for found in citations(said.text)):
        return
    path = next(iter(paths))
    for match in _LINE_COUNT.finditer(said.text):
        count, stated = len((subject.files.read(path) or "").splitlines()), int(match["n"].replace(",", ""))
        if (
            abs(count - stated) > 1
            and not _ROUGH.search(said.text[: match.start()])
            and re.search(r"\b(?:has|is|counts|file|long|total|with)\b", said.text)
        ):
            yield issue("major", said.text, f"{path} has {count} lines, not {stated}", "count again")
    module = subject.symbols.module(path)
    for match in _KINDS.finditer(said.text):
        if (
            module is None
            or _ROUGH.search(said.text[: match.start()])
            or not re.search(r"\b(?:defines?|has|contains?|with)\b", said.text[: match.start()])
        ):
            continue
        kind = "class" if match["what"] == "classes" else "function"
        top = [name for name, found in module.members.items() if found.kind == kind]
        every = sum(
            isinstance(node, ast.ClassDef if kind == "class" else ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(tree_of(subject.files.read(path) or ""))
        )
        if int(match["n"]) not in (len(top), every, sum(not name.startswith("_") for name in top)):
            yield issue("major", said.text, f"{path} defines {len(top)} {match['what']}, not {match['n']}", "count again")


def addresses_were_met(subject: Subject) -> Iterator[Issue]:
    """An address was met in the run or stands in the workspace; one that a sentence leans on and nobody met refuses the answer."""
    for found in citations(subject.answer):
        url = found.page
        if not url or _HOSTS.match(url) or url.rstrip("/") in subject.told or subject.ground is None:
            continue
        if any(url.rstrip("/") in text for _, text in subject.files.texts()):
            continue
        before = subject.answer[max(0, found.at - 80) : found.at]
        browsed = any(span.page or span.trust == "untrusted" for span in subject.spans)
        severity: Severity = "major" if browsed or (_SOURCED.search(before) and subject.calls) else "minor"
        yield issue(severity, url, f"the address {url} was not met in this run", "give an address that a tool was shown, or none")


def deeds_were_done(subject: Subject) -> Iterator[Issue]:
    """What the answer says it ran, wrote or read, it did: there is such a call."""
    if subject.calls is None:
        return
    done = [made for made in subject.calls if made.ok]
    for said in subject.claims:
        if (
            said.kind == "code"
            or (match := _DID.search(said.text)) is None
            or re.search(r"\b(?:if|when|once|after|had|would)\b", said.text[: match.start()], re.IGNORECASE)
        ):
            continue
        rest = said.text[match.end() :]
        verb = match["verb"].lower()
        for name in files_in(said):
            if name.start < match.end() or not subject.files.whole:
                continue
            if not any(name.text.rpartition("/")[2] in str(value) for made in done for value in made.args.values()) and not any(
                name.text in span.text for span in subject.whole_spans
            ):
                yield issue("major", said.text, f"no tool call of the run did that with {name.text}", "do it, or do not say so")
            break
        if verb in ("ran", "run", "executed") and (code := re.match(r"[^`.]{0,30}`([^`]+)`", rest)):
            command = code[1].split()
            if command and not any(
                command[0] in str(value) or command[0] == made.tool for made in subject.calls for value in (*made.args.values(), made.tool)
            ):
                yield issue("major", said.text, f"the command {code[1]} was not run", "run it, or do not say so")


def advisories_were_met(subject: Subject) -> Iterator[Issue]:
    """Security advice that names a CVE names one that was met in the run or stands in the workspace."""
    for name in dict.fromkeys(_CVE.findall(subject.answer)):
        if not subject.names(name):
            yield issue("major", name, f"{name} was not met in this run", "look it up, or leave the number out")


def importable(module: str, subject: Subject) -> bool:
    """Whether `python -m module` would find something; nothing is imported."""
    names = module.split(".")
    base = "/".join(names)
    if subject.files.exists(f"{base}.py") or subject.files.exists(base):
        return True
    place = source_of(names[0])
    if place is None:
        return names[0] in sys.stdlib_module_names or names[0] in sys.builtin_module_names
    return len(names) == 1 or any(place.joinpath(*names[1:-1], end).exists() for end in (names[-1], f"{names[-1]}.py"))
