"""The badge beside an answer: only what is certain or measured is said of it."""

from typing import Any

import pytest

from kestrel_lab.core.events.union import RunFinished, VerifierFinished
from kestrel_lab.views.confidence_badge import badge_of

WORK: dict[str, Any] = {"share": 0.71, "trials": 60, "suite": "work"}
MAJOR: dict[str, Any] = {"severity": "major", "what": "x", "check": "files_exist"}
STOPPED: dict[str, Any] = {
    "severity": "minor",
    "what": "the answer was not checked to its end: it took 2 s",
    "check": "unfinished",
}


@pytest.mark.parametrize(
    ("verdict", "end", "word", "text"),
    [
        (None, {}, "unchecked", "not checked"),
        (None, {"looked": True}, "checked", ""),
        (
            None,
            {"looked": True, "checked": 4},
            "checked",
            "4 of 4 places, quotes and actions that it names are right",
        ),
        (None, {"looked": True, "concerns": [MAJOR]}, "wrong", "1 concern"),
        (
            None,
            {"looked": True, "checked": 4, "concerns": [STOPPED]},
            "partly checked",
            "4 of 4 places, quotes and actions that it names are right "
            "· the checks stopped early: it took 2 s",
        ),
        (
            None,
            {"looked": True, "confirmed": 2},
            "checked",
            "2 actions confirmed by the log",
        ),
        (
            None,
            {"looked": True, "claims": [{"state": "cited"}, {"state": "uncited"}]},
            "checked",
            "1 of 2 claims cited",
        ),
        (0.9, {"looked": True}, "checked", "passed by a model judge"),
        (
            0.9,
            {"looked": True, "calibrated": WORK},
            "checked",
            "passed by a model judge · of answers this sure (.90), 71 % were right: 60 trials of suite work",
        ),
    ],
)
def test_words_and_numbers(verdict: float | None, end: dict[str, Any], word: str, text: str) -> None:
    """What a judge says of itself is no number on the badge before trials have measured it."""
    events = (
        []
        if verdict is None
        else [VerifierFinished(step="s", verifier="model", passed=True, confidence=verdict)]
    )
    badge = badge_of([*events, RunFinished(outcome="complete", answer="a", **end)])
    assert (badge.word, str(badge)) == (word, text)
    assert ("not calibrated" in badge.why) == (badge.value is not None and badge.calibrated is None)


def test_no_markup_comes_from_a_name() -> None:
    """A suite may be called anything."""
    known: dict[str, Any] = {"share": 0.5, "trials": 20, "suite": "<img src=x>\u202e"}
    page = badge_of(
        [RunFinished(outcome="complete", answer="a", looked=True, calibrated=known)]
    )._repr_html_()
    assert ("<img" in page, "\u202e" in page, "&lt;img src=x&gt;" in page) == (False, False, True)
