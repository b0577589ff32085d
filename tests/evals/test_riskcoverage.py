"""Risk and coverage by hand, by their laws, and a chosen threshold that keeps the risk it promises where a naive one does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.riskcoverage import MOST_POINTS, Judged, RiskCoverage, risk_coverage


def trials(*told: tuple[float, bool]) -> list[Judged]:
    """One trial of a scenario of its own for each."""
    return [Judged(confidence=sure, passed=right, scenario=str(n)) for n, (sure, right) in enumerate(told)]


def drawn(count: int, seed: int) -> RiskCoverage:
    """Answers that fail with half the chance that they are not sure, by the square root."""
    dice = np.random.default_rng(seed)
    sure = dice.random(count)
    return risk_coverage(trials(*zip(sure.tolist(), (dice.random(count) < 0.5 + 0.5 * np.sqrt(sure)).tolist(), strict=True)))


def true_risk(threshold: float) -> float:
    """The share of such answers that fails, of those from the threshold on."""
    return 0.5 - (1 - threshold**1.5) / (1 - threshold) / 3


def test_known_curve() -> None:
    """Four answers, counted by hand: thresholds, coverage and risk; area (0 + 0 + 1/3 + 1/4) / 4, and what chance and an oracle would have."""
    found = risk_coverage(trials((0.9, True), (0.6, False), (0.7, True), (0.2, True)))
    assert [(p.threshold, p.coverage, p.risk, p.trials) for p in found.points] == [
        (0.9, 0.25, 0.0, 1), (0.7, 0.5, 0.0, 2), (0.6, 0.75, pytest.approx(1 / 3), 3), (0.2, 1.0, 0.25, 4),
    ]  # fmt: skip
    assert found.area == pytest.approx((1 / 3 + 1 / 4) / 4)
    assert (found.area_by_chance, found.area_of_oracle) == (0.25, pytest.approx(1 / 16))


def test_equal_confidences_are_one_threshold() -> None:
    """What is equally sure is kept together; confidences that are all the same have the area of chance, whatever their order."""
    told = [(0.5, True)] * 3 + [(0.5, False)]
    for order in (told, told[::-1]):
        found = risk_coverage(trials(*order))
        assert ([p.coverage for p in found.points], found.area) == ([1.0], pytest.approx(0.25))
        assert found.area == found.area_by_chance


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.8, 0.9]), st.booleans()), min_size=1, max_size=40))
def test_laws(told: list[tuple[float, bool]]) -> None:
    """Coverage rises to 1 as the threshold falls, each interval has its risk inside, no area is below that of an oracle."""
    found = risk_coverage(trials(*told))
    assert [p.coverage for p in found.points] == sorted({p.coverage for p in found.points})
    assert (found.points[-1].coverage, found.points[-1].risk) == (1.0, pytest.approx(found.area_by_chance))
    assert [p.threshold for p in found.points] == sorted({sure for sure, _ in told}, reverse=True)
    assert all(0 <= p.low <= p.risk + 1e-9 and p.risk - 1e-9 <= p.high <= 1 for p in found.points)
    assert found.area_of_oracle - 1e-9 <= found.area


def test_a_chosen_threshold_keeps_the_risk() -> None:
    """Of 80 suites with 300 scenarios the true risk behind the chosen threshold is above the stated 10 % in 5 % at most.

    The mutant takes the lowest threshold whose measured risk is 10 %: nearly every second time it promises too much.
    """
    above = naive = chosen = 0
    for seed in range(80):
        found = drawn(300, seed)
        choice = found.choose(0.1)
        if choice.threshold is not None:
            chosen += 1
            above += true_risk(choice.threshold) > 0.1
            assert choice.bound <= 0.1
        naive += true_risk(min(p.threshold for p in found.points if p.risk <= 0.1)) > 0.1
    print(f"promised too much: {above} of 80, the mutant {naive}; chosen in {chosen}")
    assert (above <= 80 * 0.05, naive > 80 * 0.3, chosen > 80 * 0.3) == (True, True, True)


def test_too_little_is_said() -> None:
    """With fewer scenarios than a risk needs even without a failure none is chosen, however often each was repeated; nor where too many fail."""
    repeated = [Judged(confidence=0.9, passed=True, scenario=str(n % 20)) for n in range(200)]
    assert "20 scenarios say how sure they are; at least 29 are needed" in str(risk_coverage(repeated).choose(0.1))
    assert str(risk_coverage(trials(*[(0.9, n % 2 == 0) for n in range(60)])).choose(0.1)).endswith("its upper bound is 0.613")
    everything = risk_coverage(trials(*[(0.9, True)] * 29)).choose(0.1)
    assert (everything.threshold, everything.coverage) == (0.9, 1.0)
    for risk in (0.0, 1.0, math.nan):
        with pytest.raises(UsageError, match="between 0 and 1"):
            risk_coverage(repeated).choose(risk)
    with pytest.raises(UsageError, match="no trial says"):
        risk_coverage([])


def test_many_points_are_thinned_out() -> None:
    """A frame of thousands of trials stays small, from the surest to all of them."""
    found = drawn(1_000, 1)
    assert (len(found.points), found.points[-1].coverage, len(found.table()[1])) == (MOST_POINTS, 1.0, 8)
    assert [row["config"] for row in found.rows()[:1]] == ["confidence"]
