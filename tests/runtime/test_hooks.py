"""Claims about what a user can hang around runs: middleware around calls, listeners of events."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, ModelAnswered, ToolAnswered
from kestrel_lab.core.protocols import Handler
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.session import Session
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
    session = Session(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], middleware=[seen])
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

    session = Session(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], middleware=[hooked])
    run = asyncio.run(session.run("go"))
    answers = [event.text for event in run.events() if isinstance(event, ToolAnswered)]
    session.close()
    assert answers == ["hooked 20"]


def test_listeners_hear_a_run_from_its_first_event_to_its_last(tmp_path: Path) -> None:
    """A session's listener is told of every stored event of every run, in order, and of the pieces of a streamed answer."""
    heard: list[tuple[str, Event]] = []

    def listen(run: Run, event: Event) -> None:
        heard.append((run.id, event))

    session = Session(tmp_path, model=ScriptedModel(SCRIPT), tools=[double], listeners=[listen])
    runs = [asyncio.run(session.run("go")), asyncio.run(session.run("again"))]
    for run in runs:
        told = [event for run_id, event in heard if run_id == run.id and event.type != "model_delta"]
        assert told == run.events()
        assert any(isinstance(event, ModelAnswered) for event in told)
    assert [event.type for _, event in heard].count("model_delta") == 2
    session.close()


def test_an_approver_that_times_out_ends_the_run(tmp_path: Path) -> None:
    """A `TimeoutError` that is not the run's own limit reaches the caller and leaves the run FAILED, not at work for ever."""

    async def absent(_: ApprovalAsked) -> ApprovalGiven:
        raise TimeoutError

    session = Session(tmp_path / "home", model=ScriptedModel([[("write_file", {"path": "a", "content": "b"})], "done"]))

    async def go() -> Run:
        run = session.start("go", workspace=tmp_path, approver=absent)
        with pytest.raises(TimeoutError):
            await run.wait()
        return run

    run = asyncio.run(go())
    session.close()
    assert (run.status, run.outcome) == ("FAILED", "error")
    assert "TimeoutError" in run.reason
