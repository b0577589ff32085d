"""The stated confidence: what it is made of, and that nothing is stated where nothing says it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.events.union import RunFinished, VerifierFinished
from kestrel_lab.verification.confidence import Stated, short, stated

share = st.floats(0, 1)


def said(verifier: str, confidence: float | None, *, passed: bool = True) -> VerifierFinished:
    """A verdict."""
    return VerifierFinished(step="s", verifier=verifier, passed=passed, confidence=confidence)


def end(support: float | None, *severities: str) -> RunFinished:
    """The end of a run, with concerns of these severities."""
    return RunFinished(outcome="complete", answer="a", support=support, concerns=[{"severity": each} for each in severities])


def test_it_is_made_as_its_formula_says() -> None:
    """The least of the last verdicts, its mean with the support, less for what is not minor; refusals count against the answer."""
    assert stated([end(None)]) is None
    assert stated([said("form", None), end(None, "critical")]) is None
    assert stated([said("facts", 1.0, passed=False), said("facts", None), end(None)]) is None
    why = "its claims have a support of .60 in what the run saw; verifiers are sure of it by .80; 1 concern takes from it"
    found = stated([said("a", 0.1), said("a", 0.8), said("b", 0.9), end(0.6, "major", "minor")])
    assert found == Stated(value=pytest.approx(0.7 * 0.8), basis="verdict and support", why=why)
    alone = stated([said("a", 0.9, passed=False)])
    assert alone == Stated(value=pytest.approx(0.1), basis="verdict", why="verifiers are sure of it by .10")
    assert stated([end(0.5)]) == Stated(
        value=0.5, basis="support", why="its claims have a support of .50 in what the run saw; no verifier said how sure it is"
    )


@given(st.lists(share, max_size=3), st.none() | share, st.integers(0, 5))
def test_it_is_a_share_and_concerns_never_raise_it(verdicts: list[float], support: float | None, found: int) -> None:
    """From 0 to 1, whatever is said; each concern takes from it."""
    told = [said(str(number), each) for number, each in enumerate(verdicts)]
    with_them, without = stated([*told, end(support, *["major"] * found)]), stated([*told, end(support)])
    assert (with_them is None, without is None) == (not verdicts and support is None,) * 2
    if with_them is not None and without is not None:
        assert 0 <= with_them.value <= without.value <= 1


def test_shares_are_short() -> None:
    """Two places, no zero before the point."""
    assert [short(value) for value in (0, 0.625, 0.999, 1)] == [".00", ".62", "1.0", "1.0"]
