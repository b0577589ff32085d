"""Gates under a budget: trials are made in turns until the gates are decided."""

import asyncio
from random import Random

import pytest
from test_sequential_compare import lab, scripted, suite

from kestrel_lab.checks.llm_judge import ModelGraded
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.evals.commits.sequential_compare import Design
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.stats.sequential import LookErrors
from kestrel_lab.evals.suite import Config
from kestrel_lab.testing import RecordingReporter, ScriptedModel

__all__ = ["lab"]


def gated(number=40, *gates, **fields):
    """A suite whose success rate is to be 70 % at least."""
    return suite(number, gates=gates or (Gate(metric="success_rate", at_least=0.7),), **fields)


def decide(lab, *, of=None, answer="hello", design=None, **options):
    """The gates of one configuration, in turns."""
    design = design or Design(trials=40)
    options.setdefault("configs", {"any": ScriptedModel(answer) if callable(answer) else scripted(answer)})
    return asyncio.run(lab.evals.gate_in_turns(of or gated(), design=design, **options))


def some(share):
    """A model that says hello in this share of the scenarios."""
    return lambda request: "hello" if Random(request.messages[-1].text).random() < share else "no"


def test_a_gate_that_holds_ends_before_the_budget(lab):
    """Every trial passes: a part of the budget shows it, the rest is never made, and every look is told."""
    reporter = RecordingReporter()
    found = decide(lab, reporter=reporter)
    gates = found.gates()
    assert (gates.verdict, gates.exit_code) == ("ok", 0)
    assert len(found.rows) < 40
    assert len(found.rows) == gates.looks[-1][0] == gates.decisions[0].trials
    assert f"{len(found.rows)} trials of at most 40 of each configuration, decided at look" in gates.notes[0]
    assert any("look 1: success_rate ≥ 70 %" in str(call) for call in reporter.reports)


def test_a_violated_gate_ends_before_the_budget(lab):
    """No trial passes: that is a regression after a look or two."""
    gates = decide(lab, answer="no").gates()
    assert (gates.verdict, gates.exit_code, len(gates.looks)) == ("regression", 1, 1)


def test_what_cannot_hold_any_more_is_skipped(lab):
    """Where even passes in all trials that are left would not do, they are skipped and counted nowhere: the
    rate is of the trials that were made.
    """
    found = decide(lab, of=gated(30), answer=some(0.75), design=Design(trials=30, looks=10))
    gates, made = found.gates(), len(found.rows)
    assert gates.verdict == "inconclusive"
    assert made < 30
    assert f"cannot hold any more, whatever the rest gives; {30 - made} trials skipped" in gates.notes[0]
    passed = sum(row.outcome == "pass" for row in found.rows)
    assert gates.decisions[0].interval.mean == pytest.approx(passed / made)


def test_a_gate_of_another_metric_uses_the_budget(lab):
    """Nobody knows the best value of a mean, so only a decision or the budget ends the trials."""
    tokens = Gate(metric="token_usage", at_most=25.0)
    gates = decide(lab, of=gated(20, tokens), design=Design(trials=20)).gates()
    assert "20 trials of at most 20" in gates.notes[0] or gates.verdict == "ok"


@pytest.mark.parametrize(("counted", "share"), [("fail", 0.5), ("exclude", 0.4)])
def test_trials_that_broke_refuse_a_verdict_that_they_could_turn_over(lab, counted, share):
    """As a comparison does: counted as failed they violate the bound, left out it holds, and both would be
    otherwise if they had passed, or failed.
    """

    def breaks(request):
        return ModelError("gone") if Random(request.messages[-1].text).random() < share else "hello"

    of = gated(60, count_errors=counted)
    found = asyncio.run(lab.eval(of, configs={"any": ScriptedModel(breaks)}))
    [one] = found.gates().decisions
    assert one.verdict == "broken"
    assert f"no verdict ({'regression' if counted == 'fail' else 'ok'}): " in one.why
    assert "could turn it over: " in one.why


def test_the_looks_of_gates_can_be_drawn(lab):
    """A row per gate, a mark per look, the bound as a line."""
    more = Gate(metric="token_usage", at_most=1000.0)
    gates = decide(lab, of=gated(40, Gate(metric="success_rate", at_least=0.7), more)).gates()
    rates, tokens = gates.plot().axes
    assert "success_rate ≥ 70 % [any (scripted)]: ok" in rates.get_title()
    assert "token_usage" in tokens.get_title()


def test_judged_trials_and_a_suite_without_gates_are_refused(lab, tmp_path):
    """In turns nothing corrects a model judge: gates, comparisons and bisections say what to do instead."""
    judged = gated(6)
    graded = ModelGraded(rubric="It greets.")
    judged = judged.model_copy(
        update={
            "scenarios": tuple(one.model_copy(update={"checks": (graded,)}) for one in judged.scenarios),
            "grader": "scripted:judge.yaml",
            "configs": (Config(name="a"), Config(name="b")),
        }
    )
    (tmp_path / "judge.yaml").write_text('rules: [{when: \'.\', turns: [\'{"score": 1, "why": ""}\']}]')
    models = {"a": scripted("hello"), "b": scripted("hello")}
    design = Design(trials=12)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(UsageError, match=r"6 scenarios .* model judge"),
    ):
        patch.chdir(tmp_path)
        decide(lab, of=judged, design=design, configs=models)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(UsageError, match="label 30 trials of each side"),
    ):
        patch.chdir(tmp_path)
        asyncio.run(lab.evals.compare_in_turns(judged, "a", "b", design=design, configs=models))
    with pytest.raises(UsageError, match="declares no gates"):
        decide(lab, of=suite(6))


def test_errors_of_looks_add_up_to_the_error():
    """Without a maximum the errors of all looks sum to it; with one, each is smaller than the whole."""
    endless = LookErrors(alpha=0.05)
    assert sum(endless.next(float("nan")) for _ in range(10_000)) == pytest.approx(0.05, rel=1e-3)
    looks = LookErrors(alpha=0.05)
    found = [looks.next(fraction / 5) for fraction in range(1, 6)]
    assert all(0.005 < one < 0.05 for one in found)
    assert sum(found) > 0.05
