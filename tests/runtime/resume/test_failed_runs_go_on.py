"""A run that reached a limit or lost its model goes on where it was, in a new run that shares what is
done.
"""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.agents import LLMAgent
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import resume as resume_module
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool

CALLED: list[int] = []


@tool(danger_level="low", effect="opaque", reads=(), reaches="nothing")
async def measure(number: int) -> str:
    """Measure."""
    CALLED.append(number)
    return f"{number} m"


@pytest.fixture
def session(tmp_path: Path) -> Lab:
    """A session with one tool."""
    CALLED.clear()
    return Lab(tmp_path / "home", env={}, tools=[measure])


def played(request: ModelRequest) -> int:
    return sum(message.role == "assistant" for message in request.messages)


def three_calls(request: ModelRequest) -> Turn:
    """Three turns with a call each, then the answer."""
    return [("measure", {"number": played(request)})] if played(request) < 3 else "measured"


class Unreachable:
    """A model that is unreachable at its third turn, until it is back."""

    def __init__(self) -> None:
        self.back = False

    def __call__(self, request: ModelRequest) -> Turn:
        if played(request) == 2 and not self.back:
            raise ModelError("the server is on fire")
        return three_calls(request)


def test_a_run_out_of_turns_goes_on_with_more(session: Lab) -> None:
    """It says how, and no call is made again."""
    failed = asyncio.run(session.run("go", model=ScriptedModel(three_calls), limits=Limits(cycles=2)))
    assert (failed.status, failed.reason, CALLED) == (
        RunStatus.FAILED,
        "the limit of 2 model turns is reached",
        [0, 1],
    )
    assert f"kestrel run --resume {failed.id} --cycles N" in failed.report.way_on
    run = asyncio.run(session.resume(failed.id, model=ScriptedModel(three_calls), limits=Limits(cycles=9)))
    assert (run.status, run.answer, run.usage.model_calls, CALLED) == (
        RunStatus.COMPLETE,
        "measured",
        4,
        [0, 1, 2],
    )
    assert (run.id != failed.id, session.get(failed.id).status) == (True, RunStatus.FAILED)


def test_a_run_goes_on_once_its_model_is_back(session: Lab) -> None:
    """Also a step of a plan whose other steps are done; one that fails again can go on again."""
    plan = Plan(
        steps=(
            Step(id="first", tool="measure", args={"number": 7}),
            Step(id="then", goal="Measure.", depends_on=("first",)),
        )
    )
    says = Unreachable()
    failed = asyncio.run(session.run("go", plan=plan, model=ScriptedModel(says), approve="auto"))
    assert (failed.status, CALLED) == (RunStatus.FAILED, [7, 0, 1])
    assert f"kestrel run --resume {failed.id}" in failed.report.way_on
    again = asyncio.run(session.resume(failed.id, model=ScriptedModel(says)))
    assert (again.status, CALLED, again.id != failed.id) == (RunStatus.FAILED, [7, 0, 1], True)
    says.back = True
    run = asyncio.run(session.resume(again.id, model=ScriptedModel(says)))
    assert (run.status, run.answer, CALLED) == (RunStatus.COMPLETE, "measured", [7, 0, 1, 2])


def test_what_cannot_be_asked_again_is_returned(session: Lab) -> None:
    """A tool's step that failed, and an answer that was found wanting, are no matter of trying again."""

    @tool(danger_level="low", reads=(), reaches="nothing")
    async def broken() -> str:
        """Fail."""
        raise OSError("no disk")

    plan = Plan(steps=(Step(id="only", tool="broken"),))
    failed = asyncio.run(
        session.run("go", plan=plan, tools=[broken], model=ScriptedModel([]), approve="auto")
    )
    same = asyncio.run(session.resume(failed.id, model=ScriptedModel([]), tools=[broken]))
    assert (same.id, same.status, same.report.way_on) == (failed.id, RunStatus.FAILED, "")
    unmet = asyncio.run(session.run("go", output=int, plan=LLMAgent("a"), model=ScriptedModel(["none"] * 3)))
    same = asyncio.run(session.resume(unmet.id, model=ScriptedModel(["7"] * 3)))
    assert (same.id, same.status, same.report.way_on) == (unmet.id, RunStatus.FAILED, "")


def test_a_run_that_is_only_returned_would_be_seen(session: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: without a completed stage there is nothing to go on from."""
    monkeypatch.setattr(resume_module, "_can_ask_again", lambda *_: False)
    failed = asyncio.run(session.run("go", model=ScriptedModel(three_calls), limits=Limits(cycles=2)))
    run = asyncio.run(session.resume(failed.id, model=ScriptedModel(three_calls), limits=Limits(cycles=9)))
    assert (run.id, run.status) == (failed.id, RunStatus.FAILED)
