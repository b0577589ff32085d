"""Usage of a run: state, view, metrics and the list of runs agree on any log."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import histories

from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelCalled,
    Record,
    RunStarted,
    ToolAnswered,
)
from kestrel_lab.core.usage import usage_of_run, waiting_time, working_time
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.server.controller import RunList
from kestrel_lab.views.run_view import view_of

names = st.sampled_from(["a", "b"])
costly: st.SearchStrategy[Event] = st.one_of(
    st.builds(ModelCalled, call=names, step=names, model=names, cycle=st.just(1), messages=st.just(1)),
    st.builds(
        ModelAnswered,
        call=names,
        step=names,
        model=names,
        tokens_in=st.integers(0, 99),
        tokens_out=st.integers(0, 99),
        cost_usd=st.none() | st.just(0.25),
        error=st.none() | st.just({"kind": "failed"}),
        cached=st.booleans(),
        given=st.booleans(),
    ),
    st.builds(
        ToolAnswered,
        call=names,
        step=names,
        tool=names,
        text=names,
        cached=st.booleans(),
        given=st.booleans(),
    ),
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
        ApprovalGiven, call=names, granted=st.booleans(), by=names, how=names, question=names | st.just("")
    ),
)


@settings(max_examples=150)
@given(records=histories)
def test_state_view_and_metrics_agree(records: list[Record]) -> None:
    """Whatever a log holds, tokens, money, calls, turns and seconds are the same for the engine, the panel
    and the tables of trials.
    """
    meter, state = usage_of_run(records), fold(records)
    assert state.meter == view_of(records).meter == meter
    assert meter.turns == sum(conversation.cycles for conversation in state.conversations.values())
    usage = state.usage
    metrics = {
        name: METRICS[name].function(records)
        for name in ("token_usage", "cost_estimate", "unpriced_calls", "model_calls", "tool_calls")
    }
    assert metrics == {
        "token_usage": usage.tokens,
        "cost_estimate": usage.cost_usd,
        "unpriced_calls": usage.unpriced,
        "model_calls": usage.model_calls,
        "tool_calls": usage.tool_calls,
    }
    assert (working_time(records), waiting_time(records)) == (state.working_s, meter.waiting_s + meter.away_s)


@settings(max_examples=25, deadline=None)
@given(events=st.lists(costly, max_size=12))
def test_the_list_of_runs_agrees(events: list[Event]) -> None:
    """The list reads only some columns of some events, and comes to the same tokens, money and open
    questions.
    """
    with tempfile.TemporaryDirectory() as folder, closing(SessionStore(Path(folder) / "log.db")) as store:
        store.create_run("r", RunStarted(goal="g", workspace="w", model="m"))
        for event in events:
            store.append("r", event)
        store.flush()
        meter = fold(store.records("r")).meter
        (listed,) = RunList(store).newest(5)
        assert (listed.tokens, listed.cost_usd, listed.unpriced) == (
            meter.usage.tokens,
            meter.usage.cost_usd,
            meter.usage.unpriced,
        )
        assert listed.waiting == len(meter.questions)


def test_answers_given_by_hand_or_from_a_store_cost_nothing() -> None:
    """Neither tokens nor money of such an answer are counted again, nor is it a call of a model; its price is
    not unknown either.
    """
    answers = [
        ModelAnswered(call="m", step="s", model="m", tokens_in=5, **{how: True})
        for how in ("given", "cached")
    ]
    records = [
        Record(run_id="r", seq=n, eid=str(n), at=1.0, event=event) for n, event in enumerate(answers, 1)
    ]
    assert usage_of_run(records).usage == usage_of_run([]).usage
