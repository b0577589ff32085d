"""What a stage promises whatever fails how often: attempts are bounded, only harmless work is repeated,
everything is in the log.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import put_prefix
from waits import FOREVER_S

from kestrel_lab.core.calls import Problem
from kestrel_lab.core.errors import (
    ApprovalRequired,
    DependencyError,
    LimitError,
    ModelError,
    RunError,
    ToolError,
)
from kestrel_lab.core.events.union import (
    Event,
    StageFinished,
    StageStarted,
    StepFinished,
    StepRetried,
    StepStarted,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.execution.scheduler import Outcome
from kestrel_lab.runtime.execution.stages import failure_class
from kestrel_lab.runtime.execution.steps import StepRunner
from kestrel_lab.runtime.lifecycle import LEAST_ROOM
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.supervision.failure_kinds import RECOVERABLE, RetryBudget
from kestrel_lab.testing import ScriptedApprover, ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool, Toolbox


def refused() -> ModelError:
    """A model whose server is not there."""
    try:
        try:
            raise ConnectionRefusedError(111, "refused")
        except OSError as error:
            raise ModelError("no connection", transient=True) from error
    except ModelError as error:
        return error


def problem(kind: str, *, transient: bool = False) -> ToolError:
    """A call that ended with a problem."""
    return ToolError("a call failed", Problem(kind=kind, message="it failed", transient=transient))


ERRORS: list[Callable[[], RunError]] = [
    lambda: ModelError("busy", transient=True),
    lambda: ModelError("slow down", transient=True, retry_after_s=7),
    lambda: ModelError("come back tomorrow", transient=True, retry_after_s=86_400),
    lambda: ModelError("a bad key", caller=True),
    lambda: ModelError("said nothing"),
    refused,
    lambda: DependencyError("notes", "recovering", "notes is recovering", retry_in_s=3),
    lambda: DependencyError("notes", "failed", "notes is failed"),
    lambda: LimitError("cycles", "used up"),
    lambda: RunError("wrong"),
    lambda: problem("timeout"),
    lambda: problem("failed", transient=True),
    lambda: problem("failed"),
    lambda: problem("invalid_arguments"),
    lambda: problem("denied"),
]


@cache
def toolbox() -> Toolbox:
    """One tool of each effect, made once for thousands of scenes."""

    def made(effect: Any) -> Tool:
        @tool(name=effect, effect=effect)
        def work() -> str:
            """Work."""
            return "done"

        return work

    return Toolbox(made(effect) for effect in ("pure", "idempotent", "checkable", "opaque"))


STEPS = [
    Step(id="agent", goal="think", stage="s"),
    Step(id="operation", operation="plan", stage="s"),
    *(Step(id=name, tool=name, stage="s") for name in ("pure", "idempotent", "checkable", "opaque")),
]
BUDGET = RetryBudget(attempts=3, first_wait_s=1, longest_wait_s=8, total_wait_s=10)


class Player(StepRunner):
    """Carries out one step, whose attempts go as `play` says."""

    def __init__(self, step: Step, ctx: Any, play: Callable[[Step], Awaitable[Outcome]]) -> None:
        async def ready(*_: Any) -> None:
            pass

        ctx.on_disk = ready
        super().__init__(Plan(steps=(step,)), ctx, cast("RunApprovals", None), {}, ready)
        self._play = play

    async def work(self, step: Step) -> Outcome:
        """Do not what the step says, but what the scene says."""
        return await self._play(step)


@dataclass
class Scene:
    """One step in a stage, whose attempts end as `errors` say; the last one well. Keeps what happened."""

    step: Step
    errors: list[RunError | None]
    runner: type[Player] = Player
    events: list[Event] = field(default_factory=list)
    tries: int = 0
    waits: list[float] = field(default_factory=list)

    def go(self, events: Sequence[Event] = ()) -> RunError | None:
        """Carry it out, from where `events` end; returns how it failed."""
        state, self.events = RunState(), []

        def emit(event: Event) -> None:
            state.apply(event, 0.0)
            self.events.append(event)

        for event in events:
            emit(event)

        async def run(step: Step) -> Outcome:
            emit(StepStarted(step=step.id))
            self.tries += 1
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
            return Outcome()

        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)

        ctx = SimpleNamespace(state=state, toolbox=toolbox(), emit=emit, sleep=sleep)
        ctx.given = SimpleNamespace(ports=SimpleNamespace(budget=BUDGET))
        runner = self.runner(self.step, ctx, run)
        try:
            runner(self.step).send(None)  # nothing here waits for anything: a loop would only cost time
        except StopIteration:
            pass
        except RunError as error:
            emit(StepFinished(step=self.step.id, ok=False, reason=str(error)))
            return error
        emit(StepFinished(step=self.step.id, ok=True))
        return None

    @property
    def rows(self) -> list[StageFinished]:
        """The checkpoints."""
        return [event for event in self.events if isinstance(event, StageFinished)]


def broken_promises(scene: Scene, errors: list[RunError | None], failed: RunError | None) -> list[str]:
    """What is wrong with how the scene went."""
    wrong = []
    harmless = not scene.step.tool or scene.step.tool in ("pure", "idempotent")
    kinds = ["" if error is None else failure_class(error) for error in errors[: scene.tries]]
    if scene.tries > BUDGET.attempts:
        wrong.append("too many attempts")
    if sum(scene.waits) > BUDGET.total_wait_s or any(wait < 0 for wait in scene.waits):
        wrong.append("too long a wait")
    if not harmless and scene.tries > 1:
        wrong.append("work with an effect was repeated")
    if any(kind not in RECOVERABLE for kind in kinds[:-1]):
        wrong.append("what cannot pass was tried again")
    if (failed is not None) != bool(kinds and kinds[-1]):
        wrong.append("it went otherwise than it ended")
    if [row.status for row in scene.rows] != ["retrying"] * (scene.tries - 1) + [
        "done" if failed is None else "failed"
    ]:
        wrong.append("the rows say something else")
    if [row.attempt for row in scene.rows] != list(range(1, scene.tries + 1)) or [
        row.error_class for row in scene.rows
    ] != kinds:
        wrong.append("the rows count or classify differently")
    return wrong


@given(st.sampled_from(STEPS), st.lists(st.one_of(st.none(), st.sampled_from(ERRORS)), max_size=8))
@settings(max_examples=300)  # the mutants below are seen within 104, in twelve tries with other seeds
def test_attempts_are_bounded_and_only_harmless_work_is_repeated(step: Step, made: list[Any]) -> None:
    """Over hundreds of sequences of failures every promise is kept."""
    errors = [None if make is None else make() for make in made] + [None]
    scene = Scene(step, list(errors))
    failed = scene.go()
    assert broken_promises(scene, errors, failed) == []


class RepeatsEverything(Player):
    """A mutant: tries again whatever failed."""

    def _may_repeat(self, step: Step, conversation: Any, kind: Any, wait: float) -> bool:
        return conversation.attempt < BUDGET.attempts


class NeverEnds(Player):
    """A mutant: knows no budget."""

    def _may_repeat(self, step: Step, conversation: Any, kind: Any, wait: float) -> bool:
        return kind in RECOVERABLE and step.tool not in ("checkable", "opaque")


class ForgetsRows(Player):
    """A mutant: leaves no row for an attempt that is followed by another one."""

    def _checkpoint(
        self, step: Step, status: str, conversation: Any, kind: str = "", message: str = ""
    ) -> None:
        if status != "retrying":
            super()._checkpoint(step, status, conversation, kind, message)


@pytest.mark.parametrize("mutant", [RepeatsEverything, NeverEnds, ForgetsRows])
def test_a_broken_runner_is_caught(mutant: type[Player]) -> None:
    """Each deliberate bug breaks a promise in some of the sequences."""
    caught = 0
    for step in STEPS:
        for make in ERRORS:
            errors: list[RunError | None] = [make() for _ in range(4)] + [None]
            scene = Scene(step, list(errors), mutant)
            caught += bool(broken_promises(scene, errors, scene.go()))
    assert caught > 0


@given(
    st.sampled_from(STEPS),
    st.lists(st.sampled_from(ERRORS), max_size=5),
    st.lists(st.integers(0, 40), max_size=4),
)
@settings(max_examples=1_500)
def test_a_resumed_step_goes_on_counting(step: Step, made: list[Any], cuts: list[int]) -> None:
    """Cut at any event and resumed, however often, no try has more attempts than allowed and no row comes
    twice.
    """
    errors: list[RunError | None] = [make() for make in made]
    scene = Scene(step, [*errors, None])
    scene.go()
    for cut in cuts:
        kept = scene.events[:cut]
        if any(isinstance(event, StepFinished) for event in kept):
            continue
        scene.errors = [make() for make in made] + [None]
        scene.go(kept)
        rows = [row for row in scene.rows if row.status != "done"]
        assert len({(row.attempt, row.status) for row in scene.rows}) == len(scene.rows)
        tries: list[set[int]] = [set()]
        for event in scene.events:
            if isinstance(event, StageFinished):
                tries[-1].add(event.attempt)
                if event.status == "failed":  # what comes after belongs to a new try
                    tries.append(set())
        assert all(len(attempts) <= BUDGET.attempts for attempts in tries)
        assert [row.attempt for row in scene.rows] == sorted(row.attempt for row in scene.rows)
        assert all(row.error_class for row in rows)


def test_what_ends_a_step_says_what_to_do() -> None:
    """The reason has the error, its class, how often was tried, and advice; a limit of the run stays what it
    is.
    """
    failed = Scene(STEPS[0], [refused() for _ in range(3)]).go()
    assert str(failed) == (
        "no connection (dependency after 3 attempts). "
        "Bring back what it depends on, then resume the run; kestrel doctor shows what is not in order."
    )
    assert str(Scene(STEPS[0], [RunError("wrong.")]).go()) == (
        "wrong (logic). Trying again gives the same: change what the message names."
    )
    limit = Scene(STEPS[0], [LimitError("cycles", "used up")]).go()
    assert (type(limit), str(limit)) == (LimitError, "used up")


def test_waits_double_up_to_a_cap_and_follow_the_provider() -> None:
    """Pauses: 1, 2, 4, 8, 8 …; what a provider asks for is kept to, and one that does not fit in is not
    begun.
    """
    budget = RetryBudget(first_wait_s=1, longest_wait_s=8)
    assert [budget.wait(ModelError("x", transient=True), attempt) for attempt in (1, 2, 3, 4, 5, 5_000)] == [
        1,
        2,
        4,
        8,
        8,
        8,
    ]
    assert budget.wait(ModelError("x", transient=True, retry_after_s=20), 1) == 20
    tomorrow = Scene(STEPS[0], [ModelError("come back", transient=True, retry_after_s=86_400), None])
    assert "come back" in str(tomorrow.go())
    assert (tomorrow.tries, tomorrow.waits) == (1, [])


# With a real session: tools, a log, time.

QUICK = RetryBudget(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)


def flaky(
    effect: Any,
    failures: int,
    calls: list[str],
    error: Callable[[], BaseException] = lambda: ConnectionResetError("reset"),
) -> Tool:
    """A tool that fails so often before it works."""

    @tool(name="flaky", effect=effect, danger_level="low")
    async def work(text: str) -> str:
        """Work."""
        calls.append(text)
        if len(calls) <= failures:
            raise error()
        return f"did {text}"

    return work


def carried_out(session: Lab, workspace: Path, plan: Plan, tools: list[Tool], **options: Any) -> Run:
    """A run of the plan, with short pauses."""
    session.ports = quick_ports(session)
    return asyncio.run(
        session.run(
            "go",
            plan=plan,
            model=options.pop("model", ScriptedModel([])),
            tools=tools,
            workspace=workspace,
            **options,
        )
    )


def quick_ports(session: Lab) -> Any:
    """The session's ports with short pauses."""
    return replace(session.ports, budget=QUICK)


FLAKY = Plan(steps=(Step(id="a", tool="flaky", args={"text": "x"}, stage="one", produces=("made",)),))


def test_a_repeatable_call_that_fails_twice_is_made_three_times(session: Lab, workspace: Path) -> None:
    """The rows have exactly the columns of D8, in the frame and in the view of the database, and say what
    happened.
    """
    calls: list[str] = []
    run = carried_out(session, workspace, FLAKY, [flaky("idempotent", 2, calls)])
    assert (run.status, run.answer, calls) == (RunStatus.COMPLETE, "did x", ["x", "x", "x"])
    frame = session.history.stages(run.id)
    assert list(frame.columns) == [
        "run_id",
        "task_id",
        "stage",
        "status",
        "attempt",
        "inputs_hash",
        "outputs_ref",
        "error_class",
        "error_message",
        "timestamp",
    ]
    shown = frame[["task_id", "stage", "status", "attempt", "outputs_ref", "error_class"]].values.tolist()
    assert shown == [
        ["a", "one", "retrying", 1, "", "transient"],
        ["a", "one", "retrying", 2, "", "transient"],
        ["a", "one", "done", 3, "a.call.3", ""],
    ]
    assert frame["inputs_hash"].nunique() == 1
    stored = session.store.query("SELECT * FROM stage_checkpoints WHERE run_id = ?", (run.id,))
    assert [row[:9] for row in stored] == [tuple(row)[:9] for row in frame.itertuples(index=False)]
    assert [event.attempt for event in run.events() if isinstance(event, StageStarted)] == [1, 2, 3]
    text = repr(run.report)
    assert "stage one: retrying\n" in text
    assert "stage one: done, attempt 3\n" in text
    assert (
        "failed (transient) and is tried again in 0.01 s, attempt 2: flaky: ConnectionResetError: reset\n"
        in text
    )


@pytest.mark.parametrize("effect", ["checkable", "opaque"])
def test_a_call_with_an_effect_is_made_once(effect: str, session: Lab, workspace: Path) -> None:
    """However harmless the error looks, a call that may have had its effect is not repeated."""
    calls: list[str] = []
    run = carried_out(session, workspace, FLAKY, [flaky(effect, 1, calls)])
    assert (run.status, calls) == (RunStatus.FAILED, ["x"])
    assert (
        run.reason
        == "flaky: ConnectionResetError: reset (transient). It may pass by itself: run it again in a "
        "moment, or resume the run."
    )
    assert run.report.stages()["status"].tolist() == ["failed"]


def test_steps_of_no_stage_are_left_alone(session: Lab, workspace: Path) -> None:
    """Without a label nothing is retried and there are no rows."""
    calls: list[str] = []
    plan = Plan(steps=(Step(id="a", tool="flaky", args={"text": "x"}),))
    run = carried_out(session, workspace, plan, [flaky("pure", 1, calls)])
    assert (run.status, calls, run.reason, len(run.report.stages())) == (
        RunStatus.FAILED,
        ["x"],
        "flaky: ConnectionResetError: reset",
        0,
    )


def test_an_agent_goes_on_where_its_conversation_is(session: Lab, workspace: Path) -> None:
    """A model that fails between two turns is asked again; the calls of the turn before are not made
    again.
    """
    calls: list[str] = []
    turns: list[Any] = [
        [("flaky", {"text": "x"})],
        ModelError("busy", transient=True),
        ModelError("busy", transient=True),
        "all done",
    ]
    model = ScriptedModel(lambda request: turns.pop(0))
    plan = Plan(steps=(Step(id="a", goal="do it", stage="one"),))
    run = carried_out(session, workspace, plan, [flaky("opaque", 0, calls)], model=model)
    assert (run.status, run.answer, calls, turns) == (RunStatus.COMPLETE, "all done", ["x"], [])
    assert run.report.stages()["status"].tolist() == ["retrying", "retrying", "done"]


def test_every_prefix_of_a_retried_run_is_completed(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """Cut at every event and resumed, the end is the same; a repeatable call is made at most once more than
    it had attempts left.
    """
    calls: list[str] = []
    plan = Plan(
        steps=(
            Step(id="a", tool="flaky", args={"text": "x"}, stage="one", produces=("made",)),
            Step(id="b", goal="say it", stage="two", consumes=("made",)),
        )
    )
    says = ScriptedModel(["said"])
    reference = carried_out(session, workspace, plan, [flaky("idempotent", 2, calls)], model=says).records()
    ended = next(record.seq for record in reference if record.event.type == "run_finished")
    again: list[str] = []
    other = Lab(tmp_path / "other", env={}, tools=[flaky("idempotent", 2, again)])
    other.ports = quick_ports(other)
    for cut in range(1, ended):
        again[:] = ["x"] * sum(record.event.type == "tool_answered" for record in reference[:cut])
        run = asyncio.run(other.resume(put_prefix(other, reference, cut), model=says))
        assert (cut, run.status, run.answer, again) == (cut, RunStatus.COMPLETE, "said", ["x", "x", "x"])
        rows = [
            (event.task, event.status, event.attempt)
            for event in run.events()
            if isinstance(event, StageFinished)
        ]
        assert (cut, rows) == (
            cut,
            [("a", "retrying", 1), ("a", "retrying", 2), ("a", "done", 3), ("b", "done", 1)],
        )
    other.close()


def test_a_wait_can_be_cancelled(session: Lab, workspace: Path) -> None:
    """A run that waits a day for its next attempt stops at once."""
    session.ports = replace(
        session.ports,
        budget=RetryBudget(first_wait_s=FOREVER_S, longest_wait_s=FOREVER_S, total_wait_s=3 * FOREVER_S),
    )
    calls: list[str] = []

    async def scene() -> Run:
        run = session.start(
            "go", plan=FLAKY, model=ScriptedModel([]), tools=[flaky("pure", 1, calls)], workspace=workspace
        )
        while not any(isinstance(event, StepRetried) for event in run.events()):
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        return run

    run = asyncio.run(scene())
    assert (run.status, calls) == (RunStatus.CANCELLED, ["x"])


def test_a_limit_ends_a_stage_at_once(session: Lab, workspace: Path) -> None:
    """A limit of the run is a failure of class budget; nothing is tried again and the run says which limit it
    was.
    """
    plan = Plan(
        steps=(
            Step(id="a", goal="do it", stage="one"),
            Step(id="b", goal="do more", stage="two", depends_on=("a",)),
        )
    )
    run = carried_out(session, workspace, plan, [], model=ScriptedModel(["done"]), limits=Limits(cycles=1))
    assert (run.status, run.outcome, run.reason) == (
        RunStatus.FAILED,
        "limit",
        "the limit of 1 model turns is reached",
    )
    assert run.report.stages()[["stage", "status", "error_class"]].values.tolist() == [
        ["one", "done", ""],
        ["two", "failed", "budget"],
    ]


def test_a_full_disk_is_noticed_before_a_step_begins(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the log no step of a stage begins; the reason names the disk."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=LEAST_ROOM - 1))
    calls: list[str] = []
    run = carried_out(session, workspace, FLAKY, [flaky("pure", 0, calls)])
    assert (run.status, calls) == (RunStatus.FAILED, [])
    assert run.reason.startswith(
        "the disk of the log has 3,999,999 bytes left, at least 4,000,000 are needed: make room on the "
        "disk of "
    )
    assert run.report.stages()["error_class"].tolist() == ["dependency"] * 3


def test_a_call_that_failed_is_asked_about_before_it_is_made_again(session: Lab, workspace: Path) -> None:
    """Resumed behind its last completed stage, a run does not repeat a call with an effect unasked."""
    calls: list[str] = []
    plan = Plan(
        steps=(
            Step(id="b", goal="look", stage="zero"),
            Step(id="a", tool="flaky", args={"text": "x"}, stage="one", depends_on=("b",)),
        )
    )
    tools = [flaky("opaque", 1, calls)]
    failed = carried_out(session, workspace, plan, tools, model=ScriptedModel(["seen"]))
    assert (failed.status, calls) == (RunStatus.FAILED, ["x"])
    with pytest.raises(ApprovalRequired):
        asyncio.run(session.resume(failed.id, model=ScriptedModel(["seen"]), tools=tools, approve="auto"))
    assert calls == ["x"]
    person = ScriptedApprover([True])
    run = asyncio.run(session.resume(failed.id, model=ScriptedModel(["seen"]), tools=tools, approver=person))
    assert (run.status, calls, [asked.why for asked in person.asked]) == (
        RunStatus.COMPLETE,
        ["x", "x"],
        ["unknown_outcome"],
    )
    assert run.id != failed.id


def test_equal_inputs_have_equal_hashes(session: Lab, workspace: Path) -> None:
    """The hash tells what a step was given from anything else: another artifact is another hash."""

    def hashes(value: Json) -> list[str]:
        plan = Plan(steps=(Step(id="a", goal="look", consumes=("x",), stage="one"),), artifacts={"x": value})
        found: list[str] = (
            carried_out(session, workspace, plan, [], model=ScriptedModel(["ok"]))
            .report.stages()["inputs_hash"]
            .tolist()
        )
        return found

    assert hashes({"a": 1, "b": 2}) == hashes({"b": 2, "a": 1})
    assert len({tuple(hashes(value)) for value in ({"a": 1}, {"a": 2}, None, "1", json.dumps({"a": 1}))}) == 5


def test_shown_counts_add_up() -> None:
    """Of all kinds of errors here each class is met."""
    assert Counter(failure_class(make()) for make in ERRORS) == {
        "transient": 5,
        "dependency": 3,
        "logic": 6,
        "budget": 1,
    }
