"""The operation `gather`: what the workspace holds that has to do with a goal."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.engine.artifacts import as_text
from kestrel_lab.engine.operation import Done, Scope

MOST_SOURCES = 8


async def gather(scope: Scope) -> Done:
    """Find sources for `goal` in the workspace; skipped when there are none.

    Arguments: `goal`; `top_k`, how many files at most. Its output is `{files: [{path, lines, terms}], gaps}`.
    """
    goal, most = as_text(scope.args.get("goal")).strip(), scope.args.get("top_k", MOST_SOURCES)
    if not goal:
        msg = "the operation 'gather' needs a goal in its args"
        raise UsageError(msg)
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        msg = f"top_k of the operation 'gather' must be a positive number, not {most!r}"
        raise UsageError(msg)
    found = await scope.ctx.ports.gatherer(goal, scope.ctx.workspace.root, most)
    for looked in found.steps:
        scope.ctx.emit(replace(looked, step=scope.step.id))
    if not found.sources:
        return Done(skipped=True)
    files: list[Json] = [
        {"path": source.path, "lines": [f"{line}: {text}" for line, text in source.lines], "terms": list(source.terms)}
        for source in found.sources
    ]
    return Done(output={"files": files, "gaps": cast("list[Json]", list(found.gaps))})
