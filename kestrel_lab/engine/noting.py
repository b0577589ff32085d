"""The memory as the tools of a run see it: its log names notes and has not their words, and nothing is kept that is not fit to be."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Protocol, runtime_checkable

from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.events import MemoryRecalled, MemoryStored
from kestrel_lab.core.jsontypes import Json, content_key
from kestrel_lab.core.notes import GUIDING, Note
from kestrel_lab.engine.context import RunContext
from kestrel_lab.engine.fitness import sourced, unfit
from kestrel_lab.tools.registry import Notes

_DAY_S = 24 * 3600.0


@runtime_checkable
class Forgets(Protocol):
    """A memory that can forget."""

    def forget(self, selector: str, workspace: str) -> object:
        """Forget the notes that `selector` means; what came of it, its `repr` in a sentence. Raises `UsageError` for a selector that is none."""
        ...


def notes_of(ctx: RunContext, step: str) -> Notes:
    """What the tools `recall`, `remember` and `forget` do for a step of the run.

    A note that the goal does not say is kept as what an answer said (tainted), is never an instruction, and takes the
    place of none that is trusted. Texts that look like secrets or give orders to agents are refused.
    """
    memory, place = ctx.ports.memory, str(ctx.workspace.root)

    async def recall(query: str, top_k: int, tags: tuple[str, ...]) -> list[dict[str, Json]]:
        found = await memory.recall(query, top_k, workspace=place, tags=tags, run=ctx.run_id)
        if found:
            shown = MemoryRecalled(step=step, notes=[note.as_json() for note in found])
            ctx.emit(MemoryRecalled(step=step, notes=[note.named() for note in found]), shown=shown)
        return [note.referred() for note in found]

    async def remember(text: str, kind: str, tags: tuple[str, ...], confidence: float, days: float | None, call: str) -> str:
        goal = "" if ctx.state.started is None else ctx.state.started.goal
        note = sourced(Note(text=text, kind=kind, evidence=text), goal)
        if why := unfit(note):
            msg = f"it is not kept: {why}"
            raise ToolError(msg)
        if note.kind in GUIDING and note.taint:
            msg = f"it is not kept: a {kind} must be what the user said, in the user's words; a fact, decision or pitfall may be yours"
            raise ToolError(msg)
        now = time.time()
        note = replace(
            note,
            id=f"n{content_key(ctx.run_id, 'remember', call)[:10]}",
            run=ctx.run_id,
            at=now,
            tags=tags,
            confidence=min(confidence, note.confidence) if note.taint else note.confidence,
            expires=None if days is None else now + days * _DAY_S,
        )
        if note.id in ctx.state.kept:  # by this very call, before it was interrupted
            return f"kept as note {note.id}"
        if not await memory.remember(note, workspace=place):
            return "the memory has it already, or does not take it"
        ctx.emit(MemoryStored(step=step, note=note.named()), shown=MemoryStored(step=step, note=note.as_json()))
        return f"kept as note {note.id}"

    async def forget(selector: str) -> str:
        if not isinstance(memory, Forgets):
            msg = "the memory of this run cannot forget"
            raise ToolError(msg)
        await ctx.on_disk()
        return repr(await asyncio.to_thread(memory.forget, selector, place))

    return Notes(recall=recall, remember=remember, forget=forget)
