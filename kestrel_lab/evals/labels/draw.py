"""The draw: which trials are labelled, at random, with the probability of each, and which come back.

Labels correct the rate of a judge only where every trial could have been drawn and its probability is known.
To label what the judge is least sure of, and nothing else, breaks the correction: in simulations the interval
then covers the truth in 42 % of suites and not in 95. So trials are drawn with probabilities that are larger
where the judge is unsure and never 0.

Sources: T. Zrnic and E. Candès, Active statistical inference, ICML (2024), for probabilities by uncertainty,
mixed with equal ones; E. Ohlsson, Sequential Poisson sampling, Journal of Official Statistics 14 (1998), for
a sample of fixed size by permanent random numbers: a draw that asks for more contains the one that asked for
less.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.errors import UsageError

EQUAL_SHARE: Final = 0.5
"""How much of the probabilities is the same for all trials; the rest goes by uncertainty."""
_APART: Final = 5
"""At least so many other trials lie between a trial and its return, where there are as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnTrial:
    """A trial to be labelled."""

    run: str
    probability: float
    """With which it is in the draw."""
    repeat: bool = False


def draw_trials(
    runs: Sequence[str], number: int, *, seed: int, unsure: Mapping[str, float] | None = None
) -> list[DrawnTrial]:
    """Draw `number` of the trials, or all where there are no more, in random order with their probabilities.

    `unsure` says how unsure a judge is of each, from 0 to 1; trials it does not name count as unsure as the
    mean of the others. Without it all probabilities are equal. The same seed gives the same draw, and a
    larger number one that contains it. Raises `UsageError` for fewer than one.
    """
    if number < 1:
        raise UsageError(f"at least one trial is drawn, not {number}")
    probabilities = inclusion_probabilities(runs, min(number, len(runs)), unsure or {})
    chance = {run: _chance(seed, "draw", run) for run in runs}
    # Those that are certain come first; the others by their number over their probability.
    ranked = sorted(
        runs, key=lambda run: 0.0 if probabilities[run] >= 1 else chance[run] / probabilities[run]
    )
    drawn = ranked[: min(number, len(runs))]
    # The rank goes by probability, and the order of labelling must not: who stops early has a fair sample.
    drawn.sort(key=lambda run: _chance(seed, "order", run))
    return [DrawnTrial(run=run, probability=probabilities[run]) for run in drawn]


def inclusion_probabilities(
    runs: Sequence[str], number: int, unsure: Mapping[str, float]
) -> dict[str, float]:
    """Return the probability of each trial to be among `number`; they sum to it, and none is 0."""
    if not unsure:
        return dict.fromkeys(runs, number / len(runs))
    known = [max(0.0, unsure[run]) for run in runs if run in unsure]
    usual = math.fsum(known) / len(known) if known else 1.0
    sizes = {run: max(0.0, unsure.get(run, usual)) for run in runs}
    total = math.fsum(sizes.values())
    rates = {
        run: EQUAL_SHARE / len(runs) + (1 - EQUAL_SHARE) * (size / total if total else 1 / len(runs))
        for run, size in sizes.items()
    }
    certain: set[str] = set()
    # What is above 1 becomes 1, and the rest is shared out again, until nothing is above.
    while True:
        left = math.fsum(rate for run, rate in rates.items() if run not in certain)
        factor = (number - len(certain)) / left if left else 0.0
        more = {run for run, rate in rates.items() if run not in certain and rate * factor >= 1}
        if not more:
            return {run: 1.0 if run in certain else rate * factor for run, rate in rates.items()}
        certain |= more


def with_repeats(drawn: Sequence[DrawnTrial], seed: int) -> list[DrawnTrial]:
    """Return the draw with a tenth of its trials a second time, some places later."""
    # A tenth comes back a second time, which shows how consistent a person is.
    number = round(len(drawn) * 0.1) or int(len(drawn) > 3)
    # One of the last few would come back at once: the ones before them are chosen from where there are any.
    early = drawn[: max(1, len(drawn) - _APART)]
    again = sorted(early, key=lambda one: _chance(seed, "repeat", one.run))[:number]
    places = {one.run: place for place, one in enumerate(drawn)}
    keyed = [(float(place), one) for place, one in enumerate(drawn)]
    for one in again:
        later = places[one.run] + _APART + 0.5 + 2 * _APART * _chance(seed, "place", one.run)
        keyed.append((later, DrawnTrial(run=one.run, probability=one.probability, repeat=True)))
    return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]


def _chance(seed: int, what: str, run: str) -> float:
    """Return a number from 0 to 1 that belongs to the trial for ever."""
    digest = hashlib.blake2b(f"{seed}/{what}/{run}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56
