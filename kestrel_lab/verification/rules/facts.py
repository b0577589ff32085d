"""Checks of facts: names of code, addresses, and what the answer says was done."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from typing import Final

from kestrel_lab.core.citations import citations
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.code.symbols import BUILTINS, installed, source_of
from kestrel_lab.verification.issues import Issue, Severity, issue
from kestrel_lab.verification.prose.names import Name, files_in, names_in
from kestrel_lab.verification.prose.stance import PLACEHOLDER, covered
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.work_limit import ALIKE, CLAIM, SEARCHED

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
    for said in subject.paid():
        for name in names_in(said):
            if name.text in seen or name.text in subject.introduced:
                continue
            how = subject.stance(said, name)
            if how in ("to be made", "denied"):
                continue
            if (found := _unresolved(subject, said, name, sure=how == "asserted")) is not None:
                seen.add(name.text)
                yield found


def _unresolved(subject: Subject, said: Said, name: Name, *, sure: bool) -> Issue | None:
    text = name.text
    first, _, last = text.rpartition(".")
    if (
        not last
        or PLACEHOLDER.search(text)
        or last in BUILTINS
        or re.fullmatch(r"__\w+__", last)
        or text in os.environ
        or not subject.files.whole
    ):
        return None
    if first and first not in ("self", "cls") and (found := _member(subject, said, text, sure=sure)) is not None:
        return found
    if "." in text and first not in ("self", "cls") and subject.symbols.resolves(text) == "yes":
        return None
    own = text.isupper() and "_" in text and text.partition("_")[0].lower() in subject.home  # a setting that bears the workspace's name
    if subject.names(last) or subject.tells(text) or _installed(text.split(".")) or (_known_word(said, name) and not own):
        return None
    if not name.sure and shutil.which(last, path=subject.path):
        return None
    proposed = _PROPOSED.search(covered(said.text)[: name.start]) or _READERS.search(covered(said.text))
    certain = sure and (name.sure or own) and not proposed and not _numbered(subject, last)
    severity: Severity = "critical" if certain and not _example(subject, said, name) else "minor"
    return issue(severity, said.text, f"nothing here is called {text}", "use a name that the code has" + _like(subject, last))


_PROPOSED: Final = re.compile(
    r"\b(?:you|we|I|one)(?: (?:could|might|would)\b|['’]d\b)|\bof your own\b|\b(?:könnte|würde)\w*\b", re.IGNORECASE
)
"""What makes a sentence a proposal, however many clauses later a name stands: one that is not there is then to be made."""


_READERS: Final = re.compile(r"\b(?:from|in|of) your (?:own )?(?:app|application|code|project|module|script)\b", re.IGNORECASE)


def _numbered(subject: Subject, name: str) -> bool:
    """Whether it is the third or so of names that the code makes with a number, as it does `toc_3`."""
    begun = re.sub(r"\d+(?:_\d+)*$", "", name)
    if begun == name or len(begun) < 3:
        return False
    made = re.compile(rf"{re.escape(begun)}[\"'{{%]")  # a string that ends so, or goes on with what is put in
    return any(begun in text and made.search(text) for _, text in subject.files.texts())


def _example(subject: Subject, said: Said, name: Name) -> bool:
    """Something of the reader's or of an example: `APP_DEBUG`, `config("DEBUG")`, `app.settings`; what bears the workspace's name is its own."""
    home = name.text.partition("_")[0].lower() in subject.home
    holder = name.text.partition(".")[0]
    known = any(one.kind == "class" for one in subject.symbols.defined(holder)) or holder.lower() == subject.files.root.name.lower()
    if "." in name.text and not name.call and holder not in ("self", "cls") and not known:
        return True  # a module or a variable of the reader's
    called = re.match(r"\((?!\)|…|\.\.\.)", said.text[name.end :]) is not None
    return (name.text.isupper() and "." not in name.text and not home) or (called and re.fullmatch(r"[a-z]+", name.text) is not None)


def _member(subject: Subject, said: Said, text: str, *, sure: bool) -> Issue | None:
    """The issue with `Class.member` or `module.name` where the holder is known and has no such member."""
    if subject.tells(text) or subject.symbols.resolves(text) != "no":
        return None
    holder, _, last = text.rpartition(".")
    is_class = any(one.kind == "class" for one in subject.symbols.defined(holder.rpartition(".")[2]))
    if not is_class and (not sure or subject.names(last)):  # a module, or a variable that is called like one
        return None
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
    subject.pay(ALIKE * len(known))
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f", such as {near[0]} of {known[near[0]]}" if near else ""


def addresses_were_met(subject: Subject) -> Iterator[Issue]:
    """An address was met in the run or stands in the workspace; one that a sentence leans on and nobody met refuses the answer."""
    for found in citations(subject.looked_at):
        url = found.page
        subject.pay(CLAIM + len(subject.told) / SEARCHED)
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
    for said in subject.paid():
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
    for name in dict.fromkeys(_CVE.findall(subject.looked_at)):
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
