"""One piece of a plan's work, and how it is written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.conditions import Condition, parse_condition
from kestrel_lab.core.expressions.templates import referenced_names
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import sanitize_text

STEPS = "steps"
"""In a condition: how the steps went that are waited for, `steps.NAME.ok`, `.skipped` and `.answer`."""


def check_model_name(model: object, whose: str) -> None:
    """Raise `UsageError` for a model that is an object: plans are stored, and only name their models."""
    if isinstance(model, str):
        return
    name = str(getattr(model, "name", "mine"))
    raise UsageError(
        f"{whose} has a model object, {name!r}: a plan is stored in the log, which has names of models only. "
        f"Give the object to the lab under a name, Lab(models={{{name!r}: OBJECT}}), and that name to {whose}"
    )


def model_at(provider: str, model: str) -> str:
    """Return the name of a model with its provider, `openai/gpt-5`; without a model `openai/`, the usual one
    of the provider. Of several models, `a > b`, each gets it.
    """
    names = (name.strip() for name in model.split(" > "))
    return " > ".join(name if name.startswith(f"{provider}/") else f"{provider}/{name}" for name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSettings:
    """How an agent works: what steps, `LLMAgent` and agent files say of it.

    The metadata of a field are its bounds, which files are held to as they are read.
    """

    model: str = ""
    """The model of the agent; the run's by default."""
    provider: str = ""
    """The provider of the model, whose usual model it is where none is named. A step has both in `model`."""
    instructions: str = ""
    """Added to the system message."""
    tools: Sequence[str] | None = None
    """Names of the tools it is offered; all of the run by default."""
    turns: int | None = field(default=None, metadata={"ge": 1})
    """Most model turns for one goal; the run's limit holds as well."""
    react: bool = False
    """Thought, action and observation are written as text, which works with models that have no tool calling.
    """
    temperature: float | None = field(default=None, metadata={"ge": 0})
    """How much chance there is in what its model says; the model's own setting by default."""
    params: dict[str, Json] = field(default_factory=dict)
    """Further parameters of its model, such as `reasoning_effort` and `top_p`: see
    `core.messages.ModelParams`. They go before the run's.
    """
    schema: dict[str, Json] | None = None
    """JSON Schema of the answer, which is then a value; an answer that does not fit goes back to the model.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Work(AgentSettings):
    """One piece of work, as files and `Step` say it: a goal for an agent, one call of a tool, or an operation
    of the engine.
    """

    id: str = field(metadata={"min_length": 1})
    goal: str = ""
    """For an agent; in a file `{{goal}}` and `{{input}}` are put in."""
    tool: str = ""
    """Name of the tool to call, with `args`."""
    operation: str = ""
    """Name of an operation to carry out, with `args`; one may grow more steps, see `Plan.grown`."""
    args: dict[str, Json] = field(default_factory=dict)
    """Arguments of the call or operation; `{{name}}` is an artifact, see `core.expressions.templates`."""
    depends_on: Sequence[str] = ()
    produces: Sequence[str] = ()
    """Names under which others may consume what this step answers."""
    consumes: Sequence[str] = ()
    """Artifacts it is given; one that it also produces is brought up to date by it."""
    parallelizable: bool = True
    """Whether it may run beside other steps; those that may not run one at a time, in a fixed order."""
    needs_approval: bool = False
    """Whether it is put to the approval policy before it begins, as a call of danger HIGH."""
    stage: str = ""
    """A phase of the run.

    It orders nothing; steps of a stage are checkpointed, and tried again if that is harmless.
    """
    when: str = ""
    """Condition on artifacts and on `steps`; if it does not hold the step is skipped, which is not a failure.
    """
    after_failure: bool = False
    """Whether it also starts after a failed dependency; if it ends well, the failure is handled."""
    repairs: int = field(default=0, metadata={"ge": 0})
    """How often an agent may repair a failure that a retry would not help; stages only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step(Work):
    """One piece of work of a plan.

    Raises `UsageError` that names the step unless it has exactly one of `goal`, `tool` and `operation`, or
    when something in it cannot be read.
    """

    given: dict[str, Json] = field(default_factory=dict)
    """Artifacts that the step was given when it was added; shown to an agent like those it consumes."""
    parent: str = ""
    """The step that grew this one; empty in a plan as it was given."""
    scope: str = ""
    """The step that is the nested workflow this one belongs to: artifacts of its own names are kept apart.

    Empty for the plan's own.
    """
    team: dict[str, Json] = field(default_factory=dict)
    """The agents to which its agent may delegate: by name, fields of a step as JSON and a `description`."""

    def __post_init__(self) -> None:
        self._check_work()
        check_model_name(self.model, f"step {self.id!r}")
        if self.provider:
            object.__setattr__(self, "model", model_at(self.provider, self.model))
            object.__setattr__(self, "provider", "")
        for name in _MANY:
            value = getattr(self, name)
            if isinstance(value, str):
                raise UsageError(f"{name} of step {self.id!r} must be a list, not the text {value!r}")
            object.__setattr__(self, name, value if value is None else tuple(value))
        if self.team and not self.goal:
            raise UsageError(
                f"step {self.id!r} has a team and no goal: agents delegate, calls and operations do not"
            )
        if twice := sorted({*self.given} & {*self.consumes}):
            raise UsageError(f"step {self.id!r} both consumes {twice[0]!r} and is given it")
        if self.repairs < 0:
            raise UsageError(f"step {self.id!r} has {self.repairs} repairs: at least 0 are needed")
        if self.turns is not None and self.turns < 1:
            raise UsageError(f"step {self.id!r} has {self.turns} turns: at least one is needed")
        try:
            self.condition  # raises if it cannot be read  # noqa: B018
            unknown = sorted(self.references - {*self.consumes, *self.given}) if self.args else []
        except UsageError as error:
            raise UsageError(f"step {self.id!r}: {error}") from error
        if unknown:
            raise UsageError(f"step {self.id!r} refers to {unknown[0]!r}, which it does not consume")

    def _check_work(self) -> None:
        if not self.id.strip():
            raise UsageError("a step has an empty id: name it")
        if sanitize_text(self.id) != self.id:
            raise UsageError(
                f"the id of step {sanitize_text(self.id)!r} has characters that cannot be seen: leave "
                "them out"
            )
        kinds = [
            word
            for word, value in (
                ("a goal", self.goal.strip()),
                ("a tool", self.tool),
                ("an operation", self.operation),
            )
            if value
        ]
        if len(kinds) != 1:
            found = f"both {' and '.join(kinds)}" if kinds else "neither a goal nor a tool nor an operation"
            raise UsageError(f"step {self.id!r} has {found}: give exactly one")
        if self.args and self.goal:
            raise UsageError(f"step {self.id!r} has args without a tool")

    @property
    def members(self) -> tuple[Step, ...]:
        """Return its team as steps without goals; raises `UsageError` for invalid settings."""
        return tuple(
            Step.from_json({"goal": name, **cast("dict[str, Json]", theirs), "id": name})
            for name, theirs in self.team.items()
        )

    @property
    def references(self) -> frozenset[str]:
        """The artifacts that its arguments refer to."""
        return referenced_names(self.args) if self.args else frozenset()

    @property
    def condition(self) -> Condition | None:
        """`when`, read."""
        return parse_condition(self.when) if self.when.strip() else None

    @property
    def exclusive(self) -> bool:
        """Return whether the step never runs beside another exclusive one."""
        return self.needs_approval or not self.parallelizable

    @property
    def work(self) -> str:
        """Return what the step does, in words."""
        return self.goal or (f"call {self.tool}" if self.tool else self.operation)

    @classmethod
    def from_json(cls, body: Mapping[str, Json]) -> Step:
        """Rebuild what `as_json` gave; fields this version does not know are ignored. Raises `UsageError`."""
        name = body.get("id")
        if not isinstance(name, str):
            raise UsageError("a plan needs a list of steps, each with an id")
        for key, kind in _KINDS.items():
            if key in body and not isinstance(body[key], kind):
                raise UsageError(f"{key} of step {name!r} cannot be {body[key]!r}")
        given: dict[str, Any] = {key: body[key] for key in _FIELDS if key in body}
        return cls(**given)

    def as_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object, without those that have their default."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key in _FIELDS
            if (value := getattr(self, key)) != _DEFAULTS.get(key, ())
        }


# What the step does comes before how its agent works: plans are read in logs and by models.
_FIELDS = tuple(sorted(Step.__dataclass_fields__, key=AgentSettings.__dataclass_fields__.__contains__))
_MANY = ("depends_on", "produces", "consumes", "tools")
_JSON: Final[dict[object, type | tuple[type, ...]]] = {
    str: str,
    bool: bool,
    int: int,
    float: (float, int),
    Sequence: list,
    dict: dict,
    NoneType: NoneType,
}
"""What values of the types in `Step` are in JSON."""


def _json_types(kind: Any) -> tuple[type, ...]:
    alternatives = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    found = (_JSON[get_origin(one) or one] for one in alternatives)
    return tuple(one for each in found for one in (each if isinstance(each, tuple) else (each,)))


_KINDS: Final = {name: _json_types(kind) for name, kind in get_type_hints(Step).items() if name in _FIELDS}
"""What the fields of a step are in JSON."""
_PLAIN = Step(id="a", goal="b")
_DEFAULTS = {key: getattr(_PLAIN, key) for key in _FIELDS if key not in ("id", "goal")} | {"goal": ""}
