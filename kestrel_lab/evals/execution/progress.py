"""Progress of an eval run in one line: outcomes, speed, time left, cost, trials at once, endpoints that slow
it down.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.protocols import Reporter
from kestrel_lab.evals.gate_bounds import format_lower_bound
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import CountErrors
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.views.formatting import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORDS: Final = {"pass": "passed", "fail": "failed", "error": "broke"}
_SETTLED_S: Final = 1.0
"""Seconds before which no speed is shown."""
_TICK_S: Final = 1.0
_LATELY: Final = 50
"""The number of last trials that the speed is measured over."""


class EvalProgress:
    """Counts trials and reports the progress."""

    def __init__(
        self,
        reporter: Reporter | None,
        total: int,
        stored: Sequence[EvalRow],
        *,
        notice: str = "",
        count_errors: CountErrors = "fail",
        supervisor: RuntimeSupervisor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the trials that are `stored` already; `notice` is shown until the first trial has
        ended.
        """
        self.running = 0
        """Trials under way."""
        self.stored = stored
        """Trials that were there before."""
        self.remark = ""
        """What is known so far, where something decides while trials are made."""
        self._reporter, self._supervisor, self._clock = reporter, supervisor, clock
        self.total = total
        """Trials there will be; may change where a budget decides."""
        self._counts = Counter(row.outcome for row in stored)
        self._made, self._cost, self._began = 0, 0.0, clock()
        self._unpriced = False
        self._lately: deque[float] = deque([self._began], maxlen=_LATELY)
        self._notice = notice or (f"{len(stored)} taken from earlier runs" if stored else "")
        self._trial: Callable[[EvalRow, CountErrors], None] | None = getattr(reporter, "trial", None)
        """Takes each trial, and whether one that broke counts, where the reporter shows them."""
        self._count_errors = count_errors
        self._look: Callable[[Callable[[], Figure]], None] | None = getattr(reporter, "look", None)
        """Takes what draws the looks so far, where the reporter shows plots."""
        if self._trial is not None:
            for row in stored:
                self._trial(row, count_errors)
        if reporter is not None:
            reporter(len(stored), total, self._notice)

    def count(self, row: EvalRow) -> None:
        """Count a trial that ended."""
        self._counts[row.outcome] += 1
        self._made += 1
        self._lately.append(self._clock())
        self._unpriced = self._unpriced or row.metrics.get("unpriced_calls", 0.0) > 0
        self._cost += row.metrics.get("cost_estimate", 0.0)
        if self._trial is not None:
            self._trial(row, self._count_errors)
        self.tell()

    def look(self, remark: str, plot: Callable[[], Figure]) -> None:
        """Tell of a look at trials that are made in turns: the remark in the line, and the plot of all looks
        where the reporter shows plots.
        """
        self.remark = remark
        if self._look is not None:
            self._look(plot)
        self.tell()

    def tell(self) -> None:
        """Call the reporter with the progress."""
        if self._reporter is not None:
            self._reporter(self._counts.total(), self.total, self.note)

    @property
    def note(self) -> str:
        """The text beside the numbers of trials."""
        outcomes = ", ".join(
            f"{self._counts[outcome]} {word}" for outcome, word in _WORDS.items() if self._counts[outcome]
        )
        passed = self._clock() - self._began
        # A rate of the first moments would promise an end that nobody can keep.
        if passed < _SETTLED_S:
            return " · ".join(filter(None, (outcomes, self.remark)))
        parts = [outcomes if self._made else self._notice or outcomes]
        if self._made:
            # Of the last trials only: the first ones started together, and endpoints slow down.
            rate = (len(self._lately) - 1) / max(self._clock() - self._lately[0], 1e-6)
            left = self.total - self._counts.total()
            parts += [
                f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min",
                f"{format_duration(left / rate)} left" if left else "",
            ]
        cost = f"${self._cost:.2f}" if self._cost else ""
        parts.append(f"cost {format_lower_bound(cost)}" if self._unpriced else cost)
        parts.append(f"{format_count(self.running, 'trial')} at once" if self.running > 1 else "")
        parts += [] if self._supervisor is None else slowed_endpoints(self._supervisor)
        parts.append(self.remark)
        return " · ".join(part for part in parts if part)

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Report once a second while the block runs: a suite that waits should say for what."""

        async def tick() -> None:
            while True:
                await asyncio.sleep(_TICK_S)
                self.tell()

        task = (
            asyncio.create_task(tick(), name="kestrel eval progress") if self._reporter is not None else None
        )
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                # Waited for, so that no report comes after the block.
                await asyncio.gather(task, return_exceptions=True)


def slowed_endpoints(supervisor: RuntimeSupervisor) -> list[str]:
    """Return a clause for each endpoint that is slowed down."""
    return [f"{endpoint.name}: {endpoint.slowed}" for endpoint in supervisor.watched if endpoint.slowed]


def rate_limit_counts(supervisor: RuntimeSupervisor) -> dict[str, tuple[int, int]]:
    """Return, by endpoint, how often it was slowed down and how many calls it refused."""
    return {e.name: (e.turns.throttle.episodes, e.turns.throttle.refusals) for e in supervisor.watched}


def slowdowns_since(supervisor: RuntimeSupervisor, before: dict[str, tuple[int, int]]) -> list[str]:
    """Return a sentence for each endpoint that asked to slow down since `rate_limit_counts` returned
    `before`.
    """
    lines = []
    for endpoint in supervisor.watched:
        was = before.get(endpoint.name, (0, 0))
        throttle = endpoint.turns.throttle
        cuts, refused = throttle.episodes - was[0], throttle.refusals - was[1]
        if cuts:
            times, calls = (
                "once" if cuts == 1 else f"{cuts} times",
                "1 call" if refused == 1 else f"{format_count(refused, 'call')}",
            )
            lines.append(
                f"{endpoint.name} asked to slow down {times} and refused {calls}; at the end "
                f"{throttle.width} at once"
            )
    return lines
