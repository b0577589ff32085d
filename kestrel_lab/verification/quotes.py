"""Check that quotes are exact: text in quotation marks, in a block quote or in a block of code that comes from a file or a tool.

Words that are nowhere prove nothing, since quotation marks have other uses. A quote is wrong where it is nearly, but not quite,
what a named file or a tool's answer says; and where it is given as the words of a cited place and that place does not have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kestrel_lab.core.citations import citations
from kestrel_lab.verification.claims import MOST_CHARS, Said
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.mentions import code_in, files_in
from kestrel_lab.verification.places import around
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.text_match import changed_in, coded_in, nearly_in, quoted_in, quotes_in, spoken, tokens

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][\w.]* = \S")
"""Code in backticks that can only be copied; a call may be an example of use."""
_NO_SOURCE: Final = frozenset({"diff", "patch", "mermaid"})
"""Blocks that are not excerpts."""
_LITERAL: Final = re.compile(r"(?<!\w)[\"']{1,3}([^\"'\n]{12,400})[\"']")
"""A text in code."""
_FIX: Final = "quote it word by word, or say it without quotation marks"


def quotes_are_exact(subject: Subject) -> Iterator[Issue]:
    """What is quoted from a file or a tool's answer stands there word by word."""
    for said in subject.paid():
        if said.kind == "code":
            yield from _block(subject, said)
            continue
        yield from inexact_quotes(subject, said)
        for code, _ in code_in(said):
            yield from _code(subject, said, code)


def inexact_quotes(subject: Subject, said: Said) -> Iterator[Issue]:
    """Yield an issue for each quotation in a claim that is a changed form of what a file or a tool's answer has."""
    for quote in quotes_in(said):
        yield from _quote(subject, said, quote)


def _named_texts(subject: Subject, said: Said) -> list[str]:
    """The texts of the files that a claim or its introduction names, then those that the rest of the answer names."""
    near = [name.text for text in (said.text, said.lead) for name in files_in(Said(text=text, at=0))]
    names = dict.fromkeys((*near, *subject.file_names))
    paths = dict.fromkeys(path for name in names for path in subject.files.named(name))
    return [text for path in paths if (text := subject.files.read(path)) is not None]


def _told(subject: Subject) -> list[str]:
    return [span.text for span in subject.whole_spans]


def _own(subject: Subject) -> list[str]:
    """What a person or the model itself wrote, which may be quoted with changes: the goal, and what calls were made with."""
    return [subject.goal, *(str(value) for made in subject.calls or () for value in made.args.values())]


def _quote(subject: Subject, said: Said, quote: str) -> Iterator[Issue]:
    named = _named_texts(subject, said)
    every = [*named, *_told(subject)]
    known = [*every, *_own(subject)]
    if quoted_in(quote, subject.through(known)) or coded_in(quote, subject.through(known)):
        return
    if nearly_in(quote, subject.through(_own(subject), cost=len(spoken(quote)))):
        return
    if found := nearly_in(quote, subject.through(every, cost=len(spoken(quote)))):
        yield issue("critical", said.text, f"the quote “{quote}” is not exact; the source reads: {found}", _FIX)


def _code(subject: Subject, said: Said, code: str) -> Iterator[Issue]:
    if len(code) > MOST_CHARS or not _ASSIGNMENT.match(code):
        return
    cited = [one for one in citations(said.text) if one.first]
    near = [around(one, text) for one in cited for path in subject.files.named(one.path) if (text := subject.files.read(path)) is not None]
    if near and not coded_in(code, subject.through(near)) and (found := changed_in(code, subject.through(near), _known(code, near))):
        yield issue("critical", said.text, f"`{code}` is not exact; the source reads: {found}", _FIX)


def _known(code: str, texts: list[str]) -> frozenset[str]:
    """The names of a piece of code that the texts have: another of them in a place is not a mistake in copying."""
    return frozenset(token for token in tokens(code) if token.isidentifier() and any(token in text for text in texts))


def _block(subject: Subject, said: Said) -> Iterator[Issue]:
    """Where most lines of a block are in one file or answer, a line that differs from it in one token is misquoted."""
    if said.language in _NO_SOURCE:
        return
    body = [line for line in map(_bare, said.text.splitlines()) if len(line) <= MOST_CHARS and len(tokens(line)) > 1]
    for text in subject.through([*_named_texts(subject, said), *_told(subject)]):
        there = [line for line in body if coded_in(line, [text])]
        for literal in (match[1] for line in body if there and line not in there for match in _LITERAL.finditer(line)):
            if not quoted_in(literal, [text]) and (found := nearly_in(literal, subject.through([text], cost=len(spoken(literal))))):
                yield issue("critical", literal, f"the text “{literal}” is not exact; the source reads: {found}", _FIX)
        if len(there) < 2 or 2 * len(there) < len(body):
            continue
        for line in body:
            if line not in there and (found := changed_in(line, subject.through([text]), _known(line, [text]))):
                yield issue("critical", line, f"the line is not exact; the source reads: {found}", "read the source and copy the line")
        return


def _bare(line: str) -> str:
    """The line without its number and without a remark at its end."""
    return re.sub(r"^\s*\d+[:|]\s?", "", re.sub(r"(?:^|(?<=\s))(?:#|//) .*$", "", line)).strip()
