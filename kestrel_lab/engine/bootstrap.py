"""The operation `bootstrap`: what a session should know before it begins, the time and what earlier runs have learned."""

from __future__ import annotations

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import MemoryRecalled
from kestrel_lab.engine.artifacts import as_text
from kestrel_lab.engine.operation import Done, Scope
from kestrel_lab.tools.timeexpr.handshake import handshake

MOST_NOTES = 5


async def bootstrap(scope: Scope) -> Done:
    """Tell the time and recall notes that have to do with `goal`.

    Arguments: `goal`; `top_k`, how many notes at most, 0 for none. Its output is `{time: {now_iso, timezone, weekday,
    date, iso_week}, notes: [{text, kind, evidence, run, at}]}`; the time is when the run began, also where it was resumed.
    """
    goal, most = as_text(scope.args.get("goal")).strip(), scope.args.get("top_k", MOST_NOTES)
    if not goal:
        msg = "the operation 'bootstrap' needs a goal in its args"
        raise UsageError(msg)
    if not isinstance(most, int) or isinstance(most, bool) or most < 0:
        msg = f"top_k of the operation 'bootstrap' must be a number from 0, not {most!r}"
        raise UsageError(msg)
    ctx = scope.ctx
    recalled = await ctx.ports.memory.recall(goal, most, workspace=str(ctx.workspace.root)) if most else ()
    notes = [note.as_json() for note in recalled]
    if notes:
        ctx.emit(MemoryRecalled(step=scope.step.id, notes=notes))
    return Done(output={"time": dict(ctx.began) or handshake(ctx.ports.now()).as_json(), "notes": [*notes]})
