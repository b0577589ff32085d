"""The retry budget of a stage: how often and how long a step is tried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kestrel_lab.core.errors import DependencyError, ModelError, RunError

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryBudget:
    """How long a step of a stage is tried."""

    attempts: int = 3
    """At most, the first one included."""
    first_wait_s: float = 0.5
    """Before the second attempt; doubled each time, unless a provider asks for longer."""
    longest_wait_s: float = 30.0
    total_wait_s: float = 120.0
    """All waits of one step together; a wait that does not fit in is not begun."""
    gate_s: float = 10.0
    """How long an attempt waits for what the step needs to be in order."""

    def wait(self, error: RunError, attempt: int) -> float:
        """Seconds to wait after `attempt` failed."""
        asked = error.retry_after_s if isinstance(error, ModelError) else error.retry_in_s if isinstance(error, DependencyError) else None
        return max(min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(attempt - 1, 60)), asked or 0.0)
