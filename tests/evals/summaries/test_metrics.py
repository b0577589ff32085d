"""Metrics: known numbers for a known run, and laws."""

from dataclasses import replace

import pytest

from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    CacheHit,
    MacroStarted,
    ModelAnswered,
    ModelCalled,
    ModelEscalated,
    Record,
    RunFinished,
    RunForked,
    RunResumed,
    RunStarted,
    StageFinished,
    StepRetried,
    ToolAnswered,
    ToolCalled,
    VerifierFinished,
)
from kestrel_lab.core.usage import waiting_time, working_time
from kestrel_lab.evals.metrics import METRICS, measure_run

RATES = {
    "cache_hit_rate",
    "parallel_speedup",
    "iterations_per_step",
    "verifier_pass_rate",
    "confidence",
    "concerns",
}


def log(*timed):
    """Records of `(time, event)` pairs."""
    return [
        Record(run_id="r", seq=n, eid=str(n), at=at, event=event) for n, (at, event) in enumerate(timed, 1)
    ]


def asked(call):
    """A question to a person."""
    return ApprovalAsked(call=call, step="s", tool="bash", args={}, danger="HIGH", key="k")


def given(call):
    """The person's answer."""
    return ApprovalGiven(call=call, granted=True, by="me", how="click")


RUN = log(
    (100.0, RunStarted(goal="g", workspace="w", model="m")),
    (100.5, ModelCalled(call="m1", step="s", model="m", cycle=1, messages=2)),
    (101.0, ModelAnswered(call="m1", step="s", model="m", tokens_in=100, tokens_out=10, cost_usd=0.25)),
    (101.0, ToolCalled(call="t1", step="s", tool="tree", args={})),
    (101.5, ToolAnswered(call="t1", step="s", tool="tree", text="", queued=0.125, cacheable=True)),
    (101.5, CacheHit(call="t2", tool="tree", key="k")),
    (101.5, ToolAnswered(call="t2", step="s", tool="tree", text="", cached=True, cacheable=True)),
    (102.0, asked("t3")),
    (103.0, asked("t4")),
    (105.0, given("t3")),
    (106.0, given("t4")),
    (106.0, ToolCalled(call="t3", step="s", tool="bash", args={}, attempt=1)),
    (106.1, ToolCalled(call="t3", step="s", tool="bash", args={}, attempt=2)),
    (106.5, ToolAnswered(call="t3", step="s", tool="bash", text="", queued=0.5)),
    (107.0, ModelCalled(call="m2", step="s", model="m", cycle=2, messages=5)),
    (107.5, ModelAnswered(call="m2", step="s", model="m", tokens_in=200, tokens_out=20)),
    (107.5, ModelAnswered(call="m3", step="s", model="m", tokens_in=999, cost_usd=9.0, cached=True)),
    (108.0, RunFinished(outcome="complete")),
)


def test_a_known_run():
    """Every metric of a run counted by hand; overlapping questions count once, stored answers cost
    nothing.
    """
    assert measure_run(RUN) == {
        "wall_time": 8.0,
        "working_time": 4.0,
        "waiting_time": 4.0,
        "queued_time": 0.625,
        "backoff_time": 0.0,
        "token_usage": 330.0,
        "tokens_in": 300.0,
        "tokens_out": 30.0,
        "model_calls": 2.0,
        "tool_calls": 3.0,
        "cost_estimate": 0.25,
        "unpriced_calls": 1.0,
        "cache_hits": 1.0,
        "cache_hit_rate": 2 / 3,
        "cycles": 2.0,
        "iterations_per_step": 2.0,
        "escalations": 0.0,
        "stages_failed": 0.0,
    }


def test_nothing_happened():
    """An empty log measures zero everywhere; shares of nothing are left out rather than made up."""
    assert measure_run([]) == dict.fromkeys(METRICS.keys() - RATES, 0.0)


def test_a_pause_between_sessions_is_not_work():
    """The hours in which no session had the run open are not its working time."""
    records = log(
        (0.0, RunStarted(goal="g", workspace="w", model="m")),
        (1.0, asked("t")),
        (3600.0, RunResumed(by="b")),
        (3601.0, given("t")),
        (3602.0, RunFinished(outcome="complete")),
    )
    assert (waiting_time(records), working_time(records)) == (3600.0, 2.0)


def test_what_was_given_by_hand_is_no_models_work():
    """In a fork the time since the shared event, a question left open there and an answer given by hand are
    not counted.
    """
    records = log(
        (0.0, RunStarted(goal="g", workspace="w", model="m")),
        (1.0, asked("t")),
        (3600.0, RunForked(parent="r", at=2, model="m")),
        (3600.0, ModelAnswered(call="m1", step="s", model="(given)", text="42", cost_usd=0.0, given=True)),
        (3602.0, RunFinished(outcome="complete")),
    )
    assert (waiting_time(records), working_time(records)) == (3599.0, 3.0)
    assert (measure_run(records)["model_calls"], measure_run(records)["unpriced_calls"]) == (0.0, 0.0)


@pytest.mark.parametrize("cut", range(len(RUN)))
def test_prefixes_never_measure_more(cut):
    """Counts and times only grow with the log."""
    before, after = measure_run(RUN[:cut]), measure_run(RUN)
    assert all(before[name] <= after[name] + 1e-9 for name in METRICS.keys() - RATES)


def test_order_of_time_zero_does_not_matter():
    """Only differences of time are measured, never the clock itself."""
    later = [replace(record, at=record.at + 1000) for record in RUN]
    assert measure_run(later) == pytest.approx(measure_run(RUN))


def took(call, seconds, **more):
    """A tool call that ended after some seconds."""
    return ToolAnswered(call=call, step="s", tool="grep", text="", seconds=seconds, **more)


@pytest.mark.parametrize(
    ("answers", "speedup"),
    [
        ([(1.0, took("a", 1.0)), (2.0, took("b", 1.0))], 1.0),  # one after the other
        ([(2.0, took("a", 2.0)), (2.0, took("b", 2.0)), (2.0, took("c", 2.0))], 3.0),  # all at once
        ([(2.0, took("a", 2.0)), (3.0, took("b", 2.0))], 4 / 3),  # half overlapping
        ([(4.0, took("a", 4.0)), (2.0, took("b", 1.0))], 5 / 4),  # one inside the other, written later
        ([(1.0, took("a", 1.0)), (900.0, took("b", 1.0))], 1.0),  # the wait between does not count
        ([(1.0, took("a", 1.0)), (1.0, took("b", 0.0, cached=True))], 1.0),
        (
            [
                (0.0, MacroStarted(call="m", step="s", macro="x", version=1)),
                (2.0, took("m/1", 2.0)),
                (2.0, took("m", 2.0)),
            ],
            1.0,
        ),
    ],
)
def test_speedup_is_calls_at_once(answers, speedup):
    """Seconds of calls over seconds in which any ran; neither pauses nor a macro around its calls count."""
    assert METRICS["parallel_speedup"].function(log(*answers)) == pytest.approx(speedup)


def test_what_plans_went_through():
    """Verdicts, escalations, retries and failed stages are counted; a stage that was saved by a retry has not
    failed.
    """
    records = log(
        (0.0, ModelCalled(call="m1", step="a", model="m", cycle=1, messages=1)),
        (0.0, ModelCalled(call="m2", step="a", model="m", cycle=2, messages=3)),
        (
            0.0,
            ModelCalled(call="m2", step="a", model="m", cycle=2, messages=3),
        ),  # the same turn, asked again after a crash
        (0.0, ModelCalled(call="m3", step="b", model="m", cycle=1, messages=1)),
        (0.0, StepRetried(step="a", attempt=2, error_class="transient", reason="", wait_s=0.5)),
        (0.0, StepRetried(step="a", attempt=3, error_class="transient", reason="", wait_s=1.0)),
        (0.0, VerifierFinished(step="v", verifier="model", passed=False)),
        (0.0, VerifierFinished(step="v", verifier="model", passed=True)),
        (0.0, VerifierFinished(step="v", verifier="files", passed=True)),
        (0.0, ModelEscalated(step="a", source="m", target="n", reason="")),
        (0.0, StageFinished(stage="gather", task="a", status="retrying")),
        (0.0, StageFinished(stage="gather", task="a", status="done", attempt=2)),
        (0.0, StageFinished(stage="execute", task="b", status="failed")),
        (0.0, StageFinished(stage="execute", task="c", status="failed")),
    )
    found = measure_run(records)
    names = ("iterations_per_step", "backoff_time", "verifier_pass_rate", "escalations", "stages_failed")
    assert [found[name] for name in names] == [1.5, 1.5, 2 / 3, 1.0, 1.0]
