"""How long a run took, and how much of that it worked: from its records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kestrel_lab.core.events import ApprovalAsked, ApprovalGiven, Record, RunForked, RunResumed


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


def working_time(records: Sequence[Record]) -> float:
    """Wall time without the time of waiting for a person."""
    return wall_time(records) - waiting_time(records)
