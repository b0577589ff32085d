"""How sure a run is of its answer: one number of what verifiers said, what the run saw, and what the review of the answer found.

It is made so:

- from verifiers, of the last verdict of each that states a confidence the least: the confidence where it passed the
  answer, one minus it where it did not;
- from the run, the mean support of the answer's claims in what tools answered;
- the mean of these two, or the one there is;
- times `PER_CONCERN` for each concern of the review that is not minor.

With neither of the two nothing is stated. The number is not calibrated: nothing here says how often answers with .8 are
right. Trials of a suite say that, see `evals.stored.calibration`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from kestrel_lab.core.events.union import Event, RunFinished, VerifierFinished

PER_CONCERN: Final = 0.8
Basis = Literal["verdict", "support", "verdict and support"]
"""What a confidence rests on; those of another basis mean something else, and are not calibrated together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """A confidence, from 0 to 1, and what it was made of."""

    value: float
    basis: Basis
    why: str


def stated(events: Iterable[Event]) -> Stated | None:
    """The confidence that a run's events state, by the formula above; `None` where nothing says how sure the answer is."""
    last: dict[str, VerifierFinished] = {}
    end: RunFinished | None = None
    for event in events:
        if isinstance(event, VerifierFinished):
            last[event.verifier] = event
        elif isinstance(event, RunFinished):
            end = event
    sure = [each.confidence if each.passed else 1 - each.confidence for each in last.values() if each.confidence is not None]
    support = None if end is None else end.support
    parts = [*([min(sure)] if sure else []), *([] if support is None else [support])]
    if not parts:
        return None
    found = 0 if end is None else sum(one.get("severity") != "minor" for one in end.concerns)
    why = [f"its claims have a support of {short(support)} in what the run saw"] if support is not None else []
    why += [f"verifiers are sure of it by {short(min(sure))}" if sure else "no verifier said how sure it is"]
    why += [f"{found} concern{' takes' if found == 1 else 's take'} from it"] if found else []
    return Stated(
        value=sum(parts) / len(parts) * PER_CONCERN**found,
        basis="verdict and support" if len(parts) == 2 else "verdict" if sure else "support",
        why="; ".join(why),
    )


def short(value: float) -> str:
    """A share with two places: `.62`, `1.0`."""
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0") else "1.0"
