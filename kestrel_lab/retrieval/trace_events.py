"""The steps of a retrieval as events of a run, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kestrel_lab.core.events.union import RetrievalStep
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.retrieval.hits import Hit, Retrieval, Step

_QUESTION_CHARS = 2_000
_WITHOUT: dict[str, Any] = {"path": "", "first": 1, "last": 1, "hash": "", "how": "", "why": "", "score": 0.0, "trust": ""}
"""The fields of a hit that an event has, each with its value where another version has written none."""


def events_of(found: Retrieval) -> tuple[RetrievalStep, ...]:
    """Return one event per step; the last one has the hits, without their text, which the files have."""
    events = [
        RetrievalStep(
            step="",
            question=found.query[:_QUESTION_CHARS],
            retriever=step.retriever,
            query=step.query[:_QUESTION_CHARS],
            arguments=dict(step.arguments),
            found=step.found,
            chosen=list(step.chosen),
            dropped=dict(step.dropped),
            seconds=step.seconds,
            note=step.note if number < len(found.steps) else one_line(step.note),
            hits=[{name: getattr(hit, name) for name in _WITHOUT} | {"score": round(hit.score, 4)} for hit in found.hits]
            if number == len(found.steps)
            else [],
            coverage=found.coverage if number == len(found.steps) else None,
            gaps=list(found.gaps) if number == len(found.steps) else [],
            stopped=found.stopped if number == len(found.steps) else "",
        )
        for number, step in enumerate(found.steps, 1)
    ]
    return tuple(events)


def _hit(written: Mapping[str, Any]) -> Hit:
    """Return a hit from what the event has of it."""
    return Hit(text="", **{name: written.get(name, default) for name, default in _WITHOUT.items()})


def retrievals(events: Iterable[RetrievalStep]) -> list[Retrieval]:
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
    steps = tuple(
        Step(
            retriever=event.retriever,
            query=event.query,
            arguments=event.arguments,
            found=event.found,
            chosen=tuple(event.chosen),
            dropped={path: str(why) for path, why in event.dropped.items()},
            seconds=event.seconds,
            note=event.note,
        )
        for event in events
    )
    hits = tuple(map(_hit, last.hits))
    return Retrieval(
        query=last.question, hits=hits, steps=steps, coverage=last.coverage or 0.0, gaps=tuple(last.gaps), stopped=last.stopped
    )
