"""Corrected success rates of a suite's trials: what people's labels make of the verdicts of its checks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from kestrel_lab.checks.llm_judge import ModelGraded
from kestrel_lab.evals.labels.stored_labels import TrialLabel, labels_of
from kestrel_lab.evals.scanners.findings import with_findings
from kestrel_lab.evals.stats.groups import counting_units
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING
from kestrel_lab.evals.stats.label_correction import (
    ENOUGH_LABELS,
    CorrectedRate,
    JudgedSample,
    corrected_rate,
)
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.formatting import format_count

Judged = tuple[str, float, float, float | None, float | None]
"""What a trial counts with (its group), its weight, verdict, label and the label's probability; `None` where
it has no label.
"""


def with_annotations(rows: Iterable[EvalRow], store: SessionStore | None) -> Iterable[EvalRow]:
    """Yield the rows with what was said of their runs so far, as copies where anything was: `label` and
    `label_probability` in the result of those that people labelled by the suite's present rubric, and
    `found:NAME` among the metrics of those that scanners looked through.
    """
    return with_findings(_with_labels(rows, store), store)


def _with_labels(rows: Iterable[EvalRow], store: SessionStore | None) -> Iterable[EvalRow]:
    by_suite: dict[str, Mapping[str, TrialLabel]] = {}
    for row in rows:
        if store is not None and row.suite not in by_suite:
            by_suite[row.suite] = _read_labels(store, row.suite)
        found = by_suite[row.suite].get(row.run) if store is not None else None
        yield row if found is None else replace(row, result={**row.result, **_columns(found)})


def _read_labels(store: SessionStore, suite: str) -> Mapping[str, TrialLabel]:
    """Return the labels of a suite; results are often shown when the lab that made them is closed."""
    if not store.closed:
        return labels_of(store, suite)
    if not store.path.exists():
        return {}
    with closing(SessionStore(store.path)) as opened:
        return labels_of(opened, suite)


def _columns(label: TrialLabel) -> dict[str, float]:
    return {"label": label.value, "label_probability": label.probability}


def is_judged(row: EvalRow) -> bool:
    """Return whether a model judge had a say in whether the trial passed, by itself or in another check."""
    return any(map(_is_by_judge, row.scores))


def _is_by_judge(score: Mapping[str, Any]) -> bool:
    # A check of weight 0 is measured and decides nothing.
    if score.get("weight", 1) == 0:
        return False
    # What a judge used is counted in the score of each check that it is a part of.
    if score.get("judge") is not None or score.get("usage") is not None:
        return True
    # Older logs have only the label, see `ModelGraded.label`.
    return re.search(r"(^|[:;] )graded by ", str(score["check"])) is not None


def asks_judge(check: object) -> bool:
    """Return whether a model judge decides about this check."""
    return getattr(check, "needs", "") == ModelGraded.needs


def sample_of(trials: Sequence[Judged]) -> JudgedSample:
    """Return trials as a sample, clustered by what they count with."""
    return JudgedSample(
        verdicts=[verdict for _, _, verdict, _, _ in trials],
        labels=[label for _, _, _, label, _ in trials],
        probabilities=[probability for *_, probability in trials],
        clusters=[unit for unit, *_ in trials],
        weights=[weight for _, weight, *_ in trials],
    )


def sample_of_records(records: Iterable[Mapping[str, Any]]) -> JudgedSample:
    """Return the trials that count, given by `trial_record`, as a sample."""
    counted = [record for record in records if not math.isnan(record["success"])]
    units = counting_units([r["scenario"] for r in counted], [r["group"] for r in counted])
    return sample_of(
        [
            (unit, r["weight"], r["success"], r.get("label"), r.get("label_probability"))
            for unit, r in zip(units, counted, strict=True)
        ]
    )


def enough_labels(sample: JudgedSample) -> bool:
    """Return whether a corrected rate of the sample can be trusted."""
    return len(sample.labelled) >= ENOUGH_LABELS


def corrected_columns(sample: JudgedSample) -> dict[str, float]:
    """Return `labels`, how many there are, `corrected_rate` with its ends, and `labels_worth`, how many
    labels alone would say as much.

    The rate is not a number where there are too few labels; nothing is returned without any.
    """
    count = len(sample.labelled)
    if not count:
        return {}
    found = corrected_rate(sample) if enough_labels(sample) else CorrectedRate(interval=NOTHING)
    return {"labels": count, **found.interval.columns("corrected_rate"), "labels_worth": found.worth}


def with_corrected(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: Sequence[Mapping[str, Any]],
    *,
    after: str,
) -> tuple[list[str], list[list[str]]]:
    """Return a table with a column of corrected rates behind the one called `after`, if any row has labels;
    `columns` are those of `corrected_columns` for each row.
    """
    if not any(one.get("labels") for one in columns):
        return [*headings], [[*row] for row in rows]
    place = list(headings).index(after) + 1
    return (
        [*headings[:place], "corrected by labels (95 %)", *headings[place:]],
        [[*row[:place], corrected_text(one), *row[place:]] for row, one in zip(rows, columns, strict=True)],
    )


def corrected_text(columns: Mapping[str, Any]) -> str:
    """Return the corrected rate of `corrected_columns` for people: `81 % (70–92), 50 labels worth 80`, or how
    many labels are there of those that it takes.
    """
    if not columns.get("labels"):
        return "–"
    if math.isnan(columns["corrected_rate"]):
        return f"{columns['labels']} of {ENOUGH_LABELS} labels"
    rate, low, high = (100 * columns[f"corrected_rate{end}"] for end in ("", "_low", "_high"))
    worth = f" worth {columns['labels_worth']:.0f}" if math.isfinite(columns["labels_worth"]) else ""
    return f"{rate:.0f} % ({low:.0f}–{high:.0f}), {format_count(columns['labels'], 'label')}{worth}"
