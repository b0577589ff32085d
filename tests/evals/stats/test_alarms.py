"""Simulated comparisons whose truth is known: false alarms over all metrics, and how often real changes are
found.

Each claim has its mutant: the same comparisons judged by a rule that leaves one safeguard out.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_rows import row, rows
from made_rows import suite as gated

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.evals.commits.row_differences import COMPARED, PRIMARY, compare_families, compare_rows
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.gate_decisions import decide_gates
from kestrel_lab.evals.stats.difference import (
    compare_scenarios,
    detectable_drop,
    detectable_mean,
    judge_alike,
    mcnemar_power,
)
from kestrel_lab.evals.stats.intervals_and_tests import wilson_interval
from kestrel_lab.evals.suite import Config, Scenario, Suite

pytestmark = pytest.mark.slow

CHANGES = ("regression", "improvement")


def sides(
    chance, *, scenarios, epochs, configs=("c",), seconds=10.0, drift=0.0, shocks=0.0, warm_up=0.0, turns=True
):
    """Trials of the same code on both sides: scenarios of any difficulty and length; what disturbs clocks
    does so by blocks of trials.
    """
    hard, rates = chance.normal(0, 1, scenarios), chance.choice([0.05, 0.5, 0.9, 0.97], scenarios)
    found, at = ([], []), 0
    for epoch in range(1, epochs + 1):
        order = (0, 1) if epoch % 2 or not turns else (1, 0)
        for side in order:
            at += 1
            slow = math.exp(shocks * chance.normal()) * (1 + drift * at)
            cold = warm_up if epoch == 1 and side == order[0] else 0.0
            for config in configs:
                noise, passed, calls = (
                    chance.normal(size=(2, scenarios)),
                    chance.random(scenarios) < rates,
                    2 + chance.poisson(1, scenarios),
                )
                tokens = (500 * calls * np.exp(0.2 * hard + 0.1 * noise[1])).astype(int)
                times = seconds * np.exp(0.3 * hard + 0.3 * noise[0]) * slow + cold
                for n in range(scenarios):
                    numbers = {
                        "working_time": times[n],
                        "token_usage": tokens[n],
                        "model_calls": calls[n],
                        "tool_calls": calls[n] - 1,
                        "cost_estimate": tokens[n] * 1e-6,
                    }
                    trial = row(
                        f"s{n}", "pass" if passed[n] else "fail", config=config, epoch=epoch, **numbers
                    )
                    found[side].append(replace(trial, created_at=float(at)))
    return found


def a_suite(scenarios, configs=("c",)):
    """The suite that the trials are of."""
    check = AnswerContains(texts=("x",))
    return Suite(
        name="aa",
        scenarios=tuple(Scenario(id=f"s{n}", goal="g", checks=(check,)) for n in range(scenarios)),
        configs=tuple(Config(name=name) for name in configs),
    )


@pytest.mark.parametrize(
    "kind",
    [
        {"scenarios": 12, "epochs": 4},
        {"scenarios": 12, "epochs": 4, "seconds": 0.005, "warm_up": 0.03},
        {"scenarios": 12, "epochs": 6, "shocks": 0.2},
        {"scenarios": 20, "epochs": 4, "drift": 0.05},
        {"scenarios": 12, "epochs": 4, "warm_up": 30.0},
        {"scenarios": 12, "epochs": 3, "drift": 0.2, "turns": False},
        {"scenarios": 30, "epochs": 1, "warm_up": 30.0},
        {"scenarios": 9, "epochs": 2, "configs": ("a", "b", "c")},
    ],
    ids=str,
)
def test_equal_code_is_called_different_in_at_most_one_comparison_of_twenty(kind):
    """A/A over all metrics and configurations together, with slow machines, cold starts and drift."""
    chance, rounds = np.random.default_rng(1), 150
    suite = a_suite(kind["scenarios"], kind.get("configs", ("c",)))
    alarms = 0
    for _ in range(rounds):
        found = compare_rows(suite, sides(chance, **kind), margin=0.05)
        alarms += any(d.verdict in CHANGES for d in found.values())
    assert alarms / rounds <= 0.05


def test_without_the_safeguards_alarms_are_common():
    """Mutants: no Holm over metrics; times judged without their rounds; trials stored before taken as if made
    in turns.
    """
    chance, rounds = np.random.default_rng(2), 150
    alone = by_scenarios = stored = 0

    def judged_by_scenarios(*both):
        times = [
            {f"s{n}": [r.metrics["working_time"] for r in side if r.scenario == f"s{n}"] for n in range(12)}
            for side in both
        ]
        found = judge_alike(
            [compare_scenarios(*times, weights={}, bounded=False)],
            better=["lower"],
            margin=0.05,
            relative=True,
        )
        return found[0].verdict in CHANGES

    for _ in range(rounds):
        found = compare_rows(a_suite(30), sides(chance, scenarios=30, epochs=4), margin=0.05)
        alone += any(d.p < 0.05 for d in found.values())
        base, head = sides(chance, scenarios=12, epochs=4, shocks=0.2)
        by_scenarios += judged_by_scenarios(base, head)
        yesterday = [
            replace(r, metrics={"working_time": r.metrics["working_time"] + 3.0})
            for r in sides(chance, scenarios=12, epochs=4)[0]
        ]
        stored += judged_by_scenarios(yesterday, head)
    assert alone / rounds > 0.08
    assert by_scenarios / rounds > 0.15
    assert stored / rounds > 0.3


def test_times_of_trials_not_made_side_by_side_have_no_verdict():
    """Stored before, one side after the other, or too few rounds: difference and interval are shown, a note
    says why no more.
    """
    chance = np.random.default_rng(4)
    base, head = sides(chance, scenarios=12, epochs=4)
    long_ago = [replace(r, created_at=r.created_at - 1e6) for r in base]
    found = compare_rows(a_suite(12), (long_ago, head), margin=0.05)
    d = found["c", "working_time"]
    assert (d.verdict, math.isnan(d.p_holm), d.interval.low < d.interval.high) == ("inconclusive", True, True)
    assert d.note.startswith("not compared: the trials of both sides were not made side by side")
    assert all(not found["c", metric].note for metric in (PRIMARY, *COMPARED) if metric != "working_time")
    for epochs in (1, 2):
        d = compare_rows(a_suite(12), sides(chance, scenarios=12, epochs=epochs), margin=0.05)[
            "c", "working_time"
        ]
        assert (d.verdict, "three or more rounds" in d.note) == ("inconclusive", True)


def test_a_real_slowdown_is_found():
    """Half as slow again, in every round and scenario, is a regression of the time and of nothing else."""
    base, head = sides(np.random.default_rng(5), scenarios=20, epochs=8)
    slower = [
        replace(r, metrics={**r.metrics, "working_time": 1.5 * r.metrics["working_time"]}) for r in head
    ]
    found = compare_rows(a_suite(20), (base, slower), margin=0.05)
    assert [metric for (_, metric), d in found.items() if d.verdict == "regression"] == ["working_time"]
    assert found["c", "working_time"].test == "sign flips and rounds"


def test_a_drop_in_one_family_is_found_there():
    """Of three families one stops passing: its success rate alone is a regression, and p values are adjusted
    for three questions.
    """
    base = [row(f"{family}{n}", "pass", family=family) for family in "abc" for n in range(10)]
    head = [
        replace(r, result={**r.result, "outcome": "fail"}) if r.result["family"] == "b" else r for r in base
    ]
    found = compare_families(a_suite(1), (base, head), margin=0.05)
    assert {family: d.verdict for (_, family, _), d in found.items()} == {
        "a": "inconclusive",
        "b": "regression",
        "c": "inconclusive",
    }
    assert found["c", "b", "success_rate"].p_holm == pytest.approx(3 * 2 / 2**10)


def test_milliseconds_are_nobodys_concern():
    """Two milliseconds instead of one, for certain, are no regression: both are far below what a person could
    notice.
    """
    base, head = sides(np.random.default_rng(5), scenarios=12, epochs=6, seconds=0.001)
    slower = [replace(r, metrics={**r.metrics, "working_time": 2 * r.metrics["working_time"]}) for r in head]
    found = compare_rows(a_suite(12), (base, slower), margin=0.05)["c", "working_time"]
    assert (found.verdict, found.p < 0.01, found.interval.excludes(0)) == ("stable", True, True)


@pytest.mark.parametrize(("n", "worse", "better"), [(60, 0.25, 0.05), (100, 0.15, 0.03), (30, 0.35, 0.0)])
def test_power_for_flips_is_that_of_theory(n, worse, better):
    """Scenarios tried once: how often a drop is told is within three points of the exact power of McNemar's
    test.
    """
    chance, rounds, told = np.random.default_rng(3), 800, 0
    for _ in range(rounds):
        u = chance.random(n)
        base = {str(i): [float(x < worse or x > 0.5)] for i, x in enumerate(u)}
        head = {str(i): [float(worse <= x < worse + better or x > 0.5)] for i, x in enumerate(u)}
        told += (
            judge_alike(
                [compare_scenarios(base, head, weights={}, bounded=True)],
                better=["higher"],
                margin=0.0,
                relative=False,
            )[0].verdict
            == "regression"
        )
    assert told / rounds == pytest.approx(mcnemar_power(n, worse, better), abs=0.03)


@pytest.mark.parametrize(("n", "effect"), [(12, 0.9), (30, 0.52)])
def test_power_for_numbers_is_that_of_theory(n, effect):
    """Costs and tokens: how often a change is told is within three points of the t test's power; at the
    stated size it is 80 %.
    """
    from scipy.stats import nct, t

    chance, rounds = np.random.default_rng(3), 600

    def power(size):
        told = 0
        for _ in range(rounds):
            moved = chance.normal(size, 1, n)
            found = compare_scenarios(
                {str(i): [10.0] for i in range(n)},
                {str(i): [10 + x] for i, x in enumerate(moved)},
                weights={},
                bounded=False,
            )
            told += (
                judge_alike([found], better=["lower"], margin=0.0, relative=True)[0].verdict == "regression"
            )
        return told / rounds

    assert power(effect) == pytest.approx(nct.sf(t.ppf(0.975, n - 1), n - 1, effect * math.sqrt(n)), abs=0.03)
    assert power(detectable_mean(1 / math.sqrt(n), n - 1)) == pytest.approx(0.8, abs=0.03)


def test_the_smallest_detectable_drop_is_near_the_table():
    """Exact for McNemar's test: close to the usual formula from 50 scenarios on, larger where that promises
    what cannot be.
    """
    exact = {n: detectable_drop(n, 0.2) for n in (20, 50, 100, 200, 500, 1000)}
    formula = {
        n: (1.959964 + 0.841621) * math.sqrt(0.2 / n) for n in exact
    }  # 5 %, two-sided, with a power of 80 %
    assert all(exact[n] == pytest.approx(formula[n], abs=0.006) for n in (50, 100, 200, 500, 1000))
    # With one scenario in five flipping at all, a drop of .28 is impossible: it takes more flips.
    assert (round(formula[20], 2), round(exact[20], 2)) == (0.28, 0.37)
    assert (detectable_drop(5, 0.2), mcnemar_power(5, 1.0, 0.0), mcnemar_power(6, 1.0, 0.0)) == (
        math.inf,
        0.0,
        1.0,
    )


def test_many_gates_cry_wolf_no_more_than_one():
    """Ten gates whose bounds are all kept exactly: at most 5 % of suites say `regression`; each gate by
    itself would say it oftener.
    """
    chance, alarms, alone, rounds = np.random.default_rng(8), 0, 0, 200
    gates = [Gate(metric="success_rate", at_least=0.7, config=f"c{n}") for n in range(10)]
    suite = gated(*gates, configs=[f"c{n}" for n in range(10)])
    for _ in range(rounds):
        passed = chance.binomial(40, 0.7, 10)
        trials = [
            one
            for n, k in enumerate(passed)
            for one in rows(*["pass"] * k, *["fail"] * (40 - k), config=f"c{n}")
        ]
        decisions = decide_gates(suite, trials)
        alarms += any(d.verdict == "regression" for d in decisions)
        assert all(
            d.why.startswith("violated by itself, but as one of 10")
            for d in decisions
            if d.verdict != "regression" and d.interval.high < 0.7
        )
        alone += any(wilson_interval(k, 40)[1] < 0.7 for k in passed)
    assert alarms / rounds <= 0.05
    assert alone / rounds > 0.1
