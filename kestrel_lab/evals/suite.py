"""A suite: scenarios to try, configurations to try them with, and how often."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeVar, Unpack, cast

from pydantic import (
    AfterValidator,
    Field,
    GetJsonSchemaHandler,
    Strict,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kestrel_lab.adapters.adapter import model_of_runner
from kestrel_lab.answers.output_types import OutputType
from kestrel_lab.checks.parse import check_definition
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelParams
from kestrel_lab.core.protocols import Approver, Check
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.core.yaml.validation import Declared, OneOf, PythonOnly, WrittenAs
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.given_turns import GivenTurn
from kestrel_lab.evals.guidance import Guidance, is_guidance
from kestrel_lab.evals.metrics import Metric
from kestrel_lab.evals.options import Selection, check_reducer
from kestrel_lab.evals.scenario_groups import group_scenarios
from kestrel_lab.evals.scenario_parts import (
    Choices,
    InlineFiles,
    PackageSource,
    Place,
    SetupCommand,
    SimulatedUser,
    WorkspaceForm,
    place_of,
    with_choices,
)
from kestrel_lab.evals.seed_notes import GivenNote
from kestrel_lab.evals.suite_forms import (
    MOST,
    CheckItem,
    Filled,
    GateItem,
    GuidanceForm,
    LimitsForm,
    Many,
    Name,
    Positive,
    Texts,
    as_tuple,
    guidance_of,
    limits_of,
    mistake_at,
    some,
    text_or_mapping,
)
from kestrel_lab.runtime.options import ConfigOptions, Opt, table, takes_options
from kestrel_lab.runtime.security.containment import MODES
from kestrel_lab.tools.tool import Tool
from kestrel_lab.views.formatting import format_count


class Opened(Protocol):
    """The state of one trial; its checks get it as `Trial.environment`."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools of the agent, in place of all others."""
        ...

    @property
    def approver(self) -> Approver | None:
        """The approver of calls; `None` for nobody, as in any other trial."""
        ...


class Environment(Protocol):
    """The state that a scenario's tools act on."""

    @property
    def instructions(self) -> str:
        """Added to the instructions of the suite."""
        ...

    def definition(self) -> dict[str, Json]:
        """Return all that a trial's outcome depends on: equal for environments that behave equally."""
        ...

    def open(self) -> Opened:
        """Return a new state that shares nothing with that of other trials."""
        ...


MOST_EPOCHS: Final = 1000
"""The most epochs of a suite; those of a bisection are counted from the next one on."""
CassetteMode = Literal["off", "record", "replay", "refresh"]
"""`record` asks a model only for what is missing, `replay` never, `refresh` for everything."""
CountErrors = Literal["fail", "exclude"]
_T = TypeVar("_T")


def _schema(written: dict[str, Any] | str | None, _: object) -> Mapping[str, Json]:
    found = OutputType.of(written)
    return {} if found is None else found.schema


def _absolute(root: str) -> str:
    path = PurePosixPath(root)
    if root and (not path.is_absolute() or ".." in path.parts or len(path.parts) < 2):
        raise UsageError(f"root is an absolute path such as /app, not {root!r}")
    if found := next(
        (
            one
            for one in ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")
            if path.is_relative_to(one)
        ),
        None,
    ):
        raise UsageError(f"root cannot be {root!r}: {found} belongs to the system")
    return str(path) if root else ""


class Defaults(Declared):
    """What scenarios have that do not say otherwise; limits are merged one by one, notes come before those of
    a scenario.
    """

    family: str = ""
    """Kind of task; summaries can be grouped by it."""
    group: str = ""
    """What is drawn together: scenarios of one task, repository, document or conversation. Intervals, tests
    and gates count groups. Where empty, scenarios with the same goal, files and environment are one group.
    """
    place: Annotated[
        Place, WrittenAs(WorkspaceForm | None, place_of), Field(validation_alias="workspace")
    ] = InlineFiles()
    image: str = ""
    """An image of docker or podman in which the trial's commands run."""
    dockerfile: str = ""
    """The same, built from this file, relative to the suite, and the folder it is in."""
    root: Annotated[str, AfterValidator(_absolute)] = ""
    """An absolute path at which commands find the workspace, such as /app; of an image by default its own
    working folder. What an image has there is in the workspace, too.
    """
    tools: Texts | None = None
    """Names of the tools offered; `None` for the native tools that only read."""
    limits: Annotated[Mapping[str, int | float | None], WrittenAs(LimitsForm, limits_of)] = {}
    """Any of `cycles`, `cost_usd`, `seconds`, `wall_seconds`, `tokens` and `messages`; the others as for any
    run.
    """
    approve: str = ""
    """Approval policy. Where empty: `auto` in a throw-away folder, `deny` in an installed package."""
    tags: Texts = ()
    notes: Many[GivenNote] = ()
    """What the memory of a trial has when it begins; only configurations with `learning` have one."""
    output: Annotated[Mapping[str, Json], WrittenAs(dict[str, Any] | str | None, _schema)] = {}
    """JSON Schema of the answer, where it has to be a value; in a file also `module:Type` of a module that
    is imported.
    """


class Scenario(Defaults):
    """A task with checks that decide whether it was done."""

    id: Annotated[str, WrittenAs(Name)]
    goal: Annotated[str, WrittenAs(Filled)]
    checks: Annotated[tuple[Check, ...], WrittenAs(some(CheckItem), as_tuple)]
    expected: Any = None
    """Handed to the checks; of the built-in ones `graded` shows it to the grader."""
    weight: Annotated[float, WrittenAs(Annotated[float, Field(gt=0)])] = 1.0
    """How much the scenario counts in means over scenarios."""
    history: Many[GivenTurn] = ()
    """Turns of the agent behind which the trial begins; their calls are not made again."""
    turns: Many[Filled] = ()
    """What the user says after `goal`, in the same conversation, each after the answer to the one before."""
    at_least: Annotated[float | None, WrittenAs(Annotated[float, Field(ge=0, le=1)] | None)] = None
    """The mean value of the checks by their weights from which on a trial passes; where empty, all checks of
    any weight have to pass.
    """
    choices: Choices | None = None
    """Options of a question, see there; behind it `goal` and `checks` hold them, and this is empty again."""
    metadata: Mapping[str, Any] = {}
    """What is known of the scenario beside its task: columns of frames, by which summaries can be grouped."""
    user: SimulatedUser | None = None
    """Who goes on with the conversation after `goal` and `turns`."""
    containment: Annotated[str, OneOf(("", *MODES))] = ""
    """See `runtime.security.containment`; the session's where empty."""
    before: Many[Filled | SetupCommand] = ()
    """Goals that are run first in the same workspace, one after the other; what they did and taught is there
    for `goal`, which alone is judged. Also commands, `{command: make data}`.
    """
    environment: Annotated[Environment | None, PythonOnly()] = None
    """Brings tools with a state of their own, in place of `tools`."""

    @model_validator(mode="before")
    @classmethod
    def _write_choices(cls, value: Any, info: ValidationInfo) -> Any:
        return with_choices(value, info.context)

    @property
    def policy(self) -> str:
        """The approval policy in force; nobody is asked anything during a suite."""
        return self.approve or ("deny" if isinstance(self.place, PackageSource) else "auto")

    def definition(self) -> dict[str, Json]:
        """Return all that a trial's outcome depends on."""
        checks: list[Json] = [check_definition(check) for check in self.checks]
        score = {} if self.at_least is None else {"at_least": self.at_least}
        return {**self.task(), "checks": checks, "expected": self.expected, **score}

    def task(self) -> dict[str, Json]:
        """Return all that a trial's run depends on: the definition without what only judges it."""
        place = {one.name: getattr(self.place, one.name) for one in fields(self.place)}
        return _used(self, but=_NOT_OF_A_RUN, always=("goal", "place", "tools", "limits", "approve")) | {
            "place": {"kind": type(self.place).__name__, **place},
            "approve": self.policy,
        }


_NOT_OF_A_RUN: Final = frozenset(
    {"id", "family", "group", "tags", "weight", "checks", "expected", "at_least", "metadata", "choices"}
)


def _option_fields() -> dict[str, Any]:
    """Return the fields of a configuration that are options of its runs; empty for what it does not say."""
    found: dict[str, Any] = {}
    for name, opt in table(ConfigOptions).items():
        kind = ConfigOptions.__annotations__[name].__origin__
        empty = kind() if kind in (str, bool) else None
        checked = partial(_option_value, opt)
        mark = OneOf(("", *opt.words)) if opt.words else AfterValidator(checked)
        about = Field(default=empty, description=opt.meaning)
        found[name] = (Annotated[kind if empty is not None else kind | None, mark], about)
    return found


def _option_value(opt: Opt, value: Any) -> Any:
    return opt.checked(value) if value else value


if TYPE_CHECKING:
    # Type checkers do not know a class that is made of a table.
    class _FromOptions(Declared):
        verify: str = ""
        pty: bool = False
        form: str = ""

else:
    _FromOptions = create_model("_FromOptions", __base__=Declared, **_option_fields())


class Config(_FromOptions):
    """One way to run the scenarios: a model and its settings. In a file a text alone is the name of a
    model.

    It has the options in `ConfigOptions` too.
    """

    name: Annotated[str, WrittenAs(Name)]
    runner: str = ""
    """Another agent's program, which becomes part of `model`: `claude-code` with the model `opus`, say."""
    model: str = ""
    """As for any run; empty for the model that a run gets when none is named."""
    temperature: Annotated[float | None, WrittenAs(Annotated[float, Field(ge=0)] | None)] = None
    seed: int | None = None
    """The model's seed in epoch 1; one more in each further epoch."""
    params: Annotated[
        Mapping[str, Json], WrittenAs(dict[str, Any], lambda given, _: ModelParams.of(given).as_json())
    ] = {}
    """Further parameters of the model, see `core.messages.ModelParams`."""
    concurrency: Annotated[int | None, WrittenAs(Positive | None)] = None
    """Trials at once, where the suite's number is too many: a model on this machine runs best alone."""
    limits: Annotated[Mapping[str, int | float | None], WrittenAs(LimitsForm, limits_of)] = {}
    """Replace those of the scenarios."""
    plan: str = ""
    """A shipped workflow by name, or a workflow file, as `resolve` finds it; empty for one agent that works
    on the goal.
    """
    inputs: Mapping[str, Any] = {}
    """Values of the workflow's inputs."""
    routes: Mapping[str, Any] = {}
    """Models by kind of work, with `otherwise`, in place of `model`."""
    tools: Texts | None = None
    """Tools in place of those of the scenarios."""
    learning: bool = False
    """Whether runs remember, and macros that they suggest are kept and offered; each trial begins with an
    empty memory of its own.
    """
    guidance: Annotated[Guidance | None, WrittenAs(GuidanceForm | None, guidance_of)] = None
    """The guidance files of the workspaces; where `None`, a workspace keeps those it has."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value, "model": value}
        given = value if isinstance(value, dict) else {}
        runner, model = given.get("runner") or "", given.get("model") or ""
        if not runner or not isinstance(runner, str) or not isinstance(model, str):
            return value
        try:
            return {**value, "runner": "", "model": str(model_of_runner(runner, model or None))}
        except UsageError as error:
            raise mistake_at("runner", runner, error) from error

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return text_or_mapping(core, handler)

    @property
    def options(self) -> ConfigOptions:
        """The options of its runs that it says; of the others none is the lab's."""
        said = {name: value for name in table(ConfigOptions) if (value := getattr(self, name))}
        return cast("ConfigOptions", said)

    def definition(self) -> dict[str, Json]:
        """Return all that a trial's outcome depends on."""
        own = _used(self, but={"name", "concurrency"}, always=("model", "temperature", "seed", "limits"))
        if self.tools is not None:
            own["tools"] = {"only": list(self.tools)}
        return own | ({} if self.guidance is None else {"guidance": self.guidance.digest})


def _used(whole: Declared, *, but: Collection[str], always: Collection[str]) -> dict[str, Json]:
    """Return the fields as JSON, but for those that no outcome depends on.

    A field without a value is left out unless it is one of `always`: so results that were stored before there
    was such a field still count.
    """
    given = {
        name: value
        for name in type(whole).model_fields
        if name not in but
        for value in [getattr(whole, name)]
    }
    return {name: _as_json(value) for name, value in given.items() if value or name in always}


def _as_json(value: Any) -> Json:
    if isinstance(value, tuple):
        return [_as_json(one) for one in value]
    if isinstance(value, Mapping):
        return dict(value)
    found: Json = value.definition() if hasattr(value, "definition") else value
    return found


class CassetteUse(Declared):
    """Whether answers of real models are recorded, or come from recordings. In a file a text alone is the
    mode.
    """

    mode: CassetteMode = "off"
    folder: Annotated[Path | None, Strict(False)] = None
    """Where they are; by default in `cassettes` beside the suite file, in a folder of the suite's name."""
    volatile: Texts = ()
    """Regular expressions of what is different each time in prompts and results, a duration perhaps: it is
    not a difference.
    """

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"mode": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return text_or_mapping(core, handler)


class Suite(Declared):
    """Scenarios × configurations × epochs.

    Made in Python, or read by `kestrel_lab.evals.suites.loader.load_suite` from YAML, or from a Python file
    that defines one: what other processes run, a cluster or the commits of a repository, is always a file.
    Raises `UsageError` for names used twice, and where there is nothing to run.
    """

    name: str
    scenarios: Many[Scenario]
    configs: Many[Config] = (Config(name="default"),)
    epochs: Annotated[int, WrittenAs(Positive)] = 1
    reducer: Annotated[str, AfterValidator(check_reducer)] = "mean"
    """How the epochs of a scenario become one result beside the success rate: `mode` (more than half passed),
    `max` (one did), `min` (all did), `at_least_K`; `mean` for nothing more.
    """
    concurrency: Annotated[int, WrittenAs(Positive)] = 4
    """Trials at once, over all configurations; the most calls at once that any endpoint gets.

    Fewer while it asks to slow down.
    """
    retry_errors: Annotated[int, WrittenAs(Annotated[int, Field(ge=0, le=MOST)])] = 0
    """How often a trial that broke is made again; one that failed is not."""
    count_errors: CountErrors = "fail"
    """Whether a trial that broke counts as failed or is left out of rates; its number is shown either way."""
    early_stopping: bool = False
    """Whether a trial ends as soon as its checks cannot pass any more: a tool was called that may not be, or
    more often than it may, or a bound on turns, cost, tokens or time is passed. Its verdict is that of the
    whole trial, its amounts are not.
    """
    instructions: str = ""
    """Instructions for the model, added to the usual ones."""
    instructions_from: str = ""
    """A file that holds them."""
    tools_from: Texts = ()
    """Python files whose `@tool` objects the scenarios may name."""
    grader: str = ""
    """The model that judges for `graded` checks, as for a configuration; empty for the one a run gets when
    none is named.
    """
    gates: Annotated[tuple[Gate, ...], WrittenAs(Many[GateItem])] = ()
    """Bounds that `kestrel eval gate` decides; no trial's outcome depends on them."""
    cassette: CassetteUse = CassetteUse()
    metrics: Annotated[tuple[Metric, ...], PythonOnly()] = ()
    """Metrics of its own, made by `@metric`, beside the shipped ones; no trial's outcome depends on them."""
    path: Annotated[Path | None, PythonOnly()] = None
    """The suite file; what the suite names is looked for beside it."""
    root: Annotated[Path | None, PythonOnly()] = None
    """Top of the repository the suite is in; what is not beside the suite file is looked for here."""
    guidance_elsewhere: Annotated[frozenset[str], PythonOnly()] = frozenset()
    """Paths that the guidance of configurations names which were not selected: a trial is the same whatever
    is run beside it.
    """
    otherwise: Annotated[Suite | None, PythonOnly()] = None
    """The same suite in another checkout, from which comes what this one lacks: a suite may be newer than the
    code it measures.
    """

    def model_post_init(self, _context: Any) -> None:
        """Raise `UsageError` where there is nothing to run, or something twice."""
        _require_unique("scenario", [scenario.id for scenario in self.scenarios])
        _require_unique("metric", [metric.name for metric in self.metrics])
        _require_unique("configuration", [config.name for config in self.configs])
        if not self.scenarios or not self.configs:
            raise UsageError(
                f"suite {self.name!r} has no {'configurations' if self.scenarios else 'scenarios'}"
            )
        if self.epochs < 1 or self.concurrency < 1:
            raise UsageError(
                f"suite {self.name!r}: epochs and concurrency are at least 1, not {self.epochs} and "
                f"{self.concurrency}"
            )
        if self.retry_errors < 0:
            raise UsageError(f"suite {self.name!r}: retry_errors is at least 0, not {self.retry_errors}")

    @cached_property
    def groups(self) -> Mapping[str, str]:
        """The group of each scenario, by its id; see `evals.scenario_groups`."""
        return group_scenarios(self.scenarios)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What a notebook shows: what would be run, in a few lines."""
        trials = len(self.scenarios) * len(self.configs) * self.epochs
        sizes = (
            f"{format_count(len(self.scenarios), 'scenario')} × "
            f"{format_count(len(self.configs), 'configuration')} × "
            f"{format_count(self.epochs, 'epoch')} = {format_count(trials, 'trial')}"
        )
        lines = [
            f"suite {self.name}: {sizes}",
            *(f"  {one.name}: {one.model or 'the model of the lab'}" for one in self.configs),
        ]
        lines += [f"  {one.id}: {one_line(one.goal, 100)}" for one in self.scenarios]
        printer.text(sanitize_text("\n".join(lines)))

    async def judge(self, *models: Any, lab: Any, **how: Any) -> Any:
        """Ask model judges about the newest trials of this suite that `lab` has stored, and measure all of
        its judges by people's labels: `lab.evals.judge` with this suite, whose options it takes.
        """
        # A suite is a declaration and knows no log: the lab that has its trials is named.
        return await lab.evals.judge(self, *models, **how)

    @takes_options(Selection)
    def select(self, *, epochs: int | None = None, **parts: Unpack[Selection]) -> Suite:
        """Return the suite with the named parts only, without gates for configurations and families that are
        left out.

        A scenario has to be among those named, of one of the families and have one of the tags, as far as
        each is given; `*` and `?` in a name stand for any signs and any sign. Raises `UsageError` for a name
        that fits nothing the suite has, and when no scenario is left.
        """
        chosen, scenarios, families = self, parts.get("scenarios"), parts.get("families")
        if (configs := parts.get("configs")) is not None:
            picked = tuple(_pick_known("configuration", configs, {c.name: c for c in self.configs}))
            left_out = {config.name for config in self.configs} - {config.name for config in picked}
            gates = tuple(gate for gate in self.gates if gate.config not in left_out)
            chosen = chosen.model_copy(
                update={"configs": picked, "gates": gates, "guidance_elsewhere": self.guidance_paths}
            )
        named = _chosen_names("scenario", scenarios, {scenario.id for scenario in self.scenarios})
        related = _chosen_names("family", families, {scenario.family for scenario in self.scenarios} - {""})
        tags = {tag for scenario in self.scenarios for tag in scenario.tags}
        tagged = _chosen_names("tag", parts.get("tags"), tags)
        if not named is related is tagged is None:
            left = tuple(
                scenario
                for scenario in self.scenarios
                if (named is None or scenario.id in named)
                and (related is None or scenario.family in related)
                and (tagged is None or tagged.intersection(scenario.tags))
            )
            if not left:
                raise UsageError(
                    f"no scenario of suite {self.name!r} matches all of the given names, families and tags"
                )
            kept = {scenario.family for scenario in left}
            chosen = chosen.model_copy(
                update={
                    "scenarios": left,
                    "gates": tuple(g for g in chosen.gates if not g.family or g.family in kept),
                }
            )
        if epochs is not None:
            chosen = chosen.model_copy(update={"epochs": epochs})
        return chosen

    def resolve(self, name: str) -> Path:
        """Return the file or folder that the suite calls `name`: beside the suite file, else from the top of
        its repository.

        With `otherwise` it is what that suite means by the name, at the same place of this checkout if it is
        there. Raises `UsageError` when it is nowhere, or is not inside the repository: a suite has to give
        the same results in another checkout.
        """
        if self.otherwise is not None:
            return self._here(self.otherwise.resolve(name))
        beside = self.path.parent if self.path else Path.cwd()
        places = [beside] if self.root is None or self.root == beside else [beside, self.root]
        if Path(name).is_absolute():
            raise UsageError(
                f"suite {self.name!r} names {name!r}: write it relative to the suite file, so that it "
                "means the same in another checkout"
            )
        for place in places:
            found = place / name
            if found.exists():
                # Resolved, because a link may lead out of the repository.
                if self.root is not None and not found.resolve().is_relative_to(self.root.resolve()):
                    raise UsageError(
                        f"suite {self.name!r} names {name!r}, which is outside its repository {self.root}"
                    )
                return found
        raise UsageError(
            f"suite {self.name!r} names {name!r}, which does not exist; looked in "
            f"{' and '.join(str(place) for place in places)}"
        )

    def _here(self, found: Path) -> Path:
        """Return the file or folder of this checkout that is at the place of one of the other checkout; the
        other where there is none.
        """
        other = None if self.otherwise is None else self.otherwise.root
        own = (
            self.root / found.relative_to(other)
            if self.root and other and found.is_relative_to(other)
            else found
        )
        return own if own.exists() else found

    def definition(self) -> dict[str, Json]:
        """Return what the outcome of every trial depends on beside its scenario and configuration."""
        own: dict[str, Json] = {
            "instructions": self.instructions,
            "instructions_from": self.instructions_from,
            "tools_from": list(self.tools_from),
        }
        # Left out where not used, so that results stored before there were graders still count.
        # A trial that may have been replayed never replaces one that was not, nor the other way round.
        taped: dict[str, Json] = (
            {"cassette": self.cassette.mode} if self.cassette.mode in ("record", "replay") else {}
        )
        only_here = sorted(name for name in self.guidance_paths if not is_guidance(PurePosixPath(name)))
        removed: dict[str, Json] = {"guidance": list(only_here)} if only_here else {}
        # What a trial cost, and what it did, is only of equal ones the same.
        cut: dict[str, Json] = {"early_stopping": True} if self.early_stopping else {}
        return own | ({"grader": self.grader} if self.grader else {}) | taped | removed | cut

    @property
    def guidance_paths(self) -> frozenset[str]:
        """Every path that the guidance of a configuration names: it is in no workspace of a configuration
        with other guidance.
        """
        return self.guidance_elsewhere.union(
            *(config.guidance.files for config in self.configs if config.guidance is not None)
        )


def _pick_known(what: str, names: Iterable[str], known: dict[str, _T]) -> Iterable[_T]:
    for name in names:
        if name not in known:
            raise UsageError(f"the suite has no {what} {name!r}; {did_you_mean(name, known)}")
        yield known[name]


def _chosen_names(what: str, asked: Iterable[str] | None, known: set[str]) -> set[str] | None:
    """Return those of `known` that are asked for; `None` when all are."""
    if asked is None:
        return None
    found: set[str] = set()
    for name in [asked] if isinstance(asked, str) else asked:
        # A name that is exactly known is meant as it is, even with `*` or `?` in it.
        fits = {name} & known or {one for one in known if fnmatchcase(one, name)}
        if not fits:
            raise UsageError(f"the suite has no {what} {name!r}; {did_you_mean(name, known)}")
        found |= fits
    return found


def _require_unique(what: str, names: list[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{what} names used twice: {', '.join(twice)}")
