"""Checks that quotes from files and tools are exact: quotation marks, block quotes and code blocks.

A text found nowhere proves nothing, as quotation marks have other uses. A quote is wrong if it nearly, but
not exactly, matches a named file or tool answer, or is given as the words of a cited place that lacks them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from kestrel_lab.core.citations import PATH, Citation, citations_in
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.verification.claims import MOST_CHARS, Statement, code_in, files_in
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.quoted_code import (
    GAP,
    LOOKED_THROUGH,
    changed_code,
    contains_code,
    normalised_code,
)
from kestrel_lab.verification.subject import Subject

_FILLED: Final = "filledin"
"""Placeholder for filled-in text."""
_HOLE: Final = re.compile(r"\{[^{}\n]*\}|%(?:\([\w]+\))?[-+#0 ]?\d*(?:\.\d+)?[srdifgxc](?!\w)")
_QUOTE: Final = re.compile(
    r"\"([^\"\n]{8,400})\"|“([^“”\n]{8,400})”|„([^„“”\n]{8,400})[“”]|«\s?([^«»\n]{8,400}?)\s?»"
)
_FEWEST_WORDS: Final = 4
"""Fewest words of a quote that is compared: shorter ones are names and turns of phrase."""
_NEAR: Final = 0.7
"""Least share of words in the same order that makes one text a changed form of another."""
_RAISED: Final = re.compile(r"^[A-Z][A-Za-z]+(?:Error|Exception|Warning): ")
"""What Python prints before the message of an exception."""
_ROLE: Final = re.compile(r":[a-z][\w:+-]{0,60}:`(?:~[\w.]*\.(?=\w))?")
_ON: Final = re.compile(r"[\"'][ \t\r]*(?:#[^\n]*)?\\?\n[ \t]*(?:\+[ \t]*)?[fbruFBRU]{0,2}[\"']")
"""Continuation of a string on the next line."""
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
"""A character as JSON and strings of code write it."""
_TAG: Final = re.compile(
    r"</?(?:a|b|i|u|em|strong|span|small|code|p|br|div|li|ul|ol|td|th|tr|h[1-6])(?:\s[^<>\n]{0,200})?/?>"
)
"""HTML tags, which are not words."""
_PUT_IN: Final = re.compile(r"[\"'] ?\+ ?[\w.()\[\]]{1,60} ?\+ ?[fbruFBRU]{0,2}[\"']")
"""String concatenation with `+`."""


def quote_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without marks of emphasis and references: a quote must keep
    them.
    """
    return re.findall(r"[^\W_]+(?:_+[^\W_]+)*", _ROLE.sub("`", text).lower())


@lru_cache(maxsize=128)
def words_of_text(text: str) -> str:
    """The words of a file's text, strings and comments that go on over lines put together."""
    text = _TAG.sub(" ", text)
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    text = re.sub(r"\n[ \t]*(?:#+|//+|\*|>|\.\.)[ \t]?", " ", text)
    text = _HOLE.sub(f" {_FILLED} ", re.sub(r"\\[nrt]", " ", _PUT_IN.sub("{}", _ON.sub("", text))))
    return f" {' '.join(quote_words(text))} "


def quotes_in(said: Statement) -> Iterator[str]:
    """Yield what a claim has in quotation marks, or is as a block quote, from four words on; where it cites
    lines, what it has in backticks, too.
    """
    if said.kind == "quote":
        found = [said.text.strip('"“”*_ ')]
    else:
        plain = re.sub(
            r"`[^`\n]*`", lambda match: "`" * len(match[0]) if '"' in match[0] else match[0], said.text
        )
        found = [next(group for group in match.groups() if group).strip() for match in _QUOTE.finditer(plain)]
        if any(citation.first for citation in citations_in(said.text)):
            found += [code for code, _ in code_in(said)]
    yield from (quote for quote in found if len(quote.split()) >= _FEWEST_WORDS <= len(quote_words(quote)))


def contains_quote(quote: str, texts: Iterable[str]) -> bool:
    """Return true if a text contains the quote's words, apart from its gaps and insertions."""
    quote = _RAISED.sub("", quote)
    parts = [
        " ".join(words)
        for part in GAP.split(_HOLE.sub("…", quote))
        if len(words := quote_words(part)) > 1 or (words and len(words[0]) > 3)
    ]
    return any(all(f" {part} " in words_of_text(text) for part in parts) for text in texts)


SLACK: Final = 8
"""Lines that a citation may be off and still be the ones meant."""
_MOST_ALIKE: Final = 200
"""Stretches of a text that are compared with a quote in full."""


def changed_quote(quote: str, texts: Iterable[str]) -> str:
    """Return the text that the quote is a changed form of; empty if there is none.

    Empty too if the text has a placeholder there: its value is unknown.
    """
    words = quote_words(quote)
    if len(words) < 4:
        return ""
    wanted, size = Counter(words), len(words)
    for text in texts:
        known = words_of_text(text[:LOOKED_THROUGH]).split()
        alike_enough, best = 0, (_NEAR, 0.0, "")
        window = Counter(known[:size])
        for place in range(max(1, len(known) - size + 1)):
            # The window moves word by word, so that counting costs the same for quotes of any length.
            if place:
                window[known[place - 1]] -= 1
                window[known[place + size - 1]] += 1
            if sum(min(count, window[word]) for word, count in wanted.items()) >= _NEAR * size:
                alike_enough += 1
                if alike_enough > _MOST_ALIKE:
                    break
                found = known[place : place + size]
                alike = sum(one == other for one, other in zip(words, found, strict=False)) / size
                ratio = max(alike, SequenceMatcher(None, words, found, autojunk=False).ratio())
                # Of two stretches that are equally alike, the one with more words in the same places.
                if ratio >= best[0] and ((ratio, alike) > best[:2] or not best[2]):
                    best = (ratio, alike, " ".join(found))
        if best[2]:
            return "" if _FILLED in best[2] else best[2]
    return ""


def with_context_lines(cited: Citation, text: str) -> str:
    """Return the cited lines with those near them."""
    return "\n".join(split_lines(text)[max(0, cited.first - 1 - SLACK) : cited.last + SLACK])


_ASSIGNMENT: Final = re.compile(r"[\"']?[A-Za-z_][\w.-]*[\"']?(?: ?=|:) ?\S")
"""Code in backticks that can only be copied; a call may be an example of use."""
_NO_SOURCE: Final = frozenset({"diff", "patch", "mermaid"})
"""Blocks that are not excerpts."""
_LITERAL: Final = re.compile(r"(?<!\w)[\"']{1,3}([^\"'\n]{12,400})[\"']")
"""A text in code."""
_FIX: Final = "quote it word by word, or say it without quotation marks"


def quotes_are_exact(subject: Subject) -> Iterator[Issue]:
    """Yield an issue for each quote that is not exact."""
    for said in subject.paid():
        if said.kind == "code":
            yield from _block(subject, said)
            continue
        inexact = [*inexact_quotes(subject, said)]
        for code, _ in code_in(said):
            inexact += _code(subject, said, code)
        yield from inexact or _quotes_nowhere(subject, said)


def _named_texts(subject: Subject, said: Statement) -> list[str]:
    """Return texts of the files that a claim or its introduction names, then of the rest of the answer."""
    near = [name.text for text in (said.text, said.lead) for name in files_in(Statement(text=text, at=0))]
    names = dict.fromkeys((*near, *subject.file_names))
    paths = dict.fromkeys(path for name in names for path in subject.files.named(name))
    return [text for path in paths if (text := subject.files.read(path)) is not None]


def _span_texts(subject: Subject) -> list[str]:
    return [span.text for span in subject.whole_spans]


def _own_texts(subject: Subject) -> list[str]:
    """Return texts by person or model, which may be quoted freely: the goal and arguments of calls."""
    return [subject.goal, *(str(value) for made in subject.calls or () for value in made.args.values())]


def inexact_quotes(subject: Subject, said: Statement) -> Iterator[Issue]:
    """Yield an issue for each quote in a claim that is a changed form of a file's or tool's text."""
    for quote in quotes_in(said):
        every = [*_named_texts(subject, said), *_span_texts(subject)]
        known = [*every, *_own_texts(subject)]
        if contains_quote(quote, subject.through(known)) or contains_code(quote, subject.through(known)):
            subject.checked.add(quote)
            continue
        cost = len(quote_words(quote))
        if not changed_quote(quote, subject.through(_own_texts(subject), cost)) and (
            found := changed_quote(quote, subject.through(every, cost))
        ):
            yield Issue(
                "critical", said.text, f"the quote “{quote}” is not exact; the source reads: {found}", _FIX
            )


def _code(subject: Subject, said: Statement, code: str) -> Iterator[Issue]:
    if len(code) > MOST_CHARS or not _ASSIGNMENT.match(code):
        return
    cited = [one for one in citations_in(said.text) if one.first]
    near = [
        with_context_lines(one, text)
        for one in cited
        for path in subject.files.named(one.path)
        if (text := subject.files.read(path)) is not None
    ]
    if (
        near
        and not contains_code(code, subject.through(near))
        and (found := changed_code(code, subject.through(near), _known_names(code, near)))
    ):
        yield Issue("critical", said.text, f"`{code}` is not exact; the source reads: {found}", _FIX)


_QUOTED_BEFORE: Final = re.compile(
    r"(?P<quoted>`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”)[.,]?\s*(?:[\[(]\s*`?|(?:in|at|on)\s+[\[`]?)$"
)
"""A quoted text directly before a citation."""
_QUOTED_AFTER: Final = re.compile(
    r"^`?[\])]?`?\s*(?::|says?|reads?|contains?|has|is|sets?|defines?)\s*(?P<quoted>`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”)"
)
"""A quoted text that a citation is said to have."""


def _quotes_nowhere(subject: Subject, said: Statement) -> Iterator[Issue]:
    """Yield an issue for each text that stands quoted directly beside a citation and has words that the cited
    file lacks.

    Of a dotted name only the last part counts; a path and a call with arguments are no quotes.
    """
    for cited in citations_in(said.text):
        if not cited.first:
            continue
        before = _QUOTED_BEFORE.search(said.text[: cited.at])
        after = _QUOTED_AFTER.match(said.text[cited.at + len(cited.text) :])
        sources = [subject.files.read(path) for path in subject.files.named(cited.path)]
        texts = [text for text in sources if text is not None]
        for match in filter(None, (before, after)) if texts else ():
            wanted = _words_that_count(match["quoted"][1:-1].strip())
            if any(wanted <= set(words_of_text(text).split()) for text in texts):
                continue
            subject.checked.add(match["quoted"])
            yield Issue("critical", said.text, f"{cited.path} does not have {match['quoted']}", _FIX)


def _words_that_count(quoted: str) -> set[str]:
    """Return the words of a quoted text that its source has to have."""
    if _NO_QUOTE.fullmatch(quoted) is not None:
        return set()
    return set(quote_words(quoted.rpartition(".")[2] if _DOTTED.fullmatch(quoted) else quoted))


_NO_QUOTE: Final = re.compile(rf"{PATH}|.*[(<{{\[…].*|.*\.\.\..*")
_DOTTED: Final = re.compile(r"[\w.]+")


def _known_names(code: str, texts: list[str]) -> frozenset[str]:
    """Return names in the code that the texts contain: swapping them is no copying mistake."""
    return frozenset(
        token
        for token in normalised_code(code)
        if token.isidentifier() and any(token in text for text in texts)
    )


def _block(subject: Subject, said: Statement) -> Iterator[Issue]:
    """Return misquoted lines of a block: if most lines are in one source, those that differ in one token."""
    if said.language in _NO_SOURCE:
        return
    body = [
        line
        for line in map(_bare_line, said.text.splitlines())
        if len(line) <= MOST_CHARS and len(normalised_code(line)) > 1
    ]
    for text in subject.through([*_named_texts(subject, said), *_span_texts(subject)]):
        there = [line for line in body if contains_code(line, [text])]
        for literal in (
            match[1] for line in body if there and line not in there for match in _LITERAL.finditer(line)
        ):
            if not contains_quote(literal, [text]) and (
                found := changed_quote(literal, subject.through([text], cost=len(quote_words(literal))))
            ):
                yield Issue(
                    "critical", literal, f"the text “{literal}” is not exact; the source reads: {found}", _FIX
                )
        if len(there) < 2 or 2 * len(there) < len(body):
            continue
        subject.checked.add(said.text)
        for line in body:
            if line not in there and (
                found := changed_code(line, subject.through([text]), _known_names(line, [text]))
            ):
                yield Issue(
                    "critical",
                    line,
                    f"the line is not exact; the source reads: {found}",
                    "read the source and copy the line",
                )
        return


def _bare_line(line: str) -> str:
    """The line without its number and without a remark at its end."""
    return re.sub(r"^\s*\d+[:|]\s?", "", re.sub(r"(?:^|(?<=\s))(?:#|//) .*$", "", line)).strip()
