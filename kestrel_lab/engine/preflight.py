"""What must be in order before a step of a stage begins: room for the log, and the model it will ask."""

from __future__ import annotations

import shutil

from kestrel_lab.core.errors import DependencyError
from kestrel_lab.core.step import Step
from kestrel_lab.engine.context import RunContext

LEAST_ROOM = 4_000_000
"""Bytes that must be free where the log is; SQLite needs some even to keep little."""


async def preflight(ctx: RunContext, step: Step) -> None:
    """Return once `step` can begin; raises `DependencyError` that says what it needs and is not there."""
    free = shutil.disk_usage(ctx.store.path.parent).free
    if free < LEAST_ROOM:
        msg = f"the disk of the log {ctx.store.path} has {free:,} bytes left"
        raise DependencyError("disk", "failed", msg)  # noqa: EM101  # its name and state
