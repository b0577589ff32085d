"""Checks of quotes: what is put in quotation marks, or shown as lines of a file, stands there word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kestrel_lab.core.spans import citations
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.naming import code_in, files_in
from kestrel_lab.verification.placing import QUOTE, SLACK
from kestrel_lab.verification.subject import Subject, squeezed
from kestrel_lab.verification.wording import stance

_SAYS: Final = re.compile(
    r"\b(?:says?|said|reads?|states?|stated|contains?|writes?|written|quotes?|docstring|comments?|message|error|warns?|rais(?:es?|ed)|you get|gets?|logs?|prints?|returns?|reports?|"
    r"documented|documents?|describes?d?|notes?|according|readme|output|header|line|tells?|told|labelled|calls it|puts it|mentions?|explains?|exact)\b",
    re.IGNORECASE,
)
_SUGGESTS: Final = re.compile(
    r"\b(?:use|write|try|type|ask|run|call it|name it|rename|replace|change|instead|for example|e\.g\.|such as|like|could|should|would|suggest\w*|commit message|title|prompt|add)\b[^\"“]*$",
    re.IGNORECASE,
)
_GAP: Final = re.compile(r"\s*(?:\.\.\.|…|\[\.\.\.\]|\[…\])\s*")
_ATTRIBUTES: Final = re.compile(
    r"\b(?:says?|reads?|contains?|states?|has|line|lines|the (?:line|statement|code|condition|assignment|expression|check|test|call)|sets?|defaults?|begins|starts|ends)\b|:\d+",
    re.IGNORECASE,
)
_LEFT_OUT: Final = re.compile(r"\s*(?:#\s*)?(?:\.\.\.|…|\[\.\.\.\])")
_FROM: Final = re.compile(r"\b(?:from|in|quoted?|excerpt|reads?|looks like this|shows?|contains?)\b.*:\s*$", re.IGNORECASE)


def quotes_are_exact(subject: Subject) -> Iterator[Issue]:
    """What is put in quotation marks, or quoted as a block, is said word by word where it is said to be from."""
    for said in subject.claims:
        if said.kind == "code":
            yield from _block(subject, said)
            continue
        for quote in _quotes(said):
            yield from _quote_issue(subject, said, quote)


def _quotes(said: Said) -> Iterator[str]:
    if said.kind == "quote" and len(said.text.split()) >= 4:
        yield said.text.strip('"“”*_ ')
        return
    for match in QUOTE.finditer(said.text):
        quote, before = match[1].strip(), said.text[: match.start()]
        words = len(quote.split())
        if words < 3 or _SUGGESTS.search(before) or quote.endswith("?"):
            continue
        if _SAYS.search(said.text[: match.start()] + " " + said.text[match.end() :]) or words >= 6:
            yield quote
    for code, at in code_in(said):
        spaced = " " in code and re.search(r"[=()<>\[\]:+*/]| (?:in|is|not|and|or|as|import|if|for) ", code) is not None
        if (
            spaced
            and not _SUGGESTS.search(said.text[:at])
            and _ATTRIBUTES.search(said.text)
            and stance(said.text, at, at + len(code), said.lead) == "asserted"
        ):
            yield code


def _quote_issue(subject: Subject, said: Said, quote: str) -> Iterator[Issue]:
    parts = [squeezed(part).rstrip(".,;:!") for part in _GAP.split(quote)]
    parts = [part for part in parts if len(part) >= 6]
    if not parts:
        return
    named = [path for name in files_in(said) for path in subject.files.named(name.text)]
    here = [subject.files.read(path) or "" for path in named]
    if (
        _assigned(quote, [*here, subject.told])
        or _all_in(parts, here)
        or _all_in(parts, [subject.told])
        or _all_in(parts, [joined(text) for text in here])
    ):
        return
    elsewhere = next((path for path, text in subject.files.texts() if _all_in(parts, [text]) or _all_in(parts, [joined(text)])), "")
    if elsewhere and not named:
        return
    if elsewhere:
        yield issue("major", said.text, f"the quote “{quote}” is not in {named[0]}", f"name the file it is from: {elsewhere}")
    elif subject.files.whole:
        yield issue(
            "critical",
            said.text,
            f"the quote “{quote}” is neither in the workspace nor in what a tool answered",
            "quote it word by word, or say it without quotation marks",
        )


def _assigned(quote: str, texts: list[str]) -> bool:
    """Whether `name = value` is there, with a type between them maybe."""
    found = re.fullmatch(r"([\w.]+)\s*=\s*(.+)", quote)
    pattern = re.compile(rf"(?<!\w){re.escape(found[1])}(?:\s*:[^=\n]+)?\s*=\s*{re.escape(found[2])}(?!\w)") if found else None
    return pattern is not None and any(pattern.search(text) for text in texts)


def _all_in(parts: list[str], texts: list[str]) -> bool:
    return any(all(part in squeezed(text) for part in parts) for text in texts)


def joined(text: str) -> str:
    """`text` with the signs that break a sentence over lines taken out: comment marks, quotes of strings that go on."""
    text = re.sub(r"\n\s*(?:#+|//+|\*|>|\.\.)[ \t]?", " ", text)
    return re.sub(r"[\"']\s*\n\s*[fbru]{0,2}[\"']", "", text)


def _block(subject: Subject, said: Said) -> Iterator[Issue]:
    """A block that is said to be from a file has the file's lines."""
    cited = [found for found in citations(said.lead) if found.path]
    files = [path for found in cited for path in subject.files.named(found.path)]
    if not cited and _FROM.search(said.lead):
        files = [path for name in files_in(Said(text=said.lead, at=0)) for path in subject.files.named(name.text)]
    text = next((subject.files.read(path) for path in files), None)
    if text is None or said.language in ("diff", "patch", "console", "text"):
        return
    known = {squeezed(line) for line in text.splitlines()}
    body = [line for line in said.text.splitlines() if len(squeezed(line)) > 6]
    if cited and body and squeezed(body[0]) in known:
        near = text.splitlines()[max(0, cited[0].first - 1 - SLACK) : cited[0].last + SLACK]
        if squeezed(body[0]) not in {squeezed(line) for line in near}:
            yield issue("major", said.lead, f"the block is not at {cited[0].path}:{cited[0].first}", "name the lines it is from")
    wrong = [
        line
        for line in said.text.splitlines()
        if len(squeezed(line)) > 6 and squeezed(_comment(line)) not in known and not _LEFT_OUT.match(line) and squeezed(line) not in known
    ]
    if wrong:
        yield issue(
            "critical", wrong[0].strip(), f"the line is quoted from {files[0]} and is not in it", "read the file and quote it word by word"
        )


def _comment(line: str) -> str:
    return re.sub(r"^\s*\d+[:|]\s?", "", re.sub(r"\s+#.*$", "", line))
