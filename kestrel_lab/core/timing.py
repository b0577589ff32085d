"""Times of a run from its records: wall, working, waiting and idle time; and the clock of one call's idle time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kestrel_lab.core.events.union import Record
from kestrel_lab.core.usage import metered


def wall_time(records: Sequence[Record]) -> float:
    """Return the seconds from the first to the last event."""
    return records[-1].at - records[0].at if records else 0.0


def waiting_time(records: Sequence[Record]) -> float:
    """Return the seconds in which at least one call waited for a person, or nobody had the run open."""
    meter = metered(records)
    return meter.waiting_s + meter.away_s


def working_time(records: Sequence[Record]) -> float:
    """Return wall time without the time of waiting: for a person, for a turn at an endpoint, between attempts."""
    return metered(records).working_s


# Seconds in which a model call did nothing but wait: for its turn at the endpoint, and between its attempts.


def _nothing() -> None:
    """Do nothing, where no clock has to be held."""


@dataclass(kw_only=True, slots=True)
class Idle:
    """The idle time of one call so far."""

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
