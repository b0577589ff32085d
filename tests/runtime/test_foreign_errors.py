"""Claims about code of others that ends in an unusual way: whatever it raises is its error, at every boundary,
unless somebody really stopped the run.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NoReturn

import pytest
from pydantic import AfterValidator
from waits import becomes

from kestrel_lab.checks.decorator import check
from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.errors import ModelError, RunError, error_boundary, error_text
from kestrel_lab.core.events.union import Event, ModelAnswered, ToolAnswered
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Handler, OnDelta, Trial
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.metrics import metric
from kestrel_lab.evals.scanners.findings import Finding
from kestrel_lab.evals.scanners.scanner import scanner
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.transcripts.transcript import Transcript
from kestrel_lab.lab import Lab
from kestrel_lab.middleware.hooks import Hooks, Phase
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool


class Outage(BaseException):
    """What a library may raise that wants to be caught by nobody."""


KINDS = (ValueError, asyncio.CancelledError, GeneratorExit, SystemExit, Outage)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def error(request: pytest.FixtureRequest) -> BaseException:
    """An error of each kind."""
    made: BaseException = request.param("no")
    return made


def raiser(error: BaseException) -> Callable[..., NoReturn]:
    def fail(_: object = None) -> NoReturn:
        raise error

    return fail


def asked(lab: Lab, tools: Iterable[Tool] = (), **options: Any) -> Any:
    """The run of a model that calls the tool `act` and then ends."""
    model = options.pop("model", ScriptedModel([[("act", {})], "done"]))
    return asyncio.run(lab.run("go", model=model, tools=[*tools], approve="auto:critical", **options))


# Doors of a run: each returns the text in which the error is told, and the status of the run.


def of_a_tool(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    @tool
    def act() -> str:
        """Act."""
        raise error

    return answered(asked(lab, [act]))


def of_an_async_tool(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    @tool(effect="pure")
    async def act() -> str:
        """Act."""
        await asyncio.sleep(0)
        raise error

    return answered(asked(lab, [act]))


def of_a_tool_in_a_thread(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    @tool(thread=True)
    def act() -> str:
        """Act."""
        raise error

    return answered(asked(lab, [act]))


def of_a_tool_with_a_time_limit(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    @tool(timeout_s=60)
    async def act() -> str:
        """Act."""
        raise error

    return answered(asked(lab, [act]))


def of_a_validator(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    @tool
    def act(n: Annotated[int, AfterValidator(raiser(error))]) -> str:
        """Act."""
        return "acted"

    return answered(asked(lab, [act], model=ScriptedModel([[("act", {"n": 1})], "done"])))


def of_middleware_around_a_tool(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    async def layer(call: Call, proceed: Handler) -> Result:
        if call.kind == "tool":
            raise error
        return await proceed(call)

    lab.change(middleware=(layer,))
    return told(asked(lab, [acting]))


def of_middleware_around_a_model(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    async def layer(call: Call, proceed: Handler) -> Result:
        await proceed(call)
        raise error

    lab.change(middleware=(layer,))
    return told(asked(lab, [acting]))


def of_a_hook(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    hooks = Hooks()

    @hooks.on("before_act")
    async def watch(phase: Phase) -> None:
        raise error

    lab.change(hooks=hooks)
    return told(asked(lab, [acting]))


class Failing:
    """A model of the user's own."""

    name, kind = "own", "scripted"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        raise self.error


def of_a_model(lab: Lab, error: BaseException) -> tuple[str, RunStatus]:
    return told(asked(lab, model=Failing(error)))


@tool
def acting() -> str:
    """Act."""
    return "acted"


acting = Tool(**{**{name: getattr(acting, name) for name in acting.__dataclass_fields__}, "name": "act"})


def answered(run: Any) -> tuple[str, RunStatus]:
    (event,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    return event.text, run.status


def told(run: Any) -> tuple[str, RunStatus]:
    return run.reason, run.status


GOES_ON = (of_a_tool, of_an_async_tool, of_a_tool_in_a_thread, of_a_tool_with_a_time_limit, of_a_validator)
ENDS = (of_middleware_around_a_tool, of_middleware_around_a_model, of_a_hook, of_a_model)


@pytest.mark.parametrize("door", GOES_ON, ids=lambda door: door.__name__)
def test_what_a_tool_raises_is_told_to_the_model(door: Any, error: BaseException, session: Lab) -> None:
    """Whatever a tool, or a validator of its arguments, raises is the answer to its call, and the run goes
    on.
    """
    text, status = door(session, error)
    # What a validator refuses by a ValueError is an argument that is wrong: its text is what counts.
    assert type(error).__name__ in text or (door is of_a_validator and "no, not 1" in text)
    assert status is RunStatus.COMPLETE


@pytest.mark.parametrize("door", ENDS, ids=lambda door: door.__name__)
def test_what_else_raises_is_the_reason_of_the_run(door: Any, error: BaseException, session: Lab) -> None:
    """Whatever middleware, a hook or a model raises ends the run as failed, by name: nothing looks like a
    person who stopped it.
    """
    reason, status = door(session, error)
    assert type(error).__name__ in reason
    assert status is RunStatus.FAILED


def test_a_call_that_middleware_broke_is_answered(error: BaseException, session: Lab) -> None:
    """A model call around which middleware raised has its end in the log."""

    async def layer(call: Call, proceed: Handler) -> Result:
        raise error

    session.change(middleware=(layer,))
    (event,) = [event for event in asked(session).events() if isinstance(event, ModelAnswered)]
    assert event.error is not None
    assert type(error).__name__ in event.error["message"]


@pytest.mark.parametrize("value", [None, "text"])
def test_what_middleware_returns_is_a_result(value: Any, session: Lab) -> None:
    """Middleware that returns something else than a result, nothing for instance, is named."""

    async def forgetful(call: Call, proceed: Handler) -> Any:
        await proceed(call)
        return value

    session.change(middleware=(forgetful,))
    assert "'forgetful' returned a value of type" in asked(session).reason


def test_a_model_returns_an_answer(session: Lab) -> None:
    """A model of the user's own that returns a text in place of an answer is named."""

    class Wrong(Failing):
        async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> Any:
            return "four"

    assert "a value of type str, not a ModelAnswer" in asked(session, model=Wrong(ValueError())).reason


def test_a_listener_that_fails_ends_no_run(error: BaseException, session: Lab) -> None:
    """A listener that raises whatever is removed, and the run is complete."""
    model = ScriptedModel([[("act", {})], "done"])

    def fail_late(event: Event) -> None:
        if isinstance(event, ToolAnswered):
            raise error

    async def scene() -> Any:
        run = session.start("go", model=model, tools=[acting], approve="auto:critical")
        run.subscribe(fail_late)
        await run.wait()
        return run

    async def quiet() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        return await scene()

    assert asyncio.run(quiet()).status is RunStatus.COMPLETE


# Doors of a trial: each returns parts of a scenario or of a suite.


def in_a_check(error: BaseException) -> dict[str, Any]:
    return {"checks": (check(raiser(error)),)}


def in_an_awaited_check(error: BaseException) -> dict[str, Any]:
    async def judge(trial: Trial) -> bool:
        await asyncio.sleep(0)
        raise error

    return {"checks": (check(judge),)}


def in_an_environment(error: BaseException) -> dict[str, Any]:
    broken = SimpleNamespace(instructions="", definition=dict, open=raiser(error))
    return {"checks": (check(answer_contains="4"),), "environment": broken}


@pytest.mark.parametrize(
    "door", [in_a_check, in_an_awaited_check, in_an_environment], ids=lambda d: d.__name__
)
def test_a_trial_that_broke_is_in_the_frame(door: Any, error: BaseException, tmp_path: Path) -> None:
    """Whatever a check or an environment raises, its trial is a row that broke, with the error, and the others
    are judged.
    """
    good = Scenario(id="good", goal="go", checks=(check(answer_contains="4"),))
    suite = Suite(name="s", scenarios=(Scenario(id="bad", goal="go", **door(error)), good))
    rows = Lab(home=tmp_path, model=ScriptedModel(lambda _: "4")).eval_sync(suite).rows
    assert [(row.scenario, row.outcome) for row in rows] == [("bad", "error"), ("good", "pass")]
    assert type(error).__name__ in rows[0].reason


def test_a_metric_that_breaks_is_in_the_frame(error: BaseException, tmp_path: Path) -> None:
    """Whatever a metric of the suite raises, its trials are rows that broke."""

    @metric
    def wrong(records: Any) -> float:
        raise error

    scenario = Scenario(id="a", goal="go", checks=(check(answer_contains="4"),))
    suite = Suite(name="s", scenarios=(scenario,), metrics=(wrong,))
    (row,) = Lab(home=tmp_path, model=ScriptedModel(lambda _: "4")).eval_sync(suite).rows
    assert row.outcome == "error"
    assert type(error).__name__ in row.reason


def test_a_scanner_that_breaks_costs_its_run_only(error: BaseException, tmp_path: Path) -> None:
    """Whatever a scanner raises is named with it."""

    @scanner
    def picky(run: Transcript) -> Iterable[Finding]:
        raise error

    scenario = Scenario(id="a", goal="go", checks=(check(answer_contains="4"),))
    with Lab(home=tmp_path, model=ScriptedModel(lambda _: "4")) as lab:
        result = lab.eval_sync(Suite(name="s", scenarios=(scenario,)))
        report = asyncio.run(result.scan(picky))
    assert type(error).__name__ in str(report)


def test_who_is_stopped_is_stopped(session: Lab) -> None:
    """The mutant of all this would be to call every cancellation an error: a run that somebody cancels while
    its tool works is cancelled, and the call says so.
    """
    begun: list[int] = []

    @tool(effect="pure")
    async def act() -> str:
        """Act."""
        begun.append(1)
        await asyncio.sleep(86_400)
        return "late"

    async def scene() -> Any:
        run = session.start("go", model=ScriptedModel([[("act", {})], "done"]), tools=[act])
        await becomes(lambda: bool(begun))
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run.wait()
        return run

    run = asyncio.run(scene())
    assert run.status is RunStatus.CANCELLED
    (event,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert event.error["kind"] == "cancelled"


def test_a_coroutine_that_is_closed_is_no_error() -> None:
    """A coroutine that nobody awaits any more is closed by Python: no boundary makes an error of that, be it
    closed by another task.
    """
    seen: list[BaseException] = []

    async def work() -> None:
        try:
            with error_boundary(RunError, "the tool"):
                await asyncio.Event().wait()
        except BaseException as error:
            seen.append(error)
            raise

    async def begin() -> Any:
        coroutine = work()
        coroutine.send(None)
        return coroutine

    coroutine = asyncio.run(begin())

    async def end() -> None:
        coroutine.close()

    asyncio.run(end())
    assert [type(error) for error in seen] == [GeneratorExit]


def test_an_error_whose_text_fails_is_told() -> None:
    """An error whose own text raises a cancellation is told by its class."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise asyncio.CancelledError

    assert "__str__ raised CancelledError" in error_text(Rude("x"))
    with pytest.raises(ModelError, match="Rude"), error_boundary(ModelError, "the model"):
        raise Rude
