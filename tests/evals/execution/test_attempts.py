"""pass@k and pass^k: against every choice of k trials, against the truth, and over a suite."""

import asyncio
import math
from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stats.pass_at_k import pass_at_k, pass_hat_k, pass_rates
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_they_are_shares_of_all_choices(outcomes, data):
    """Both equal what counting every choice of k trials gives."""
    k = data.draw(st.integers(1, len(outcomes)))
    choices = list(combinations(outcomes, k))
    n, c = len(outcomes), sum(outcomes)
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_known_answers():
    """Seven of eight trials passed: pass^k falls from .875 to nothing, while one of two is sure to pass."""
    assert [pass_hat_k(8, 7, k) for k in (1, 2, 4, 8)] == [0.875, 0.75, 0.5, 0.0]
    assert [pass_at_k(8, 7, k) for k in (1, 2)] == [0.875, 1.0]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_they_are_unbiased(k):
    """Averaged over everything that five trials can give, both are the true chance; the plug-in estimates are
    not.
    """
    p, n = Fraction(1, 3), 5
    at, hat, plug_in = 0.0, 0.0, 0.0
    for outcomes in product([0, 1], repeat=n):
        c = sum(outcomes)
        chance = float(p**c * (1 - p) ** (n - c))
        at += chance * pass_at_k(n, c, k)
        hat += chance * pass_hat_k(n, c, k)
        plug_in += chance * (c / n) ** k
    assert at == pytest.approx(float(1 - (1 - p) ** k))
    assert hat == pytest.approx(float(p**k))
    assert (plug_in == pytest.approx(float(p**k))) == (k == 1)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 0), (3, 1, 4), (3, 4, 1), (3, -1, 1)])
def test_impossible_numbers_are_refused(n, c, k):
    """More choices than trials, or more passes than trials, are a mistake and no zero."""
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(UsageError):
            estimate(n, c, k)


def trials(**outcomes):
    """Records of trials: scenario=outcomes."""
    return [
        {"scenario": name, "group": name, "success": float(passed), "weight": 1.0}
        for name, found in outcomes.items()
        for passed in found
    ]


def test_scenarios_are_the_clusters():
    """Each scenario gives one estimate, whatever its number of trials; the interval is that of their mean,
    within 0 and 1.
    """
    found = pass_rates(trials(a=[1, 0], b=[1, 1, 1, 1], c=[0, 0]), 2)
    assert (found["k"], found["trials"], found["scenarios"]) == (2, 8, 3)
    assert (found["pass_at"], found["pass_hat"]) == pytest.approx((2 / 3, 1 / 3))
    # By hand: values 1, 1, 0; sd .5774, se 1/3, t(2) 4.3027: beyond both bounds.
    assert (found["pass_at_low"], found["pass_at_high"]) == (0.0, 1.0)
    wide = pass_rates(trials(**{f"s{i}": [i % 2, 1] for i in range(20)}), 2)
    se = math.sqrt(sum((x - 0.5) ** 2 for x in [0, 1] * 10) / 19 / 20)
    assert (wide["pass_hat_low"], wide["pass_hat_high"]) == pytest.approx(
        (0.5 - 2.0930241 * se, 0.5 + 2.0930241 * se)
    )


def test_agreement_is_not_certainty():
    """Where all scenarios agree, the interval is as wide as so few of them allow."""
    found = pass_rates(trials(a=[1, 1], b=[1, 1]), 2)
    assert (found["pass_hat"], found["pass_hat_high"]) == (1.0, 1.0)
    assert found["pass_hat_low"] < 0.4


def test_too_few_trials_are_named():
    """A scenario with fewer trials that count than k is an error that says what to do, not a smaller k."""
    records = [*trials(a=[1, 1]), *trials(b=[1, math.nan])]
    with pytest.raises(UsageError) as caught:
        pass_rates(records, 2)
    assert (
        str(caught.value)
        == "2 trials of each scenario are needed, and b has 1: run the suite with --epochs 2 or more"
    )


def test_a_suite_tells(tmp_path):
    """The result of a real suite gives both for every configuration, from its trials."""
    played = iter(range(100))

    def every_other(_request):
        return "42" if next(played) % 2 == 0 else "no"

    suite = Suite(
        name="s",
        epochs=2,
        concurrency=1,
        scenarios=tuple(
            Scenario(id=f"s{n}", goal="g", checks=(AnswerContains(texts=("42",)),)) for n in range(2)
        ),
    )
    lab = Lab(tmp_path / "home", env={})
    try:
        result = asyncio.run(
            run_suite(lab, suite, configs={"sure": ScriptedModel(["42"]), "half": ScriptedModel(every_other)})
        )
        found = result.pass_at(2)
    finally:
        lab.close()
    assert list(found.index) == ["sure", "half"]
    assert list(found.loc["sure", ["pass_at", "pass_hat"]]) == [1.0, 1.0]
    assert list(found.columns) == [
        "k",
        "pass_at",
        "pass_at_low",
        "pass_at_high",
        "pass_hat",
        "pass_hat_low",
        "pass_hat_high",
        "trials",
        "scenarios",
    ]
    outcomes = result.frame[result.frame.config == "half"].groupby("scenario").success
    assert found.loc["half", "pass_at"] == pytest.approx(outcomes.max().mean())
    assert found.loc["half", "pass_hat"] == pytest.approx(outcomes.min().mean())
