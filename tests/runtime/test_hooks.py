"""Claims about what a user can hang around runs: middleware around calls, listeners of events."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, ModelAnswered, ToolAnswered
from kestrel_lab.core.protocols import Handler
from kestrel_lab.lab import Lab
from kestrel_lab.middleware.hooks import MOMENTS, Hooks, Phase
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import RecordingMiddleware, ScriptedModel
from kestrel_lab.tools.decorator import tool


@tool(effect="pure")
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


SCRIPT = [[("double", {"n": 2})], "four"]


def test_middleware_is_around_every_call(tmp_path: Path) -> None:
    """A user's middleware sees each call of a model and of a tool, in order, with a tool's arguments."""
    seen = RecordingMiddleware()
    session = Lab(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], middleware=[seen])
    asyncio.run(session.run("go"))
    session.close()
    assert [(call.kind, call.target, call.args) for call in seen.calls] == [
        ("model", "scripted", {}),
        ("tool", "double", {"n": 2}),
        ("model", "scripted", {}),
    ]


def test_what_middleware_answers_is_what_is_recorded(tmp_path: Path) -> None:
    """Middleware may change a tool's arguments and result: the log and the model get what it made of them."""

    async def hooked(call: Call, proceed: Handler) -> Result:
        if call.kind == "model":
            return await proceed(call)
        result = await proceed(replace(call, args={"n": 10}))
        return replace(result, value=f"hooked {result.value}")

    session = Lab(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], middleware=[hooked])
    run = asyncio.run(session.run("go"))
    answers = [event.text for event in run.events() if isinstance(event, ToolAnswered)]
    session.close()
    assert answers == ["hooked 20"]


def test_listeners_hear_a_run_from_its_first_event_to_its_last(tmp_path: Path) -> None:
    """A session's listener is told of every stored event of every run, in order, and of the pieces of a
    streamed answer.
    """
    heard: list[tuple[str, Event]] = []

    def listen(run: Run, event: Event) -> None:
        heard.append((run.id, event))

    session = Lab(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], listeners=[listen])
    runs = [asyncio.run(session.run("go")), asyncio.run(session.run("again"))]
    for run in runs:
        told = [event for run_id, event in heard if run_id == run.id and event.type != "model_delta"]
        assert told == run.events()
        assert any(isinstance(event, ModelAnswered) for event in told)
    assert [event.type for _, event in heard].count("model_delta") == 2
    session.close()


def test_an_approver_that_times_out_ends_the_run(tmp_path: Path) -> None:
    """A `TimeoutError` that is not the run's own limit reaches the caller and leaves the run FAILED, not at
    work for ever.
    """

    async def absent(_: ApprovalAsked) -> ApprovalGiven:
        raise TimeoutError

    session = Lab(
        tmp_path / "home", model=ScriptedModel([[("write_file", {"path": "a", "content": "b"})], "done"])
    )

    async def go() -> Run:
        run = session.start("go", workspace=tmp_path, approver=absent)
        with pytest.raises(TimeoutError):
            await run.wait()
        return run

    run = asyncio.run(go())
    session.close()
    assert (run.status, run.outcome) == ("FAILED", "error")
    assert "TimeoutError" in run.reason


MOMENTS_OF_A_RUN = [
    "before_run",
    *(
        "before_think",
        "after_think",
        "before_act",
        "after_act",
        "before_observe",
        "after_observe",
        "before_decide",
        "after_decide",
    ),
    *("before_think", "after_think", "before_decide", "after_decide"),
    "after_run",
]


def test_hooks_are_called_before_and_after_each_phase_and_around_the_run(tmp_path: Path) -> None:
    """In order, plain or async, with what there is to know at the moment."""
    seen: list[Phase] = []
    hooks = Hooks()

    @hooks.on(*MOMENTS)  # type: ignore[arg-type]  # all of them
    async def watch(phase: Phase) -> None:
        await asyncio.sleep(0)
        seen.append(phase)

    session = Lab(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], hooks=hooks)
    run = asyncio.run(session.run("go"))
    session.close()
    assert [phase.moment for phase in seen] == MOMENTS_OF_A_RUN
    by = {phase.moment: phase for phase in reversed(seen)}  # the first of each moment
    assert [call.name for call in by["before_act"].calls] == ["double"]
    assert [call.name for call in by["after_think"].calls] == ["double"]
    assert list(by["after_act"].answers.values()) == ["4"]
    assert by["before_observe"].messages[-1].text == "4"
    assert [phase.goes_on for phase in seen if phase.moment == "after_decide"] == [True, False]
    assert (seen[-1].answer, seen[-1].status, seen[-1].usage) == ("four", "COMPLETE", run.usage)
    assert {phase.cycle for phase in seen if phase.moment == "before_think"} == {1, 2}


def test_a_hook_that_raises_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """A constraint of one's own: what it says is the reason; an error after the run only is reported."""
    hooks = Hooks()
    reported: list[str] = []

    @hooks.on("before_act")
    def constraint(phase: Phase) -> None:
        raise ValueError(f"no {phase.calls[0].name} here")

    @hooks.on("after_run")
    def late(phase: Phase) -> None:
        raise OSError("too late")

    async def scene(session: Lab) -> Run:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context["message"])
        )
        return await session.run("go")

    session = Lab(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], hooks=hooks)
    run = asyncio.run(scene(session))
    assert (run.status, run.reason) == (
        "FAILED",
        "the hook 'constraint' at before_act failed: ValueError: no double here",
    )
    assert not any(isinstance(event, ToolAnswered) for event in run.events())
    assert reported == [f"run {run.id} has ended, and the hook 'late' at after_run failed: OSError: too late"]
    session.close()


def test_a_moment_that_does_not_exist_is_refused() -> None:
    """With the nearest name."""
    with pytest.raises(UsageError, match="did you mean 'before_think'"):
        Hooks().on("before_thinking")  # type: ignore[arg-type]
