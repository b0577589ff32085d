"""The retry budget of the steps of a stage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kestrel_lab.core.errors import DependencyError, ModelError, RunError

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryBudget:
    """How often and how long a step of a stage is retried."""

    attempts: int = 3
    """Most attempts, the first one included."""
    first_wait_s: float = 0.5
    """Before the second attempt; doubled each time, unless a provider asks for longer."""
    longest_wait_s: float = 30.0
    total_wait_s: float = 120.0
    """Most seconds of waiting per step; a wait that would exceed it is not begun."""
    gate_s: float = 10.0
    """Seconds that an attempt waits for the dependencies of the step."""

    def wait(self, error: RunError, attempt: int) -> float:
        """Return the seconds to wait after `attempt` failed."""
        asked = error.retry_after_s if isinstance(error, ModelError) else error.retry_in_s if isinstance(error, DependencyError) else None
        return max(min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(attempt - 1, 60)), asked or 0.0)
