"""The claims of an answer with their evidence, as HTML that unfolds and as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from kestrel_lab.core.citations import CitedStatus
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import head_tail, one_line, sanitize_text
from kestrel_lab.verification.evidence import STATES, CheckedCitation, CitedClaim
from kestrel_lab.views.html.elements import template_macros

SHOWN: Final = 3_000
"""Characters of one span that are shown."""
STATE_MARKS: Final = {"cited": "✓", "uncited": "○", "unknown": "?", "changed": "↻", "wrong": "✗"}
"""Of the states of claims."""
STATUS_WORDS: Final[dict[CitedStatus, str]] = {
    "current": "",
    "moved": "moved since",
    "stale": "changed since",
    "gone": "gone since",
}


def claim_ranges(answer: str, backed: Sequence[CitedClaim]) -> list[Json]:
    """Return start, end, state and evidence of each claim of an answer; empty if no claim cites anything."""
    found: list[Json] = []
    at = 0
    for claim in backed if any(one.cited for one in backed) else ():
        text = sanitize_text(claim.text)
        if not text or (start := answer.find(text, at)) < 0:
            continue
        at = start + len(text)
        stale = claim.state == "cited" and any(one.status in ("stale", "gone") for one in claim.cited)
        found.append(
            [
                start,
                at,
                "changed" if stale else claim.state,
                "\n\n".join(map(_citation_text, claim.cited))[:2_000],
            ]
        )
    return found


def _citation_text(one: CheckedCitation) -> str:
    """What a claim cites in words: its place, what is wrong or has changed, and the beginning of its text."""
    state = one.state if one.state != "cited" else STATUS_WORDS[one.status] or "cited"
    head = (
        f"{STATE_MARKS['changed' if state == 'changed since' else one.state]} {_name(one)}: "
        f"{state}{f', {sanitize_text(one.why)}' if one.why else ''}"
    )
    text = "" if one.span is None else head_tail(sanitize_text(one.span.text), 600)[0]
    return f"{head}\n{text}".rstrip()


def cited_places(backed: Sequence[CitedClaim]) -> list[list[str]]:
    """Return name, text and status of each cited place, once; for a missing one, why it is missing."""
    found: dict[str, list[str]] = {}
    for one in (one for claim in backed for one in claim.cited):
        if one.span is None and one.state == "unknown" and not one.citation.call:
            # The answer mentions this address and cites nothing there.
            continue
        if one.span is None:
            found.setdefault(_name(one), [_name(one), sanitize_text(one.why), one.state])
        else:
            found.setdefault(
                _name(one),
                [_name(one), sanitize_text(head_tail(one.span.text, SHOWN)[0]), STATUS_WORDS[one.status]],
            )
    return [*found.values()]


def _name(one: CheckedCitation) -> str:
    return sanitize_text(one_line(one.citation.text, 120) if one.span is None else one.span.id)


def evidence_html(headline: str, rows: Sequence[dict[str, Any]], *, folded: bool = False) -> str:
    """Return a `<section>` with a `<details>` per claim, its spans inside; `folded` puts all into one."""
    given: dict[str, Any] = {
        "worst": worst_state,
        "marks": STATE_MARKS,
        "state": _state,
        "one_line": one_line,
    }
    parts = template_macros("evidence.html", **given, shortened=lambda text: head_tail(text, SHOWN)[0])
    return str((parts.folded if folded else parts.evidence)(headline, _claims(rows)))


def evidence_text(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return a line per claim and, below it, one per span."""
    lines = [headline]
    for claim in _claims(rows):
        state = worst_state(claim)
        lines.append(f"{STATE_MARKS[state]} {state}  {one_line(sanitize_text(claim[0]['text']), 100)}")
        cites = (row for row in claim if row["cites"])
        lines += [
            f"    {row['cites']}{_state(row)}: {one_line(sanitize_text(row['why'] or row['evidence']), 90)}"
            for row in cites
        ]
    return "\n".join(lines)


def _claims(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for _, group in groupby(rows, key=itemgetter("claim")):
        yield list(group)


def evidence_rows(backed: Sequence[CitedClaim]) -> list[dict[str, Any]]:
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
                    "cites": "" if one is None else sanitize_text(re.sub(r"\s+", " ", one.citation.text)),
                    "quote": "" if one is None else one.quote,
                    "found": "" if span is None else span.found,
                    "trust": "" if span is None else span.trust,
                    "status": "" if one is None else one.status,
                    "evidence": "" if span is None else span.text,
                }
            )
    return rows


def worst_state(rows: Sequence[dict[str, Any]]) -> str:
    """Return the state of a claim: that of its worst citation."""
    order: list[str] = ["uncited", *STATES]
    return max((str(row["state"]) for row in rows), key=order.index)


def _state(row: dict[str, Any]) -> str:
    words = [
        word
        for word in (
            STATUS_WORDS[row["status"] or "current"],
            "untrusted" if row["trust"] == "untrusted" else "",
        )
        if word
    ]
    return f" ({', '.join(words)})" if words else ""
