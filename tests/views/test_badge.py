"""The badge beside an answer: which word stands for which number, and what is said of it."""

from typing import Any

import pytest

from kestrel_lab.core.events.union import RunFinished, VerifierFinished
from kestrel_lab.views.confidence_badge import badge_of


@pytest.mark.parametrize(
    ("verdict", "support", "known", "text"),
    [
        (None, None, {}, "confidence: unknown"),
        (0.9, None, {}, "confidence: high (.90, not calibrated)"),
        (0.8, 0.44, {}, "confidence: medium (.62, not calibrated)"),
        (0.2, None, {}, "confidence: low (.20, not calibrated)"),
        (None, 0.95, {}, "confidence: medium (.95 by support alone, not calibrated)"),
        (None, 0.1, {}, "confidence: unknown (.10 by support alone, not calibrated)"),
        (
            None,
            0.1,
            {"share": 0.71, "trials": 60, "suite": "work"},
            "confidence: medium (.10; of answers this sure, 71 % were right: 60 trials of suite work)",
        ),
    ],
)
def test_words_and_numbers(verdict: float | None, support: float | None, known: dict[str, Any], text: str) -> None:
    """Verdicts and trials decide the word; support alone never makes an answer sure, nor its absence a bad one."""
    events = [VerifierFinished(step="s", verifier="model", passed=True, confidence=verdict)]
    badge = badge_of([*events, RunFinished(outcome="complete", answer="a", support=support, calibrated=known)])
    assert (str(badge), badge.word) == (text, text.split()[1])


def test_no_markup_comes_from_a_name() -> None:
    """A suite may be called anything."""
    known: dict[str, Any] = {"share": 0.5, "trials": 20, "suite": "<img src=x>\u202e"}
    page = badge_of([RunFinished(outcome="complete", answer="a", support=0.5, calibrated=known)])._repr_html_()
    assert ("<img" in page, "\u202e" in page, "&lt;img src=x&gt;" in page) == (False, False, True)
