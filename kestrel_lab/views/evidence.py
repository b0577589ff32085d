"""Claims and what holds them up, as a table that is unfolded and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from kestrel_lab.core.citations import Span, Standing, citations, resolve, spans_of, standing
from kestrel_lab.core.events.union import ModelAnswered, ToolAnswered, ToolCalled
from kestrel_lab.core.sanitize import AS_TEXT, head_tail, one_line, plain

SHOWN: Final = 3_000
"""Characters of one span that are shown."""
_LINE = "rgba(127,127,127,.35)"
_PRE = (
    f"white-space:pre-wrap;overflow-wrap:anywhere;max-height:16em;overflow:auto;margin:2px 0;padding:2px 8px;border-left:2px solid {_LINE}"
)
_MARKS: Final = {"supported": "✓", "not contradicted": "·", "weak": "?", "contradicted": "✗"}
STANDING: Final[dict[Standing, str]] = {"current": "", "moved": "moved since", "stale": "changed since", "gone": "gone since"}


def cited_of(answer: str, seen: Sequence[ModelAnswered | ToolCalled | ToolAnswered]) -> list[Span]:
    """What an answer cites of what the run saw, each once."""
    cited = citations(answer)
    if not cited:
        return []
    spans = spans_of(seen)
    found = [span for one in cited if (span := resolve(one, spans, lambda _: None)) is not None]
    return list({span.id: span for span in found}.values())


def cites_of(cited: Sequence[Span], read: Callable[[str], str | None] | None = None) -> list[list[str]]:
    """Name and text of each, and whether it still stands where it stood, by `read`: empty where it does, or nobody can tell."""
    stand: Iterator[Standing] = ("current" if read is None else standing(span, read) for span in cited)
    return [[plain(span.id), plain(head_tail(span.text, SHOWN)[0]), STANDING[how]] for span, how in zip(cited, stand, strict=True)]


def evidence_html(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """A `<section>` with a `<details>` per claim, its spans inside."""
    return f"<section {AS_TEXT}><p><b>{_safe(headline)}</b></p>{''.join(map(_claim, _claims(rows)))}</section>"


def claims_html(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """The same, folded, for the page of a run."""
    return f'<details {AS_TEXT} style="margin:6px 0"><summary style="cursor:pointer">Evidence: {_safe(headline)}</summary>{"".join(map(_claim, _claims(rows)))}</details>'


def evidence_text(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """A line per claim and, below it, one per span."""
    lines = [headline]
    for claim in _claims(rows):
        first = claim[0]
        absent = f" (absent: {first['absent numbers']})" if first["absent numbers"] else ""
        lines.append(f"{_MARKS[first['support']]} {first['support']} {first['score']:.2f}  {one_line(plain(first['text']), 100)}{absent}")
        lines += [f"    {row['span']}{_state(row)}: {one_line(plain(row['evidence']), 90)}" for row in claim if row["span"]]
    return "\n".join(lines)


def _claims(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for _, group in groupby(rows, key=itemgetter("claim")):
        yield list(group)


def _claim(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    absent = f" <small>absent: {_safe(first['absent numbers'])}</small>" if first["absent numbers"] else ""
    title = f"{_MARKS[first['support']]} <b>{_safe(first['support'])}</b> <small>{first['score']:.2f}</small> {_safe(one_line(first['text'], 300))}{absent}"
    spans = "".join(
        f"<div><code>{_safe(row['span'])}</code> <small>{_safe(row['found'])}{_safe(_state(row))}</small></div>"
        f'<pre style="{_PRE}">{_safe(head_tail(row["evidence"], SHOWN)[0])}</pre>'
        for row in rows
        if row["span"]
    )
    return f'<details style="margin:3px 0"><summary style="cursor:pointer">{title}</summary>{spans or "<p>nothing in the run speaks of it</p>"}</details>'


def _state(row: dict[str, Any]) -> str:
    words = [word for word in (STANDING[row["standing"] or "current"], "untrusted" if row["trust"] == "untrusted" else "") if word]
    return f" ({', '.join(words)})" if words else ""


def _safe(text: object) -> str:
    return escape(plain(str(text)))
