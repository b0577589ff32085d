"""What must be in order before a step of a stage begins: room for the log, and the model it will ask."""

from __future__ import annotations

import shutil

from kestrel_lab.core.errors import DependencyError
from kestrel_lab.core.step import Step
from kestrel_lab.engine.context import RunContext
from kestrel_lab.engine.guard import preflight as model_ready
from kestrel_lab.engine.operations import WITHOUT_MODEL

LEAST_ROOM = 4_000_000
"""Bytes that must be free where the log is: SQLite needs some even to keep little."""


async def preflight(ctx: RunContext, step: Step) -> None:
    """Return once `step` can begin; raises `DependencyError` that says what it needs and is not there.

    A model is looked at where that costs nothing, and waited for as long as the budget's `gate_s` allows.
    """
    folder = ctx.store.path.parent
    if (free := shutil.disk_usage(folder).free) < LEAST_ROOM:
        msg = f"the disk of the log has {free:,} bytes left, at least {LEAST_ROOM:,} are needed: make room on the disk of {folder}"
        raise DependencyError("the disk of the log", "failed", msg)  # noqa: EM101  # its name and state
    if not step.tool and step.operation not in WITHOUT_MODEL:
        await model_ready(ctx.model_of(step), ctx.supervisor, timeout=ctx.ports.budget.gate_s)
