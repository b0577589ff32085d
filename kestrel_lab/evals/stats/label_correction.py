"""Corrected rates: what a rate of passed trials would be by a person's labels, of which there are few, and a
judge's verdicts, which every trial has and which err.

Prediction-powered inference: the rate by the labels, plus the part of the judge's rate over all trials that
the labels show to be of use: A. N. Angelopoulos, J. C. Duchi and T. Zrnic, PPI++: Efficient
Prediction-Powered Inference (2023, arXiv:2311.01453). Labels that were drawn with unequal probabilities weigh
by their inverse: T. Zrnic and E. J. Candès, Active Statistical Inference (2024, arXiv:2403.03208).

The interval is Wilson's for the labels, with more observations in it where the judge is of use: as many as
would give the variance that is left. So it is no wider than that of the labels alone, apart from `_MARGIN`.

Suites have 30 to 100 labels and rates near 1, where what the judge is worth is hard to tell. One pseudo-label
in each cell of the table of labels by verdicts, as heavy as the labels of one cluster on average, keeps a few
labels from making a judge look perfect: the idea of A. Agresti and B. A. Coull, Approximate is better than
"exact" for interval estimation of binomial proportions, The American Statistician 52 (1998) 119-126. The use
of the judge is then shrunk by what as many labels would show of a judge that guesses (adjusted R²), and is
none where no more was seen. The variance is summed over clusters, since trials of one scenario resemble each
other. `python -m bench coverage --only corrected` and `python -m bench judges --draws 200` measure coverage
and width.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kestrel_lab.core.calls import format_count
from kestrel_lab.evals.stats.distributions import t_quantile
from kestrel_lab.evals.stats.intervals_and_tests import (
    ALPHA,
    NOTHING,
    Interval,
    effective_proportion,
    group_by_cluster,
    proportion_interval,
    score_interval,
)

ENOUGH_LABELS: Final = 30
"""Labels from which on intervals were measured to cover the truth."""
_CELLS: Final = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
"""Label and verdict of each pseudo-label."""
_MARGIN: Final = 1.015
"""By which the number of observations is divided, since what the judge is worth is an estimate."""


class _Pseudo(NamedTuple):
    """The cluster that a pseudo-label is."""

    label: float
    verdict: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedSample:
    """Trials with a judge's verdict each, some with a person's label; all sequences are of one length.

    A sample without labels, or with labels of one cluster alone, has no corrected rate.
    """

    verdicts: Sequence[float]
    """Between 0 and 1."""
    labels: Sequence[float | None]
    """Between 0 and 1; `None` where a trial has none."""
    probabilities: Sequence[float | None] = ()
    """With which each labelled trial was drawn, or any multiple of them; equal where not given."""
    clusters: Sequence[Hashable] | None = None
    """What each trial is one of, as a scenario; each trial by itself where not given."""
    weights: Sequence[float] | None = None
    """Of trials; equal where not given."""

    @property
    def labelled(self) -> list[int]:
        """The places of the trials with a label."""
        return [place for place, label in enumerate(self.labels) if label is not None]

    def cluster(self, place: int) -> Hashable:
        """Return the cluster of a trial."""
        return place if self.clusters is None else self.clusters[place]


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectedRate:
    """A rate by labels and verdicts together."""

    interval: Interval
    """`n` are the labels, `clusters` those that have a label."""
    trust: float = 0.0
    """How much of the judge's rate is used, from 0, none, to 1."""
    worth: float = math.nan
    """How many labels alone would give an interval as narrow; at least those that there are."""
    shares: dict[Hashable, float] = field(default_factory=dict, repr=False)
    """What each cluster adds to the error of the rate."""

    def sentence(self, verdicts: int) -> str:
        """Return what the judge is worth, for people; empty where the labels are too few to tell."""
        if math.isnan(self.worth):
            return ""
        return (
            f"{format_count(verdicts, 'verdict')} make "
            f"{format_count(self.interval.n, 'label')} worth {round(self.worth)}"
        )


def corrected_rate(sample: JudgedSample, *, alpha: float = ALPHA) -> CorrectedRate:
    """Return the corrected rate of a sample, with an interval that misses the truth with probability `alpha`.

    Where every trial has a label there is nothing to correct: it is the rate of the labels.
    """
    labelled = sample.labelled
    groups = {sample.cluster(place) for place in labelled}
    if len(labelled) == len(sample.verdicts) and labelled:
        labels = [label for label in sample.labels if label is not None]
        found = proportion_interval(labels, sample.clusters, sample.weights, alpha=alpha)
        mean, weights = found.mean, sample.weights or [1.0] * len(labels)
        parts = [(w / math.fsum(weights)) * (y - mean) for w, y in zip(weights, labels, strict=True)]
        return CorrectedRate(interval=found, worth=float(len(labels)), shares=_by_cluster(sample, parts))
    if len(groups) < 2:
        return CorrectedRate(interval=replace(NOTHING, n=len(labelled), clusters=len(groups)))
    influences = _influences(sample, labelled, len(groups))
    trust, remaining = _trust(influences, len(groups))
    shares = {cluster: label + trust * shift for cluster, (label, shift) in influences.items()}
    drawn = _drawn_weights(sample, labelled)
    label_rate, size, quantile = effective_proportion(
        group_by_cluster(
            [float(sample.labels[place] or 0.0) for place in labelled],
            [sample.cluster(place) for place in labelled],
            drawn,
        ),
        # Probabilities are quotients of floats: those of one draw differ by rounding only.
        uneven=max(drawn) - min(drawn) > 1e-9 * max(drawn),
        alpha=alpha,
    )
    rate = min(1.0, max(0.0, label_rate.mean + trust * _shift(sample, labelled, drawn)))
    low, high = score_interval(rate, size / remaining / _MARGIN, quantile)
    df = len(groups) - 1
    return CorrectedRate(
        interval=Interval(
            mean=rate,
            low=low,
            high=high,
            se=math.sqrt(math.fsum(share**2 for share in shares.values()) * (df + 1) / df),
            clusters=len(groups),
            n=len(labelled),
        ),
        trust=trust,
        worth=len(labelled) / remaining,
        shares=shares,
    )


def corrected_difference(base: JudgedSample, head: JudgedSample, *, alpha: float = ALPHA) -> Interval:
    """Return the difference of two corrected rates, head minus base; clusters of the same name are pairs.

    Pseudo-labels of both sides are pairs, too, of equal labels and unequal verdicts. Counted apart they would
    make intervals far wider than stated, and equal ones would cancel: then intervals cover 92 to 95 %.
    """
    before, after = (corrected_rate(side, alpha=alpha) for side in (base, head))
    n, clusters = (min(one, other) for one, other in zip(_size(before), _size(after), strict=True))
    # Beside the mean, how far each side's judge is trusted was estimated.
    df = clusters - 3
    if df < 1 or math.isnan(before.interval.low) or math.isnan(after.interval.low):
        return replace(NOTHING, n=n, clusters=clusters)
    paired = {_partner(cluster): share for cluster, share in before.shares.items()}
    errors = [
        after.shares.get(cluster, 0.0) - paired.get(cluster, 0.0)
        for cluster in dict.fromkeys((*paired, *after.shares))
    ]
    se = math.sqrt(math.fsum(error**2 for error in errors) * clusters / df)
    middle, reach = after.interval.mean - before.interval.mean, t_quantile(1 - alpha / 2, df) * se
    return Interval(
        mean=middle,
        low=max(-1.0, middle - reach),
        high=min(1.0, middle + reach),
        se=se,
        clusters=clusters,
        n=n,
    )


def _size(rate: CorrectedRate) -> tuple[int, int]:
    return rate.interval.n, rate.interval.clusters


def _trust(parts: dict[Hashable, tuple[float, float]], groups: int) -> tuple[float, float]:
    """Return how much of the judge's rate is used, and the share of the variance of the labels that is left.

    Of `parts` of the error by cluster, the first is that of the labels, the second that of the shift.
    """
    alone = math.fsum(label**2 for label, _ in parts.values())
    squares = math.fsum(shift**2 for _, shift in parts.values())
    product = -math.fsum(label * shift for label, shift in parts.values())
    if alone <= 0 or squares <= 0 or product <= 0 or groups < 3:
        return 0.0, 1.0
    # The share of the variance that the judge would explain by chance alone is taken off.
    explained = product**2 / (alone * squares)
    real = 1 - (1 - explained) * (groups - 1) / (groups - 2)
    trust = min(1.0, max(0.0, real) / explained * product / squares)
    remaining = (alone - 2 * trust * product + trust**2 * squares) / alone
    return (trust, remaining) if 0 < remaining < 1 else (0.0, 1.0)


def _drawn_weights(sample: JudgedSample, labelled: Sequence[int]) -> list[float]:
    """Return how many trials each labelled one stands for."""
    return [
        (sample.weights[place] if sample.weights else 1.0)
        / ((sample.probabilities[place] if sample.probabilities else None) or 1.0)
        for place in labelled
    ]


def _shift(sample: JudgedSample, labelled: Sequence[int], drawn: Sequence[float]) -> float:
    """Return how much higher the judge's rate is over all trials than over the labelled ones."""
    every = sample.weights or [1.0] * len(sample.verdicts)
    judged = math.fsum(w * verdict for w, verdict in zip(every, sample.verdicts, strict=True))
    seen = math.fsum(w * sample.verdicts[place] for w, place in zip(drawn, labelled, strict=True))
    return judged / math.fsum(every) - seen / math.fsum(drawn)


def _influences(
    sample: JudgedSample, labelled: Sequence[int], groups: int
) -> dict[Hashable, tuple[float, float]]:
    """Return by cluster what its trials add to the error of the rate by labels, and to that of the shift.

    Each pseudo-label is a cluster of its own.
    """
    size = len(sample.verdicts)
    every = sample.weights or [1.0] * size
    drawn = _drawn_weights(sample, labelled)
    scale = len(labelled) / math.fsum(drawn)
    weighted = [
        (place, weight * scale, float(sample.labels[place] or 0.0), sample.verdicts[place])
        for place, weight in zip(labelled, drawn, strict=True)
    ]
    pseudo = len(labelled) / groups
    weighted += [(size + at, pseudo, label, verdict) for at, (label, verdict) in enumerate(_CELLS)]
    total = math.fsum(weight for _, weight, _, _ in weighted)
    mean = math.fsum(weight * label for _, weight, label, _ in weighted) / total
    seen = math.fsum(weight * verdict for _, weight, _, verdict in weighted) / total
    whole = math.fsum(every)
    judged = math.fsum(w * verdict for w, verdict in zip(every, sample.verdicts, strict=True)) / whole
    labels = [0.0] * (size + len(_CELLS))
    verdicts = [w * (f - judged) / whole for w, f in zip(every, sample.verdicts, strict=True)]
    verdicts += [0.0] * len(_CELLS)
    for place, weight, label, verdict in weighted:
        labels[place] = weight * (label - mean) / total
        verdicts[place] -= weight * (verdict - seen) / total
    label_shares, shift_shares = _by_cluster(sample, labels), _by_cluster(sample, verdicts)
    return {cluster: (share, shift_shares[cluster]) for cluster, share in label_shares.items()}


def _by_cluster(sample: JudgedSample, parts: Sequence[float]) -> dict[Hashable, float]:
    """Return the sum of the parts of each cluster; each pseudo-label is a cluster of its own."""
    sums: dict[Hashable, float] = {}
    size = len(sample.verdicts)
    for place, part in enumerate(parts):
        cluster = sample.cluster(place) if place < size else _Pseudo(*_CELLS[place - size])
        sums[cluster] = sums.get(cluster, 0.0) + part
    return sums


def _partner(cluster: Hashable) -> Hashable:
    """Return the cluster of the other side that is paired with one: itself, or for a pseudo-label the one of
    the same label and the other verdict.
    """
    return cluster._replace(verdict=1 - cluster.verdict) if isinstance(cluster, _Pseudo) else cluster
