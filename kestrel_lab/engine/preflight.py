"""What must be in order before a step of a stage begins: room for the log, and the model it will ask."""

from __future__ import annotations

import shutil

from kestrel_lab.core.errors import DependencyError
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.step import Step
from kestrel_lab.engine.context import RunContext
from kestrel_lab.engine.guard import watch_model
from kestrel_lab.engine.operations import WITHOUT_MODEL
from kestrel_lab.models.escalation import EscalatingModel

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
        await _model_ready(ctx, ctx.model_of(step))


async def _model_ready(ctx: RunContext, model: Model) -> None:
    if isinstance(model, EscalatingModel) or model.kind != "real":  # each of several is guarded when it is asked
        return
    await ctx.supervisor.ready(watch_model(model, ctx.supervisor).name, timeout=ctx.ports.budget.gate_s)
