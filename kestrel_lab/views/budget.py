"""The budget of a run: what it has used of its limits, counted as the engine counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import TERMINAL, RunStatus
from kestrel_lab.core.usage import UsageMeter

_TELLING = (e.RunStarted, e.RunForked, e.RunResumed, e.StateTransition, e.ModelCalled, e.ModelAnswered, e.RunFinished)


@dataclass(slots=True)
class Budget:
    """The limits that the events of a run name, beside what it has used."""

    limits: dict[str, Json] = field(default_factory=dict)

    def take(self, event: e.Event) -> bool:
        """Take up an event; returns whether it makes a difference to the fields of `shown`."""
        if isinstance(event, e.RunStarted):
            self.limits = event.limits
        elif isinstance(event, e.RunResumed | e.RunForked):
            self.limits = event.limits or self.limits
        return isinstance(event, _TELLING)

    def shown(self, meter: UsageMeter) -> dict[str, Json]:
        """Return fields of a `Head`: what is counted, with the fraction used, and the time worked."""
        limits = {name: limit for name, limit in self.limits.items() if isinstance(limit, int | float) and limit > 0}
        counted: list[Json] = []
        if turns := limits.get("cycles"):
            counted.append([f"{meter.turns:,} of {turns:,} turns", meter.turns / turns])
        if (usd := limits.get("cost_usd")) and (meter.cost_usd or not meter.unpriced):  # a price that nobody knows is no news
            unknown = " + unknown cost" if meter.unpriced else ""
            counted.append([f"${meter.cost_usd:.4f}{unknown} of ${usd:g}", meter.cost_usd / usd])
        if tokens := limits.get("tokens"):
            used = meter.tokens_in + meter.tokens_out
            counted.append([f"{used:,} of {tokens:,} tokens", used / tokens])
        rests = meter.status == RunStatus.WAITING_APPROVAL or meter.status in TERMINAL
        since = 0.0 if rests else meter.last_at or 0.0
        return {"budget": counted, "worked": meter.working_s, "working": since, "seconds": limits.get("seconds")}
