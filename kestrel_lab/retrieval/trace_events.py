"""The steps of a retrieval as events of a run, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kestrel_lab.core.events.union import RetrievalStep
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.retrieval.hits import Hit, Retrieval, Step

_QUESTION_CHARS = 2_000
_STEP = ("retriever", "found", "seconds", "note")
"""Fields shared by a step and its event, besides texts and lists."""
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
    events: list[RetrievalStep] = []
    for number, step in enumerate(found.steps, 1):
        said: dict[str, Any] = {name: getattr(step, name) for name in _STEP}
        said |= {
            "arguments": dict(step.arguments),
            "chosen": list(step.chosen),
            "dropped": dict(step.dropped),
        }
        if number == len(found.steps):
            hits = [
                {name: getattr(hit, name) for name in _WITHOUT} | {"score": round(hit.score, 4)}
                for hit in found.hits
            ]
            said |= {
                "note": one_line(step.note),
                "hits": hits,
                "coverage": found.coverage,
                "gaps": list(found.gaps),
                "stopped": found.stopped,
            }
        events.append(
            RetrievalStep(
                step="", question=found.query[:_QUESTION_CHARS], query=step.query[:_QUESTION_CHARS], **said
            )
        )
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
    steps = []
    for event in events:
        said: dict[str, Any] = {name: getattr(event, name) for name in (*_STEP, "query", "arguments")}
        dropped = {path: str(why) for path, why in event.dropped.items()}
        steps.append(Step(**said, chosen=tuple(event.chosen), dropped=dropped))
    hits = tuple(
        Hit(text="", **{name: written.get(name, default) for name, default in _WITHOUT.items()})
        for written in last.hits
    )
    gaps, coverage = tuple(last.gaps), last.coverage or 0.0
    return Retrieval(
        query=last.question, hits=hits, steps=tuple(steps), coverage=coverage, gaps=gaps, stopped=last.stopped
    )
