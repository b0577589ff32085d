"""Calibration is measured as it is: known answers, nothing claimed of too few trials, and a mutant that is
noticed.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stored.calibration import Calibration, JudgedTrial, measure_calibration
from kestrel_lab.runtime.review.calibration import StoredCalibration


def drawn(confidences: "np.ndarray", chances: "np.ndarray", seed: int = 1) -> list[JudgedTrial]:
    """Trials that pass with the chance at their place."""
    passed = np.random.default_rng(seed).random(len(chances)) < chances
    return [
        JudgedTrial(confidence=float(c), passed=bool(p), group=f"s{n % 50}")
        for n, (c, p) in enumerate(zip(confidences, passed, strict=True))
    ]


def test_known_answers() -> None:
    """Confidence .9 where 60 % pass is an error of 30 points; where confidences differ, each has a bin of its
    own.
    """
    trials = [JudgedTrial(confidence=0.9, passed=n < 60, group=str(n)) for n in range(100)]
    found = measure_calibration(trials)
    assert found.error == pytest.approx(0.3)
    assert found.steps == ((0.9, 0.6),)
    split = [JudgedTrial(confidence=0.2 + 0.6 * (n % 2), passed=n % 2 == 1, group=str(n)) for n in range(100)]
    assert measure_calibration(split).error == pytest.approx(0.2)
    assert [(b.confidence, b.passed, b.trials) for b in measure_calibration(split).bins] == [
        (pytest.approx(0.2), 0.0, 50),
        (pytest.approx(0.8), 1.0, 50),
    ]


def test_calibrated_confidences_are_told_from_others() -> None:
    """Outcomes drawn with the stated chances show a small error; reversed ones a large one, which a check
    that looks at the mean alone would miss.
    """
    sure = np.random.default_rng(3).random(600)
    right, wrong = measure_calibration(drawn(sure, sure)), measure_calibration(drawn(sure, 1 - sure))
    assert (
        abs(float(np.mean(sure)) - float(np.mean([j.passed for j in drawn(sure, 1 - sure)]))) < 0.05
    )  # the mutant's view
    assert right.error < 0.1 < 0.4 < wrong.error


def test_a_confidence_is_worth_what_passed() -> None:
    """The share that passes is recovered from overconfident statements, and never falls as confidence
    rises.
    """
    sure = np.random.default_rng(5).random(2000)
    kept = StoredCalibration(
        suite="s", config="c", trials=2000, steps=measure_calibration(drawn(sure, sure**3)).steps, most=1.0
    )
    assert kept.share(0.9) == pytest.approx(0.9**3, abs=0.08)
    assert kept.share(0.3) == pytest.approx(0.3**3, abs=0.08)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=20, max_size=60))
def test_laws(trials: list[tuple[float, bool]]) -> None:
    """Bins hold each trial once and are in order, steps rise, and everything that is a share is one."""
    found = measure_calibration(
        [JudgedTrial(confidence=c, passed=p, group=str(n % 7)) for n, (c, p) in enumerate(trials)]
    )
    assert sum(b.trials for b in found.bins) == len(trials)
    assert [b.confidence for b in found.bins] == sorted(b.confidence for b in found.bins)
    assert list(found.steps) == sorted(found.steps)
    assert [v for _, v in found.steps] == sorted(v for _, v in found.steps)
    assert all(0 <= value <= 1 for value in (found.error, *(share for _, share in found.steps)))
    assert isinstance(found, Calibration)
    assert "expected calibration error" in repr(found)


def test_too_few_trials_say_nothing() -> None:
    """It is an error that says how many are needed; so is a confidence that is none."""
    with pytest.raises(UsageError, match="3 trials have a confidence; calibration needs 20"):
        measure_calibration([JudgedTrial(confidence=0.5, passed=True, group="a")] * 3, "gpt")
    with pytest.raises(UsageError, match=r"from 0 to 1, not 1\.5"):
        measure_calibration([JudgedTrial(confidence=1.5, passed=True, group="a")] * 30)
