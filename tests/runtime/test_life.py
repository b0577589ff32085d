"""How a run ends: an answer, a limit, an error, a stop; always with a complete log."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waits import FOREVER_S, PATIENCE_S, LoopClock, becomes

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ApprovalRequired, LimitError, ModelError, StoreError, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    BudgetWarned,
    Event,
    ModelAnswered,
    ModelCalled,
    ModelDelta,
    Progress,
    RunFinished,
    RunStarted,
    StateTransition,
    StepFinished,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.context.budget import WorkClock
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.testing import RecordingListener, ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool


@tool(danger_level="safe", effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


LOOK: Turn = [("look", {})]
REQUESTS = (ToolRequest(id="1", name="look"),)


def play(session: Lab, workspace: Path, turns: Any, *, usage: Usage | None = None, **options: Any) -> Run:
    """A run of a script, to its end."""
    model = ScriptedModel(turns, usage=usage)
    return asyncio.run(session.run("go", model=model, tools=[look], workspace=workspace, **options))


def kinds(run: Run) -> list[str]:
    """The types of a run's events."""
    return [event.type for event in run.events()]


def test_a_run_of_one_answer(session: Lab, workspace: Path) -> None:
    """The whole log of the simplest run, event by event."""
    run = play(session, workspace, ["forty two"])
    assert (run.status, run.outcome, run.answer, run.reason) == (
        RunStatus.COMPLETE,
        "complete",
        "forty two",
        "",
    )
    started, plan, executing, step, called, answered, step_end, finished, complete = run.events()
    assert isinstance(started, RunStarted)
    assert (started.goal, started.model, started.model_kind, started.tools[0]["name"]) == (
        "go",
        "scripted",
        "scripted",
        "look",
    )
    assert "forty" not in started.system
    assert plan.type == "plan_proposed"
    assert executing == StateTransition(source="PLANNING", target="EXECUTING")
    assert step == StepStarted(step="answer", goal="go")
    assert called == ModelCalled(
        call="answer.m1", step="answer", model="scripted", cycle=1, messages=2, tools=1
    )
    assert isinstance(answered, ModelAnswered)
    assert (answered.text, answered.tokens_in, answered.tokens_out, answered.cost_usd) == (
        "forty two",
        20,
        5,
        0.0,
    )
    assert step_end == StepFinished(step="answer", ok=True)
    assert finished == RunFinished(outcome="complete", answer="forty two", looked=True, checked=0)
    assert complete == StateTransition(source="EXECUTING", target="COMPLETE")
    assert run.usage == Usage(tokens_in=20, tokens_out=5, model_calls=1)
    assert str(run) == f"run {run.id}: COMPLETE"


def test_deltas_are_told_and_not_kept(session: Lab, workspace: Path) -> None:
    """Each piece of text reaches the listeners as it streams; the log keeps the whole answer only."""

    async def scene() -> tuple[Run, RecordingListener]:
        run = session.start("go", model=ScriptedModel(["one two three"]), workspace=workspace)
        seen = RecordingListener()
        run.subscribe(seen)
        return await run.wait(), seen

    run, seen = asyncio.run(scene())
    assert "".join(event.text for event in seen.events if isinstance(event, ModelDelta)) == "one two three"
    assert [event for event in seen.events if not isinstance(event, ModelDelta)] == run.events()


@pytest.mark.parametrize(
    ("limits", "usage", "limit", "reason"),
    [
        (Limits(cycles=3), None, "cycles", "the limit of 3 model turns is reached"),
        (Limits(tokens=60), None, "tokens", "the limit of 60 tokens is reached: 75 used"),
        (
            Limits(cost_usd=0.25),
            Usage(tokens_in=1, cost_usd=0.1),
            "cost_usd",
            "the limit of $0.25 is reached: $0.3000 spent",
        ),
    ],
)
def test_a_limit_ends_the_run(
    limits: Limits, usage: Usage | None, limit: str, reason: str, session: Lab, workspace: Path
) -> None:
    """Reaching a limit ends the run FAILED before the next model turn, with the limit named and what was said
    so far kept.
    """
    conversation = ModelAnswer(
        text="still looking", calls=REQUESTS, usage=usage or Usage(tokens_in=20, tokens_out=5)
    )

    def turns(request: ModelRequest) -> Turn:
        played = sum(message.role == "assistant" for message in request.messages)
        return conversation if played == 1 else LOOK

    run = play(session, workspace, turns, usage=usage, limits=limits)
    assert (run.status, run.outcome, run.reason, run.answer) == (
        RunStatus.FAILED,
        "limit",
        reason,
        "still looking",
    )
    finished = run._state.finished
    assert finished is not None
    assert finished.limit == limit
    assert run.usage.model_calls == 3
    assert kinds(run)[-3:] == ["step_finished", "run_finished", "state_transition"]


@tool(danger_level="safe")
async def dawdle() -> str:
    """Be under way when the time is up."""
    LoopClock().skip(61)
    await asyncio.sleep(FOREVER_S)
    return "late"


def test_the_seconds_limit_interrupts(session: Lab, workspace: Path) -> None:
    """Working too long ends the run where it is, a tool in progress included, as a limit and not as a
    stop.
    """
    model = ScriptedModel([[("dawdle", {}), ("dawdle", {})], "never"])
    run = asyncio.run(
        session.run("go", model=model, tools=[dawdle], workspace=workspace, limits=Limits(seconds=60))
    )
    assert (run.status, run.outcome, run.reason) == (
        RunStatus.FAILED,
        "limit",
        "the limit of 60 s of work is reached",
    )
    cancelled = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert [event.error and event.error["kind"] for event in cancelled] == ["cancelled", "cancelled"]
    assert run._state.begun == {}


def test_waiting_for_a_person_is_not_work(session: Lab, workspace: Path) -> None:
    """A person may think for longer than the limit of seconds; only the work counts, then and in the folded
    log.
    """

    @tool(danger_level="high")
    async def act() -> str:
        """Act."""
        return "acted"

    thought = 0.0

    async def slow(asked: ApprovalAsked) -> ApprovalGiven:
        nonlocal thought
        began = time.time()
        LoopClock().skip(61)
        await asyncio.sleep(0.3)
        thought = time.time() - began
        return ApprovalGiven(call=asked.call, granted=True, by="slow", how="prompt")

    model = ScriptedModel([[("act", {})], "done"])
    began = time.time()
    run = asyncio.run(
        session.run(
            "go", model=model, tools=[act], workspace=workspace, limits=Limits(seconds=60), approver=slow
        )
    )
    took = time.time() - began
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "done")
    assert run._state.meter.waiting_s >= thought - 0.01
    assert run._state.working_s <= took - thought + 0.01


def test_a_clock_stands_still_while_held() -> None:
    """Held time does not count, nested holds release once, and the rest of the time is still bounded."""

    async def scene() -> list[str]:
        time_of_loop, clock, reached = LoopClock(), WorkClock(60), []

        async def passes(seconds: float, name: str) -> None:
            time_of_loop.skip(seconds)
            await asyncio.sleep(0.01)
            reached.append(name)

        with pytest.raises(TimeoutError):
            async with clock:
                await passes(20, "working")
                clock.hold()
                clock.hold()
                await passes(100, "held twice")
                clock.release()
                await passes(100, "held once")
                clock.release()
                await passes(20, "working again")
                await passes(21, "too long")
        assert clock.expired
        return reached

    assert asyncio.run(scene()) == ["working", "held twice", "held once", "working again"]

    async def unbounded() -> bool:
        async with WorkClock(None) as clock:
            clock.hold()
            clock.release()
        return clock.expired

    assert asyncio.run(unbounded()) is False


def test_a_clock_gives_seconds_back_and_says_which_deadline_has_passed() -> None:
    """Seconds that were no work are added while it runs and while it is held, also to the clock of a
    sub-agent; the whole time goes on meanwhile.
    """

    async def ends(
        seconds: float | None, wall: float | None, *skipped: float, given: float = 0.0, held: bool = False
    ) -> tuple[str, str]:
        """Skip these seconds one after the other; returns which limit was overdue before the loop turned
        over, and which ended the block.
        """
        time_of_loop, clock = LoopClock(), WorkClock(seconds, wall)
        overdue = clock.overdue
        try:
            async with clock, clock.part(seconds):
                if held:
                    clock.hold()
                clock.give_back(given)
                if held:
                    clock.release()
                for part in skipped:
                    time_of_loop.skip(part)
                    overdue = clock.overdue
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return overdue, clock.limit
        return overdue, "" if not clock.expired else "expired"

    assert asyncio.run(ends(60, None, 50, 9)) == ("", "")
    assert asyncio.run(ends(60, None, 50, 11)) == ("seconds", "seconds")
    assert asyncio.run(ends(60, None, 50, 11, given=20)) == ("", "")
    assert asyncio.run(ends(60, None, 50, 11, given=20, held=True)) == ("", "")
    assert asyncio.run(ends(60, None, 50, 31, given=20)) == ("seconds", "seconds")
    assert asyncio.run(ends(60, None, 50, 31, given=20, held=True)) == ("seconds", "seconds")
    assert asyncio.run(ends(None, 60, 50, 11, given=20)) == ("wall_seconds", "wall_seconds")
    assert asyncio.run(ends(None, None, 50, 11)) == ("", "")
    assert asyncio.run(ends(60, 100, 50, 51, given=90)) == ("wall_seconds", "wall_seconds")


class BrokenModel(ScriptedModel):
    """A model that raises what no model should."""

    def __init__(self, error: BaseException) -> None:
        super().__init__([])
        self.error = error

    async def __call__(self, request: ModelRequest, on_delta: Callable[[str], None]) -> ModelAnswer:
        """Raise."""
        raise self.error


def test_a_failing_model_fails_the_run(session: Lab, workspace: Path) -> None:
    """A model's error is the reason; the call that failed is in the log."""
    run = play(session, workspace, [LOOK, ModelError("the server is on fire")])
    assert (run.status, run.outcome, run.reason) == (RunStatus.FAILED, "error", "the server is on fire")
    (failed,) = [event for event in run.events() if isinstance(event, ModelAnswered) and event.error]
    assert failed.error == {"kind": "failed", "message": "the server is on fire", "transient": False}


def test_a_model_that_breaks_is_named(session: Lab, workspace: Path) -> None:
    """Any other error out of a model is taken for the model's failure, with its name; the caller gets the
    run, not the error.
    """
    run = asyncio.run(session.run("go", model=BrokenModel(KeyError("choices")), workspace=workspace))
    assert (run.status, run.reason) == (RunStatus.FAILED, "model 'scripted' failed: KeyError: 'choices'")
    assert kinds(run).count("model_answered") == 1


def test_what_the_caller_must_change_reaches_the_caller(session: Lab, workspace: Path) -> None:
    """A `UsageError` out of a model is raised to whoever waits, and the run is FAILED with the same words."""
    with pytest.raises(UsageError, match="set a key"):
        asyncio.run(session.run("go", model=BrokenModel(UsageError("set a key")), workspace=workspace))
    run = session.get(session.store.runs()[0].id)
    assert (run.status, run.reason) == (RunStatus.FAILED, "set a key")


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_answer_is_a_failure(text: str, session: Lab, workspace: Path) -> None:
    """A model that says nothing and asks for nothing did not answer."""
    run = play(session, workspace, [text])
    assert (run.status, run.reason) == (
        RunStatus.FAILED,
        "the model ended without an answer: neither text nor a tool call",
    )


def test_a_cut_off_answer_is_told(session: Lab, workspace: Path) -> None:
    """An answer that hit its output limit is kept, with a note."""
    run = play(session, workspace, [ModelAnswer(text="and then", finish="length")])
    assert run.answer == "and then"
    assert Progress(text="the model's answer was cut off at its output limit") in run.events()


def test_an_unpriced_model_is_warned_of_once(session: Lab, workspace: Path) -> None:
    """The first call without a price warns that the cost limit cannot be watched; no second warning, none
    without a limit.
    """
    unpriced = ModelAnswer(calls=REQUESTS, usage=Usage(tokens_in=1, unpriced=1))
    priced = ModelAnswer(calls=REQUESTS, usage=Usage(tokens_in=1, cost_usd=0.01))
    turns = [priced, unpriced, priced, unpriced, "done"]
    run = play(session, workspace, turns)
    (warned,) = [event for event in run.events() if isinstance(event, BudgetWarned)]
    assert warned.limit == "cost_usd"
    assert warned.message.startswith("the price of scripted is not known")
    assert kinds(play(session, workspace, turns, limits=Limits(cost_usd=None))).count("budget_warned") == 0


def test_a_listener_that_breaks_ends_nothing(session: Lab, workspace: Path) -> None:
    """A view that raises is reported to the event loop and told no more; the run and the other views go
    on.
    """
    reported = []

    async def scene() -> tuple[Run, RecordingListener]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        run = session.start("go", model=ScriptedModel(["hi"]), workspace=workspace)
        told = []

        def broken(event: Event) -> None:
            if isinstance(event, StepStarted):
                told.append(event)
                msg = "no such widget"
                raise RuntimeError(msg)

        seen = RecordingListener()
        run.subscribe(broken)
        run.subscribe(seen)
        await run.wait()
        assert len(told) == 1
        return run, seen

    run, seen = asyncio.run(scene())
    assert run.status is RunStatus.COMPLETE
    assert [event for event in seen.events if not isinstance(event, ModelDelta)] == run.events()
    assert [str(context["exception"]) for context in reported] == ["no such widget"]


def test_unsubscribing_ends_the_telling(session: Lab, workspace: Path) -> None:
    """After the returned function was called nothing more is told; for an ended run everything is told at
    once.
    """

    async def scene() -> tuple[Run, RecordingListener]:
        run = session.start("go", model=ScriptedModel(["hi"]), workspace=workspace)
        seen = RecordingListener()
        stop = run.subscribe(seen)
        stop()
        stop()
        return await run.wait(), seen

    run, seen = asyncio.run(scene())
    assert [event.type for event in seen.events] == ["run_started"]
    late = RecordingListener()
    session.get(run.id).subscribe(late)()
    assert late.events == run.events()


@tool(danger_level="high")
async def act() -> str:
    """Act."""
    await asyncio.sleep(0.01)
    return "acted"


SCENE: list[Turn] = [[("look", {}), ("act", {}), ("act", {})], [("act", {})], "done"]


async def yes(asked: ApprovalAsked) -> ApprovalGiven:
    """Says yes after a moment."""
    await asyncio.sleep(0.01)
    return ApprovalGiven(call=asked.call, granted=True, by="p", how="click")


def test_stopped_at_any_moment_it_is_cancelled(session: Lab, workspace: Path) -> None:
    """Cancelled at each of its events, from the first to the last, a run ends CANCELLED with a complete log,
    or had ended before.
    """
    model = ScriptedModel(SCENE)
    options: dict[str, Any] = {"model": model, "tools": [look, act], "workspace": workspace, "approver": yes}
    whole = asyncio.run(session.run("go", **options))

    async def scene(stop_at: int) -> Run:
        run = session.start("go", **options)
        seen = RecordingListener()
        run.subscribe(seen)

        def stop(_: Event) -> None:
            if len([event for event in seen.events if event.type != "model_delta"]) == stop_at:
                run.cancel()

        run.subscribe(stop)
        if stop_at == 1:
            run.cancel()
        try:
            await run.wait()
        except asyncio.CancelledError:
            assert run.status.terminal
        return run

    outcomes = []
    for stop_at in range(1, len(whole.records()) + 1):
        run = asyncio.run(scene(stop_at))
        records = run.records()
        assert fold(records) == run._state
        assert run.status.terminal
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert kinds(run)[-2:] == ["run_finished", "state_transition"]
        assert run._state.begun == {}
        began = [event.call for event in run.events() if isinstance(event, ToolCalled)]
        ended = [event.call for event in run.events() if isinstance(event, ToolAnswered)]
        assert set(began) <= set(ended)
        outcomes.append(run.outcome)
    assert outcomes[0] == "cancelled"
    assert (
        outcomes.count("cancelled") >= len(outcomes) - 8
    )  # a scripted model leaves no moment to stop it in its last turn


def test_a_run_interrupted_before_its_first_step(session: Lab, workspace: Path) -> None:
    """A run whose waiter is cancelled before it could do anything is INTERRUPTED and nobody's; resumed, it is
    carried out.
    """

    async def scene() -> None:
        waiting = asyncio.create_task(session.run("go", model=ScriptedModel(["hi"]), workspace=workspace))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())
    run = session.get(session.store.runs()[0].id)
    assert (run.status, run.report.interrupted, session.store.run(run.id).owner) == (
        RunStatus.PLANNING,
        True,
        "",
    )
    assert asyncio.run(session.resume(run.id, model=ScriptedModel(["hi"]))).answer == "hi"


def test_a_run_cancelled_before_its_first_step(session: Lab, workspace: Path) -> None:
    """A run that somebody cancels before it could do anything is CANCELLED, not left for ever in PLANNING."""

    async def scene() -> Run:
        run = session.start("go", model=ScriptedModel(["hi"]), workspace=workspace)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        return run

    run = session.get(asyncio.run(scene()).id)
    assert (run.status, run.outcome, run.reason) == (RunStatus.CANCELLED, "cancelled", "stopped on request")


def test_cancelling_hurts_no_other_run(session: Lab, workspace: Path) -> None:
    """Runs cancelled while they wait for the disk leave the log working for everybody else."""

    @tool
    async def write() -> str:
        """Write."""
        return "written"

    async def scene() -> list[Run]:
        model = ScriptedModel([[("write", {})], [("write", {})], "done"])
        options: dict[str, Any] = {"model": model, "tools": [write], "workspace": workspace}
        for pause in range(12):
            run = session.start("go", **options)
            await asyncio.sleep(pause / 1000)
            run.cancel()
            await asyncio.gather(run.wait(), return_exceptions=True)
        return await asyncio.wait_for(
            asyncio.gather(*(session.run("go", **options) for _ in range(3))), PATIENCE_S
        )

    assert [run.status for run in asyncio.run(scene())] == [RunStatus.COMPLETE] * 3


def test_cancelled_while_a_person_is_asked(session: Lab, workspace: Path) -> None:
    """Stopping a waiting run withdraws its question."""

    async def scene() -> Run:
        async def never(asked: ApprovalAsked) -> ApprovalGiven:
            await asyncio.sleep(FOREVER_S)
            raise AssertionError

        run = session.start(
            "go",
            model=ScriptedModel([[("act", {})], "done"]),
            tools=[act],
            workspace=workspace,
            approver=never,
        )
        await becomes(lambda: run.status is RunStatus.WAITING_APPROVAL)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        return run

    run = asyncio.run(scene())
    assert (run.status, run.questions) == (RunStatus.CANCELLED, ())
    with pytest.raises(UsageError, match="is CANCELLED and waits for no approval"):
        session.history.decide(run.id, granted=True, by="ann", how="command")
    with pytest.raises(UsageError, match="nothing waits"):
        run.decide(ApprovalGiven(call="answer.1.1", granted=True, by="ann", how="click"))


def test_a_closed_log_stops_the_run(tmp_path: Path, workspace: Path) -> None:
    """When the log is closed under a run, the run stops with the store's error and starts no further side
    effect.
    """
    acted = []

    @tool
    async def effect() -> str:
        """Have an effect."""
        acted.append(1)
        session.close()
        return "acted"

    session = Lab(tmp_path / "closing", env={})
    model = ScriptedModel([[("effect", {})], [("effect", {})], "done"])
    with pytest.raises(StoreError, match="closed"):
        asyncio.run(session.run("go", model=model, tools=[effect], workspace=workspace))
    assert acted == [1]


def test_many_runs_at_once(session: Lab, workspace: Path) -> None:
    """Thirty runs over one log at the same time all complete, each with its own story."""

    async def scene() -> list[Run]:
        return await asyncio.gather(
            *(
                session.run(
                    f"goal {n}", model=ScriptedModel([LOOK, f"answer {n}"]), tools=[look], workspace=workspace
                )
                for n in range(30)
            )
        )

    runs = asyncio.run(scene())
    assert [(run.goal, run.answer) for run in runs] == [(f"goal {n}", f"answer {n}") for n in range(30)]
    assert len({run.id for run in runs}) == 30
    assert all(run._state == fold(run.records()) for run in runs)


def test_from_synchronous_code(session: Lab, workspace: Path) -> None:
    """`run_sync` works in a script and inside a running event loop, and raises what the run raises."""
    options: dict[str, Any] = {"tools": [look, act], "workspace": workspace}
    assert session.run_sync("go", model=ScriptedModel(["hi"]), **options).answer == "hi"

    async def cell() -> str:
        return session.run_sync("go", model=ScriptedModel(["hi again"]), **options).answer

    assert asyncio.run(cell()) == "hi again"
    with pytest.raises(ApprovalRequired):
        session.run_sync("go", model=ScriptedModel(SCENE), **options)

    async def raises() -> None:
        raise LimitError("seconds", "over")

    with pytest.raises(LimitError) as raised:
        run_blocking(raises())
    assert raised.value.__context__ is None, "a traceback would begin with an error that is none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": "  "}, "the goal is empty"),
        ({"goal": 3}, "the goal is of type int"),
        ({"tools": ["raed_file"]}, "there is no tool 'raed_file'; did you mean 'read_file'"),
        ({"tools": "read_file"}, "tools must be a list"),
        ({"approve": "atuo"}, "did you mean 'auto'"),
        ({"workspace": "/no/such/folder"}, "is not a directory"),
        ({"limits": Limits(cycles=1), "tools": [look, look]}, "two tools are called 'look'"),
    ],
)
def test_a_wrong_start_says_what_to_change(
    options: dict[str, Any], message: str, session: Lab, workspace: Path
) -> None:
    """What cannot be started is refused before anything is logged, with what to change."""
    wanted: dict[str, Any] = {"goal": "go", "model": ScriptedModel(["hi"]), "workspace": workspace} | options

    async def scene() -> None:
        session.start(**wanted)

    with pytest.raises(UsageError, match=message):
        asyncio.run(scene())
    assert session.store.runs() == []


def test_runs_are_listed(session: Lab, workspace: Path) -> None:
    """The table of runs has a row per run, the newest first, and says when no real model answered."""
    assert session.history.runs().empty
    first = play(session, workspace, ["one"])
    second = play(session, workspace, ["two"], scenario="s1", config="c")
    frame = session.history.runs(trials=True)
    assert list(frame.index) == [second.id, first.id]
    assert list(session.history.runs().index) == [first.id]
    assert dict(frame.loc[first.id].drop("started")) == {
        "status": "COMPLETE",
        "goal": "go",
        "model": "scripted (scripted)",
    }
    assert first.to_frame()["type"].tolist() == kinds(first)
