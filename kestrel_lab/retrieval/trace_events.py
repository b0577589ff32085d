"""The steps of a retrieval as events of a run, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kestrel_lab.core.events.union import RetrievalStep
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.retrieval.hits import Hit, Retrieval

_QUESTION_CHARS = 2_000
_WITHOUT: dict[str, Any] = {
    "path": "",
    "first": 1,
    "last": 1,
    "hash": "",
    "how": "",
    "why": "",
    "score": 0.0,
    "trust": "",
}
"""Fields of a hit in an event, with defaults for logs of other versions."""


def events_of(found: Retrieval) -> tuple[RetrievalStep, ...]:
    """Return one event per step; the last one has the hits, without their text, which the files have."""
    question = found.query[:_QUESTION_CHARS]
    events = [replace(step, question=question, query=step.query[:_QUESTION_CHARS]) for step in found.steps]
    hits = [
        {name: getattr(hit, name) for name in _WITHOUT} | {"score": round(hit.score, 4)} for hit in found.hits
    ]
    # A slice, because a retrieval may have no step.
    events[-1:] = [
        replace(
            last,
            note=one_line(last.note),
            hits=hits,
            coverage=found.coverage,
            gaps=list(found.gaps),
            stopped=found.stopped,
        )
        for last in events[-1:]
    ]
    return tuple(events)


def retrievals_in(events: Iterable[RetrievalStep]) -> list[Retrieval]:
    """Return the retrievals in the events of a run, question by question; hits have no text."""
    found: list[Retrieval] = []
    open_steps: dict[tuple[str, str, str], list[RetrievalStep]] = {}
    for event in events:
        key = (event.step, event.call, event.question)
        open_steps.setdefault(key, []).append(event)
        if event.stopped:
            found.append(_retrieval(open_steps.pop(key)))
    return found + [_retrieval(rest) for rest in open_steps.values()]


def _retrieval(events: Sequence[RetrievalStep]) -> Retrieval:
    last = events[-1]
    hits = tuple(
        Hit(text="", **{name: written.get(name, default) for name, default in _WITHOUT.items()})
        for written in last.hits
    )
    gaps, coverage = tuple(last.gaps), last.coverage or 0.0
    return Retrieval(
        query=last.question,
        hits=hits,
        steps=tuple(events),
        coverage=coverage,
        gaps=gaps,
        stopped=last.stopped,
    )
