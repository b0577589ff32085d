"""The meaning of a log: laws of `fold`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelCalled,
    PlanProposed,
    Progress,
    Record,
    RunFinished,
    RunForked,
    RunResumed,
    RunStarted,
    StateTransition,
    StepFinished,
    StepRetried,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message, ToolRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.usage import usage_of_run, working_time
from kestrel_lab.eventlog.run_state import fold

names = st.sampled_from(["a", "b", "c"])
statuses = st.sampled_from([str(status) for status in RunStatus])
asked = st.builds(ToolRequest, id=names, name=names)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(RunStarted, goal=names, workspace=names, model=names, system=names),
    st.builds(StateTransition, source=statuses, target=statuses),
    st.builds(RunResumed),
    st.builds(RunForked, parent=names, at=st.just(1), model=names),
    st.builds(PlanProposed, plan=st.just({"steps": []})),
    st.builds(StepStarted, step=names, goal=names),
    st.builds(StepFinished, step=names, ok=st.booleans()),
    st.builds(
        StepRetried, step=names, attempt=st.just(2), error_class=names, reason=names, wait_s=st.floats(0, 50)
    ),
    st.builds(
        ModelAnswered,
        call=names,
        step=names,
        model=names,
        seconds=st.floats(0, 100),
        queued=st.floats(0, 60),
        backoff=st.floats(0, 60),
    ),
    st.builds(ModelCalled, call=names, step=names, model=names, cycle=st.just(1), messages=st.just(1)),
    st.builds(
        ModelAnswered,
        call=names,
        step=names,
        model=names,
        text=names,
        calls=st.lists(
            st.builds(lambda name: {"id": name, "name": name, "args": {}, "problem": ""}, names),
            max_size=3,
            unique_by=lambda c: c["id"],
        ),
        tokens_in=st.integers(0, 9),
        cost_usd=st.none() | st.just(0.25),
        error=st.none() | st.just({"kind": "failed"}),
    ),
    st.builds(ToolCalled, call=names, step=names, tool=names, args=st.just({})),
    st.builds(ToolAnswered, call=names, step=names, tool=names, text=names),
    st.builds(
        ApprovalAsked,
        call=names,
        step=names,
        tool=names,
        args=st.just({}),
        danger=names,
        key=names,
        question=names | st.just(""),
    ),
    st.builds(
        ApprovalGiven,
        call=names,
        granted=st.booleans(),
        by=names,
        how=names,
        scope=st.sampled_from(["once", "run"]),
        question=names | st.just(""),
    ),
    st.builds(Progress, text=names),
    st.builds(RunFinished, outcome=names, answer=names),
)


def recorded(history: list[tuple[Event, float]]) -> list[Record]:
    """Records of these events at these times."""
    return [
        Record(run_id="r", seq=n, eid=str(n), at=at, event=event) for n, (event, at) in enumerate(history, 1)
    ]


histories = st.lists(st.tuples(events, st.floats(0, 1000)), max_size=25).map(recorded)


@settings(max_examples=150)
@given(records=histories, cut=st.integers(0, 25))
def test_a_prefix_and_the_rest_are_the_whole(records: list[Record], cut: int) -> None:
    """Folding a prefix and applying the rest gives what folding everything gives."""
    state = fold(records[:cut])
    for record in records[cut:]:
        state.apply(record.event, record.at)
    assert state == fold(records)


@settings(max_examples=100)
@given(records=histories)
def test_a_state_never_looks_ahead(records: list[Record]) -> None:
    """Folding a longer log does not change what an earlier fold gave, and equal logs give equal states."""
    half = records[: len(records) // 2]
    before = fold(half)
    fold(records)
    assert fold(half) == before
    assert fold(records).events == len(records)


@settings(max_examples=100)
@given(records=histories)
def test_time_is_either_worked_or_waited(records: list[Record]) -> None:
    """Time passes once, for work or for a person, and not between sessions; a clock that jumps back adds
    nothing.
    """
    state = fold(records)
    passed, last = 0.0, None
    for record in records:
        begin = record.at if last is None or isinstance(record.event, RunResumed | RunForked) else last
        last = max(begin, record.at)
        passed += last - begin
    assert abs(state.working_s + state.meter.waiting_s + state.meter.idle_s - passed) < 1e-6
    assert state.working_s >= -1e-9
    assert state.meter.idle_s >= 0
    assert state.meter.waiting_s >= 0


def test_a_conversation_is_rebuilt_in_the_order_asked() -> None:
    """Answers that arrive in another order are told in the order of the calls, once the turn is complete."""
    started = RunStarted(goal="g", workspace="/w", model="m", system="be brief")
    calls: list[dict[str, Json]] = [
        {"id": "1", "name": "x", "args": {"n": 1}, "problem": ""},
        {"id": "2", "name": "y", "args": {}, "problem": "cut off"},
    ]
    history: list[Event] = [
        started,
        StepStarted(step="s", goal="do it"),
        ModelCalled(call="m1", step="s", model="m", cycle=1, messages=2),
        ModelAnswered(
            call="m1", step="s", model="m", text="well", calls=calls, tokens_in=3, tokens_out=4, cost_usd=0.5
        ),
        ToolCalled(call="2", step="s", tool="y", args={}),
        ToolAnswered(call="2", step="s", tool="y", text="second"),
    ]
    state = fold(recorded([(event, 0.0) for event in history]))
    first, second = (
        ToolRequest(id="1", name="x", args={"n": 1}),
        ToolRequest(id="2", name="y", problem="cut off"),
    )
    told = [
        Message(role="system", text="be brief"),
        Message(role="user", text="do it"),
        Message(role="assistant", text="well", calls=(first, second)),
    ]
    assert state.conversations["s"].messages == told
    assert state.conversations["s"].open_requests == (first,)

    state.apply(ToolAnswered(call="1", step="s", tool="x", text="first"), 0.0)
    answers = [
        Message(role="tool", text="first", call_id="1", name="x"),
        Message(role="tool", text="second", call_id="2", name="y"),
    ]
    assert state.conversations["s"].messages == told + answers
    assert state.conversations["s"].requests == ()
    assert state.usage == Usage(tokens_in=3, tokens_out=4, cost_usd=0.5, model_calls=1, tool_calls=2)
    assert state.begun == {}


def test_waiting_is_not_working() -> None:
    """Seconds between WAITING_APPROVAL and EXECUTING are waited, those before and after worked, those between
    sessions neither.
    """
    history: list[tuple[Event, float]] = [
        (RunStarted(goal="g", workspace="/w", model="m"), 100.0),
        (StateTransition(source="PLANNING", target="EXECUTING"), 101.0),
        (StateTransition(source="EXECUTING", target="WAITING_APPROVAL"), 104.0),
        (StateTransition(source="WAITING_APPROVAL", target="EXECUTING"), 204.0),
        (RunResumed(by="x"), 5204.0),
        (RunFinished(outcome="complete", answer="42"), 5206.0),
    ]
    state = fold(recorded(history))
    assert (state.working_s, state.meter.waiting_s, state.answer) == (6.0, 100.0, "42")


def test_waiting_for_a_turn_or_an_attempt_is_not_working() -> None:
    """What calls waited is taken out once, also where two waited together; so is the pause before a step's
    next attempt.
    """

    def answered(call: str, seconds: float, queued: float, backoff: float) -> ModelAnswered:
        return ModelAnswered(call=call, step="s", model="m", seconds=seconds, queued=queued, backoff=backoff)

    history: list[tuple[Event, float]] = [
        (RunStarted(goal="g", workspace="/w", model="m"), 100.0),
        (ModelCalled(call="a", step="s", model="m", cycle=1, messages=1), 101.0),
        (ModelCalled(call="b", step="t", model="m", cycle=1, messages=1), 101.0),
        (answered("a", 10.0, 2.0, 6.0), 111.0),
        (answered("b", 11.0, 2.0, 6.0), 112.0),
        (StepRetried(step="s", attempt=2, error_class="transient", reason="r", wait_s=5.0), 113.0),
        (StepFinished(step="t", ok=True), 116.0),
        (RunFinished(outcome="complete", answer="42"), 120.0),
    ]
    records = recorded(history)
    state = fold(records)
    assert (state.working_s, state.meter.idle_s, state.open_s) == (
        6.0,
        14.0,
        20.0,
    )  # 8 for a, 1 more for b, 5 of the pause
    assert (working_time(records), usage_of_run(records).idle_s) == (6.0, 14.0)
