"""How long a run took, and how much of that it worked: from its records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kestrel_lab.core.events import ApprovalAsked, ApprovalGiven, ModelAnswered, Record, RunForked, RunResumed, StepRetried


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
