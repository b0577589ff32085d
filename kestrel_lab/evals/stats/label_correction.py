"""Corrected rates: what a rate of passed trials would be by a person's labels, of which there are few, and a
judge's verdicts, which every trial has and which err.

Prediction-powered inference: the rate by the labels, plus the part of the judge's rate over all trials that
the labels show to be of use. In large samples it is without bias whatever the judge is like, and never less
sure than the labels alone: A. N. Angelopoulos, J. C. Duchi and T. Zrnic, PPI++: Efficient Prediction-Powered
Inference (2023, arXiv:2311.01453). Labels that were drawn with unequal probabilities weigh by their inverse:
T. Zrnic and E. J. Candès, Active Statistical Inference (2024, arXiv:2403.03208).

Two things are added for suites, which have 30 to 100 labels and rates near 1. One pseudo-label in each cell
of the table of labels by verdicts, as heavy as the labels of one cluster on average, keeps intervals of small
samples from missing the truth: the idea of A. Agresti and B. A. Coull, Approximate is better than "exact" for
interval estimation of binomial proportions, The American Statistician 52 (1998) 119-126. And the variance is
summed over clusters, since trials of one scenario resemble each other. `python -m bench coverage` repeats the
measurement.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kestrel_lab.core.calls import format_count
from kestrel_lab.evals.stats.distributions import t_quantile
from kestrel_lab.evals.stats.intervals_and_tests import ALPHA, NOTHING, Interval, proportion_interval

ENOUGH_LABELS: Final = 30
"""Labels from which on intervals were measured to cover the truth."""
_CELLS: Final = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
"""Label and verdict of each pseudo-label."""


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
    """How many labels alone would give an interval as narrow."""
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
    mean, label_parts, verdict_parts, shift = _influences(sample, labelled, len(groups))
    squares = math.fsum(b * b for b in verdict_parts)
    tuned = -math.fsum(a * b for a, b in zip(label_parts, verdict_parts, strict=True)) / (squares or 1.0)
    trust = min(1.0, max(0.0, tuned))
    shares = _by_cluster(sample, [a + trust * b for a, b in zip(label_parts, verdict_parts, strict=True)])
    alone = math.fsum(part**2 for part in _by_cluster(sample, label_parts).values())
    df = len(groups) - 1
    variance = math.fsum(part**2 for part in shares.values())
    se, middle = math.sqrt(variance * (df + 1) / df), mean + trust * shift
    reach = t_quantile(1 - alpha / 2, df) * se
    return CorrectedRate(
        interval=Interval(
            mean=min(1.0, max(0.0, middle)),
            low=max(0.0, middle - reach),
            high=min(1.0, middle + reach),
            se=se,
            clusters=len(groups),
            n=len(labelled),
        ),
        trust=trust,
        worth=len(labelled) * alone / variance if variance > 0 else math.nan,
        shares=shares,
    )


def corrected_difference(base: JudgedSample, head: JudgedSample, *, alpha: float = ALPHA) -> Interval:
    """Return the difference of two corrected rates, head minus base; clusters of the same name are pairs.

    Pseudo-labels of both sides are pairs, too, of equal labels and unequal verdicts. Counted apart they would
    make intervals far wider than stated, and equal ones would cancel: then intervals cover 92 to 95 %.
    """
    before, after = (corrected_rate(side, alpha=alpha) for side in (base, head))
    n, clusters = (min(one, other) for one, other in zip(_size(before), _size(after), strict=True))
    if clusters < 2 or math.isnan(before.interval.low) or math.isnan(after.interval.low):
        return replace(NOTHING, n=n, clusters=clusters)
    paired = {_partner(cluster): share for cluster, share in before.shares.items()}
    errors = [
        after.shares.get(cluster, 0.0) - paired.get(cluster, 0.0)
        for cluster in dict.fromkeys((*paired, *after.shares))
    ]
    se = math.sqrt(math.fsum(error**2 for error in errors) * clusters / (clusters - 1))
    middle, reach = after.interval.mean - before.interval.mean, t_quantile(1 - alpha / 2, clusters - 1) * se
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


def _influences(
    sample: JudgedSample, labelled: Sequence[int], groups: int
) -> tuple[float, list[float], list[float], float]:
    """Return the rate by labels, what each trial and pseudo-label adds to its error, what it adds to that of
    the shift, and the shift: how much higher the judge's rate is over all trials than over the labelled ones.
    """
    size = len(sample.verdicts)
    every = sample.weights or [1.0] * size
    drawn = [
        every[place] / (sample.probabilities[place] or 1.0) if sample.probabilities else every[place]
        for place in labelled
    ]
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
    return mean, labels, verdicts, judged - seen


def _by_cluster(sample: JudgedSample, parts: Sequence[float]) -> dict[Hashable, float]:
    """Return the sum of the parts of each cluster; each pseudo-label is a cluster of its own."""
    found: dict[Hashable, float] = {}
    size = len(sample.verdicts)
    for place, part in enumerate(parts):
        cluster = sample.cluster(place) if place < size else _Pseudo(*_CELLS[place - size])
        found[cluster] = found.get(cluster, 0.0) + part
    return found


def _partner(cluster: Hashable) -> Hashable:
    """Return the cluster of the other side that is paired with one: itself, or for a pseudo-label the one of
    the same label and the other verdict.
    """
    return cluster._replace(verdict=1 - cluster.verdict) if isinstance(cluster, _Pseudo) else cluster
