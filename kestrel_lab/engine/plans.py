"""The plan of a run, from whatever was given as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.plan import Plan

if TYPE_CHECKING:
    from kestrel_lab.engine.options import MakesPlan


def plan_for(given: Plan | MakesPlan | str | Path | None, goal: str, inputs: Mapping[str, Json] | None = None) -> Plan | None:
    """`given` as a plan for `goal`; `None` for a run without one.

    Raises `UsageError` for a workflow that is not in order, and for inputs that nothing takes.
    """
    if isinstance(given, str | Path):
        from kestrel_lab.engine.workflow import load_plan  # loads pydantic: only for who uses workflows

        return load_plan(given, goal, inputs)
    if inputs:
        msg = f"inputs ({', '.join(inputs)}) are for workflows: name one as the plan"
        raise UsageError(msg)
    return given if given is None or isinstance(given, Plan) else given.plan(goal)
