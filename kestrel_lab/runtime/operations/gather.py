"""The operations `gather` (files of the workspace that match a goal) and `bootstrap` (time and recalled notes)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kestrel_lab.core.events.union import FilesTainted, MemoryRecalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.arguments import Arguments
from kestrel_lab.tools.timeparse.session_time import handshake

MOST_SOURCES = 8


async def gather(scope: Scope) -> Done:
    """Find sources for `goal` in the workspace; skipped when there are none.

    Arguments: `goal`; `top_k`, how many files at most. Its output is `{files: [{path, lines, terms}], gaps}`.
    """
    args = Arguments(scope)
    goal, most = args.required("goal"), args.whole("top_k", MOST_SOURCES, least=1)
    found = await scope.ctx.ports.gatherer(goal, scope.ctx.workspace.root, most)
    for looked in found.steps:
        scope.ctx.emit(replace(looked, step=scope.step.id))
    if not found.sources:
        return Done(skipped=True)
    if foreign := _foreign(scope, [source.path for source in found.sources]):
        scope.ctx.emit(FilesTainted(call="", step=scope.step.id, began=0.0, ended=True, read=foreign))
    files: list[Json] = [
        {"path": source.path, "lines": [f"{line}: {text}" for line, text in source.lines], "terms": list(source.terms)}
        for source in found.sources
    ]
    return Done(output={"files": files, "gaps": cast("list[Json]", list(found.gaps))})


def _foreign(scope: Scope, paths: list[str]) -> str:
    """Return why these files are untrusted; empty when they are not."""
    ctx = scope.ctx
    if ctx.containment == "strict":
        return "files of the workspace"
    if ctx.files is None:
        return ""
    ctx.files.refresh()
    if not ctx.files.known():
        return ""
    return next((why for path in paths for why in ctx.files.below(ctx.workspace, path).values()), "")


MOST_NOTES = 5


async def bootstrap(scope: Scope) -> Done:
    """Give the time and recall notes that match `goal`.

    Arguments: `goal`; `top_k`, how many notes at most, 0 for none. Its output is `{time: {now_iso, timezone, weekday,
    date, iso_week}, notes: [{text, id, kind, confidence, run, at, taint}]}`; the time is when the run began, also where it was
    resumed. The text of a note is a reference, replaced by its words when a model is asked.
    """
    args, ctx = Arguments(scope), scope.ctx
    goal, most = args.required("goal"), args.whole("top_k", MOST_NOTES, least=0)
    recalled = await ctx.ports.memory.recall(goal, most, workspace=str(ctx.workspace.root), run=ctx.run_id) if most else ()
    if recalled:
        named, words = [note.named() for note in recalled], [note.as_json() for note in recalled]
        ctx.emit(MemoryRecalled(step=scope.step.id, notes=named), shown=MemoryRecalled(step=scope.step.id, notes=words))
    notes = [note.referred() for note in recalled]
    return Done(output={"time": dict(ctx.began) or handshake(ctx.ports.now()).as_json(), "notes": [*notes]})
