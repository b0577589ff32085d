"""What a run may be given, as types, and how an option that does not exist is refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, TypedDict, TypeVar

from kestrel_lab.core.errors import UnknownOption, nearest
from kestrel_lab.core.events.union import Event
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Approver, Model
from kestrel_lab.core.run_types import Limits
from kestrel_lab.permissions.rulebook import GivenRules
from kestrel_lab.runtime.context.toolboxes import Tools
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.workflows.loader import MakesPlan
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Toolbox

RunListener = Callable[[Run, Event], None]
"""Told of the events of many runs."""


P = ParamSpec("P")
T = TypeVar("T")


def checked(call: Callable[P, T]) -> Callable[P, T]:
    """`call`, which refuses an option it does not have with `UnknownOption`, at once, and names the nearest one."""
    parameters = inspect.signature(call).parameters.values()
    known = frozenset(one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)) - {"self"}
    where = call.__qualname__.removesuffix(".__init__")

    @functools.wraps(call)
    def named(*args: P.args, **options: P.kwargs) -> T:
        for name in options.keys() - known:
            msg = f"{where} has no option {name!r}; {nearest(name, known)}"
            raise UnknownOption(msg)
        return call(*args, **options)

    return named


class ResumeOptions(TypedDict, total=False):
    """What a resumed run may be given anew; see `Session.restart`."""

    model: str | Model | None
    tools: Tools | Toolbox | None
    approve: str | None
    approver: Approver | None
    cache: str | None


class ForkOptions(ResumeOptions, total=False):
    """What a fork may be given anew; see `Session.start_fork`."""

    limits: Limits | None


class RestartOptions(ForkOptions, total=False):
    """What going on with a run may be given; see `Session.restart`."""

    take_over: bool


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
