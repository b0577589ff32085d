"""Claims about how many calls an endpoint gets at once: the law on a simulated clock, the line, and a real
server.
"""

import asyncio
import heapq
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_server import OpenAIServer, Reply
from waits import PATIENCE_S

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.events.union import ModelAnswered, Progress
from kestrel_lab.core.messages import ModelAnswer, ModelParams, ModelRequest
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.core.usage import usage_of_run, working_time
from kestrel_lab.evals.execution.prepare import TunedModel
from kestrel_lab.lab import Lab
from kestrel_lab.models.litellm.errors import model_error
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.retry import with_retries
from kestrel_lab.runtime.supervision.model_guard import guard_model, watch_model
from kestrel_lab.runtime.supervision.rate_limits import Gate, Throttle, ThrottlePolicy
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.testing import conversation

pytestmark = pytest.mark.filterwarnings(
    "ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier"
)

REQUEST = ModelRequest(messages=conversation(("user", "hi")), stream=False)


class CutEach(Throttle):
    """Mutant: each refusal is an episode of its own."""

    __slots__ = ()

    def refused(self, ticket: int, wait_s: float | None) -> None:
        super().refused(self._cut_at + 1, wait_s)


class Deaf(Throttle):
    """Mutant: does not wait as it is asked to."""

    __slots__ = ()

    def refused(self, ticket: int, wait_s: float | None) -> None:
        super().refused(ticket, 0.0)


class Timid(Throttle):
    """Mutant: never grows again after a cut."""

    __slots__ = ()

    def succeeded(self, ticket: int) -> None:
        before = self._width
        super().succeeded(ticket)
        if self.episodes:
            self._width = before


@dataclass
class World:
    """An endpoint with room for `room` calls at once on a simulated clock, and more callers than it has room
    for.
    """

    kind: type[Throttle] = Throttle
    room: int = 10
    seconds: float = 1.0
    retry_after: float | None = 2.0
    bound: int | None = None
    now: float = 0.0
    answered: int = 0
    asked_early: int = 0
    """Calls that were made within a pause that the endpoint had asked for."""
    rounds_of_refusals: int = 0
    """Bursts of refusals that belong together: until the endpoint was asked anew after the first of them."""
    widths: list[int] = field(default_factory=list)
    refused_at: float = -1.0

    def run(self, until: float, jitter: Callable[[], float] = lambda: 0.0) -> Throttle:
        """Call as often as is let, and play the endpoint."""
        throttle = self.kind(ThrottlePolicy(), lambda: self.now, lambda: 0.0)
        if self.bound is not None:
            throttle.bounds.append(self.bound)
        events: list[tuple[float, int, int, bool]] = []
        busy, quiet_until, last_burst, order = 0, -1.0, 0, 0
        while self.now < until:
            while (ticket := throttle.enter()) is not None:
                assert throttle.in_flight <= throttle.width
                self.asked_early += self.now < quiet_until
                order += 1
                if busy < self.room:
                    busy += 1
                    heapq.heappush(events, (self.now + self.seconds * (1 + jitter()), order, ticket, True))
                else:
                    heapq.heappush(events, (self.now + 0.05 * (1 + jitter()), order, ticket, False))
            self.widths.append(throttle.width)
            assert throttle.width >= 1
            if self.bound is not None:
                assert throttle.width <= self.bound
            if not events:
                assert throttle.retry_in > 0
                self.now += throttle.retry_in + 1e-9
                continue
            at, _, ticket, good = heapq.heappop(events)
            if (
                throttle.retry_in
                and self.now + throttle.retry_in < at
                and throttle.in_flight < throttle.width
            ):
                heapq.heappush(events, (at, order, ticket, good))
                self.now += throttle.retry_in + 1e-9
                continue
            self.now = max(self.now, at)
            if good:
                busy -= 1
                self.answered += 1
                throttle.succeeded(ticket)
            else:
                if ticket > last_burst:
                    self.rounds_of_refusals += 1
                    last_burst = throttle._number
                if self.retry_after is not None:
                    quiet_until = max(quiet_until, self.now + self.retry_after)
                throttle.refused(ticket, self.retry_after)
        return throttle


@settings(max_examples=30, deadline=None)
@given(
    room=st.integers(1, 60),
    seconds=st.floats(0.1, 3),
    retry_after=st.none() | st.floats(0, 5),
    bound=st.none() | st.integers(1, 100),
    seed=st.integers(0, 9),
)
def test_the_law(room: int, seconds: float, retry_after: float | None, bound: int | None, seed: int) -> None:
    """For any endpoint: never more at once than the width, one cut per burst, no call in a pause asked for,
    and enough get through.
    """
    world = World(room=room, seconds=seconds, retry_after=retry_after, bound=bound)
    throttle = world.run(60 * seconds + 30, random.Random(seed).random)
    assert throttle.episodes == world.rounds_of_refusals
    assert world.asked_early == 0
    if bound is not None and bound <= room:
        assert (throttle.episodes, throttle.refusals) == (0, 0)
    assert world.answered >= 10


def claims(kind: type[Throttle]) -> None:
    """What the law promises of an endpoint with room for 20 and callers without end."""
    world = World(kind=kind, room=20, retry_after=2.0)
    throttle = world.run(300)
    # Ideal: 20 calls each second. What is lost are the pauses and the way back up.
    assert world.answered >= 0.65 * 20 * 300
    assert throttle.refusals <= 0.02 * world.answered
    assert throttle.episodes == world.rounds_of_refusals
    assert world.asked_early == 0
    assert max(world.widths[len(world.widths) // 2 :]) > min(world.widths[len(world.widths) // 2 :]) >= 10


def test_the_width_finds_what_the_endpoint_bears() -> None:
    """The width swings below what there is room for; two thirds of it are used and one call in fifty is
    refused at most.
    """
    claims(Throttle)


@pytest.mark.parametrize("mutant", [CutEach, Deaf, Timid])
def test_mutant_laws_are_caught(mutant: type[Throttle]) -> None:
    """A law that cuts for each refusal, does not wait as asked, or never grows again is found."""
    with pytest.raises(AssertionError):
        claims(mutant)


def test_slow_start() -> None:
    """Until the first episode the width doubles with each round; it stops at the bound, and grows only while
    it is used up.
    """
    throttle = Throttle(ThrottlePolicy(start=2), lambda: 0.0, lambda: 0.0)
    throttle.bounds.append(9)
    seen = []
    for _ in range(4):
        tickets = [ticket for _ in range(99) if (ticket := throttle.enter()) is not None]
        seen.append(len(tickets))
        for ticket in tickets:
            throttle.succeeded(ticket)
            while throttle.enter() is not None:  # somebody always waits
                pass
        while throttle.in_flight:
            throttle.released()
    assert seen == [2, 4, 8, 9]
    idle = Throttle(ThrottlePolicy(start=4), lambda: 0.0, lambda: 0.0)
    for _ in range(50):
        ticket = idle.enter()
        assert ticket is not None
        idle.succeeded(ticket)
    assert idle.width == 4


def test_one_burst_is_one_episode() -> None:
    """Eight calls refused together cut once, with the longest pause any of them asks for; one made afterwards
    cuts again.
    """
    now = 0.0
    throttle = Throttle(ThrottlePolicy(start=8), lambda: now, lambda: 0.0)
    tickets = [throttle.enter() for _ in range(8)]
    for place, ticket in enumerate(tickets):
        assert ticket is not None
        throttle.refused(ticket, float(place % 4))
    assert (throttle.width, throttle.episodes, throttle.refusals, throttle.retry_in) == (5, 1, 8, 3.0)
    assert throttle.enter() is None
    now = 3.0
    again = throttle.enter()
    assert again is not None
    throttle.refused(again, None)
    assert (throttle.width, throttle.episodes, throttle.retry_in) == (
        3,
        2,
        1.0,
    )  # the second in a row: twice half a second


def test_the_line_is_fair_and_survives_who_leaves_it() -> None:
    """First come, first served, also across threads with event loops of their own; whoever stops waiting
    holds up nobody.
    """
    gate = Gate(Throttle(ThrottlePolicy(start=1), time.monotonic, lambda: 0.0))
    order: list[str] = []

    async def call(name: str) -> None:
        await gate.enter()
        order.append(name)
        await asyncio.sleep(0.005)
        gate.released()

    async def scene() -> None:
        first = await gate.enter()
        callers = [asyncio.create_task(call(str(number))) for number in range(5)]
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: asyncio.run(call("thread")))
        thread.start()
        while gate.waiting < 6:
            await asyncio.sleep(0.001)
        callers[0].cancel()
        callers[3].cancel()
        gate.succeeded(first)
        await asyncio.gather(*callers, return_exceptions=True)
        await asyncio.to_thread(thread.join)

    with gate.bounded(1):
        asyncio.run(scene())
    assert order == ["1", "2", "4", "thread"]
    assert (gate.waiting, gate.throttle.in_flight) == (0, 0)


def test_a_loop_that_closes_while_its_caller_waits_fails_no_other_call() -> None:
    """It may close between any look at it and the wake-up: the answered call reports, and the next one in
    line gets its turn.
    """

    class Closing(asyncio.SelectorEventLoop):
        def is_closed(self) -> bool:
            return False  # so it looked a moment ago

    gate = Gate(Throttle(ThrottlePolicy(start=1), time.monotonic, lambda: 0.0))
    left = Closing()

    async def scene() -> None:
        first = await gate.enter()
        left.create_task(gate.enter())
        await asyncio.to_thread(left.run_until_complete, asyncio.sleep(0))
        asyncio.SelectorEventLoop.close(left)
        waiting = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
        assert gate.waiting == 2
        gate.succeeded(first)
        async with asyncio.timeout(PATIENCE_S):
            gate.succeeded(await waiting)

    with gate.bounded(1):
        asyncio.run(scene())
    assert (gate.waiting, gate.throttle.in_flight) == (0, 0)
    del Closing.is_closed  # the loop looks itself when it is collected


class Limited(OpenAIServer):
    """Serves `room` requests at once, each for `serving_s`, and refuses others for `retry_after` seconds."""

    def __init__(self, room: int, retry_after: str, serving_s: float) -> None:
        super().__init__([Reply(text="ok")])
        self.room, self.retry_after, self.serving_s = room, retry_after, serving_s
        self.refused = self.busy = 0
        self.request_queue_size = 128

    def take(self, body: bytes, headers: dict[str, str]) -> Reply:
        """Answer or refuse; whoever has an answer finds its place free."""
        with self._lock:
            refused = self.busy >= self.room
            self.refused += refused
            self.busy += not refused
        time.sleep(self.serving_s)
        if refused:
            return Reply(status=429, error="slow down", headers={"retry-after": self.retry_after})
        with self._lock:
            self.busy -= 1
        return Reply(text="ok")


def noting(kind: type[Throttle]) -> type[Throttle]:
    """`kind`, counting calls that it lets go within a pause it was told of, and bursts of refusals, as
    `World` does.
    """

    class Noting(kind):  # type: ignore[misc,valid-type]  # a class is a variable here
        early = bursts = last_burst = 0
        quiet_until = 0.0

        def enter(self) -> int | None:
            ticket: int | None = super().enter()
            self.early += ticket is not None and time.monotonic() < self.quiet_until
            return ticket

        def refused(self, ticket: int, wait_s: float | None) -> None:
            self.quiet_until = max(self.quiet_until, time.monotonic() + (wait_s or 0.0))
            if ticket > self.last_burst:
                self.bursts += 1
                self.last_burst = self._number
            super().refused(ticket, wait_s)

    return Noting


CALLS, ROOM, SERVING_S = 90, 6, 0.05


def model_at(server: Limited) -> LiteLLMModel:
    """A model of this server."""
    return LiteLLMModel("openai/any", api_base=server.api_base, api_key="k")


async def all_of(call: Callable[[], Awaitable[object]]) -> None:
    """All calls at once, each of which must be answered; one before them loads litellm."""
    await call()
    await asyncio.gather(*(call() for _ in range(CALLS)))


def serve_many(kind: type[Throttle] = Throttle) -> None:
    """90 calls at once on a server with room for 6 of 50 ms each: few refusals and none early."""
    with Limited(ROOM, "0.5", SERVING_S) as server:
        supervisor = RuntimeSupervisor(patience_s=PATIENCE_S)
        model = with_retries(model_at(server), 3, first_wait_s=0.05)
        throttle: Any = noting(kind)(ThrottlePolicy(), time.monotonic, lambda: 0.0)
        watch_model(model, supervisor).turns.throttle = throttle
        asyncio.run(
            all_of(lambda: guard_model(model, supervisor, lambda event: None)(REQUEST, lambda piece: None))
        )
    assert throttle.early == 0
    assert server.refused == throttle.refusals
    assert server.refused <= 12
    assert throttle.episodes <= throttle.bursts <= 5


def test_a_rate_limited_server_is_used_well() -> None:
    """Every call is answered, few are refused, and no retry comes early."""
    serve_many()


@pytest.mark.parametrize("mutant", [CutEach, Deaf])
def test_mutants_are_caught_by_the_server(mutant: type[Throttle]) -> None:
    """Against the same server a cut per refusal is too many episodes, and deafness is early."""
    with pytest.raises(AssertionError):
        for _ in range(5):  # on a busy machine calls may come so slowly that few are refused
            serve_many(mutant)


@dataclass
class Refusing:
    """A real model in all but its answers: refuses so often, then answers."""

    refusals: int
    retry_after_s: float | None = 0.2
    name: str = "own/limited"
    kind: ModelKind = "real"
    asked: int = 0

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.asked += 1
        if self.asked <= self.refusals:
            raise ModelError("too many", transient=True, rate_limited=True, retry_after_s=self.retry_after_s)
        return ModelAnswer(text="done")


def test_a_run_waits_and_says_so(tmp_path: Path) -> None:
    """A refused call is made again; the run says what it waits for, the log how long, and none of it is
    working time.
    """
    session = Lab(tmp_path / "home", env={})
    for pause in (
        0.6,
        6.0,
    ):  # a busy machine may work for longer than the limit that three of the first are more than
        model = Refusing(3, retry_after_s=pause)
        run = asyncio.run(
            session.run(
                "go", model=with_retries(model, 2), workspace=tmp_path, limits=Limits(seconds=2.5 * pause)
            )
        )
        if run.status is RunStatus.COMPLETE:
            break
    (answer,) = [event for event in run.events() if isinstance(event, ModelAnswered)]
    assert (run.answer, model.asked) == ("done", 4)
    assert 3 * pause <= answer.backoff <= answer.seconds
    assert answer.queued < answer.backoff / 3
    waiting, over = [event.text for event in run.events() if isinstance(event, Progress)]
    assert re.fullmatch(
        r"waiting for own/limited: it asked to slow down once, 5 calls at once, next in [\d.]+ s", waiting
    )
    assert over == ""
    assert (working_time(run.records()), usage_of_run(run.records()).idle_s) == (
        run._state.working_s,
        run._state.meter.idle_s,
    )
    assert run._state.working_s < 2.5 * pause < run._state.meter.idle_s
    (row,) = session.supervisor.states()
    assert (row.state, row.breaker) == ("ready", "closed")
    session.close()


def test_pauses_between_other_attempts_are_told_too(tmp_path: Path) -> None:
    """A server that fails and then answers: what the retry waited is in the event and is not working time."""
    session = Lab(tmp_path / "home", env={})

    class Failing(Refusing):
        async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
            self.asked += 1
            if self.asked == 1:
                raise ModelError("down", transient=True, retry_after_s=self.retry_after_s)
            return ModelAnswer(text="done")

    for pause in (1.6, 16.0):  # a busy machine may work for longer than the limit that the first is more than
        model = with_retries(Failing(1, retry_after_s=pause))
        run = asyncio.run(
            session.run("go", model=model, workspace=tmp_path, limits=Limits(seconds=0.9 * pause))
        )
        if run.status is RunStatus.COMPLETE:
            break
    (answer,) = [event for event in run.events() if isinstance(event, ModelAnswered)]
    assert run.answer == "done"
    assert answer.backoff >= pause
    session.close()


def test_all_the_time_has_a_limit_too(tmp_path: Path) -> None:
    """Waiting does not count as work, but as time: the limit of `wall_seconds` ends the run, and is named."""
    session = Lab(tmp_path / "home", env={})
    for wall in (0.5, 5, 50):  # a busy machine may work for more than half of the first
        limits = Limits(seconds=wall / 2, wall_seconds=wall)
        run = asyncio.run(session.run("go", model=Refusing(99), workspace=tmp_path, limits=limits))
        if run.reason.endswith("since it began is reached"):
            break
    assert (run.outcome, run.reason) == ("limit", f"the limit of {wall:g} s since it began is reached")
    assert run._state.finished is not None
    assert run._state.finished.limit == "wall_seconds"
    session.close()


def test_messages_have_a_limit(tmp_path: Path) -> None:
    """The next model turn is refused when the conversations have that many messages; the limit is named."""
    from kestrel_lab.testing import ScriptedModel

    session = Lab(tmp_path / "home", env={})
    model = ScriptedModel(lambda request: [("list_directory", {"path": "."})])
    run = asyncio.run(session.run("go", model=model, workspace=tmp_path, limits=Limits(messages=6)))
    assert (run.outcome, run.reason) == ("limit", "the limit of 6 messages is reached")
    assert run._state.finished is not None
    assert (run._state.finished.limit, run.usage.model_calls) == ("messages", 2)
    session.close()


@pytest.mark.parametrize(
    ("retry_after_s", "patience_s", "asked"), [(90.0, 60.0, 1), (5.0, 1.0, 1), (0.0, 0.0, 1)]
)
def test_it_does_not_wait_without_end(retry_after_s: float, patience_s: float, asked: int) -> None:
    """A pause that is too long, or longer than the patience with an endpoint that answers nobody, is not
    waited for.
    """
    model = Refusing(99, retry_after_s)
    with pytest.raises(ModelError, match="too many"):
        asyncio.run(
            guard_model(model, RuntimeSupervisor(patience_s=patience_s), lambda event: None)(
                REQUEST, lambda piece: None
            )
        )
    assert model.asked == asked


def test_models_of_one_endpoint_share_its_width() -> None:
    """Retries, temperatures and runs do not matter: what counts is the address."""
    supervisor = RuntimeSupervisor()
    leaf = LiteLLMModel("openai/any", api_base="http://127.0.0.1:1/v1")
    plain, tuned = (
        watch_model(leaf, supervisor),
        watch_model(TunedModel(model=with_retries(leaf), params=ModelParams(temperature=0.5)), supervisor),
    )
    assert plain is tuned
    assert plain.name == "openai/any at http://127.0.0.1:1/v1"


class Refusal(Exception):
    """What a client library raises."""

    def __init__(self, status: int, headers: dict[str, str], code: str = "") -> None:
        super().__init__("no")
        self.status_code, self.litellm_response_headers, self.code = status, headers, code


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
    ],
)
def test_every_way_to_ask_for_a_pause(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, milliseconds and dates are understood; what is none of them asks for nothing."""
    error = model_error(Refusal(429, headers), model="m", api_base=None, key_name="K")
    assert (error.rate_limited, error.transient, error.retry_after_s) == (True, True, seconds)


def test_a_date_asks_for_the_time_until_then() -> None:
    """A date in half a minute is a pause of half a minute."""
    asked: Any = model_error(
        Refusal(429, {"retry-after": formatdate(time.time() + 30, usegmt=True)}),
        model="m",
        api_base=None,
        key_name="K",
    ).retry_after_s
    assert 27 <= asked <= 30


def test_a_used_up_account_is_no_rate_limit() -> None:
    """It comes with the same status, and does not pass: the caller is told."""
    error = model_error(Refusal(429, {}, "insufficient_quota"), model="m", api_base=None, key_name="K")
    assert (error.rate_limited, error.transient, error.caller) == (False, False, True)
