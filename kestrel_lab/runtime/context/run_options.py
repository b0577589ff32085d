"""Run options: everything one run can be given, with its defaults, declared once for Python, the command line
and the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from kestrel_lab.adapters.adapter import Adapter
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart, ModelParams
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Approver, Model
from kestrel_lab.core.run_types import Limits
from kestrel_lab.middleware.cache import cache_mode
from kestrel_lab.permissions.rulebook import GivenRules
from kestrel_lab.runtime.context.dependencies import Ports
from kestrel_lab.runtime.context.toolboxes import Tools
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Toolbox

if TYPE_CHECKING:
    from kestrel_lab.agents import MakesPlan


class FollowableRun(Protocol):
    """A run whose conversation another one can go on with."""

    id: str


class ResumeChanges(TypedDict, total=False):
    """The run options that a resumed or forked run can be given anew, as keyword arguments."""

    model: str | Model | None
    tools: Tools | Toolbox | None
    limits: Limits | None
    approve: str | None
    approver: Approver | None
    cache: str | None


class RunChanges(ResumeChanges, total=False):
    """The fields of `RunOptions` as keyword arguments, so that type checkers and editors know them at each
    call.

    `output` is a parameter of its own, because the type of a run's value follows from it.
    """

    workspace: str | Path | Workspace
    rules: GivenRules
    instructions: str
    config: str
    scenario: str
    plan: Plan | MakesPlan | str | Path | None
    inputs: Mapping[str, Json] | None
    verify: str | None
    form: str | None
    resolve: Callable[[str], Model] | None
    ports: Ports | None
    containment: str | None
    expand: bool | None
    follow: str | FollowableRun | None
    params: ModelParams | Mapping[str, Json] | None
    images: Sequence[str | Path | ImagePart]
    runner: str | Adapter


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """What a run can be given. `None` stands for the session's own value."""

    model: str | Model | None = None
    """A model's name or object."""
    tools: Tools | Toolbox | None = None
    """Names of known tools or of groups of them (`default`, `web`, …), tools, or functions.

    By default those without a group, and those that the plan names.
    """
    limits: Limits | None = None
    """The limits of the run; a resumed run counts what was used before."""
    workspace: str | Path | Workspace = "."
    """The only folder that file tools may touch."""
    approve: str | None = None
    """The approval policy: `ask`, `auto`, `auto:LEVEL` or `deny`."""
    rules: GivenRules = None
    """More rules about calls, for this run and its forks.

    They lift nothing that other rules forbid or ask about.
    """
    approver: Approver | None = None
    """Who is asked for approval; without one, a call that needs approval raises `ApprovalRequired` from
    `Run.wait`.
    """
    instructions: str = ""
    """Text that is added to the system message."""
    config: str = ""
    """Name of the model configuration, for suites."""
    scenario: str = ""
    """Id of the scenario, for suites."""
    plan: Plan | MakesPlan | str | Path | None = None
    """The steps to carry out, each an agent's goal or a tool's call; the goal then says what they are for.
    Also the name of a shipped workflow, a workflow file, or an object that makes a plan for a goal, such as
    an `LLMAgent`. Without a plan one agent works on the goal. All steps share the limits. The run's answer is
    that of the steps which no other step waits for.
    """
    inputs: Mapping[str, Json] | None = None
    """Values for the inputs that a workflow declares."""
    verify: str | None = None
    """What is done about the answer's claims: `off`, `warn`, `repair`, `judge` or `quality`."""
    form: str | None = None
    """The form that the answer must have: `brief`, `plan`, `patch`, `explanation`, `research`, `auto` (chosen
    by the goal, of a run without a plan) or `none`.
    """
    resolve: Callable[[str], Model] | None = None
    """Finds the models that single steps name."""
    ports: Ports | None = None
    """The memory, search, clock and retry budget of the run."""
    cache: str | None = None
    """How stored answers of pure tools are used: `use`, `off`, `refresh` or `replay`."""
    containment: str | None = None
    """Whether a person is asked before a model that read untrusted text has an effect: `on`, `strict` or
    `off`. A run that is resumed has the value of the session that resumes it.
    """
    expand: bool | None = None
    """Whether the run may look for MCP servers with tools that it lacks, and ask to install one."""
    params: ModelParams | Mapping[str, Json] | None = None
    """Parameters of the models of the run, such as `{"reasoning_effort": "low", "top_p": 0.9}`; a step's own
    go before them. See `core.messages.ModelParams`.
    """
    images: Sequence[str | Path | ImagePart] = ()
    """Images beside the goal, for models that see: files, or parts made of bytes by `ImagePart.of`."""

    runner: str | Adapter = ""
    """Who works on the goal: this package's own agent (`native`, or empty), or another one: `claude-code`,
    `codex`, `gemini`, `opencode`, `acp:COMMAND` for any program that speaks the agent client protocol.
    `model` is then a model of that program.
    """
    follow: str | FollowableRun | None = None
    """The run, or its id, whose conversation this one goes on with: its messages, and what is known of whose
    words they are. Model, tools, workspace and rules are those of that run unless they are given.
    """
    output: Any = None
    """What the answer has to be: a type, a pydantic model, or a JSON Schema; `Run.value` is then the answer
    as a value. A resumed run can be given the type again, since the log has only its schema.
    """

    def __post_init__(self) -> None:
        if not _TEXT_TYPES.issuperset(map(type, _texts_of(self))):
            for name in _TEXTS:
                if not isinstance(value := getattr(self, name), str | None):
                    raise UsageError(f"{name}= has to be a text, not {value!r}")
        if self.cache is not None:
            cache_mode(self.cache)
        object.__setattr__(self, "params", ModelParams.of(self.params))
        if self.runner:
            object.__setattr__(self, "model", model_of_runner(self.runner, self.model))
            object.__setattr__(self, "runner", "")

    def check_resumable(self) -> None:
        """Raise `UsageError` for an option that a run keeps from its beginning and cannot be given anew."""
        given = [
            one.name for one in fields(self) if one.name not in (*ResumeChanges.__annotations__, "output")
        ]
        kept = [name for name in given if getattr(self, name) != getattr(_DEFAULTS, name)]
        if kept:
            raise UsageError(
                f"a run that goes on keeps its {', '.join(kept)}: leave that out, or start another run"
            )


def model_of_runner(runner: str | Adapter, model: str | Model | None) -> str | Model | None:
    """Return the model that a runner and a model within it are together, `claude-code:opus` say; raises
    `UsageError` where they do not go together.
    """
    if runner in ("", "native"):
        return model
    if not isinstance(runner, str):
        if model is not None:
            raise UsageError(f"runner= is an adapter and model= is {model!r}: give the adapter its model")
        return runner
    from kestrel_lab.adapters.registry import adapter_factories  # only where a runner is named

    if (name := runner.partition(":")[0]) not in (known := adapter_factories({})):
        raise UsageError(f"there is no runner {name!r}; {did_you_mean(name, known)}")
    if model and not isinstance(model, str):
        raise UsageError(
            f"the runner {runner!r} brings its own models: name one of them, or leave model= out"
        )
    if model and ":" in runner:
        raise UsageError(f"the runner {runner!r} names what it runs: leave the model {model!r} out")
    return f"{runner}:{model}" if model else runner


_TEXTS = tuple(one.name for one in fields(RunOptions) if one.type in ("str", "str | None"))
_texts_of = attrgetter(*_TEXTS)
_TEXT_TYPES = frozenset({str, type(None)})
_DEFAULTS = RunOptions()
