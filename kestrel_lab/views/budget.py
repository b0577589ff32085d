"""How much of its limits a run has used so far, counted as the engine counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import TERMINAL, RunStatus

_TELLING = (e.RunStarted, e.RunForked, e.RunResumed, e.StateTransition, e.ModelCalled, e.ModelAnswered, e.RunFinished)


@dataclass(slots=True)
class Budget:
    """Model turns and working time of a run, beside the limits that its events name."""

    limits: dict[str, Json] = field(default_factory=dict)
    turns: int = 0
    worked: float = 0.0
    status: str = ""
    last: float = 0.0
    asking: set[str] = field(default_factory=set)
    """Steps whose model has not answered yet."""

    def take(self, event: e.Event, at: float) -> bool:
        """Take up an event; returns whether it makes a difference to what is told."""
        since = at if not self.last or isinstance(event, e.RunResumed | e.RunForked) else self.last
        self.last = max(since, at)
        if self.status != RunStatus.WAITING_APPROVAL:
            self.worked += self.last - since
        match event:
            case e.RunStarted(limits=limits):
                self.limits = limits
            case e.RunResumed(limits=limits):
                self.limits = limits or self.limits
            case e.RunForked():
                self.limits = event.limits or self.limits
                self.turns -= len(self.asking)
                self.asking.clear()
            case e.StateTransition(target=target):
                self.status = target
            case e.ModelCalled(step=step):
                self.turns += 1
                self.asking.add(step)
            case e.ModelAnswered(step=step) | e.StepRetried(step=step):
                self.asking.discard(step)
        return isinstance(event, _TELLING)

    def told(self, usage: Usage) -> dict[str, Json]:
        """The fields of a `Head` that say it: what is counted, with the fraction used, and the time worked."""
        limits = {name: limit for name, limit in self.limits.items() if isinstance(limit, int | float) and limit > 0}
        counted: list[Json] = []
        if turns := limits.get("cycles"):
            counted.append([f"{self.turns:,} of {turns:,} turns", self.turns / turns])
        if usd := limits.get("cost_usd"):
            known = f"${usage.cost_usd:.4f}" if usage.cost_usd or not usage.unpriced else ""
            text = " + ".join(part for part in (known, "unknown cost" if usage.unpriced else "") if part)
            counted.append([f"{text} of ${usd:g}", usage.cost_usd / usd])
        if tokens := limits.get("tokens"):
            counted.append([f"{usage.tokens:,} of {tokens:,} tokens", usage.tokens / tokens])
        rests = self.status == RunStatus.WAITING_APPROVAL or self.status in TERMINAL
        return {"budget": counted, "worked": self.worked, "working": 0.0 if rests else self.last, "seconds": limits.get("seconds")}
