"""What a run may be given, as types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypedDict

from kestrel_lab.core.events import Event
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.limits import Limits
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Approver, Model
from kestrel_lab.engine.run import Run
from kestrel_lab.tools.registry import Tool, Toolbox
from kestrel_lab.tools.rules.book import GivenRules
from kestrel_lab.tools.workspace import Workspace

Tools = Iterable["str | Tool | Callable[..., Any]"]
"""Tools by name, as made by `@tool`, or as plain functions."""
RunListener = Callable[[Run, Event], None]
"""Told of the events of many runs."""


class MakesPlan(Protocol):
    """Whatever makes a plan for a goal."""

    def plan(self, goal: str) -> Plan:
        """The plan."""
        ...


class ResumeOptions(TypedDict, total=False):
    """What a resumed run may be given anew; see `Session.restart`."""

    model: str | Model | None
    tools: Tools | Toolbox | None
    approve: str | None
    approver: Approver | None
    cache: str | None


class RestartOptions(ResumeOptions, total=False):
    """What going on with a run may be given; see `Session.restart`."""

    take_over: bool
    limits: Limits | None


class RunOptions(ResumeOptions, total=False):
    """What a run may be given; see `Session.start`."""

    rules: GivenRules
    limits: Limits | None
    workspace: str | Path | Workspace
    instructions: str
    config: str
    scenario: str
    plan: Plan | MakesPlan | str | Path | None
    expand: bool | None
    inputs: Mapping[str, Json] | None
    containment: str | None
    verify: str | None
    form: str | None
