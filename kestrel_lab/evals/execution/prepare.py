"""Preparation of a suite: models, tools and workspaces are found before the first trial, and whatever is
missing is reported at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.adapters.adapter import is_adapter
from kestrel_lab.checks.composition import each_check, out_of_reach
from kestrel_lab.checks.grounding import Faithful
from kestrel_lab.checks.llm_judge import ModelGraded
from kestrel_lab.checks.python_function import PythonCheck
from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.messages import ModelAnswer, ModelParams, ModelRequest
from kestrel_lab.core.protocols import Model, ModelKind, OnDelta, TrialStart
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.yaml.validation import join_problems
from kestrel_lab.evals.execution.conversation_digest import ConversationDigest
from kestrel_lab.evals.execution.function_checks import load_judge
from kestrel_lab.evals.execution.workspaces import Containers, workspace_source
from kestrel_lab.evals.scenario_parts import InlineFiles, PackageSource
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.suites.cassettes import Recordings
from kestrel_lab.evals.suites.python_files import load_function, load_tools
from kestrel_lab.memory.embeddings import default_embedder
from kestrel_lab.models.cassettes.recorder import AbsentModel, TrialCassette
from kestrel_lab.models.fallback import model_of_several, names_several
from kestrel_lab.models.learned_router import ROUTER, learned_model
from kestrel_lab.models.router import ROUTE, model_router, read_routes
from kestrel_lab.models.wrapper import ModelWrapper
from kestrel_lab.runtime.context.dependencies import Ports, Series
from kestrel_lab.runtime.context.toolboxes import chosen_tools
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.start import once
from kestrel_lab.runtime.workflows.loader import plan_for
from kestrel_lab.testing import ScriptedModel, load_script
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Tool, Toolbox
from kestrel_lab.views.formatting import format_count

if TYPE_CHECKING:
    from kestrel_lab.evals.execution.batches import Batches

_SCRIPTED = "scripted:"
_MOST_SHOWN: Final = 3
"""Checks out of reach that are named one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSuite:
    """A suite with everything that its trials need."""

    suite: Suite
    instructions: str
    models: Mapping[str, Model]
    """By configuration."""
    plans: Mapping[str, str | Path | None]
    """By configuration: a shipped workflow or a file; `None` for one agent."""
    toolboxes: Mapping[str, Toolbox]
    """By scenario; see `toolbox`."""
    sources: Mapping[str, Path | None]
    """By scenario: the folder that its workspace is made from."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that cannot be run here, and why."""
    graders: Mapping[str, Model] = field(default_factory=dict)
    """Models that judge or play the user, by the name that checks and users have for them; empty for the
    suite's."""
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The functions that `python_check`s name."""
    recordings: Recordings | None = None
    """The recordings of model calls, if calls are recorded or replayed."""

    containers: Containers
    """The images that scenarios name."""
    batches: Batches | None = None
    """What gathers model calls into batches, where that was asked for."""

    series: Series = field(default_factory=dict)
    """What its trials prepare once."""
    config_tools: Mapping[str, Toolbox] = field(default_factory=dict)
    """By configuration, for those that bring tools of their own."""

    def toolbox(self, scenario: Scenario, config: Config) -> Toolbox:
        """Return the tools of a trial: the configuration's, if it has any, else the scenario's."""
        return (
            self.config_tools[config.name]
            if config.name in self.config_tools
            else self.toolboxes[scenario.id]
        )

    def instructions_of(self, scenario: Scenario, config: Config) -> str:
        """Return the instructions of a trial: the suite's, and those of the scenario's environment.

        Where the suite's `instructions_from` is a guidance file, it is the one of the configuration.
        """
        text, prompt = self.instructions, self.suite.instructions_from
        if config.guidance is not None and prompt in self.suite.guidance_paths:
            text = self.suite.instructions + config.guidance.files.get(prompt, "")
        own = scenario.environment.instructions if scenario.environment else ""
        return f"{text}\n\n{own}".strip() if own else text

    @asynccontextmanager
    async def models_for(
        self, lab: Services, scenario: Scenario, config: Config, epoch: int, place: Workspace, trial: str
    ) -> AsyncIterator[TrialModels]:
        """Open the models of one trial in `place`, with its tape where calls are recorded or replayed.

        `trial` is equal for a trial that is made again in the same eval run after its process died.
        """
        workspace = place.root
        first = once(self.series, "digest", place, partial(ConversationDigest, workspace))
        calls = ConversationDigest(workspace, first)
        if self.batches is not None:
            with self.batches.trial(trial, calls, workspace) as batched:
                yield TrialModels(
                    model=self.model(config, epoch, batched(self.models[config.name])),
                    resolve=lambda name: batched(lab.registry.resolve_model(name)),
                    grader=lambda name: batched(self.graders[name]),
                    ports=lab.ports,
                    calls=calls,
                )
            return
        if self.recordings is None:
            yield TrialModels(
                model=calls.around(self.model(config, epoch, self.models[config.name])),
                resolve=lambda name: calls.around(lab.registry.resolve_model(name)),
                grader=lambda name: calls.around(self.graders[name]),
                ports=lab.ports,
                calls=calls,
            )
            return
        usual = lab.options.get("model")
        by_default = usual if isinstance(usual, str) else usual.name if usual is not None else ""
        with self.recordings.tape(scenario.id, config.name, epoch, workspace) as tape:
            yield TrialModels(
                model=calls.around(
                    self.model(
                        config, epoch, tape.around(self.models[config.name], config.model or by_default)
                    )
                ),
                resolve=lambda name: calls.around(
                    tape.around(_model_named(lab, name, replay=tape.replays), name)
                ),
                grader=lambda name: calls.around(
                    tape.around(self.graders[name], name or self.suite.grader or by_default)
                ),
                ports=replace(lab.ports, now=tape.now),
                calls=calls,
                tape=tape,
            )

    def model(self, config: Config, epoch: int, model: Model) -> Model:
        """Return `model` with the parameters of `config` in `epoch`."""
        params = ModelParams.of(config.params)
        first = config.seed if config.seed is not None else params.seed
        own = ModelParams(temperature=config.temperature, seed=None if first is None else first + epoch - 1)
        # Fields of the configuration win over `params`, which may name the same ones.
        params |= own
        return TunedModel(model=model, params=params) if params.as_json() else model

    def limits(self, scenario: Scenario, config: Config, otherwise: Limits) -> Limits:
        """Return the limits of a trial: the configuration's, then the scenario's, then `otherwise`."""
        given = {**scenario.limits, **config.limits}
        if self.batches is not None:
            given["wall_seconds"] = None  # a batch takes hours, whatever the agent does
        return replace(otherwise, **given) if given else otherwise  # type: ignore[arg-type]  # the suite file's types were checked


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialModels:
    """The models of one trial."""

    model: Model
    resolve: Callable[[str], Model]
    """For steps that name a model."""
    grader: Callable[[str], Model]
    ports: Ports
    calls: ConversationDigest
    """What they were asked and answered."""
    tape: TrialCassette | None = None

    @property
    def kind(self) -> ModelKind:
        """The kind of model that answered in the trial: `replay` as soon as one answer came from a
        recording.
        """
        return "replay" if self.tape is not None and self.tape.replayed else self.model.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedModel(ModelWrapper):
    """A model with parameters for every request that sets none itself."""

    model: Model
    params: ModelParams

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Ask the model with the parameters filled in."""
        return await self.model(self.params.over(request), on_delta)


def _graders_of(scenario: Scenario) -> set[str]:
    """Return the names of the models that a scenario asks beside the agent's."""
    names = set() if scenario.user is None else {scenario.user.model}
    for check in each_check(scenario.checks):
        if isinstance(check, ModelGraded):
            names.update(check.graders)
        elif isinstance(check, Faithful):
            names.add(check.model)
    return names


def prepare_suite(
    lab: Services, suite: Suite, *, models: Mapping[str, Model] | None = None, skip_missing: bool = False
) -> PreparedSuite:
    """Find and load everything that the suite names; `models` are objects to use for configurations, by name.

    Raises `UsageError` that tells of all that is not there. With `skip_missing`, scenarios whose workspace,
    tools or checks are not there are put in `skipped` instead: an older commit need not have them.
    """
    given = models or {}
    replay = suite.cassette.mode == "replay"
    # Before anything is loaded: these mistakes are in the file itself.
    _refuse_mixed(suite)
    own = {
        tool.name: tool for name in suite.tools_from for tool in load_tools(suite.resolve(name), suite.root)
    }
    known = Toolbox(({tool.name: tool for tool in lab.registry.toolbox} | own).values())
    toolboxes: dict[str, Toolbox] = {}
    graders: dict[str, Model] = {}
    functions: dict[str, Callable[..., Any]] = {}
    sources: dict[str, Path | None] = {}
    skipped: dict[str, str] = {}
    problems: list[str] = []
    for scenario in suite.scenarios:
        try:
            toolboxes[scenario.id] = _toolbox(lab, own, known, scenario)
            sources[scenario.id] = workspace_source(suite, scenario, lab.home)
            for name in _graders_of(scenario) - set(graders):
                graders[name] = _chosen(lab, suite, name or suite.grader, as_written=True, replay=replay)
            for check in each_check(scenario.checks):
                if isinstance(check, PythonCheck) and check.function not in functions:
                    functions[check.function] = load_judge(
                        check.function, _folder_of_check(suite, check.function), suite.root
                    )
        except UsageError as error:
            if skip_missing:
                skipped[scenario.id] = str(error)
            else:
                problems.append(str(error))
    ways: dict[str, tuple[Model, str | Path | None]] = {}
    for config in suite.configs:
        try:
            ways[config.name] = (
                given.get(config.name) or _model_of_config(lab, suite, config, replay=replay),
                _plan(suite, config),
            )
        except UsageError as error:
            problems.append(str(error))
    # All problems at once, so that a suite is repaired in one go.
    if problems:
        raise UsageError(join_problems(dict.fromkeys(problems)))
    return PreparedSuite(
        suite=suite,
        instructions=suite.instructions + _instructions(suite),
        models={name: model for name, (model, _) in ways.items()},
        plans={name: plan for name, (_, plan) in ways.items()},
        toolboxes=toolboxes,
        sources=sources,
        skipped=skipped,
        graders=graders,
        functions=functions,
        containers=Containers(suite=suite, env=lab.env),
        config_tools={
            config.name: _tools_named(known, lab, config.tools, f"configuration {config.name!r}")
            for config in suite.configs
            if config.tools is not None
        },
        recordings=Recordings.of(
            suite,
            lab.env,
            needed=any(
                model.kind == "real" for model in (*graders.values(), *(model for model, _ in ways.values()))
            ),
        ),
    )


def _folder_of_check(suite: Suite, reference: str) -> Path | None:
    """Return the folder in which the module of a check is looked for: beside the suite file, where that has
    it or there is no other.
    """
    module = Path(*reference.partition(":")[0].split(".")).with_suffix(".py")
    own, other = (
        one.path.parent if one is not None and one.path is not None else None
        for one in (suite, suite.otherwise)
    )
    return other if own is not None and other is not None and not (own / module).is_file() else own


def _instructions(suite: Suite) -> str:
    return (
        suite.resolve(suite.instructions_from).read_text(encoding="utf-8") if suite.instructions_from else ""
    )


def _toolbox(lab: Services, own: dict[str, Tool], known: Toolbox, scenario: Scenario) -> Toolbox:
    if scenario.environment is not None:
        return Toolbox()  # each trial has tools of its own
    if scenario.tools is None:
        native = {tool.name: tool for tool in lab.registry.toolbox}
        reading = {
            name: tool
            for name, tool in native.items()
            if tool.danger is Danger.SAFE and tool.effect == "pure" and not tool.group
        }
        return Toolbox((reading | own).values())
    return _tools_named(known, lab, scenario.tools, f"scenario {scenario.id!r}")


def _refuse_mixed(suite: Suite) -> None:
    """Raise `UsageError` for a configuration that would take the place of what a scenario brings with it."""
    for config in suite.configs:
        if config.guidance is not None and (
            found := next((one.id for one in suite.scenarios if isinstance(one.place, PackageSource)), None)
        ):
            msg = (
                f"configuration {config.name!r} has guidance files, but the scenario {found!r} works "
                "in an installed package, which stays as it is"
            )
            raise UsageError(msg)
        if config.tools is not None and (
            found := next((one.id for one in suite.scenarios if one.environment), None)
        ):
            msg = (
                f"configuration {config.name!r} has tools of its own, but the scenario {found!r} can "
                "only be done with those it brings"
            )
            raise UsageError(msg)
        if config.plan and (found := next((one.id for one in suite.scenarios if one.turns), None)):
            raise UsageError(
                f"configuration {config.name!r} has a plan, but the scenario {found!r} is a "
                "conversation of several turns"
            )


def _tools_named(known: Toolbox, lab: Services, names: tuple[str, ...], who: str) -> Toolbox:
    try:
        return chosen_tools(known, tuple(lab.mcp.named(names)))
    except UsageError as error:
        raise UsageError(f"{who}: {error}") from error


def _plan(suite: Suite, config: Config) -> str | Path | None:
    path = suite.resolve(config.plan) if config.plan.endswith((".yaml", ".yml")) else config.plan or None
    plan_for(path, "a goal", config.inputs)
    return path


def _model_of_config(lab: Services, suite: Suite, config: Config, *, replay: bool) -> Model:
    choose = partial(_chosen, lab, suite, replay=replay)
    return model_router(config.routes, choose) if config.routes else choose(config.model)


def _chosen(
    lab: Services, suite: Suite, model: str, *, as_written: bool = False, replay: bool = False
) -> Model:
    """Return the model; a script is named by its whole path, by which its runs find it again, or `as_written`
    in the suite.
    """
    choose = partial(_chosen, lab, suite, as_written=as_written, replay=replay)
    if names_several(model):
        return model_of_several(model, choose)
    if model.startswith(_SCRIPTED):
        # Read afresh each time: the session keeps the models it chose before.
        file, colon, function = model.removeprefix(_SCRIPTED).rpartition(":")
        if colon and file.endswith(".py"):
            return ScriptedModel(load_function(suite.resolve(file), function, suite.root), name=model)
        return load_script(suite.resolve(model.removeprefix(_SCRIPTED)), name=model if as_written else "")
    if model.startswith(f"{ROUTE}:"):
        return read_routes(suite.resolve(model.removeprefix(f"{ROUTE}:")), choose)
    if model.startswith(f"{ROUTER}:"):
        return learned_model(suite.resolve(model.removeprefix(f"{ROUTER}:")), choose, default_embedder())
    return _model_named(lab, model, replay=replay)


def _model_named(lab: Services, name: str, *, replay: bool) -> Model:
    """Return the model of that name; a replay needs no key and no extra, so only a model that was given is
    used there.
    """
    if not replay or name.startswith(_SCRIPTED):
        return lab.registry.resolve_model(name or None)
    return lab.registry.given_model(name or None) or AbsentModel(name=name)


def checks_out_of_reach(ready: PreparedSuite) -> list[str]:
    """Return a sentence for each check that cannot pass, as the check itself declares, and one for those
    beyond the first few.
    """
    found = list(dict.fromkeys(_unreachable_checks(ready)))
    more = len(found) - _MOST_SHOWN
    if more <= 0:
        return found
    return [*found[:_MOST_SHOWN], f"{format_count(more, 'more check')} cannot pass for want of a tool"]


def _unreachable_checks(ready: PreparedSuite) -> Iterator[str]:
    """Yield a sentence for each check that no trial of a scenario with a configuration can pass."""
    for scenario in ready.suite.scenarios:
        for config in ready.suite.configs:
            start = _start_of(ready, scenario, config)
            if start is None:
                continue
            for check in scenario.checks:
                if reason := out_of_reach(check, start):
                    offered = ", ".join(start.tools) or "none"
                    yield (
                        f"scenario {scenario.id!r} [{config.name}]: the check {check.label!r} cannot pass: "
                        f"{reason}, and the agent is offered {offered}. Name the tools of the scenario, "
                        "tools: [default] or single ones"
                    )


def _start_of(ready: PreparedSuite, scenario: Scenario, config: Config) -> TrialStart | None:
    """Return what a trial begins with; `None` where its tools are its own, or those of another program."""
    brings_tools = scenario.environment is not None or is_adapter(ready.models[config.name])
    if brings_tools or scenario.id in ready.skipped:
        return None
    toolbox = ready.toolbox(scenario, config)
    filled = scenario.before or scenario.history or scenario.image or scenario.dockerfile
    files = scenario.place.files if isinstance(scenario.place, InlineFiles) and not filled else None
    return TrialStart(tools={tool.name: tool.effect for tool in toolbox}, files=files)
