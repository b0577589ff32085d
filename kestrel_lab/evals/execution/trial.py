"""One trial: a scenario run once with one configuration, judged, measured, and returned as one row."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, cast

from kestrel_lab.checks.python_function import judge
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import (
    ApprovalRequired,
    CheckError,
    KestrelError,
    RunError,
    TrialBroke,
    error_boundary,
    error_text,
)
from kestrel_lab.core.events.union import (
    ModelAnswered,
    ModelCalled,
    Record,
    RunFinished,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Check, Model, OnDelta, Trial
from kestrel_lab.core.run_types import EARLY_STOPPING, RunStatus, new_trial_id
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.execution.early_stop import EarlyStopping, at_best, ended_early
from kestrel_lab.evals.execution.prepare import PreparedSuite
from kestrel_lab.evals.execution.workspaces import trial_workspace
from kestrel_lab.evals.metrics import measure_run, own_metrics
from kestrel_lab.evals.scenario_parts import SetupCommand
from kestrel_lab.evals.seed_notes import store_seed_notes
from kestrel_lab.evals.stored_trials import EvalRow, failed_scores, failed_text
from kestrel_lab.evals.suite import Config, Opened, Scenario
from kestrel_lab.evals.summaries.streaming_summary import mean_score
from kestrel_lab.models.wrapper import ModelWrapper
from kestrel_lab.runtime.context.dependencies import NoMemory
from kestrel_lab.runtime.operations.intake import conversation_plan
from kestrel_lab.runtime.options import ConfigOptions, guidance_names, table
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.start import start
from kestrel_lab.runtime.supervision.model_guard import guard_model
from kestrel_lab.runtime.workspace.macros import WorkspaceMacros
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.results import to_json
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.tool import Toolbox

Outcome = Literal["pass", "fail", "error"]
"""`error`: the trial broke (a model, the engine or a check failed) and says nothing of the scenario."""

ANSWER_KEPT: Final = 4_000
"""Characters of an answer in a row; the whole is in the run's log."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Everything a trial's outcome depends on, hashed part by part.

    Names of scenarios and configurations are in it: two that are equal but for the name are two, with trials
    of their own.
    """

    scenario: str
    config: str
    suite: str
    code: str
    """Commit and uncommitted changes; empty outside git."""
    package: str
    """Version of kestrel_lab."""
    epoch: int

    @cached_property
    def key(self) -> str:
        """A hash that is equal for trials which may replace each other."""
        return content_key("trial/1", self.as_json())

    def as_json(self) -> dict[str, Json]:
        """Return the parts, to be stored beside a result: they show later what changed."""
        return {name: getattr(self, name) for name in _PARTS}


def scenario_hash(scenario: Scenario) -> str:
    """Return a hash of the scenario's id and of all that the outcome of its trials depends on."""
    return content_key(scenario.id, scenario.definition())[:12]


_PARTS: Final = tuple(Identity.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What was found of a run that has ended."""

    outcome: Outcome
    reason: str = ""
    scores: tuple[Score, ...] = ()
    finish: str = ""
    """How the answer ended where it is not whole: see `RunFinished.finish`."""
    early: bool = False
    """Whether the run was ended because its checks could not pass any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRequest:
    """A trial to run."""

    scenario: Scenario
    config: Config
    epoch: int
    identity: Identity
    git_sha: str = ""

    def at(self, *, epoch: int, sha: str | None = None) -> TrialRequest:
        """Return the same trial in another epoch, and of the clean commit `sha` if one is given."""
        code = self.identity.code if sha is None else sha
        return replace(
            self,
            epoch=epoch,
            git_sha=self.git_sha if sha is None else sha,
            identity=replace(self.identity, epoch=epoch, code=code),
        )


_UNSAID: Final = cast(
    "ConfigOptions", {name: opt.default for name, opt in table(ConfigOptions).items()} | {"verify": "off"}
)
"""The options of a trial that its configuration does not say. They are not the lab's: the same suite has the
same results in every lab. Answers are not verified, since checks judge them.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _MeteredUser(ModelWrapper):
    """The model that plays the user of a scenario; what it uses is in no event of the run."""

    model: Model
    asked: list[Usage]

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        answer = await self.model(request, on_delta)
        self.asked.append(answer.usage)
        return answer


def _with_user(metrics: dict[str, float], asked: Sequence[Usage]) -> dict[str, float]:
    """Return the metrics of a trial with the money for its simulated user in its cost, and apart."""
    if not asked:
        return metrics
    cost, unpriced = sum(one.cost_usd for one in asked), sum(one.unpriced for one in asked)
    return metrics | {
        "cost_estimate": metrics["cost_estimate"] + cost,
        "unpriced_calls": metrics["unpriced_calls"] + unpriced,
        "user_cost": cost,
    }


async def run_trial(
    lab: Services,
    ready: PreparedSuite,
    ask: TrialRequest,
    *,
    keep_in: Path | None = None,
    attempt: int = 1,
    stored_behind: bool = False,
) -> EvalRow:
    """Run the scenario, judge and measure the run; `attempt` counts those that broke before.

    The run is on disk, unless the row is `stored_behind` it in the same log: then nobody waits for that.

    What goes wrong inside the run or a check is in the row. Raises `UsageError` for what the caller
    must change, and the store's errors.
    """
    scenario, config = ask.scenario, ask.config
    environment, toolbox, unopened = _open_environment(ready, scenario, config)
    only_pure = not (scenario.before or config.learning) and all(tool.effect == "pure" for tool in toolbox)
    named = ready.suite.guidance_paths.union(guidance_names(lab.options["guidance_files"]))
    async with (
        trial_workspace(
            scenario,
            ready.sources[scenario.id],
            keep_in,
            only_pure=only_pure,
            guidance=config.guidance,
            named=named,
            containers=ready.containers,
        ) as workspace,
        ready.containers.opened(scenario, workspace, lab.sandbox) as sandbox,
        ready.models_for(
            lab, scenario, config, ask.epoch, workspace, f"{ask.identity.key}/{attempt}"
        ) as models,
    ):
        # The lab's bar for answers is no part of the suite; the checks judge.
        ports = replace(models.ports, abstain=None, sandbox=sandbox)
        if not config.learning:
            ports = replace(ports, memory=NoMemory(), series=None if scenario.before else ready.series)
        options: ConfigOptions = {**_UNSAID, **config.options}
        turns, bounds = (scenario.goal, *scenario.turns), ready.limits(scenario, config, lab.limits)
        user = None if scenario.user is None else scenario.user.definition()
        asked_user: list[Usage] = []
        if config.learning:
            await store_seed_notes(ports.memory, scenario.notes, str(workspace.root))

        def begin(goal: str) -> Run:
            watched = ready.suite.early_stopping and goal == scenario.goal
            return start(
                lab,
                goal,
                model=models.model,
                tools=toolbox,
                limits=bounds,
                workspace=workspace,
                approve=scenario.policy,
                approver=None if environment is None else environment.approver,
                containment=scenario.containment or lab.options["containment"],
                instructions=ready.instructions_of(scenario, config),
                config=config.name,
                scenario=scenario.id,
                plan=conversation_plan(turns, toolbox.names, user)
                if (scenario.turns or user) and goal == scenario.goal
                else ready.plans[config.name],
                inputs=config.inputs,
                resolve=lambda name: (
                    _MeteredUser(model=models.grader(name), asked=asked_user)
                    if user and name == user["model"]
                    else (models.grader if name in ready.graders else models.resolve)(name)
                ),
                ports=replace(
                    ports,
                    # A hook is called when all of its run is written.
                    stored_behind=stored_behind
                    and goal == scenario.goal
                    and lab.options.get("hooks") is None,
                    early_stopping=EarlyStopping(lab.store, scenario) if watched else None,
                ),
                output=scenario.output or None,
                history=[turn.past for turn in scenario.history] if goal == scenario.goal else (),
                **options,
            )

        run, broke = None, unopened or ready.containers.broken.get(scenario.id, "")
        if not broke:
            run, broke = await _run_earlier_tasks(lab, ask, begin, workspace, sandbox)
        if run is None or not broke:
            run = begin(scenario.goal)
            if broke:  # a row names a run: this one does nothing
                run.cancel()
                if run.task is not None:
                    await asyncio.wait([run.task])
            else:
                broke = await finish_run(run)
        records = await _records_of(lab, run)
        judged = (
            Judged(outcome="error", reason=broke)
            if broke
            else await judge_run(
                run,
                scenario,
                Trial(
                    goal=scenario.goal,
                    answer=run.answer,
                    records=records,
                    workspace=workspace.root,
                    expected=scenario.expected,
                    grader=lambda name: guard_model(
                        models.grader(name),
                        lab.supervisor,
                        _ignore_wait,
                        patience_s=bounds.patience_s,
                        call_s=bounds.model_seconds,
                    ),
                    function=ready.functions.__getitem__,
                    resolve=ready.suite.resolve,
                    environment=environment,
                    sandbox=sandbox,
                    read_only=workspace.read_only,
                ),
            )
        )
        missing = [] if models.tape is None else models.tape.missing
    if missing and judged.outcome != "error":
        # A sub-agent, a verifier or a fallback may go on without an answer; what it did then is no replay.
        judged = replace(judged, outcome="error", reason=missing[0])
    own, unusable = own_metrics(records, ready.suite.metrics)
    measured = measure_run(records, None if run.ctx is None else run.ctx.state.meter)
    measured = _with_user(measured, asked_user) | own
    if unusable:
        judged = replace(judged, outcome="error", reason="; ".join(filter(None, [judged.reason, *unusable])))
    return EvalRow(
        id=new_trial_id(),
        scenario=scenario.id,
        result=_result(
            ask,
            run,
            judged,
            model_name=config.model or models.model.name
            if models.model.kind == "scripted"
            else models.model.name,
            model_kind=models.kind,
            missing=missing,
            served=_served_names(records) if models.kind == "real" else [],
            conversation=models.calls.value,
            group=ready.suite.groups[scenario.id],
        ),
        metrics=measured,
        git_sha=ask.git_sha,
        created_at=time.time(),
        suite=ready.suite.name,
        config=config.name,
        epoch=ask.epoch,
        key=ask.identity.key,
    )


def _open_environment(
    ready: PreparedSuite, scenario: Scenario, config: Config
) -> tuple[Opened | None, Toolbox, str]:
    """Return a new state of the scenario's environment, if it has one, the tools of the trial, and why the
    environment could not be opened.
    """
    if scenario.environment is None:
        return None, ready.toolbox(scenario, config), ""
    try:
        with error_boundary(TrialBroke, "the environment of the scenario"):
            opened = scenario.environment.open()
            return opened, Toolbox(opened.tools), ""
    except TrialBroke as error:
        return None, Toolbox(()), str(error)


def _served_names(records: Iterable[Record]) -> list[str]:
    """Return the names that endpoints gave for what answered, each once."""
    answers = [record.event for record in records if isinstance(record.event, ModelAnswered)]
    return sorted({answer.model for answer in answers if answer.error is None and answer.model})


async def _records_of(lab: Services, run: Run) -> tuple[Record, ...]:
    """Return the records of a run that has ended, from memory where they are kept there."""
    kept = lab.store.kept.pop(run.id, None)
    if kept is None and run.ctx is not None:
        await run.ctx.on_disk()  # at once where that was waited for; `Run.records` would always wait
    return tuple(lab.store.records(run.id) if kept is None else kept)


def with_earlier_attempts(earlier: Sequence[EvalRow], row: EvalRow) -> EvalRow:
    """Return `row` as the last attempt of a trial that broke before; it lists the earlier attempts, whose
    runs are in the log.
    """
    if not earlier:
        return row
    attempts: Json = [{"reason": one.reason, "run": one.run, "metrics": dict(one.metrics)} for one in earlier]
    return replace(row, result={**row.result, "attempts": attempts})


def _ignore_wait(_: object) -> None:
    """Ignore what a grader waits for: it belongs to no run's log."""


async def finish_run(run: Run) -> str:
    """Wait for the run; returns what broke, if that is not the run's own end in the log."""
    try:
        await run.wait()
    except (ApprovalRequired, RunError):
        return ""
    # What the caller has to change, or an error of the log, ends the suite; any other error is this trial's.
    except KestrelError:
        raise
    except Exception as error:  # noqa: BLE001
        return error_text(error)
    return ""


async def _run_earlier_tasks(
    lab: Services, ask: TrialRequest, begin: Callable[[str], Run], place: Workspace, sandbox: Sandbox
) -> tuple[Run | None, str]:
    """Run the tasks that come before the scenario's goal; returns the last of these runs, if any, and what
    broke.
    """
    run = None
    for goal in ask.scenario.before:
        if isinstance(goal, SetupCommand):
            if wrong := await goal.run(place, sandbox):
                return run, wrong
            continue
        run = begin(goal)
        broke = await finish_run(run)
        if broke or run.status is not RunStatus.COMPLETE:
            return (
                run,
                f"a task before it did not end ({one_line(goal, 60)}): {broke or run.reason or run.status}",
            )
        if ask.config.learning:
            await asyncio.to_thread(_keep_macros, lab, place)
    return run, ""


def _keep_macros(lab: Services, place: Workspace) -> None:
    """Save the macros that runs in a workspace suggest: the suite's author wants them by `learning`."""
    macros = WorkspaceMacros(lab, place.root)
    lab.store.flush()
    for proposal in macros.proposals():
        macros.save(proposal.macro)


async def judge_run(run: Run, scenario: Scenario, trial: Trial) -> Judged:
    """Return how a run that has ended is judged by its scenario's checks, and by how it ended.

    Of one that ended early only what cannot change any more is judged: no answer and no file, by no model.
    """
    end = next(
        (record.event for record in reversed(trial.records) if isinstance(record.event, RunFinished)), None
    )
    # Such a run has no answer that checks could judge.
    if end is not None and end.outcome in ("error", "cancelled"):
        return Judged(outcome="error", reason=end.reason or end.outcome)
    early = ended_early(trial.records)
    try:
        scores = await _scores(map(at_best, scenario.checks) if early else scenario.checks, trial)
    except CheckError as error:
        return Judged(outcome="error", reason=str(error))
    if end is None:
        tools = ", ".join(sorted({asked.tool for asked in run.questions})) or "a tool"
        return Judged(
            outcome="fail", reason=f"wanted to call {tools}, which only a person may allow", scores=scores
        )
    stored = [score_json(score) for score in scores]
    outcome, reason = outcome_of(trial.records, end, stored, scenario.at_least)
    scores = tuple(score for score in scores if not (early and score.passed))
    return Judged(outcome=outcome, reason=reason, scores=scores, finish=end.finish, early=early)


def outcome_of(
    records: Sequence[Record],
    end: RunFinished,
    scores: Sequence[dict[str, Any]],
    at_least: float | None = None,
) -> tuple[Outcome, str]:
    """Return the outcome of a run that came to an end, and why: by its end first, then by its stored scores.

    All that have weight have to pass, or with `at_least` their mean value by weight has to reach it. The
    scores of a run that ended early are the best that it could still have got.
    """
    if hung := hung_endpoint(records, end):
        return "error", hung
    early = end.limit == EARLY_STOPPING
    if end.outcome in ("limit", "unmet") and not early:
        return "fail", end.reason
    outcome, reason = _by_scores(end, scores, at_least)
    if early and outcome == "pass":
        return "error", "its run ended early, and by the checks as they are now it may pass: run it again"
    return outcome, f"ended early, it cannot pass; {reason}" if early else reason


def _by_scores(
    end: RunFinished, scores: Sequence[dict[str, Any]], at_least: float | None
) -> tuple[Outcome, str]:
    failed = failed_scores(scores)
    failures = failed_text((str(score["check"]), str(score["reason"])) for score in failed)
    ending = end.reason if end.finish else ""
    if at_least is not None:
        score = mean_score(scores)
        if not score < at_least - 1e-9:  # 2 / 3 written as .67 is not meant; nothing with weight is a pass
            return "pass", ending
        ending = "; ".join(filter(None, (ending, f"score {score:.3g}, needed {at_least:g}")))
        return "fail", "; ".join(filter(None, (ending, failures)))
    return ("fail" if failed else "pass"), "; ".join(filter(None, (ending, failures)))


def hung_endpoint(records: Sequence[Record], end: RunFinished) -> str:
    """Return why the endpoint, and not the agent, used up the time of a run that reached a time limit; empty
    where that is not so.

    The call that was under way when the time was up counts as hanging if nothing like it was seen before: it
    lasted longer than a tenth of the time, and three times as long as the slowest call that was answered. An
    agent that uses up its time with many turns is nearly always in a call too, but in one like the others.
    """
    if end.limit not in ("seconds", "wall_seconds"):
        return ""
    started = next((record.event for record in records if isinstance(record.event, RunStarted)), None)
    allowed = started.limits.get(end.limit) if started is not None else None
    answers = [record.event for record in records if isinstance(record.event, ModelAnswered)]
    slowest = max((answer.seconds for answer in answers if answer.error is None), default=0.0)
    cut_off = _cut_off(records)
    if cut_off is None or cut_off.seconds <= max(
        3 * slowest, (allowed / 10 if isinstance(allowed, int | float) else 0.0)
    ):
        return ""
    return (
        f"{cut_off.model} had not answered for {cut_off.seconds:.3g} s when {end.reason}: its endpoint "
        "hangs or is too slow for this limit"
    )


def _cut_off(records: Sequence[Record]) -> ModelAnswered | None:
    """Return the longest of the model calls that were under way when the run ended."""
    found: list[ModelAnswered] = []
    for record in reversed(records):
        event = record.event
        if isinstance(event, ModelCalled | ToolCalled):
            break
        if isinstance(event, ModelAnswered | ToolAnswered):
            if event.error is None or event.error.get("kind") != "cancelled":
                break
            if isinstance(event, ModelAnswered):
                found.append(event)
    return max(found, key=lambda answer: answer.seconds, default=None)


async def _scores(checks: Iterable[Check], trial: Trial) -> tuple[Score, ...]:
    return tuple([await judge(check, trial) for check in checks])


def _result(
    ask: TrialRequest,
    run: Run,
    judged: Judged,
    *,
    model_name: str,
    model_kind: str,
    missing: Sequence[str],
    served: Sequence[str],
    conversation: str,
    group: str,
) -> dict[str, Json]:
    return {
        "family": ask.scenario.family,
        **({"group": group} if group != ask.scenario.id else {}),
        **({"metadata": _stored_metadata(ask.scenario)} if ask.scenario.metadata else {}),
        "weight": ask.scenario.weight,
        "model": model_name,
        "model_kind": model_kind,
        "outcome": judged.outcome,
        "reason": judged.reason,
        "scores": [score_json(score) for score in judged.scores],
        "status": str(run.status),
        **({"finish": judged.finish} if judged.finish else {}),
        **({"ended_early": True} if judged.early else {}),
        "answer": head_tail(run.answer, ANSWER_KEPT)[0],
        "run": run.id,
        **({"unrecorded": [*missing]} if missing else {}),
        **({"served": [*served]} if served else {}),
        **({"conversation": conversation} if conversation else {}),
        **({} if ask.config.guidance is None else {"guidance": ask.config.guidance.digest}),
        "task": content_key(ask.scenario.task()),
        "identity": ask.identity.as_json(),
    }


def _stored_metadata(scenario: Scenario) -> Json:
    """Return the metadata as JSON; a number that is not finite, as tables have for a missing one, is
    `None`.
    """
    return to_json(
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in scenario.metadata.items()
        }
    )


def score_json(score: Score) -> dict[str, Json]:
    """Return a score as it is stored; the usage of a grader, and who it is, only where one was asked."""
    own: dict[str, Json] = {
        "check": score.check,
        "passed": score.passed,
        "value": score.value,
        "reason": score.reason,
    }
    if score.usage is not None:
        own["usage"] = asdict(score.usage)
    if score.name:
        own["name"] = score.name
    if score.weight != 1:
        own["weight"] = score.weight
    return own if score.judge is None else {**own, "judge": dict(score.judge)}
