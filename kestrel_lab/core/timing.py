"""How long a run took, and how much of that it worked: from its records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, ModelAnswered, Record, RunForked, RunResumed, StepRetried


def wall_time(records: Sequence[Record]) -> float:
    """Seconds from the first to the last event."""
    return records[-1].at - records[0].at if records else 0.0


def waiting_time(records: Sequence[Record]) -> float:
    """Seconds in which at least one call waited for a person, or nobody had the run open.

    Time between the end of one session and `run_resumed` is nobody's working time either, nor is that
    between an event and a fork behind it.
    """
    total = 0.0
    asked: set[str] = set()
    for before, record in pairwise(records):
        match before.event:
            case ApprovalAsked(question=question, call=call):
                asked.add(question or call)
            case ApprovalGiven(question=question, call=call):
                asked.discard(question or call)
        if asked or isinstance(record.event, RunResumed | RunForked):
            total += record.at - before.at
        if isinstance(record.event, RunForked):
            asked.clear()
    return total


def idle_time(records: Sequence[Record]) -> float:
    """Seconds in which calls waited for their turn at an endpoint, or calls or steps between attempts; those together count once."""
    total, until = 0.0, 0.0
    for before, record in pairwise(records):
        event, at = record.event, record.at
        if isinstance(event, RunResumed | RunForked):
            until = at
            continue
        total += max(0.0, min(at, until) - before.at)
        if isinstance(event, ModelAnswered) and (idle := idle_before(event, at, until)):
            total, until = total + idle, max(until, at)
        elif isinstance(event, StepRetried):
            until = max(until, at + event.wait_s)
    return total


def idle_before(event: ModelAnswered, at: float, until: float) -> float:
    """Of the seconds that a call waited, which was answered at `at`, those not counted yet where time is counted up to `until`."""
    return max(0.0, min(event.queued + event.backoff, at - max(at - event.seconds, until)))


def working_time(records: Sequence[Record]) -> float:
    """Wall time without the time of waiting: for a person, for a turn at an endpoint, between attempts."""
    return max(0.0, wall_time(records) - waiting_time(records) - idle_time(records))


# Seconds in which a model call did nothing but wait: for its turn at the endpoint, and between its attempts.


def _nothing() -> None:
    """Nobody has a clock that should stand still."""


@dataclass(kw_only=True, slots=True)
class Idle:
    """What one call waited so far."""

    queued: float = 0.0
    """Before it was made at all, because others were under way."""
    backoff: float = 0.0
    """Between its attempts, because the one before had failed or was refused."""
    hold: Callable[[], None] = _nothing
    """Told when it begins to wait."""
    release: Callable[[], None] = _nothing
    """Told when it goes on."""

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """Count the block as waiting for a turn."""
        began = time.monotonic()
        self.hold()
        try:
            yield
        finally:
            self.release()
            self.queued += time.monotonic() - began

    @contextmanager
    def backing_off(self) -> Iterator[None]:
        """Count the block as waiting between attempts."""
        began = time.monotonic()
        self.hold()
        try:
            yield
        finally:
            self.release()
            self.backoff += time.monotonic() - began
