"""Claims about waiting for a model endpoint, over real sockets on loopback and by the clock of the loop."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from openai_server import OpenAIServer, Reply
from waits import LoopClock, becomes

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import DependencyError, ModelError
from kestrel_lab.core.events.union import BudgetWarned, Event, ModelAnswered, Progress
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.retry import with_retries
from kestrel_lab.runtime.supervision.model_guard import GuardedModel, guard_model
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.testing import conversation
from kestrel_lab.views.rows import NoticeRow
from kestrel_lab.views.run_view import view_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier"
)
REQUEST = ModelRequest(messages=conversation(("user", "hi")))
DOWN = Reply(status=503, error="overloaded")
Act = Literal["reset", "silent", "answer"]


class RawServer:
    """Takes a request and then resets the connection, stays silent until it is released, or answers."""

    def __init__(self, *acts: Act) -> None:
        self.acts = list(acts)
        self.requests = 0
        self.release = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.api_base = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        received = b""
        while b'"messages"' not in received:
            received += connection.recv(65_536)
        act = self.acts[min(self.requests, len(self.acts) - 1)]
        self.requests += 1
        if act == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            return
        if act == "silent":
            self.release.wait()
        body = b'{"id":"1","object":"chat.completion","created":1,"model":"any","choices":[{"index":0,'
        body += b'"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}]}'
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        try:
            connection.sendall(head.encode() + body)
            connection.close()
        except OSError:
            return

    def close(self) -> None:
        """Take no further connection, and let silent ones go."""
        self.release.set()
        self._listener.close()


@pytest.fixture
def raw() -> Iterator[Callable[..., RawServer]]:
    """Make servers that are closed at the end."""
    servers: list[RawServer] = []

    def make(*acts: Act) -> RawServer:
        servers.append(RawServer(*acts))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Litellm is loaded once, which the first run would tell of."""
    asyncio.run(LiteLLMModel("openai/any", api_key="k").prepare())


class Watcher:
    """Notes what a run is told, and puts the clock forward over each announced pause."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.told: list[Progress] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.told.append(event)
            if "next attempt in" in event.text:
                # Called when the pause has begun.
                asyncio.get_running_loop().call_soon(self.clock.skip, 60)

    @property
    def texts(self) -> list[str]:
        """What was told."""
        return [event.text for event in self.told]


def guarded(server: Any, watcher: Watcher, patience_s: float, **options: Any) -> GuardedModel:
    """The model of that server, as the resolver makes it, supervised by the watcher's clock."""
    model = with_retries(LiteLLMModel("openai/any", api_base=server.api_base, api_key="k", **options))
    supervisor = RuntimeSupervisor(clock=watcher.clock, random=lambda: 0.0)
    guard = guard_model(model, supervisor, watcher, patience_s=patience_s)
    assert isinstance(guard, GuardedModel)
    return guard


def pauses(texts: Sequence[str]) -> list[float]:
    """The announced pauses in seconds."""
    return [
        float(text.rpartition("next attempt in ")[2].split()[0]) for text in texts if "attempt in" in text
    ]


def unheard(_: str) -> None:
    """Nobody listens."""


def test_a_server_that_answers_503_is_waited_for_with_growing_pauses() -> None:
    """Five times 503 and then an answer: the very first call of an endpoint waits, says so, and is
    answered.
    """

    async def scene(server: OpenAIServer) -> tuple[str, list[str]]:
        watcher = Watcher()
        answer = await guarded(server, watcher, Limits(seconds=None).patience_s)(REQUEST, unheard)
        return answer.text, watcher.texts

    with OpenAIServer([DOWN] * 5 + [Reply(text="done")]) as server:
        text, texts = asyncio.run(scene(server))
        assert (text, len(server.bodies)) == ("done", 6)
    assert pauses(texts) == sorted(pauses(texts))
    assert pauses(texts)[0] < pauses(texts)[-1]
    assert all(told.startswith(f"waiting for openai/any at {server.api_base}, ") for told in texts[:-1])
    assert "503" in texts[0]
    assert texts[-1] == ""


def test_waiting_ends_with_the_limit_of_the_run() -> None:
    """A server that stays at 503 is asked until the run's own time is over; the error names it."""

    async def scene(server: OpenAIServer) -> float:
        watcher = Watcher()
        began = watcher.clock.skipped_s
        with pytest.raises(DependencyError, match="503 from"):
            await guarded(server, watcher, Limits(seconds=300.0).patience_s)(REQUEST, unheard)
        return watcher.clock.skipped_s - began

    with OpenAIServer([DOWN]) as server:
        assert 240 <= asyncio.run(scene(server)) <= 360


@pytest.mark.parametrize(
    ("limits", "patience_s"),
    [
        (Limits(), 300.0),
        (Limits(seconds=None), 600.0),
        (Limits(wall_seconds=20.0), 20.0),
        (Limits(seconds=None, model_seconds=None), float("inf")),
    ],
)
def test_the_patience_is_the_shortest_limit_of_time(limits: Limits, patience_s: float) -> None:
    """Whichever limit of time is the shortest bounds the waiting; without any it has no end."""
    assert limits.patience_s == patience_s


def test_a_dropped_connection_is_waited_for_and_the_repetition_is_told(
    raw: Callable[..., RawServer],
) -> None:
    """The request was sent when the connection was reset: it is sent again with a lasting notice each time."""
    server = raw("reset", "reset", "answer")

    async def scene() -> tuple[str, Watcher]:
        watcher = Watcher()
        answer = await guarded(server, watcher, 300)(REQUEST, unheard)
        return answer.text, watcher

    text, watcher = asyncio.run(scene())
    assert (text, server.requests) == ("done", 3)
    notices = [event.text for event in watcher.told if event.lasting]
    assert len(notices) == 2
    assert all("may have received a request that it did not answer" in notice for notice in notices)
    assert all("may be paid for twice" in notice for notice in notices)


def test_without_a_guard_a_lost_request_is_not_repeated(raw: Callable[..., RawServer]) -> None:
    """Where nobody could be told, a request that may have been received is sent once."""
    server = raw("reset", "answer")
    model = with_retries(LiteLLMModel("openai/any", api_base=server.api_base, api_key="k"))
    with pytest.raises(ModelError) as caught:
        asyncio.run(model(REQUEST, unheard))
    assert (caught.value.received, server.requests) == (None, 1)


def test_a_silent_server_is_told_after_ten_seconds_and_waited_for(raw: Callable[..., RawServer]) -> None:
    """A server takes the request and says nothing: the run tells so, and its answer counts when it comes."""
    server = raw("silent")

    async def scene() -> tuple[str, list[str]]:
        watcher = Watcher()
        asked = asyncio.create_task(guarded(server, watcher, 300)(REQUEST, unheard))
        await becomes(lambda: server.requests == 1)
        assert watcher.texts == []
        watcher.clock.skip(10)
        await becomes(lambda: watcher.texts != [])
        server.release.set()
        return (await asked).text, watcher.texts

    text, texts = asyncio.run(scene())
    assert text == "done"
    assert texts == [f"openai/any at {server.api_base} has not answered for 10 s, waiting", ""]


def test_a_request_that_ran_out_of_time_is_repeated_with_a_notice(raw: Callable[..., RawServer]) -> None:
    """The client gives a silent server up after its own time and asks again, and says that it does."""
    server = raw("silent", "answer")

    async def scene() -> tuple[str, Watcher]:
        watcher = Watcher()
        asked = asyncio.create_task(guarded(server, watcher, 300, timeout_s=60)(REQUEST, unheard))
        await becomes(lambda: server.requests == 1)
        watcher.clock.skip(61)
        return (await asked).text, watcher

    text, watcher = asyncio.run(scene())
    assert (text, server.requests) == ("done", 2)
    assert [event.lasting for event in watcher.told].count(True) == 1


class Silent(GuardedModel):
    """Mutant: tells nothing of what it does."""

    def _announce(self, error: Any, wait: float, announced: str) -> str:
        asyncio.get_running_loop().call_soon(self.emit.clock.skip, 60)  # type: ignore[attr-defined]
        return announced


def test_a_mutant_that_repeats_in_silence_is_caught(raw: Callable[..., RawServer]) -> None:
    """A guard that announces nothing repeats the request and leaves no notice."""
    server = raw("reset", "answer")

    async def scene() -> Watcher:
        watcher = Watcher()
        sound = guarded(server, watcher, 300)
        mutant = Silent(sound.model, sound.endpoint, watcher, 300, sound.idle)
        await mutant(REQUEST, unheard)
        return watcher

    watcher = asyncio.run(scene())
    assert server.requests == 2
    assert not [event for event in watcher.told if event.lasting]


def test_an_address_that_never_took_a_connection_is_not_waited_for() -> None:
    """Nobody listens there: the model's own words, at once, and nothing announced."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    class Gone:
        api_base = address

    async def scene() -> list[str]:
        watcher = Watcher()
        with pytest.raises(ModelError, match="no connection to"):
            await guarded(Gone, watcher, 300)(REQUEST, unheard)
        return watcher.texts

    assert asyncio.run(scene()) == []


def test_the_notice_is_in_the_log_and_in_the_rows(
    session: Lab, workspace: Path, raw: Callable[..., RawServer]
) -> None:
    """A run whose request was lost once: the view that panel and terminal draw keeps a row that says so."""
    server = raw("reset", "answer")
    model = with_retries(LiteLLMModel("openai/any", api_base=server.api_base, api_key="k"))
    run = asyncio.run(session.run("go", model=model, workspace=workspace))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "done")
    notices = [event.text for event in run.events() if isinstance(event, Progress) and event.lasting]
    assert len(notices) == 1
    rows = [row.text for row in view_of(run.records()).rows.values() if isinstance(row, NoticeRow)]
    assert any("it is sent again, and may be paid for twice" in text for text in rows)


def test_a_trial_waits_within_its_limit_and_is_the_error_of_the_endpoint(session: Lab) -> None:
    """The server of a suite stays at 503: the trial ends with its limit of time, as broken and not as
    failed.
    """
    scenario = Scenario(id="s", goal="look", checks=(AnswerContains(texts=("42",)),), limits={"seconds": 1.0})
    with OpenAIServer([DOWN]) as server:
        model = with_retries(LiteLLMModel("openai/any", api_base=server.api_base, api_key="k"))
        suite = Suite(name="down", scenarios=(scenario,))
        row = asyncio.run(run_suite(session, suite, configs={"m": model})).rows[0]
    assert row.result["outcome"] == "error"
    assert "503 from" in str(row.result["reason"])


def test_a_limit_of_money_that_cannot_be_counted_is_told_before_the_first_request(
    session: Lab, workspace: Path
) -> None:
    """A model without a price: the warning stands in the log before any answer, once; without a limit of
    money there is none.
    """

    def kinds(limits: Limits) -> list[str]:
        calls = Reply(calls=(("list_files", "{}"),))
        with OpenAIServer([calls, Reply(text="done")]) as server:
            model = with_retries(LiteLLMModel("openai/any", api_base=server.api_base, api_key="k"))
            run = asyncio.run(session.run("go", model=model, workspace=workspace, limits=limits))
        wanted = (BudgetWarned, ModelAnswered)
        return [event.type for event in run.events() if isinstance(event, wanted)]

    assert kinds(Limits(cost_usd=0.5)) == ["budget_warned", "model_answered", "model_answered"]
    assert kinds(Limits(cost_usd=None)) == ["model_answered", "model_answered"]
