"""How much work one look at an answer may take; what reads, searches or parses pays for it before it does.

Clocks alone bound nothing: between two glances at the clock a check can meet a text that takes it minutes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MOST: Final = 200_000_000
"""What a look may cost. A unit is about the time a regular expression takes for a character: all of it is a few seconds."""
CLAIM: Final = 1_500
"""One claim for one check."""
PARSED: Final = 20
"""A character of code that is parsed and gone through."""
TOKEN: Final = 4
"""A character that is cut into words or tokens."""
ALIKE: Final = 200
"""A word that another is compared with for likeness."""
SEARCHED: Final = 16
"""Characters that a plain search goes through at the cost of one."""


class WorkSpent(Exception):
    """A look has used up the work or the time that it may take."""


class Work:
    """An allowance that is spent only while something is `allowed`; outside of that nothing is counted."""

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds` from now on everything that is allowed stops."""
        self._until = math.inf if seconds is None else time.monotonic() + seconds
        self._left = math.inf
        self.spent = False
        """Whether something stopped for want of work or time."""

    @contextmanager
    def allowed(self, most: int = MOST) -> Iterator[None]:
        """Until the end of the block `spend` raises `WorkSpent` once `most` is spent or the time is over."""
        before, self._left = self._left, most
        try:
            yield
        finally:
            self._left = before

    def spend(self, cost: float) -> None:
        """Pay for what is about to be done."""
        if self._left == math.inf:
            return
        self._left -= cost
        if self._left < 0 or time.monotonic() > self._until:
            self.spent = True
            raise WorkSpent

    @property
    def seconds(self) -> float:
        """The time that is left."""
        return max(0.0, self._until - time.monotonic())
