"""The stated confidence: what it rests on, and that nothing is stated where nothing says it."""

from kestrel_lab.answers.confidence import StatedConfidence, format_share, stated_confidence
from kestrel_lab.core.events.union import RunFinished, VerifierFinished


def said(verifier: str, confidence: float | None, *, passed: bool = True) -> VerifierFinished:
    """A verdict."""
    return VerifierFinished(step="s", verifier=verifier, passed=passed, confidence=confidence)


def end(*states: str) -> RunFinished:
    """The end of a run whose claims are in these states."""
    return RunFinished(
        outcome="complete", answer="a", support=0.9, claims=[{"state": state} for state in states]
    )


def test_it_is_made_as_its_formula_says() -> None:
    """The least of the last verdicts; without any the share of claims that are cited; what words had in
    common counts no more.
    """
    assert stated_confidence([end()]) is None
    assert stated_confidence([said("form", None), end()]) is None
    assert stated_confidence([said("facts", 1.0, passed=False), said("facts", None), end()]) is None
    found = stated_confidence([said("a", 0.1), said("a", 0.8), said("b", 0.9), end("uncited")])
    assert found == StatedConfidence(value=0.8, basis="verdict", why="verifiers are sure of it by .80")
    refused = stated_confidence([said("a", 0.75, passed=False)])
    assert refused == StatedConfidence(value=0.25, basis="verdict", why="verifiers are sure of it by .25")
    assert stated_confidence([end("cited", "wrong")]) == StatedConfidence(
        value=0.5, basis="claims", why="1 of 2 claims cite what is there"
    )


def test_shares_are_short() -> None:
    """Two places, no zero before the point."""
    assert [format_share(value) for value in (0, 0.625, 0.999, 1)] == [".00", ".62", "1.0", "1.0"]
