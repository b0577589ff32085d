"""The operation `bootstrap`: what a session should know before it begins, the time and what earlier runs have learned."""

from __future__ import annotations

from datetime import datetime

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import MemoryRecalled
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.engine.artifacts import as_text
from kestrel_lab.engine.operation import Done, Scope

MOST_NOTES = 5


async def bootstrap(scope: Scope) -> Done:
    """Tell the time and recall notes that have to do with `goal`.

    Arguments: `goal`; `top_k`, how many notes at most, 0 for none. Its output is `{time: {now_iso, timezone, weekday,
    date}, notes: [{text, id, kind, confidence, run, at, taint}]}`; a resumed run sees the same time, which is in the log.
    The text of a note is a reference, which becomes its words when a model is asked: see `engine.references`.
    """
    goal, most = as_text(scope.args.get("goal")).strip(), scope.args.get("top_k", MOST_NOTES)
    if not goal:
        msg = "the operation 'bootstrap' needs a goal in its args"
        raise UsageError(msg)
    if not isinstance(most, int) or isinstance(most, bool) or most < 0:
        msg = f"top_k of the operation 'bootstrap' must be a number from 0, not {most!r}"
        raise UsageError(msg)
    ctx = scope.ctx
    recalled = await ctx.ports.memory.recall(goal, most, workspace=str(ctx.workspace.root), run=ctx.run_id) if most else ()
    if recalled:
        named, words = [note.named() for note in recalled], [note.as_json() for note in recalled]
        ctx.emit(MemoryRecalled(step=scope.step.id, notes=named), shown=MemoryRecalled(step=scope.step.id, notes=words))
    notes: list[Json] = [note.referred() for note in recalled]
    return Done(output={"time": time_context(ctx.ports.now()), "notes": notes})


def time_context(now: datetime) -> dict[str, Json]:
    """The moment `now`, which has a zone, in the words a model needs."""
    zone = getattr(now.tzinfo, "key", None) or now.tzname() or ""
    return {"now_iso": now.isoformat(timespec="seconds"), "timezone": zone, "weekday": f"{now:%A}", "date": f"{now:%Y-%m-%d}"}
