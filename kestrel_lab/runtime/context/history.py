"""Turns of an agent that a run is given as its own past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kestrel_lab.core.events.union import Event, ModelAnswered, ModelCalled, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class PastCall:
    """A call of a tool with its answer; it is not made again."""

    tool: str
    args: Mapping[str, Json] = field(default_factory=dict)
    result: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastTurn:
    """What a model said in one turn, and the calls that it asked for."""

    text: str = ""
    calls: tuple[PastCall, ...] = ()

    def events(self, step: str, number: int, model: str) -> list[Event]:
        """Return the events of this turn as number `number` of a step, marked as given."""
        asked = f"{step}.m{number}"
        names = [f"{step}.{number}.{place}" for place, _ in enumerate(self.calls, start=1)]
        requests: list[dict[str, Json]] = [
            {"id": name, "name": call.tool, "args": dict(call.args), "problem": None}
            for name, call in zip(names, self.calls, strict=True)
        ]
        found: list[Event] = [
            ModelCalled(call=asked, step=step, model=model, cycle=number, messages=2 * number),
            ModelAnswered(
                call=asked,
                step=step,
                model=model,
                text=self.text,
                calls=requests,
                cost_usd=0.0,
                finish="tool_calls" if requests else "stop",
                given=True,
            ),
        ]
        for name, call in zip(names, self.calls, strict=True):
            found.append(ToolCalled(call=name, step=step, tool=call.tool, args=dict(call.args)))
            found.append(ToolAnswered(call=name, step=step, tool=call.tool, text=call.result, given=True))
        return found
