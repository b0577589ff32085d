"""Trials that end inside their run as soon as their checks cannot pass any more."""

import asyncio
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.events.union import ModelAnswered, ModelCalled, Record, RunFinished, ToolAnswered
from kestrel_lab.core.protocols import Trial
from kestrel_lab.evals.commits.row_differences import compare_rows
from kestrel_lab.evals.execution.early_stop import EarlyStopping
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.execution.trial import judge_run
from kestrel_lab.evals.reports.gate_decisions import decide_gates
from kestrel_lab.evals.stored.rescore import Judge
from kestrel_lab.evals.suite import Scenario
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab

SUITE = """
name: early
grader: scripted:judge.yaml
configs: [{name: one, model: "scripted:model.yaml"}]
gates: [{success_rate: {at_least: 0.1}}, {token_usage: {at_most: 100000}}]
scenarios:
  - id: forbidden
    goal: Use the forbidden tool.
    tools: [glob, grep]
    checks:
      - {tool_not_used: grep}
      - {answer_contains: fine}
      - {graded: {rubric: good}}
  - id: allowed
    goal: Look around.
    tools: [glob, grep]
    checks: [{tool_not_used: write_file}, {answer_contains: fine}]
"""
LONG = "".join(f"- [{{tool: glob, args: {{pattern: '*{n}'}}}}]\n      " for n in range(6))
MODEL = f"""
rules:
  - when: "forbidden"
    turns:
      - [{{tool: grep, args: {{pattern: x}}}}]
      {LONG}- fine
  - when: "."
    turns:
      - [{{tool: glob, args: {{pattern: '*'}}}}]
      - fine
"""


def files(folder: Path) -> Path:
    """Write the suite; the judge's script has no turn, so that asking it breaks a trial."""
    (folder / "model.yaml").write_text(MODEL)
    (folder / "judge.yaml").write_text('rules: [{when: ".", turns: [\'{"score": 1, "why": "good"}\']}]')
    path = folder / "suite.yaml"
    path.write_text(SUITE)
    return path


def test_a_hopeless_trial_ends_with_the_verdict_of_the_whole_one(tmp_path):
    """It is recorded with its reason, asks no judge, says what was saved, and its amounts are compared with
    nothing; it stands for no whole trial, and a check that is dropped later makes it one to run again.
    """
    path = files(tmp_path)
    with Lab(tmp_path / "home", env={}) as lab:
        whole = asyncio.run(run_suite(lab, load_suite(path)))
        early = asyncio.run(run_suite(lab, load_suite(path), early_stopping=True, reuse=True))
        assert [row.outcome for row in whole.rows] == [row.outcome for row in early.rows] == ["fail", "pass"]
        assert not any(row.ended_early for row in whole.rows)
        assert [row.ended_early for row in early.rows] == [True, False]
        cut = early.rows[0]
        assert cut.reason == "ended early, it cannot pass; grep not used: grep was called 1 time"
        assert (
            cut.why == "ended early, it cannot pass; expected: grep not used; found: grep was called 1 time"
        )
        assert [score["check"] for score in cut.scores] == ["grep not used"]
        assert (whole.rows[0].metrics["model_calls"], cut.metrics["model_calls"]) == (8, 1)
        assert any(
            "1 trial ended early" in note and "after 1.0 model calls" in note for note in early.run_notes()
        )
        found = compare_rows(early.suite, (whole.rows, early.rows), margin=0.05)
        assert "ended early" in found["one", "token_usage"].note
        rate, tokens = decide_gates(early.suite, early.rows)
        assert "ended early" in tokens.why and "ended early" not in rate.why
        scenario = early.suite.scenarios[0]
        kept = scenario.model_copy(update={"checks": scenario.checks[1:]})
        judge = Judge(lab, early.suite.model_copy(update={"scenarios": (kept,)}))
        again, _ = asyncio.run(judge.judged(cut, kept, lab.store.records(cut.run)))
        assert (again.outcome, "run it again" in again.reason) == ("error", True)
        same, _ = asyncio.run(Judge(lab, early.suite).judged(cut, scenario, lab.store.records(cut.run)))
        assert (same.outcome, same.reason, same.scores) == (cut.outcome, cut.reason, cut.scores)


class Log:
    """The part of a store that is asked: the first events of a run."""

    def __init__(self, records):
        self.all, self.written = records, 0

    def records(self, _run, *, after=0):
        """Those behind `after` that are written."""
        return self.all[after : self.written]


def numbered(events):
    """Records of events, each given with its time."""
    return [Record(run_id="r", seq=n, eid=str(n), at=at, event=one) for n, (at, one) in enumerate(events, 1)]


ONLY_WAITED = numbered(
    [
        (0.0, ModelCalled(call="p.m1", step="p", model="m", cycle=1, messages=1)),
        (5.0, ToolAnswered(call="t1", step="q", tool="a", text="")),
        (6.0, ModelAnswered(call="p.m1", step="p", model="m", seconds=6.0, queued=6.0)),
    ]
)
"""A call under way seems to have taken five seconds, and turns out to have waited for its turn."""


@st.composite
def logs(draw):
    """Events of a run whose two steps work beside each other: models that wait and cost, tools that fail."""
    events, asked, cycle = [], {}, 0
    for gap in draw(st.lists(st.integers(0, 3), min_size=1, max_size=14)):
        step, at = draw(st.sampled_from("pq")), (events[-1][0] if events else 0.0) + gap
        if step in asked:
            call, began = asked.pop(step)
            took = at - began
            waited = draw(st.sampled_from([0.0, took / 2, took]))
            cost = draw(st.sampled_from([0.0, 0.4, 1.0, None]))
            answer = ModelAnswered(
                call=call,
                step=step,
                model="m",
                tokens_in=draw(st.integers(0, 9)),
                cost_usd=cost,
                seconds=took,
                queued=waited,
            )
            events.append((at, answer))
        elif draw(st.booleans()):
            cycle += 1
            asked[step] = (f"{step}.m{cycle}", at)
            events.append(
                (at, ModelCalled(call=f"{step}.m{cycle}", step=step, model="m", cycle=cycle, messages=1))
            )
        else:
            error = draw(st.sampled_from([None, None, {"kind": "raised"}]))
            tool = draw(st.sampled_from("ab"))
            events.append(
                (at, ToolAnswered(call=f"t{len(events)}", step=step, tool=tool, text="", error=error))
            )
    return numbered(events)


LEAVES = st.sampled_from(
    [
        {"tool_used": "a"}, {"tool_not_used": "b"}, {"tool_at_most": {"name": "a", "n": 1}}, {"turns_at_most": 2},
        {"tokens_at_most": 9}, {"seconds_at_most": 4}, {"seconds_at_most": {"seconds": 2, "per": "call"}},
        {"cost_at_most": 1}, {"tools_in_order": ["a", "b"]}, {"answer_contains": "x"},
        {"trajectory_match": {"calls": ["a", "b"], "mode": "exact"}},
    ]
)  # fmt: skip
CHECKS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda one: {"not": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda every: {"any_of": every}),
        st.lists(inner, min_size=1, max_size=3).map(lambda every: {"all_of": every}),
        st.tuples(inner, st.sampled_from([0.3, 0.5, 0.7])).map(
            lambda pair: {"all_of": [pair[0]], "at_least": pair[1], "weight": 2}
        ),
    ),
    max_leaves=4,
)


@settings(max_examples=60)
@given(
    log=logs(), checks=st.lists(st.one_of(LEAVES, LEAVES, CHECKS), min_size=1, max_size=2), least=st.sampled_from([None, 0.4, 0.8]),
    answer=st.sampled_from("xy"),
)  # fmt: skip
@example(log=ONLY_WAITED, checks=[{"seconds_at_most": 4}], least=None, answer="x")
def test_what_ends_early_fails_whatever_follows(log, checks, least, answer):
    """Wherever a run would have been ended, the whole run fails too, or cannot be judged at all."""
    parsed = tuple(parse_check(one) for one in checks)
    scenario = Scenario(id="s", goal="g", checks=parsed, at_least=least)
    store, said = Log(log), []
    watch = EarlyStopping(store, scenario)
    end = Record(
        run_id="r", seq=99, eid="e", at=log[-1].at, event=RunFinished(outcome="complete", answer=answer)
    )
    trial = Trial(goal="g", answer=answer, records=(*log, end), workspace=Path("/nonexistent"))
    with asyncio.Runner() as loop:
        for store.written in range(1, len(log) + 1):
            said.append(loop.run(watch("r")))
        judged = loop.run(judge_run(None, scenario, trial))
    hopeless = [bool(why) for why in said]
    assert hopeless == sorted(hopeless), "what cannot pass cannot pass later on either"
    broke = judged.outcome == "error" and "price" in judged.reason
    assert not any(hopeless) or judged.outcome == "fail" or broke, (said, judged)
