"""Re-runs of a failed run: forks of it in private copies, each judged by the checks of the trial."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.checks.python_function import PythonCheck
from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ToolError, UsageError
from kestrel_lab.core.events.union import (
    ModelAnswered,
    ModelCalled,
    Record,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.protocols import Check, Model, Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.yaml.reader import parse_yaml
from kestrel_lab.evals.benchmarks.by_name import is_published, load_published
from kestrel_lab.evals.execution.function_checks import load_judge
from kestrel_lab.evals.execution.prepare import PreparedSuite, prepare_suite
from kestrel_lab.evals.execution.trial import finish_run, judge_run
from kestrel_lab.evals.execution.workspaces import trial_workspace
from kestrel_lab.evals.options import GivenCheck, RerunOptions
from kestrel_lab.evals.stored.rescore import replay_environment
from kestrel_lab.evals.stored_trials import EvalRow, trials_of_run
from kestrel_lab.evals.suite import MOST_EPOCHS, Config, Scenario, Suite
from kestrel_lab.evals.suite_files import SUITE_ENDINGS
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.context.dependencies import NoMemory
from kestrel_lab.runtime.context.recorded_tools import RECORDED, recorded_tools_of
from kestrel_lab.runtime.forks.private_copy import remove_copy
from kestrel_lab.runtime.options import ResumeOptions, StartOptions, guidance_names
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.start import fork
from kestrel_lab.tools.tool import Tool, Toolbox

FIRST_EPOCH: Final = 10 * MOST_EPOCHS
"""Epochs of re-runs: a model with a seed answers each of them anew."""
WrapModel = Callable[[Model], Model]


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One request to the model in a run, with the calls that followed it."""

    number: int
    """From 1."""
    seq: int
    """The event at which the model was asked."""
    did: str
    """What it answered, in a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rerun:
    """One fork, and how it was judged."""

    turn: int
    """The turn that it made anew, and all after it."""
    outcome: str
    """`pass`, `fail`, or `error` for a fork that broke and says nothing."""
    reason: str
    run: str
    calls: int
    """Requests to the model that it made itself."""
    cost_usd: float | None
    """`None` where the price is not known."""
    line: str = ""
    """The line that the model was given beside the conversation, to see whether it repairs the run."""


def turns_of(records: Sequence[Record]) -> list[Turn]:
    """Return the turns of a run that were answered."""
    answers = {
        record.event.call: record.event for record in records if isinstance(record.event, ModelAnswered)
    }
    asked = [
        record
        for record in records
        if isinstance(record.event, ModelCalled)
        and (answer := answers.get(record.event.call)) is not None
        and answer.error is None
    ]
    return [
        Turn(number=number, seq=record.seq, did=_did(answers[record.event.call]))  # type: ignore[attr-defined]
        for number, record in enumerate(asked, start=1)
    ]


def _did(answer: ModelAnswered) -> str:
    calls = []
    for call in answer.calls:
        args = call.get("args")
        shown = ", ".join(f"{key}={value}" for key, value in args.items()) if isinstance(args, dict) else ""
        calls.append(f"{call.get('name')}({one_line(shown, 60)})")
    return one_line("; ".join(calls) or answer.text, 100)


class Reruns:
    """Makes forks of one run and judges them. What it counts is of all forks together."""

    def __init__(
        self,
        lab: Services,
        run: Run,
        scenario: Scenario,
        ready: PreparedSuite | None,
        config: Config,
        how: RerunOptions,
    ) -> None:
        """`ready` is the suite of a trial, with its model; a run of its own has none."""
        self.lab, self.run, self.scenario = lab, run, scenario
        self.runs, self.cost, self.reporter = how["runs"], how.get("cost"), how.get("reporter")
        if self.runs <= 0 or (self.cost is not None and self.cost <= 0):
            raise UsageError(f"a budget is positive, not {self.runs:g} whole runs and {self.cost} dollars")
        self.records = tuple(run.records())
        self.turns = turns_of(self.records)
        self.replayed: Counter[str] = Counter()
        """Calls that were answered from the log, by tool."""
        self.refused: Counter[str] = Counter()
        """Calls outside of the copy that the log does not have, so that they were not made."""
        self.made: list[Rerun] = []
        self.model = ""
        self.ready, self.config, self._options = ready, config, dict[str, Any]()
        if how.get("approve") is not None:
            self._options["approve"] = how["approve"]
        if how.get("model") is not None and ready is None:
            self._options["model"] = how["model"]

    @property
    def calls(self) -> int:
        """Requests to the model that the run made."""
        return sum(isinstance(record.event, ModelCalled) for record in self.records)

    @property
    def whole_runs(self) -> float:
        """What the forks have cost, as requests to the model, in runs like the one that failed."""
        return sum(one.calls for one in self.made) / max(1, self.calls)

    @property
    def cost_usd(self) -> float:
        """What the forks have cost in US dollars, as far as prices are known."""
        return sum(one.cost_usd or 0.0 for one in self.made)

    def share(self, turn: Turn) -> float:
        """Return how much of a whole run this turn and all after it are, as far as one can know."""
        return (len(self.turns) - turn.number + 1) / max(1, self.calls)

    def report(self, note: str) -> None:
        """Report how much of the budget is used, and what comes next."""
        if self.reporter is not None:
            self.reporter(int(self.whole_runs), int(self.runs), note)

    def ended(self, coming: float = 0.0) -> str:
        """Return why the budget has no room for `coming` whole runs more; empty while it has."""
        if self.whole_runs + coming > self.runs or self.whole_runs >= self.runs:
            return f"{self.runs:g} whole runs were used up"
        if self.cost is None:
            return ""
        if any(one.cost_usd is None for one in self.made):
            return f"the price of {self.model} is not known, so that no budget of money can be kept"
        return f"{self.cost:g} dollars were used up" if self.cost_usd >= self.cost else ""

    @cached_property
    def _has_files(self) -> bool:
        return self.run.files.folder.is_dir()

    @cached_property
    def _started(self) -> RunStarted:
        return next(record.event for record in self.records if isinstance(record.event, RunStarted))

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The tools that the run was offered."""
        if self.ready is not None:
            return self.ready.toolbox(self.scenario, self.config).names
        return tuple(recorded_tools_of(self._started))

    @property
    def failed_checks(self) -> frozenset[str]:
        """The checks of now that the run did not pass, where it is a trial."""
        asked = {check.label for check in self.scenario.checks}
        scores = [score for row in trials_of_run(self.lab.store, self.run.id)[-1:] for score in row.scores]
        return frozenset(str(one["check"]) for one in scores if not one["passed"]) & asked

    @property
    def named_guidance(self) -> frozenset[str]:
        """Paths that count as guidance beside those known by name."""
        names = frozenset(guidance_names(self.lab.options["guidance_files"]))
        return names if self.ready is None else self.ready.suite.guidance_paths | names

    def refuse_outside(self) -> None:
        """Raise `UsageError` for a run of its own that called what reaches outside of a workspace."""
        if self.ready is not None:
            return
        called = {record.event.tool for record in self.records if isinstance(record.event, ToolCalled)}
        if out := sorted(
            tool.name for tool in self._own_tools() if tool.name in called and _reaches_out(tool)
        ):
            raise UsageError(
                f"run {self.run.id} called {', '.join(out)}, which reach outside of the workspace: whole "
                "runs cannot be tried without doing that again. kestrel blame answers such calls from the log"
            )

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """Open the folder in which the run worked, or one as it began with, where that of a trial is gone."""
        if self._has_files or self.ready is None:
            yield self.run.files.folder
            return
        source = self.ready.sources[self.scenario.id]
        async with trial_workspace(
            self.scenario, source, guidance=self.config.guidance, named=self.named_guidance
        ) as place:
            yield place.root

    def as_suite(self, scenario: Scenario) -> tuple[Suite, dict[str, Model]]:
        """Return a suite of one scenario in the place of the run's, and its model where that is given."""
        if self.ready is not None:
            models = dict(self.ready.models)
            return self.ready.suite.model_copy(update={"scenarios": (scenario,), "epochs": 1}), models
        model = self.lab.registry.resolve_model(self._options.get("model") or self.own_model)
        danger = max(
            (Danger[record.event.danger] for record in self.records if isinstance(record.event, ToolCalled)),
            default=Danger.SAFE,
        )
        # What was allowed once, by whomever, is allowed in a throw-away folder, and nothing more dangerous.
        scenario = scenario.model_copy(
            update={"approve": f"auto:{danger.name.lower()}", "limits": _limits(self._started)}
        )
        return Suite(name="shrink", scenarios=(scenario,), configs=(self.config,)), {self.config.name: model}

    async def once(self, turn: Turn, *, wrap: WrapModel = lambda model: model, line: str = "") -> Rerun:
        """Make one turn and all after it anew, judge what came of it, and remove the private copy.

        The model is what `wrap` makes of it, with a `line` more, say. Raises `UsageError` where no copy of
        the files can be made.
        """
        at, number = turn.seq, len(self.made)
        async with self._prepared(at, number, wrap) as (options, kept, files, environment, grader):
            made = fork(self.lab, self.run.id, at=at, files=files, kept=kept, **options)
            try:
                broke = await finish_run(made)
                if not made.status.terminal:
                    made.cancel()
                self.model = self.model or (made.report.model or "")
                records = tuple(self.lab.store.records(made.id))
                trial = Trial(
                    goal=self.scenario.goal,
                    answer=made.answer,
                    records=records,
                    workspace=made.files.folder,
                    expected=self.scenario.expected,
                    grader=grader,
                    function=self._function,
                    environment=environment,
                    sandbox=self.lab.sandbox,
                )
                judged = None if broke else await judge_run(made, self.scenario, trial)
            finally:
                remove_copy(self.lab.home, made.id)
        own = [record.event for record in records if record.seq > at]
        prices = [event.cost_usd for event in own if isinstance(event, ModelAnswered)]
        found = Rerun(
            turn=turn.number,
            outcome="error" if judged is None else judged.outcome,
            reason=broke if judged is None else judged.reason,
            run=made.id,
            calls=sum(isinstance(event, ModelCalled) for event in own) or 1,
            cost_usd=None if None in prices else sum(price or 0.0 for price in prices),
            line=line,
        )
        self.made.append(found)
        return found

    @asynccontextmanager
    async def _prepared(
        self, at: int, number: int, wrap: WrapModel
    ) -> AsyncIterator[tuple[ResumeOptions, StartOptions, Path | None, Any, Callable[[str], Model]]]:
        """Open what a fork at event `at` needs beside the log."""
        lab, ready, scenario, config = self.lab, self.ready, self.scenario, self.config
        options: ResumeOptions = {**self._options}  # type: ignore[typeddict-item]  # checked by whoever gave them
        if ready is None:
            model = lab.registry.resolve_model(options.get("model") or self.own_model)
            options["model"] = wrap(model)
            options["tools"] = [
                self._outside(tool, at) if _reaches_out(tool) else tool.name for tool in self._own_tools()
            ]
            aside: StartOptions = {"scenario": scenario.id}
            yield options, aside, None, None, lambda name: lab.registry.resolve_model(name or None)
            return
        environment = (
            None
            if scenario.environment is None
            else await replay_environment(scenario.environment, self.records[:at])
        )
        async with (
            trial_workspace(
                scenario, ready.sources[scenario.id], guidance=config.guidance, named=self.named_guidance
            ) as place,
            ready.models_for(
                lab, scenario, config, FIRST_EPOCH + number, place, f"{self.run.id}/{at}/{number}"
            ) as models,
        ):
            options["model"] = wrap(models.model)
            options["tools"] = (
                Toolbox(environment.tools)
                if environment is not None
                else Toolbox(
                    # A suite's own tools were made to be run again and again; services were not.
                    self._outside(tool, at) if tool.asks or ":" in tool.name else tool
                    for tool in ready.toolbox(scenario, config)
                )
            )
            options["approver"] = None if environment is None else environment.approver
            ports = replace(models.ports, abstain=None)
            kept: StartOptions = {
                "scenario": scenario.id,
                "ports": ports if config.learning else replace(ports, memory=NoMemory()),
                "resolve": models.resolve,
                "containment": scenario.containment or lab.options["containment"],
            }
            yield options, kept, None if self._has_files else place.root, environment, models.grader

    @property
    def own_model(self) -> str | None:
        """The name of the model that the run used, if it is found by that."""
        return self._started.model if _is_named(self._started) else None

    def _own_tools(self) -> Iterable[Tool]:
        known, _ = self.lab.registry.known_at_once(recorded_tools_of(self._started))
        return known

    def _outside(self, tool: Tool, at: int) -> Tool:
        """Return `tool` answered from what the run recorded behind event `at`.

        A call that was not recorded is made if the tool only reads, and refused otherwise.
        """
        calls = {
            record.event.call: record.event for record in self.records if isinstance(record.event, ToolCalled)
        }
        coming: dict[str, deque[ToolAnswered]] = {}
        for record in self.records[at:]:
            answer = record.event
            if isinstance(answer, ToolAnswered) and answer.tool == tool.name and answer.call in calls:
                key = content_key(calls[answer.call].args)
                coming.setdefault(key, deque()).append(answer)

        async def call(**values: Any) -> Any:
            args = {name: value for name, value in values.items() if name != tool.context_parameter}
            answers = coming.get(content_key(args))
            if answers:
                answer = answers.popleft()
                self.replayed[tool.name] += 1
                if answer.error is not None:
                    raise ToolError(str(answer.error.get("message", answer.text)))
                return answer.text
            if tool.danger is Danger.SAFE:
                found = tool.function(**values)
                return await found if hasattr(found, "__await__") else found
            self.refused[tool.name] += 1
            raise ToolError(
                f"{tool.name} has an effect outside of the private copy in which this run works, and there "
                "is no recorded answer to such a call: nothing was done"
            )

        return replace(tool, function=call)

    def _function(self, name: str) -> Callable[..., Any]:
        if self.ready is not None:
            return self.ready.functions[name]
        return load_judge(name, Path.cwd(), Path.cwd())


def _limits(started: RunStarted) -> dict[str, Any]:
    return {name: started.limits[name] for name in ("cycles", "cost_usd", "seconds", "tokens")}


def _reaches_out(tool: Tool) -> bool:
    return tool.asks or ":" in tool.name or tool.flow.reaches in ("others", "anything")


async def open_reruns(lab: Services, run_id: str, how: RerunOptions) -> Reruns:
    """Return what re-runs a failed run; `how` has a budget of `runs`.

    Success is decided by the checks of the trial that the run is, with its `suite` as a file, or found by the
    name it has; for any other run by `checks`, or by those of the suite's scenario with the same goal.
    Raises `UsageError` for a run that has not ended or that passed, for one whose tools or files are not
    there, and where nothing says what success is.
    """
    lab.store.flush()
    run = lab.history.get(run_id)
    if not run.status.terminal:
        raise UsageError(f"run {run_id} is {run.status}: only a run that has ended can be re-run")
    started = next(record.event for record in run.records() if isinstance(record.event, RunStarted))
    _refuse_recorded(run, started)
    rows = [row for row in trials_of_run(lab.store, run_id) if row.outcome != "error"]
    checks, suite = how.get("checks", ()), how.get("suite")
    if rows and started.model_kind != "imported" and not (checks and suite is None and not _usual(rows[-1])):
        return _of_trial(lab, run, rows[-1], how)
    if how.get("model") is None and not _is_named(started) and lab.options.get("model") is None:
        raise UsageError(
            f"run {run_id} used the {started.model_kind} model {started.model!r}: name the model to re-run "
            "it with, --model NAME or model=…"
        )
    made = Reruns(lab, run, _scenario_of(run, checks, suite), None, Config(name="run"), how)
    await _refuse_passed(made)
    return made


def _of_trial(lab: Services, run: Run, row: EvalRow, how: RerunOptions) -> Reruns:
    checks, model = how.get("checks", ()), how.get("model")
    if row.outcome == "pass" and not checks:
        raise UsageError(f"run {run.id} passed its checks: there is nothing to blame")
    loaded = _suite_of(row, how.get("suite"))
    # Recordings have answers to the requests of the recorded run only.
    loaded = loaded.model_copy(update={"cassette": loaded.cassette.model_copy(update={"mode": "off"})})
    if all(scenario.id != row.scenario for scenario in loaded.scenarios) or all(
        config.name != row.config for config in loaded.configs
    ):
        raise UsageError(
            f"suite {loaded.name!r} has no scenario {row.scenario!r} with a configuration {row.config!r} any "
            f"more, of which run {run.id} is a trial"
        )
    chosen = loaded.select(scenarios=[row.scenario], configs=[row.config])
    [scenario], [config] = chosen.scenarios, chosen.configs
    if scenario.goal != run.goal:
        raise UsageError(f"the goal of scenario {scenario.id!r} is another one now: run it again first")
    if checks:
        scenario = scenario.model_copy(update={"checks": tuple(_check(one) for one in checks)})
        chosen = chosen.model_copy(update={"scenarios": (scenario,)})
    given = {} if model is None else {config.name: lab.registry.resolve_model(model)}
    ready = prepare_suite(lab, chosen, models=given)
    return Reruns(lab, run, scenario, ready, config, how)


def _suite_of(row: EvalRow, suite: str | Path | Suite | None) -> Suite:
    if isinstance(suite, Suite):
        return suite
    usual = _usual(row)
    if suite is None and is_published(row.suite):
        return load_published(row.suite)
    if suite is None and usual is None:
        raise UsageError(f"run {row.run} is a trial of suite {row.suite!r}: name its file with --suite FILE")
    return load_suite(suite or usual or "")


def _usual(row: EvalRow) -> Path | None:
    """Return the file in which the suite of a trial is looked for, if it is there."""
    files = (
        Path(folder, row.suite + ending)
        for folder in ("evals", "")
        for ending in (".yaml", ".yml", *SUITE_ENDINGS)
    )
    return next((file for file in files if file.is_file()), None)


def _is_named(started: RunStarted) -> bool:
    """Whether the model of a run is found again by its name."""
    return started.model_kind == "real" or started.model.startswith("scripted:")


def _scenario_of(run: Run, checks: Sequence[GivenCheck], suite: str | Path | Suite | None) -> Scenario:
    if checks:
        return Scenario(id="run", goal=run.goal, checks=tuple(_check(one) for one in checks))
    if suite is None:
        raise UsageError(
            f"nothing says when a re-run of {run.id} succeeds: add --check, such as --check "
            "'answer_contains: \"42\"', or --suite FILE with a scenario that has the goal of the run"
        )
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    for scenario in loaded.scenarios:
        if scenario.goal == run.goal:
            return scenario
    raise UsageError(f"suite {loaded.name!r} has no scenario with the goal of run {run.id}")


def _check(given: GivenCheck) -> Check:
    if isinstance(given, str):
        return parse_check(parse_yaml(given, "--check").value)
    return parse_check(given) if isinstance(given, dict) else given


def _refuse_recorded(run: Run, started: RunStarted) -> None:
    """Raise `UsageError` for an imported run that called tools of the program that recorded it."""
    theirs = {str(tool["name"]) for tool in started.tools if tool.get("version") == RECORDED}
    called = sorted(
        {record.event.tool for record in run.records() if isinstance(record.event, ToolCalled)} & theirs
    )
    if called:
        raise UsageError(
            f"run {run.id} was imported, and its tools ({one_line(', '.join(called), 100)}) exist in the "
            "recording only: another way of going on cannot be tried. kestrel show and kestrel diff read it"
        )


async def _refuse_passed(made: Reruns) -> None:
    """Raise `UsageError` for a run that passes, where its log alone tells."""
    checks = made.scenario.checks
    if any(isinstance(check, PythonCheck) or getattr(check, "needs", "the workspace") for check in checks):
        return
    trial = Trial(goal=made.run.goal, answer=made.run.answer, records=made.records, workspace=Path.cwd())
    judged = await judge_run(made.run, made.scenario, trial)
    if judged.outcome == "pass":
        raise UsageError(f"run {made.run.id} passes these checks: there is nothing to blame")
