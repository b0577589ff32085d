"""Seconds in which a model call did nothing but wait: for its turn at the endpoint, and between its attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
