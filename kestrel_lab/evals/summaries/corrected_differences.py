"""Differences of success rates in which a model judge has a say: corrected by people's labels where there are
enough, and without a verdict where there are not.

A judge may err in favour of one side. Nothing that the trials themselves show bounds that error: by verdicts
of a recorded judge, equal configurations are called different in more than half of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kestrel_lab.evals.stats.difference import Difference, detectable_mean
from kestrel_lab.evals.stats.intervals_and_tests import ALPHA, t_test
from kestrel_lab.evals.stats.label_correction import (
    ENOUGH_LABELS,
    JudgedSample,
    corrected_difference,
    corrected_rate,
)
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.corrected_rates import enough_labels, is_judged, sample_of
from kestrel_lab.evals.summaries.result_table import units_of_rows

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import CountErrors

BY_LABELS: Final = "labels"
"""The test of a difference of corrected rates."""
Sides = Sequence[Sequence[EvalRow]]
"""The trials of one configuration, at base and at head."""


def by_labels(
    found: Difference,
    sides: Sides,
    count_errors: CountErrors,
    *,
    broken: Sequence[float | None] = (None, None),
    alpha: float = ALPHA,
) -> Difference:
    """Return the corrected difference where both sides have enough labels, else `found`, which is by verdicts
    alone. It has a note in place of a test where a model judge has a say in it.

    `broken` says how trials that broke count on each side, where not as the suite says.
    """
    samples = [_labelled_sample(rows, count_errors, fill) for rows, fill in zip(sides, broken, strict=True)]
    if not all(map(enough_labels, samples)):
        note = uncorrected_note(sides)
        return without_verdict(found, note) if note else found
    base, head = (corrected_rate(sample).interval.mean for sample in samples)
    interval = corrected_difference(samples[0], samples[1])
    p = t_test(interval)
    return replace(
        found,
        base=base,
        head=head,
        interval=interval,
        p=p,
        p_holm=p,
        mde=detectable_mean(interval.se, interval.clusters - 1, alpha=alpha),
        test=BY_LABELS,
    )


def without_verdict(difference: Difference, note: str) -> Difference:
    """Return a difference that is no question: `note` says why there can be no verdict."""
    return replace(
        difference,
        note=note,
        verdict="inconclusive",
        p=math.nan,
        p_holm=math.nan,
        mde=math.nan,
        mde_broken=math.nan,
    )


def uncorrected_note(sides: Sides) -> str:
    """Return why verdicts of these trials decide nothing, with the number of labels that it takes and the
    command; empty where no model judge has a say in them.
    """
    if not any(is_judged(row) for rows in sides for row in rows):
        return ""
    counts = " and ".join(str(sum("label" in row.result for row in rows)) for rows in sides)
    return (
        "no verdict: a model judge has a say in these rates, and may err in favour of one side; "
        f"{ENOUGH_LABELS} labels of people on each side correct it, and there are {counts} "
        "(kestrel eval label SUITE)"
    )


def _labelled_sample(
    rows: Iterable[EvalRow], count_errors: CountErrors, broken: float | None
) -> JudgedSample:
    if broken is None and count_errors == "fail":
        broken = 0.0
    counted = [row for row in rows if row.outcome != "error" or broken is not None]
    return sample_of(
        [
            (
                unit,
                row.result["weight"],
                float(row.outcome == "pass") if row.outcome != "error" else broken or 0.0,
                row.result.get("label"),
                row.result.get("label_probability"),
            )
            for unit, row in zip(units_of_rows(counted), counted, strict=True)
        ]
    )
