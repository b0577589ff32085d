"""Usage of a run, counted by hand: what costs, which time is work, and which turns began."""

from typing import Any

import pytest

from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelCalled,
    Record,
    RunForked,
    RunResumed,
    RunStarted,
    StateTransition,
    StepRetried,
    ToolAnswered,
)
from kestrel_lab.core.usage import (
    IdleTime,
    UsageMeter,
    idle_before,
    usage_of_run,
    waiting_time,
    wall_time,
    working_time,
)


def meter(*history: tuple[float, Event]) -> UsageMeter:
    """The usage after events at these times."""
    found = UsageMeter()
    for at, event in history:
        found.take(event, at)
    return found


def times(found: UsageMeter) -> tuple[float, float, float, float]:
    """Seconds worked, waited, idle, away."""
    return found.working_s, found.waiting_s, found.idle_s, found.away_s


def said(**fields: Any) -> ModelAnswered:
    """An answer of a model."""
    return ModelAnswered(
        **{
            "call": "m",
            "step": "s",
            "model": "toy",
            "tokens_in": 5,
            "tokens_out": 3,
            "cost_usd": 0.5,
            **fields,
        }
    )


def called(step: str = "s") -> ModelCalled:
    """A model is asked."""
    return ModelCalled(call="m", step=step, model="toy", cycle=1, messages=1)


ASKED = ApprovalAsked(call="c", step="s", tool="bash", args={}, danger="HIGH", key="k")
GIVEN = ApprovalGiven(call="c", granted=True, by="me", how="click")


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({}, {"model_calls": 1, "tokens_in": 5, "tokens_out": 3, "cost_usd": 0.5}),
        ({"cached": True}, {"hits": 1, "lookups": 1}),
        ({"given": True}, {}),
        ({"cost_usd": None}, {"model_calls": 1, "tokens_in": 5, "tokens_out": 3, "unpriced": 1}),
        (
            {"cost_usd": None, "error": {"kind": "failed"}},
            {"model_calls": 1, "tokens_in": 5, "tokens_out": 3},
        ),
        (
            {"metered": False, "tokens_in": 0, "tokens_out": 0},
            {"model_calls": 1, "cost_usd": 0.5, "unmetered": 1},
        ),
    ],
)
def test_an_answer_costs_what_was_asked_of_a_model(fields: dict[str, Any], counted: dict[str, float]) -> None:
    """Answers of a store and by hand cost nothing; prices and tokens that nobody knows are counted as
    such.
    """
    found = meter((0.0, said(**{"metered": True, **fields})))
    sums = {name: getattr(found.usage, name) for name in found.usage.__struct_fields__}
    sums |= {"hits": found.hits, "lookups": found.lookups}
    assert {name: number for name, number in sums.items() if number} == counted


def test_details_of_tokens_are_summed() -> None:
    """Cached, written and reasoning tokens add up over answers."""
    one = said(tokens_cached=1, tokens_cache_written=2, tokens_reasoning=3)
    found = meter((0.0, one), (1.0, one)).usage
    assert (found.tokens_cached, found.tokens_cache_written, found.tokens_reasoning, found.tokens) == (
        2,
        4,
        6,
        16,
    )


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({}, (1, 0, 0)),
        ({"cacheable": True}, (1, 0, 1)),
        ({"cached": True}, (1, 1, 1)),
        ({"cached": True, "given": True}, (1, 0, 0)),
    ],
)
def test_a_look_up_in_a_store_is_counted_where_one_might_have_helped(
    fields: dict[str, Any], counted: tuple[int, int, int]
) -> None:
    """Calls of tools, hits, and calls that might have been one; what is given by hand is neither."""
    found = meter((0.0, ToolAnswered(call="c", step="s", tool="t", text="", **fields)))
    assert (found.usage.tool_calls, found.hits, found.lookups) == counted


def test_a_fork_takes_back_the_turns_that_it_asks_again() -> None:
    """A turn that no answer ended is no turn of the fork; retried and answered ones are."""
    found = meter((0.0, called("a")), (0.0, called("b")), (0.0, called("c")), (1.0, said(step="a")))
    assert found.turns == 3
    found.take(StepRetried(step="b", attempt=2, error_class="x", reason="y", wait_s=0.0), 1.0)
    found.take(RunForked(parent="r", at=3, model="m"), 2.0)
    assert (found.turns, found.asking, found.questions) == (2, set(), set())


def test_each_second_is_one_of_four_kinds() -> None:
    """Work, waiting for a person, idle between attempts, and away between sessions make up the whole time."""
    history: list[tuple[float, Event]] = [
        (10.0, called()),
        (13.0, said(seconds=3.0)),  # 3 of work
        (14.0, ASKED),  # 1 of work
        (20.0, GIVEN),  # 6 of waiting
        (21.0, StepRetried(step="s", attempt=2, error_class="x", reason="y", wait_s=4.0)),  # 1 of work
        (27.0, called()),  # 4 idle, 2 of work
        (40.0, RunResumed(by="x", model="m")),  # 13 away
        (42.0, said(seconds=1.0)),  # 2 of work
    ]
    found = meter(*history)
    assert times(found) == (9.0, 6.0, 4.0, 13.0)
    records = [
        Record(run_id="r", seq=n, eid=str(n), at=at, event=event) for n, (at, event) in enumerate(history)
    ]
    assert (wall_time(records), waiting_time(records), working_time(records)) == (32.0, 19.0, 9.0)
    assert wall_time([]) == 0.0
    assert usage_of_run(records) == found


def test_waiting_goes_by_the_state_where_there_is_one() -> None:
    """With transitions the state says whether a run waits; without them its questions do."""
    wait, go_on = (StateTransition(source="a", target=name) for name in ("WAITING_APPROVAL", "EXECUTING"))
    assert times(meter((0.0, wait), (5.0, go_on), (7.0, ASKED), (9.0, said()))) == (4.0, 5.0, 0.0, 0.0)
    other = ApprovalAsked(call="c", step="s", tool="bash", args={}, danger="HIGH", key="k", question="q1")
    answered = ApprovalGiven(call="c", granted=True, by="me", how="click", question="q1")
    assert times(meter((0.0, other), (2.0, answered), (3.0, said()))) == (1.0, 2.0, 0.0, 0.0)


def test_a_clock_that_jumps_back_takes_no_time_away() -> None:
    """An event that is taken in late counts as of the last one."""
    assert times(meter((5.0, called()), (3.0, called()), (6.0, called()))) == (1.0, 0.0, 0.0, 0.0)


def test_a_queue_is_idle_once() -> None:
    """What an answer waited for its turn is no work, and what two waited together counts once."""
    found = meter((0.0, called("a")), (0.0, called("b")), (10.0, said(step="a", seconds=10.0, queued=4.0)))
    assert times(found) == (6.0, 0.0, 4.0, 0.0)
    found.take(said(step="b", seconds=11.0, queued=2.0, backoff=1.0), 11.0)
    assert times(found) == (6.0, 0.0, 5.0, 0.0)


@pytest.mark.parametrize(
    ("queued", "backoff", "until", "idle"),
    [
        (2.0, 1.0, 0.0, 3.0),
        (2.0, 1.0, 8.5, 1.5),
        (2.0, 1.0, 12.0, 0.0),
        (20.0, 0.0, 0.0, 5.0),
        (0.0, 0.0, 0.0, 0.0),
    ],
)
def test_idle_time_is_within_the_call(queued: float, backoff: float, until: float, idle: float) -> None:
    """No more than the call took, and not what was counted before."""
    assert idle_before(said(seconds=5.0, queued=queued, backoff=backoff), 10.0, until) == idle


def test_idle_time_holds_the_clock_while_it_passes() -> None:
    """Whoever counts is told when waiting begins and ends, also where it fails, and of seconds that turn out
    to be lost.
    """
    told: list[object] = []
    idle = IdleTime(
        hold=lambda: told.append("hold"), release=lambda: told.append("release"), give_back=told.append
    )
    with idle.queueing():
        pass
    with pytest.raises(ValueError, match="x"), idle.backing_off():
        raise ValueError("x")
    before = idle.backoff
    idle.lose(2.5)
    assert told == ["hold", "release", "hold", "release", 2.5]
    assert 0 <= idle.queued < 2
    assert 0 <= before < 2
    assert idle.backoff == before + 2.5


def test_what_a_recording_tells_of_the_whole_stands_for_its_calls_and_not_for_those_behind_it() -> None:
    """An imported run has the totals of its recording; what a fork of it asks is counted call by call."""
    whole = {"tokens_in": 90, "tokens_out": 8, "tokens_cached": 10, "cost_usd": 2.0}
    began = RunStarted(goal="g", workspace="", model="m", imported={"usage": whole})
    recorded = said(tokens_in=0, tokens_out=0, cost_usd=None, metered=False)
    usage = meter((1.0, began), (2.0, recorded), (3.0, recorded)).usage
    assert (usage.model_calls, usage.tokens_in, usage.tokens_out, usage.tokens_cached) == (2, 90, 8, 10)
    assert (usage.cost_usd, usage.unmetered, usage.unpriced) == (2.0, 0, 0)
    forked = meter(
        (1.0, began), (2.0, recorded), (3.0, RunForked(parent="p", at=2, model="m")), (4.0, said())
    ).usage
    assert (forked.tokens_in, forked.cost_usd) == (95, 2.5)
    only_cost = RunStarted(goal="g", workspace="", model="m", imported={"usage": {"cost_usd": 2.0}})
    usage = meter((1.0, only_cost), (2.0, said())).usage
    assert (usage.tokens_in, usage.cost_usd) == (5, 2.0)
