"""Runs over real model servers that die, come back, or stay dead; the servers are processes and are
killed.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from openai_server import OpenAIServer, Reply, ServerProcess
from ports import free_port
from waits import FOREVER_S, PATIENCE_S

from kestrel_lab.core.errors import DependencyError, ModelError, UsageError
from kestrel_lab.core.events.union import (
    Event,
    HealthChanged,
    ModelAnswered,
    ModelCalled,
    ModelDelta,
    ModelEscalated,
    Progress,
)
from kestrel_lab.core.messages import Message, ModelAnswer, ModelParams, ModelRequest
from kestrel_lab.core.protocols import Model, ModelKind, OnDelta
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.execution.prepare import TunedModel
from kestrel_lab.lab import Lab
from kestrel_lab.models.fallback import EscalatingModel
from kestrel_lab.models.health_probe import endpoint_of, probe_of
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.prompted_tools import TextToolModel
from kestrel_lab.models.retry import with_retries
from kestrel_lab.models.router import Route, RoutedModel
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.supervision.health import HealthPolicy
from kestrel_lab.runtime.supervision.model_guard import GuardedModel, guard_model, wait_for_model, watch_model
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.testing import RecordingListener, ScriptedModel, conversation
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool

# pydantic's remark about litellm's own types, which the package silences when it loads litellm; each test's
# filters begin anew.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier"
)

QUICK = HealthPolicy(failures=2, open_s=0.2, open_max_s=0.4, jitter=0.0)
CALL: dict[str, Any] = {"calls": [("crash", "{}")]}
REQUEST = ModelRequest(messages=conversation(("user", "hi")))


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server that is not started yet."""
    with ServerProcess(free_port()) as process:
        yield process


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Litellm is loaded once, which the first run would tell of."""
    asyncio.run(LiteLLMModel("openai/any", api_key="k").prepare())


def behind(server: ServerProcess | OpenAIServer, name: str = "openai/any") -> Model:
    """A model of that server, asked twice at most."""
    return with_retries(
        LiteLLMModel(name, api_base=server.api_base, api_key="k", timeout_s=PATIENCE_S), 2, first_wait_s=0.01
    )


def supervised(session: Lab, *, patience_s: float) -> RuntimeSupervisor:
    """The session's supervisor, in a hurry."""
    session.supervisor = RuntimeSupervisor(QUICK, patience_s=patience_s, random=lambda: 0.0)
    return session.supervisor


def killer(server: ServerProcess) -> Tool:
    """A tool that kills the model's server."""

    @tool(danger_level="safe", effect="pure")
    async def crash() -> str:
        """Crash."""
        await asyncio.to_thread(server.kill)
        return "crashed"

    return crash


def path(events: list[Event]) -> list[str]:
    """The states of health that a run saw."""
    return [event.target for event in events if isinstance(event, HealthChanged)]


def test_a_run_outlives_its_model_server(session: Lab, workspace: Path, server: ServerProcess) -> None:
    """The server is killed in the middle of a run and comes back after a second: the run waits, says so, and
    finishes.
    """
    supervisor = supervised(session, patience_s=PATIENCE_S)
    server.start(CALL)

    async def scene() -> Run:
        run = session.start("go", model=behind(server), tools=[killer(server)], workspace=workspace)
        while "recovering" not in path(run.events()):
            await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        await asyncio.to_thread(server.start, {"text": "done"})
        return await run.wait()

    run = asyncio.run(scene())
    assert (run.status, run.answer, run.reason) == (RunStatus.COMPLETE, "done", "")
    seen = [
        state
        for place, state in enumerate(path(run.events()))
        if path(run.events())[place - 1] != state or not place
    ]
    assert seen[:3] == ["ready", "degraded", "recovering"]
    assert seen[-1] == "ready"
    assert [row.state for row in supervisor.states()] == ["ready"]
    waits = [event.text for event in run.events() if isinstance(event, Progress)]
    assert waits[0].startswith(f"waiting for openai/any at {server.api_base}, next attempt in 0.")
    assert waits[-1] == ""
    assert len(waits) < 5
    assert sum(isinstance(event, ModelCalled) for event in run.events()) == 2
    assert [event.text for event in run.events() if isinstance(event, ModelAnswered)] == ["", "done"]


def test_a_run_whose_server_stays_dead_says_so_in_time(
    session: Lab, workspace: Path, server: ServerProcess
) -> None:
    """The reason names the endpoint, its state and why, within the patience; a run on another server does not
    notice.
    """
    supervised(session, patience_s=2)
    server.start(CALL)

    async def scene(other: OpenAIServer) -> tuple[Run, Run]:
        doomed = session.start("go", model=behind(server), tools=[killer(server)], workspace=workspace)
        while "degraded" not in path(doomed.events()):
            await asyncio.sleep(0.02)
        unrelated = await session.run("go", model=behind(other), workspace=workspace)
        return await doomed.wait(), unrelated

    with OpenAIServer([Reply(text="fine")]) as other:
        doomed, unrelated = asyncio.run(scene(other))
    assert (unrelated.status, unrelated.answer, path(unrelated.events())) == (
        RunStatus.COMPLETE,
        "fine",
        ["ready"],
    )
    assert doomed.status is RunStatus.FAILED
    assert doomed.reason.startswith(f"model openai/any at {server.api_base} is ")
    assert f"no connection to {server.api_base}" in doomed.reason
    assert "Is it running, and can it be reached?" in doomed.reason
    answers = [event for event in doomed.events() if isinstance(event, ModelAnswered)]
    assert answers[-1].error is not None
    assert answers[-1].error["message"] == doomed.reason


def test_what_never_worked_is_not_waited_for(session: Lab, workspace: Path, server: ServerProcess) -> None:
    """With nobody at the address runs fail at once with the model's own words, then by the open breaker
    without a call.
    """
    supervisor = session.supervisor = RuntimeSupervisor(HealthPolicy(failures=2, open_s=60))

    async def scene() -> list[Run]:
        return [await session.run("go", model=behind(server), workspace=workspace) for _ in range(3)]

    first, second, third = asyncio.run(scene())
    assert first.reason.startswith(f"openai/any: no connection to {server.api_base}")
    assert second.reason.startswith(f"openai/any: no connection to {server.api_base}")
    assert (path(first.events()), path(second.events()), path(third.events())) == (
        ["degraded"],
        ["recovering"],
        [],
    )
    assert third.reason.startswith(
        f"model openai/any at {server.api_base} is recovering: openai/any: no connection to {server.api_base}"
    )
    assert "; it is tried again in " in third.reason
    assert [row.state for row in supervisor.states()] == ["recovering"]


@dataclass
class Endpoint:
    """A real model in all but its answers: raises or says what is next on its list, the last one for ever."""

    turns: list[Any]
    name: str = "own/any"
    kind: ModelKind = "real"
    asked: int = 0
    now: int = 0
    most: int = 0
    slow_s: float = 0.0
    streams: list[bool] = field(default_factory=list)

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        self.streams.append(request.stream)
        try:
            await asyncio.sleep(self.slow_s)
            turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
            if isinstance(turn, tuple):  # breaks off after some text
                on_delta(turn[0])
                raise turn[1]
            if isinstance(turn, Exception):
                raise turn
            on_delta(turn)
            return ModelAnswer(text=turn, model="own/any-1")
        finally:
            self.now -= 1


def unheard(_: str) -> None:
    """Nobody listens."""


BUSY = ModelError("busy", transient=True)


Guard = Callable[[Model, RuntimeSupervisor], Model]


def sound(model: Model, supervisor: RuntimeSupervisor) -> Model:
    """The guard as it is."""
    return guard_model(model, supervisor, unheard_event)


async def open_breaker(guard: Guard) -> None:
    """Fifty calls while it is open, fifty after the window, fifty when the endpoint is back."""
    now = 0.0
    supervisor = RuntimeSupervisor(QUICK, patience_s=0, clock=lambda: now)
    endpoint = Endpoint([BUSY], slow_s=0.01)
    model = guard(endpoint, supervisor)

    async def fifty() -> list[str]:
        found = await asyncio.gather(*(model(REQUEST, unheard) for _ in range(50)), return_exceptions=True)
        return sorted(type(one).__name__ for one in found)

    for _ in range(2):
        with pytest.raises(ModelError, match="busy"):
            await model(REQUEST, unheard)
    endpoint.asked = 0
    assert await fifty() == ["DependencyError"] * 50
    assert endpoint.asked == 0
    with pytest.raises(
        DependencyError,
        match=r"model own/any is recovering: busy; it is tried again in 0.2 s\. Is it running",
    ):
        await model(REQUEST, unheard)
    now += 0.2
    endpoint.most = 0
    assert (await fifty(), endpoint.asked, endpoint.most) == (["DependencyError"] * 49 + ["ModelError"], 1, 1)
    now += 0.4
    endpoint.turns = ["back"]
    assert (await model(REQUEST, unheard)).text == "back"
    assert await fifty() == ["ModelAnswer"] * 50


def test_an_open_breaker_lets_nothing_through_and_then_one() -> None:
    """While it is open no call reaches the endpoint; after the window one does and the others are refused;
    then all do.
    """
    asyncio.run(open_breaker(sound))


class Deaf(GuardedModel):
    """Mutant: asks without being admitted."""

    async def _once(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        return await self.model(request, on_delta)


class Unreported(GuardedModel):
    """Mutant: asks and reports nothing."""

    async def _once(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.endpoint.admit()
        return await self.model(request, on_delta)


class Hopeful(GuardedModel):
    """Mutant: reports every call as a success."""

    async def _once(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        permit = self.endpoint.admit()
        try:
            return await self.model(request, on_delta)
        finally:
            self.endpoint.success(permit)


@pytest.mark.parametrize("kind", [Deaf, Unreported, Hopeful])
def test_mutant_guards_are_caught(kind: type[GuardedModel]) -> None:
    """A guard that does not ask, does not report, or reports wrongly is found."""

    def guard(model: Model, supervisor: RuntimeSupervisor) -> Model:
        return kind(model, watch_model(model, supervisor), unheard_event, 0.0)

    with pytest.raises(AssertionError):
        asyncio.run(open_breaker(guard))


def unheard_event(_: Event) -> None:
    """No run listens."""


@pytest.mark.parametrize(
    "error",
    [
        ModelError("401: check the key", caller=True),
        ModelError("the call failed"),
        UsageError("no such tool"),
        ValueError("a bug"),
    ],
    ids=["caller", "lasting", "usage", "bug"],
)
def test_errors_of_the_callers_side_do_not_count(error: Exception) -> None:
    """Twenty refusals in a row leave the breaker closed and the state as it was; cancelled calls say nothing
    either.
    """
    supervisor = RuntimeSupervisor(QUICK, patience_s=5)
    endpoint = Endpoint([error])
    model = guard_model(endpoint, supervisor, unheard_event)

    async def scene() -> None:
        for _ in range(20):
            with pytest.raises(type(error)):
                await model(REQUEST, unheard)
        endpoint.slow_s = 5
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await model(REQUEST, unheard)

    asyncio.run(scene())
    (row,) = supervisor.states()
    assert (row.state, row.breaker, row.reason, endpoint.asked) == ("starting", "closed", "", 25)


def test_a_cancelled_single_call_frees_its_place() -> None:
    """When the one call of a half-open breaker is cancelled, the next one may find out."""
    now = 0.0
    supervisor = RuntimeSupervisor(QUICK, patience_s=0, clock=lambda: now)
    endpoint = Endpoint([BUSY, BUSY, "back"])
    model = guard_model(endpoint, supervisor, unheard_event)

    async def scene() -> str:
        nonlocal now
        for _ in range(2):
            with pytest.raises(ModelError):
                await model(REQUEST, unheard)
        now += 0.2
        endpoint.slow_s = 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await model(REQUEST, unheard)
        endpoint.slow_s = 0
        return (await model(REQUEST, unheard)).text

    assert asyncio.run(scene()) == "back"


def test_a_stream_that_breaks_off_is_not_heard_twice(session: Lab, workspace: Path) -> None:
    """After an attempt has streamed, the answer of the next comes whole: listeners get no piece twice, the
    run its answer.
    """
    supervised(session, patience_s=5)
    seen = RecordingListener()

    async def scene() -> Run:
        model = Endpoint(["first", ("half of the ", BUSY), "half of the answer"])
        await session.run("go", model=model, workspace=workspace)
        run = session.start("go", model=model, workspace=workspace)
        run.subscribe(seen)
        return await run.wait()

    run = asyncio.run(scene())
    assert run.answer == "half of the answer"
    assert [event.text for event in seen.events if isinstance(event, ModelDelta)] == ["half of the "]


def test_a_pause_longer_than_the_patience_is_not_begun() -> None:
    """A provider that asks for more than that ends the call at once."""
    supervisor = RuntimeSupervisor(QUICK, patience_s=FOREVER_S)
    model = guard_model(
        Endpoint(["ok", ModelError("quota", transient=True, retry_after_s=FOREVER_S + 60)]),
        supervisor,
        unheard_event,
    )

    async def scene() -> None:
        await model(REQUEST, unheard)
        await model(REQUEST, unheard)

    with pytest.raises(DependencyError, match="own/any is degraded: quota"):
        asyncio.run(scene())


def test_scripts_depend_on_nothing() -> None:
    """A script is not watched: its errors are part of the play."""
    supervisor = RuntimeSupervisor()
    script = ScriptedModel(["hi"])
    assert guard_model(script, supervisor, unheard_event) is script
    assert supervisor.states() == ()


def test_escalation_goes_past_a_dead_endpoint(session: Lab, workspace: Path, server: ServerProcess) -> None:
    """The first model's server is dead: each turn goes on with the second at once, and the open breaker saves
    the call.
    """
    supervisor = session.supervisor = RuntimeSupervisor(HealthPolicy(failures=2, open_s=60))
    spare = Endpoint(["spare"])
    model = EscalatingModel(models=(behind(server), spare))
    runs = [asyncio.run(session.run("go", model=model, workspace=workspace)) for _ in range(3)]
    assert [run.answer for run in runs] == ["spare"] * 3
    (event,) = [event for event in runs[2].events() if isinstance(event, ModelEscalated)]
    assert (event.source, event.target) == ("openai/any", "own/any")
    assert event.reason.startswith(f"model openai/any at {server.api_base} is recovering: ")
    assert [(row.dependency, row.state) for row in supervisor.states()] == [
        (f"openai/any at {server.api_base}", "recovering"),
        ("own/any", "ready"),
    ]
    answered = [event for event in runs[0].events() if isinstance(event, ModelAnswered)]
    assert [(event.model, event.error is None) for event in answered] == [
        ("openai/any", False),
        ("own/any-1", True),
    ]


@pytest.mark.parametrize("several", ["stand-ins", "routes"])
def test_what_is_around_several_models_does_not_hide_them(several: str) -> None:
    """Where settings are put around models that stand for each other, each endpoint is still watched by
    itself.
    """
    supervisor = RuntimeSupervisor()
    one, other = LiteLLMModel("openai/a", api_key="k"), LiteLLMModel("openai/b", api_key="k")
    routes = RoutedModel(name="r", routes=(Route(kind="code", model=one),), otherwise=other)
    around = TunedModel(
        model=EscalatingModel(models=(one, other)) if several == "stand-ins" else routes,
        params=ModelParams(temperature=0.5),
    )
    kept = guard_model(around, supervisor, lambda _: None)
    assert isinstance(kept, TunedModel)
    assert kept.params.temperature == 0.5
    assert [type(model) for model in kept.model.models] == [GuardedModel, GuardedModel]  # type: ignore[attr-defined]
    assert [model.endpoint.name for model in kept.model.models] == ["openai/a", "openai/b"]  # type: ignore[attr-defined]


def test_endpoints_are_told_apart(server: ServerProcess) -> None:
    """One name at two addresses is two endpoints; wrapping a model does not make another one."""
    one = LiteLLMModel("openai/any", api_base=server.api_base)
    other = LiteLLMModel("openai/any", api_base="http://127.0.0.1:1/v1")
    assert (
        endpoint_of(one)
        == endpoint_of(with_retries(TextToolModel(one)))
        == f"openai/any at {server.api_base}"
    )
    assert endpoint_of(one) != endpoint_of(other)
    assert endpoint_of(LiteLLMModel("openai/gpt-5")) == "openai/gpt-5"


def test_probes_that_cost_nothing(server: ServerProcess) -> None:
    """An own server is in order when it answers at all; an Ollama when it has the model; a hosted model
    cannot be probed.
    """
    root = server.api_base.removesuffix("/v1")
    here = RuntimeSupervisor()
    own = watch_model(behind(server), here)
    ollama = watch_model(LiteLLMModel("ollama_chat/any", api_base=root), here)
    missing = watch_model(LiteLLMModel("ollama_chat/other", api_base=root), here)
    assert probe_of(LiteLLMModel("openai/gpt-5")) is None

    async def found() -> list[tuple[bool, str]]:
        return [(await one.look(), one.health.reason) for one in (own, ollama, missing)]

    assert [well for well, _ in asyncio.run(found())] == [False, False, False]
    server.start({"status": 401, "error": "who are you"})
    assert asyncio.run(found())[0] == (True, "")
    server.kill()
    server.start({})
    assert asyncio.run(found()) == [
        (True, ""),
        (True, ""),
        (False, f"the Ollama at {root} does not have other: ollama pull other"),
    ]
    server.kill()
    server.start({"status": 503})
    assert asyncio.run(own.look()) is False
    assert own.health.reason == f"{server.api_base}/models answers with status 503"


def test_the_preflight_of_a_stage(server: ServerProcess) -> None:
    """It waits for a server that comes up, names one that does not, and is content with one of several that
    stand in.
    """
    supervisor = RuntimeSupervisor(QUICK)
    model, script = behind(server), ScriptedModel(["x"])

    async def scene() -> None:
        for timeout in (0.5, 5, 50):  # a busy machine may not have asked the server within the first
            with pytest.raises(DependencyError, match=r"model openai/any at .* is ") as caught:
                await wait_for_model(model, supervisor, timeout=timeout)
            if "is starting" not in str(caught.value):
                break
        assert re.search(r"is (degraded|recovering): .*/models does not answer", str(caught.value))
        await wait_for_model(EscalatingModel(models=(model, script)), supervisor, timeout=PATIENCE_S)
        await wait_for_model(EscalatingModel(models=(script, model)), supervisor, timeout=PATIENCE_S)
        gate = asyncio.create_task(wait_for_model(model, supervisor, timeout=PATIENCE_S))
        await asyncio.to_thread(server.start, {"text": "hi"})
        await gate
        await wait_for_model(
            EscalatingModel(models=(model, Endpoint([BUSY]))), supervisor, timeout=PATIENCE_S
        )

    asyncio.run(scene())


def test_the_guard_costs_little() -> None:
    """Admitting, reporting and the layers around them take few calls of functions per request: how many does
    not depend on the machine.
    """
    supervisor = RuntimeSupervisor()

    class Instant:
        name, kind = "own/instant", "real"
        answer = ModelAnswer(text="x")

        async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
            return self.answer

    async def function_calls(requests: int) -> int:
        model = guard_model(Instant(), supervisor, unheard_event)
        await model(REQUEST, unheard)  # what is done once
        count = 0

        def notice(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal count
            count += event in {"call", "c_call"}

        sys.setprofile(notice)
        try:
            for _ in range(requests):
                await model(REQUEST, unheard)
        finally:
            sys.setprofile(None)
        return count

    assert asyncio.run(function_calls(100)) / 100 < 200


def test_messages_stay_a_live_list() -> None:
    """The guard hands the request on as it is."""
    seen: list[ModelRequest] = []

    class Keeps(Endpoint):
        async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
            seen.append(request)
            return await super().__call__(request, on_delta)

    request = ModelRequest(messages=[Message(role="user", text="hi")])
    asyncio.run(guard_model(Keeps(["ok"]), RuntimeSupervisor(), unheard_event)(request, unheard))
    assert seen[0] is request
