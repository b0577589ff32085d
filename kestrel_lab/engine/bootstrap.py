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
    date, iso_week}, notes: [{text, id, kind, confidence, run, at, taint}]}`; the time is when the run began, also where it was
    resumed. The text of a note is a reference, which becomes its words when a model is asked: see `engine.references`.
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
    notes = [note.referred() for note in recalled]
    return Done(output={"time": dict(ctx.began) or handshake(ctx.ports.now()).as_json(), "notes": [*notes]})
