"""The claims of an answer with their evidence, as HTML that unfolds and as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from kestrel_lab.core.citations import Span, Standing, citations, resolve, spans_of, standing
from kestrel_lab.core.events.union import ModelAnswered, ToolAnswered, ToolCalled
from kestrel_lab.core.sanitize import head_tail, one_line, plain
from kestrel_lab.verification.evidence import STATES, Backed
from kestrel_lab.views.html.elements import macros

SHOWN: Final = 3_000
"""Characters of one span that are shown."""
STATE_MARKS: Final = {"cited": "✓", "uncited": "○", "unknown": "?", "changed": "↻", "wrong": "✗"}
"""Of the states of claims."""
STANDING: Final[dict[Standing, str]] = {"current": "", "moved": "moved since", "stale": "changed since", "gone": "gone since"}


def cited_of(answer: str, seen: Sequence[ModelAnswered | ToolCalled | ToolAnswered]) -> list[Span]:
    """Return the spans of what the run saw that an answer cites, each once."""
    cited = citations(answer)
    if not cited:
        return []
    spans = spans_of(seen)
    found = [span for one in cited if (span := resolve(one, spans, lambda _: None)) is not None]
    return list({span.id: span for span in found}.values())


def cites_of(cited: Sequence[Span], read: Callable[[str], str | None] | None = None) -> list[list[str]]:
    """Return name, text and standing of each span; `read` gives files as they are now, and the standing is empty where nothing changed or nobody knows."""
    stand: Iterator[Standing] = ("current" if read is None else standing(span, read) for span in cited)
    return [[plain(span.id), plain(head_tail(span.text, SHOWN)[0]), STANDING[how]] for span, how in zip(cited, stand, strict=True)]


def evidence_html(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return a `<section>` with a `<details>` per claim, its spans inside."""
    return str(_parts().evidence(headline, _claims(rows)))


def claims_html(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the claims folded into one `<details>`, for the page of a run."""
    return str(_parts().folded(headline, _claims(rows)))


def _parts() -> Any:
    return macros(
        "evidence.html", worst=worst, marks=STATE_MARKS, state=_state, one_line=one_line, shortened=lambda text: head_tail(text, SHOWN)[0]
    )


def evidence_text(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return a line per claim and, below it, one per span."""
    lines = [headline]
    for claim in _claims(rows):
        state = worst(claim)
        lines.append(f"{STATE_MARKS[state]} {state}  {one_line(plain(claim[0]['text']), 100)}")
        cites = (row for row in claim if row["cites"])
        lines += [f"    {row['cites']}{_state(row)}: {one_line(plain(row['why'] or row['evidence']), 90)}" for row in cites]
    return "\n".join(lines)


def _claims(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for _, group in groupby(rows, key=itemgetter("claim")):
        yield list(group)


def evidence_rows(backed: Sequence[Backed]) -> list[dict[str, Any]]:
    """Return a row per claim and citation; a claim without any has one."""
    rows: list[dict[str, Any]] = []
    for number, claim in enumerate(backed, 1):
        for one in claim.cited or (None,):
            span = None if one is None else one.span
            rows.append(
                {
                    "claim": number,
                    "text": claim.text,
                    "state": "uncited" if one is None else one.state,
                    "why": "" if one is None else one.why,
                    "cites": "" if one is None else plain(re.sub(r"\s+", " ", one.citation.text)),
                    "quote": "" if one is None else one.quote,
                    "found": "" if span is None else span.found,
                    "trust": "" if span is None else span.trust,
                    "standing": "" if one is None else one.standing,
                    "evidence": "" if span is None else span.text,
                }
            )
    return rows


def worst(rows: Sequence[dict[str, Any]]) -> str:
    """Return the state of a claim: that of its worst citation."""
    order: list[str] = ["uncited", *STATES]
    return max((str(row["state"]) for row in rows), key=order.index)


def _state(row: dict[str, Any]) -> str:
    words = [word for word in (STANDING[row["standing"] or "current"], "untrusted" if row["trust"] == "untrusted" else "") if word]
    return f" ({', '.join(words)})" if words else ""
