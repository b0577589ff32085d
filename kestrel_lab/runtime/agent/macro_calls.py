"""A macro within a run: how the calls of one become calls of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kestrel_lab.core.calls import Call, Problem, Result
from kestrel_lab.core.events.union import MacroFinished, MacroStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ToolRequest
from kestrel_lab.eventlog.conversation import OpenMacro
from kestrel_lab.runtime.context.run_context import RunContext


@dataclass(frozen=True, slots=True)
class MacroCalls:
    """The calls of the macro that `call` runs: each goes the way of any call, under an id of its own, and is
    made once.

    What the log has an answer for is answered from there, so a resumed macro goes on where it was.
    """

    call: Call
    ctx: RunContext
    answer: Callable[[ToolRequest], Awaitable[object]]
    """Sees to it that a request is answered in the log."""

    @property
    def seconds(self) -> float:
        """Working time of the calls so far, nobody's thinking time in it."""
        return (
            sum(answer.seconds for answer in self._open.answers.values())
            if self.call.id in self.ctx.state.macros
            else 0.0
        )

    def begin(self, macro: str, version: int, args: dict[str, Json]) -> None:
        """Record that the macro begins, unless an earlier session did."""
        if self.call.id not in self.ctx.state.macros:
            self.ctx.emit(
                MacroStarted(call=self.call.id, step=self.call.step, macro=macro, version=version, args=args)
            )

    async def __call__(self, place: int, tool: str, args: dict[str, Json]) -> Result:
        """Make call number `place`; raises `ApprovalRequired` when it needs a person and none is here."""
        name = f"{self.call.id}/{place}"
        if name not in self._open.answers:
            try:
                await self.answer(ToolRequest(id=name, name=tool, args=args))
            except asyncio.CancelledError:
                # An interrupted run goes on within the macro when it is resumed, so that has no end yet.
                if not self.ctx.interrupted:
                    self.end(ok=False, reason=f"cancelled at step {place}, {tool}")
                raise
        found = self._open.answers[name]
        if found.error is not None:
            return Result(
                error=Problem(
                    kind=str(found.error.get("kind", "failed")),
                    message=str(found.error.get("message", found.text)),
                )
            )
        return Result(value=found.text if found.given else found.value)

    def end(self, *, ok: bool, reason: str = "") -> None:
        """Record how the macro ended, unless an earlier session did."""
        macro = self._open
        if not macro.finished:
            self.ctx.emit(
                MacroFinished(
                    call=self.call.id, step=self.call.step, macro=macro.started.macro, ok=ok, reason=reason
                )
            )

    @property
    def _open(self) -> OpenMacro:
        return self.ctx.state.macros[self.call.id]
