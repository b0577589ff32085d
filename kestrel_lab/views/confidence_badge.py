"""The confidence badge of an answer: a number, a word, and how often answers with such a number were right in trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from kestrel_lab.core.events.union import Event, RunFinished, VerifierFinished
from kestrel_lab.core.sanitize import plain
from kestrel_lab.verification.confidence import Basis, short, stated
from kestrel_lab.views.html.elements import macros

Word = Literal["high", "medium", "low", "unknown"]
HIGH: Final = 0.8
MEDIUM: Final = 0.5


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Badge:
    """The confidence of a run in its answer; `verification.confidence` says how the value is made."""

    value: float | None
    """From 0 to 1; `None` where nothing says it."""
    word: Word
    """`high` from .8, `medium` from .5, `low`, or `unknown`; of the calibrated share where there is one.

    Of support alone, not calibrated, it is `medium` at most and `unknown` below that: to be told in the words of what
    was read speaks for an answer, to be told in other words does not speak against it.
    """
    why: str
    basis: Basis | None = None
    calibrated: float | None = None
    """The share of answers stated this sure that were right in trials of the same model; `None` where none were kept."""
    trials: int = 0
    suite: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"confidence: {self.word}"
        if self.calibrated is None:
            alone = " by support alone" if self.basis == "support" else ""
            return f"confidence: {self.word} ({short(self.value)}{alone}, not calibrated)"
        right = f"of answers this sure, {self.calibrated:.0%} were right".replace("%", " %")
        return f"confidence: {self.word} ({short(self.value)}; {right}: {self.trials} trials of suite {plain(self.suite)})"

    def __repr__(self) -> str:
        return f"{self}\n{self.why}"

    def _repr_html_(self) -> str:
        return str(macros("elements.html").explained(str(self), self.why))


def badge_of(events: Iterable[Event]) -> Badge:
    """Return the badge of a run's answer, made of verdicts and the end of the run alone."""
    told = [event for event in events if isinstance(event, VerifierFinished | RunFinished)]
    found = stated(told)
    if found is None:
        return Badge(value=None, word="unknown", why="no verifier said how sure it is, and there is nothing to hold the answer against")
    known = cast("dict[str, Any]", next((event.calibrated for event in reversed(told) if isinstance(event, RunFinished)), {}))
    share = known.get("share")
    sure = found.value if share is None else float(share)
    return Badge(
        value=found.value,
        word=_word(sure, alone=share is None and found.basis == "support"),
        why=found.why,
        basis=found.basis,
        calibrated=None if share is None else float(share),
        trials=int(known.get("trials", 0)),
        suite=str(known.get("suite", "")),
    )


def _word(sure: float, *, alone: bool) -> Word:
    if alone:
        return "medium" if sure >= MEDIUM else "unknown"
    return "high" if sure >= HIGH else "medium" if sure >= MEDIUM else "low"
