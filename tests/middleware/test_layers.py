"""What happens around a call, layer by layer."""

import asyncio
from dataclasses import replace

import pytest

from kestrel_lab.core.calls import Call, Danger, Problem, Result, Usage
from kestrel_lab.core.errors import DependencyError, ModelError, Signal, UsageError
from kestrel_lab.core.events.union import (
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelCalled,
    ModelEscalated,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, TriedModel
from kestrel_lab.core.protocols import Handler, Middleware
from kestrel_lab.middleware.layers import Approval, Timeout, TurnOrder, compose_layers
from kestrel_lab.middleware.record_events import RecordAnswer, RecordIntent, RecordModel
from kestrel_lab.permissions.policy import Policy, danger_named
from kestrel_lab.testing import RecordingMiddleware

CALL = Call(id="1", kind="tool", target="act", args={"a": 1}, step="s", danger=Danger.HIGH)


def through(handler: Handler, *layers: Middleware, call: Call = CALL) -> Result:
    """The result of a call that passes these layers."""

    async def scene() -> Result:
        return await compose_layers(handler, *layers)(call)

    return asyncio.run(scene())


async def echo(call: Call) -> Result:
    """Answers with the arguments."""
    return Result(value=call.args)


def test_the_first_layer_listed_sees_the_call_first() -> None:
    """Layers nest in the order given; without any the handler is left as it is."""
    order: list[str] = []

    def layer(name: str) -> RecordingMiddleware:
        class Named(RecordingMiddleware):
            async def __call__(self, call: Call, proceed: Handler) -> Result:
                order.append(f"+{name}")
                result = await super().__call__(call, proceed)
                order.append(f"-{name}")
                return result

        return Named()

    outer, inner = layer("outer"), layer("inner")
    assert through(echo, outer, inner) == Result(value={"a": 1})
    assert order == ["+outer", "+inner", "-inner", "-outer"]
    assert outer.calls == inner.calls == [CALL]
    assert compose_layers(echo) is echo


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("ask", "allow allow ask ask ask"),
        ("deny", "allow allow deny deny deny"),
        ("auto", "allow allow allow allow ask"),
        ("auto:safe", "allow ask ask ask ask"),
        (" AUTO:Critical ", "allow allow allow allow allow"),
    ],
)
def test_a_policy_by_danger(text: str, verdicts: str) -> None:
    """Each policy says of each danger level whether it goes on, is asked about, or is refused."""
    policy = Policy.parse(text)
    assert [policy.verdict(replace(CALL, danger=danger)) for danger in Danger] == verdicts.split()
    assert policy.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aks", "unknown approval policy 'aks': did you mean 'ask'"),
        ("", "unknown approval policy ''"),
        ("auto:hgih", "unknown danger level 'hgih': did you mean 'HIGH'"),
        ("deny:low", "only auto takes a level"),
    ],
)
def test_a_wrong_policy_is_explained(text: str, message: str) -> None:
    """What cannot be read names the nearest thing that can."""
    with pytest.raises(UsageError, match=message):
        Policy.parse(text)
    assert danger_named(" low ") is Danger.LOW


def decided(given: ApprovalGiven | None, call: Call = CALL) -> Result:
    """The result of a call under a decision."""

    async def decide(_: Call) -> ApprovalGiven | None:
        return given

    return through(echo, Approval(decide), call=call)


def test_a_decision_lets_through_changes_or_stops() -> None:
    """No decision and a yes let the call through, edits replace its arguments, a no is an answer for the
    model.
    """
    yes = ApprovalGiven(call="1", granted=True, by="ann", how="click")
    assert decided(None) == decided(yes) == Result(value={"a": 1})
    assert decided(replace(yes, args={"a": 2})) == Result(value={"a": 2})
    no = replace(yes, granted=False, reason="not now", args={"a": 2})
    assert decided(no).error == Problem(
        kind="denied",
        message="act was denied by ann: not now. Do not repeat this call; find another way or explain what "
        "is needed.",
    )
    again = decided(replace(no, reason=""), replace(CALL, attempt=2)).error
    assert again is not None
    assert again.kind == "unknown_outcome"
    assert "whether it took effect is not known, and ann chose not to run it again." in again.message


def test_a_call_after_one_that_was_left_is_left_too() -> None:
    """When an earlier call waits for a person who is not here, a call that clashes with it does not overtake
    it.
    """
    first, second, third = (replace(CALL, id=name) for name in "abc")

    async def scene() -> list[object]:
        order = TurnOrder([first, second, third], together=frozenset({"b", "c"}))
        order.leave(first, Signal("later"))
        order.end(first)
        return list(await asyncio.gather(order(second, echo), order(third, echo), return_exceptions=True))

    results = asyncio.run(scene())
    assert [(type(result), str(result)) for result in results] == [(Signal, "later")] * 2


def test_an_own_timeout_of_a_call_is_not_ours() -> None:
    """A `TimeoutError` that comes out of the call itself is passed on; only our bound becomes an answer."""

    async def slow(call: Call) -> Result:
        await asyncio.sleep(5)
        return Result()

    async def broken(call: Call) -> Result:
        raise TimeoutError

    stopped = through(slow, Timeout(lambda _: 0.01))
    assert stopped == Result(
        error=Problem(kind="timeout", message="act was stopped after 0.01 s", transient=True), seconds=0.01
    )
    with pytest.raises(TimeoutError):
        through(broken, Timeout(lambda _: 5))
    assert through(echo, Timeout(lambda _: None)) == Result(value={"a": 1})


def test_the_intent_is_stored_before_a_call_with_effects() -> None:
    """`tool_called` is emitted before the call; unless the call is pure, it waits until that is on disk."""
    for effect, expected in (("opaque", ["called", "on disk", "run"]), ("pure", ["called", "run"])):
        trace: list[str] = []

        async def on_disk(trace: list[str] = trace) -> None:
            trace.append("on disk")

        async def run(call: Call, trace: list[str] = trace) -> Result:
            trace.append("run")
            await asyncio.sleep(0.01)
            return Result(value=1)

        def emit(event: Event, trace: list[str] = trace) -> None:
            assert isinstance(event, ToolCalled)
            trace.append("called")

        call = replace(CALL, effect=effect)  # type: ignore[arg-type]  # both are effects
        result = through(run, RecordIntent(emit, on_disk), call=call)
        assert trace == expected
        assert result.seconds >= 0.01


def test_whatever_happens_is_one_answer() -> None:
    """A result, an error and a cancellation each become one `tool_answered`; a signal becomes none: the call
    is still open.
    """
    events: list[Event] = []
    record = RecordAnswer(
        events.append, lambda _, value: str(value), lambda _: 1000, lambda call: call.attempt > 1
    )

    async def cancelled(call: Call) -> Result:
        raise asyncio.CancelledError

    async def signal(call: Call) -> Result:
        raise Signal

    async def failed(call: Call) -> Result:
        return Result(error=Problem(kind="failed", message="no"))

    assert asyncio.run(record(CALL, echo)) == Result(value={"a": 1})
    asyncio.run(record(CALL, failed))

    async def scene() -> None:
        with pytest.raises(asyncio.CancelledError):
            await record(CALL, cancelled)
        with pytest.raises(asyncio.CancelledError):
            await record(replace(CALL, attempt=2), cancelled)
        with pytest.raises(Signal):
            await record(CALL, signal)

    asyncio.run(scene())
    assert [(type(event), getattr(event, "text", "")) for event in events] == [
        (ToolAnswered, "{'a': 1}"),
        (ToolAnswered, "error: no"),
        (ToolAnswered, "error: act was cancelled before it began"),
        (ToolAnswered, "error: act was cancelled while it ran; it may have taken effect in part"),
    ]


def test_a_model_call_is_recorded_whatever_happens() -> None:
    """An answer, a failure and a cancellation of a model each follow their `model_called`, with what was
    consumed or why not.
    """
    events: list[Event] = []
    call = Call(id="m1", kind="model", target="m", request=ModelRequest(messages=[]), step="s")

    async def fine(_: Call) -> Result:
        return Result(answer=ModelAnswer(text="hi", model="m-1"))

    async def failing(_: Call) -> Result:
        raise ModelError("no")

    async def stopped(_: Call) -> Result:
        raise asyncio.CancelledError

    async def scene() -> None:
        await RecordModel(events.append, 1)(call, fine)
        with pytest.raises(ModelError):
            await RecordModel(events.append, 2)(call, failing)
        with pytest.raises(asyncio.CancelledError):
            await RecordModel(events.append, 3)(call, stopped)

    asyncio.run(scene())
    assert [event.cycle for event in events if isinstance(event, ModelCalled)] == [1, 2, 3]
    answers = [event for event in events if isinstance(event, ModelAnswered)]
    assert [(event.model, event.text, event.error and event.error["kind"]) for event in answers] == [
        ("m-1", "hi", None),
        ("m", "", "failed"),
        ("m", "", "cancelled"),
    ]


def test_models_that_were_tried_before_are_recorded() -> None:
    """Each has an answer of its own with why it is not used and what it cost, then the escalation; also when
    all failed.
    """
    events: list[Event] = []
    call = Call(id="m1", kind="model", target="a > b", request=ModelRequest(messages=[]), step="s")
    tried = (
        TriedModel(
            model="a", reason="cut off", then="b", usage=Usage(tokens_in=5, tokens_out=2, cost_usd=0.5)
        ),
    )

    async def answered(_: Call) -> Result:
        return Result(answer=ModelAnswer(text="hi", model="b-1", tried=tried))

    async def failing(_: Call) -> Result:
        raise DependencyError("b", "failed", "b is failed", tried=tried)

    async def scene() -> None:
        await RecordModel(events.append, 1)(call, answered)
        with pytest.raises(DependencyError):
            await RecordModel(events.append, 2)(call, failing)

    asyncio.run(scene())
    told = [
        ModelAnswered(
            call="m1",
            step="s",
            model="a",
            error={"kind": "escalated", "message": "a: cut off", "transient": False},
            tokens_in=5,
            tokens_out=2,
            cost_usd=0.5,
        ),
        ModelEscalated(step="s", source="a", target="b", reason="cut off"),
    ]
    assert events[1:3] == events[5:7] == told
    assert [
        (event.model, event.text, event.error and event.error["message"])
        for event in events
        if isinstance(event, ModelAnswered)
    ] == [
        ("a", "", "a: cut off"),
        ("b-1", "hi", None),
        ("a", "", "a: cut off"),
        ("a > b", "", "b is failed"),
    ]
