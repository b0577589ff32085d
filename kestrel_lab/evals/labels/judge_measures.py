"""A model judge as an instrument: how often it is right, and where it leans, measured by labels of people.

Trials are weighted by the inverse of the probability with which they were drawn, and clustered by scenario.
A judge is measured by labels of its own rubric only; one of which model, prompt or rubric changed is another
judge, and says how many labels it has to be measured on again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.checks.llm_judge import hash_rubric
from kestrel_lab.core.events.union import TrialJudged
from kestrel_lab.evals.labels.agreement import cohen_kappa, raw_agreement
from kestrel_lab.evals.labels.label_report import agreement_rows, measures_of
from kestrel_lab.evals.labels.stored_labels import (
    TrialLabel,
    combine_labels,
    current_rubric,
    stored_labels,
)
from kestrel_lab.evals.labels.verdicts import JudgeVersion, Verdicts, stored_verdicts
from kestrel_lab.evals.stats.distributions import t_quantile
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval, proportion_interval
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    import pandas as pd

FEWEST: Final = 30
"""Labels below which a judge counts as not measured: its interval would be wider than 35 points."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeMeasures:
    """How often one judge is right, and where it leans; shares from 0 to 1 with 95 % intervals."""

    version: JudgeVersion
    labels: int
    """Labelled trials that it judged."""
    missing: int
    """Labelled trials without a verdict of it."""
    sensitivity: Interval
    """How often it passes what people pass."""
    specificity: Interval
    """How often it fails what people fail."""
    agreement: Interval
    kappa: Interval
    lenient: Interval
    """By how much more it passes than people do."""
    longer: Interval
    """By how much more lenient it is to the longer half of the answers than to the shorter, among right and
    among wrong answers.
    """
    families: Mapping[str, Interval]
    """By the family of the judged model, by how much more lenient it is to it than to the others, among right
    and among wrong answers.
    """
    same_again: Interval
    """How often it says the same when asked again."""
    same_swapped: Interval
    """How often it says the same when rubric, goal and answer come in the reverse order."""

    @property
    def labels_needed(self) -> int:
        """How many more labels with a verdict it takes before it counts as measured."""
        return max(0, FEWEST - self.labels)

    def record(self) -> dict[str, Any]:
        """Return a row for a frame."""
        named = {
            name: getattr(self, name)
            for name in (
                *("sensitivity", "specificity", "agreement", "kappa", "lenient", "longer"),
                *("same_again", "same_swapped"),
            )
        }
        named |= {f"lenient to {family}": found for family, found in self.families.items()}
        columns = {key: value for name, found in named.items() for key, value in found.columns(name).items()}
        return {**self.version._asdict(), "labels": self.labels, "missing": self.missing, **columns}


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class JudgeReport(PartsView):
    """The judges of a suite, measured by its labels."""

    suite: str
    judges: tuple[JudgeMeasures, ...]
    labels: int
    rubric_hash: str
    """Of the labels."""
    between: Mapping[str, Interval]
    """Agreement of the judges with each other."""
    unmeasured: tuple[JudgeVersion, ...] = ()
    """Judges by another rubric than the labels."""
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """How many judges, and by how many labels."""
        return (
            f"suite {self.suite}: {format_count(len(self.judges), 'judge')} measured by "
            f"{format_count(self.labels, 'label')}"
        )

    @property
    def frame(self) -> pd.DataFrame:
        """One row per judge: model, hashes of prompt and rubric, `labels`, `missing`, and each measure with
        `…_low` and `…_high`.
        """
        return unit_frame([one.record() for one in self.judges])

    def parts(self) -> Iterable[Part]:
        """Return the tables of how often judges are right and where they lean, and what is to be done."""
        found: list[Part] = []
        if self.judges:
            found += [Table(_RIGHT, [*map(_right, self.judges)]), "", "where it leans (points, 95 %)"]
            found.append(
                Table(
                    ("judge (prompt/rubric)", "measure", "value (95 %)", "trials"),
                    [row for one in self.judges for row in _leanings(one)],
                )
            )
        if len(self.judges) > 1:
            found += ["", "agreement between judges (95 %)"]
            found.append(Table(("measure", "value (95 %)", "trials"), agreement_rows(self.between)))
        return [*found, *self.lines()]

    def lines(self) -> list[str]:
        """Return what is to be done before the judges can be relied on."""
        found = [*self.notes]
        if not self.labels:
            found.append(
                f"nothing is labelled by the current rubric: kestrel eval label {self.suite}; a judge is "
                f"measured on {FEWEST} labels at least"
            )
        if not (self.judges or self.unmeasured):
            found.append(
                f"no judge gave a verdict yet: kestrel eval judge {self.suite} --model NAME asks one"
            )
        for one in self.judges:
            if one.missing:
                found.append(
                    f"{one.version} has to be measured on {format_count(one.missing, 'label')} again: it "
                    f"gave no verdict there (kestrel eval judge {self.suite} --model NAME)"
                )
            elif one.labels_needed:
                found.append(
                    f"{one.version} counts as measured with {format_count(one.labels_needed, 'more label')}"
                )
        found += [
            f"{version} judges by another rubric than the labels: it has to be measured on "
            f"{format_count(max(FEWEST, self.labels), 'label')} by its own rubric, and its scores "
            f"are mixed with no others"
            for version in self.unmeasured
        ]
        return found


_RIGHT = (
    "judge (prompt/rubric)",
    "labels",
    "sensitivity (95 %)",
    "specificity (95 %)",
    "agreement (95 %)",
    "kappa (95 %)",
)


def judge_report(
    store: SessionStore,
    suite: str,
    rows: Sequence[EvalRow],
    *,
    rubric_hash: str = "",
    notes: Sequence[str] = (),
) -> JudgeReport:
    """Measure the judges of a suite, by the labels of its current rubric, or of another.

    Verdicts are those that were asked for, and those of `graded` checks.
    """
    all_labels = stored_labels(store, suite)
    rubric = current_rubric(store, suite)
    wanted = rubric_hash or (hash_rubric(rubric) if rubric else "")
    runs = {row.run: row for row in rows}
    labels = {
        run: label
        for run, label in combine_labels(x for x in all_labels if x.said.rubric_hash == wanted).items()
        if run in runs
    }
    verdicts = stored_verdicts(store, suite, rows)
    mine = {version: given for version, given in verdicts.items() if wanted in ("", version.rubric_hash)}
    return JudgeReport(
        suite=suite,
        judges=tuple(measure_judge(version, given, labels, runs) for version, given in mine.items()),
        labels=len(labels),
        rubric_hash=wanted,
        between=measures_of(_by_run(mine), {run: row.group for run, row in runs.items()}),
        unmeasured=tuple(version for version in verdicts if version not in mine),
        notes=tuple(notes),
    )


def measure_judge(
    version: JudgeVersion, verdicts: Verdicts, labels: Mapping[str, TrialLabel], rows: Mapping[str, EvalRow]
) -> JudgeMeasures:
    """Measure one judge by labels of its rubric; `rows` say scenario, model and answer of each run."""
    judged = [run for run in labels if run in verdicts and run in rows]
    said = {run: float(verdicts[run][0].value) for run in judged}
    met = {run: labels[run].value for run in judged}
    # Trials that were likelier to be drawn stand for fewer others (Horvitz and Thompson).
    weight = {run: 1 / labels[run].probability for run in judged}
    cluster = {run: rows[run].group for run in rows}

    def share(values: Mapping[str, float], of: Mapping[str, float]) -> Interval:
        used = [run for run in judged if of[run]]
        return weighted_mean(
            [values[run] for run in used],
            [weight[run] * of[run] for run in used],
            [cluster[run] for run in used],
            share=True,
        )

    wrong = {run: said[run] - met[run] for run in judged}
    lengths = {run: len(str(rows[run].result.get("answer", ""))) for run in judged}
    middle = median(lengths.values()) if lengths else 0
    families = {run: model_family(str(rows[run].result.get("model", ""))) for run in judged}

    def more(inside: Iterable[bool]) -> Interval:
        return difference_within(
            [wrong[run] for run in judged],
            [weight[run] for run in judged],
            [cluster[run] for run in judged],
            [*inside],
            # A judge that errs at random passes some wrong answers and fails some right ones. Where right
            # answers are the longer ones, it would seem to lean to the shorter.
            [met[run] >= 0.5 for run in judged],
        )

    names = sorted({*families.values()})
    return JudgeMeasures(
        version=version,
        labels=len(judged),
        missing=sum(run not in verdicts for run in labels),
        sensitivity=share(said, met),
        specificity=share(
            {run: 1 - value for run, value in said.items()}, {run: 1 - value for run, value in met.items()}
        ),
        agreement=share({run: 1 - abs(value) for run, value in wrong.items()}, dict.fromkeys(judged, 1.0)),
        kappa=cohen_kappa(
            {run: {"judge": said[run], "people": met[run]} for run in judged if met[run] in (0, 1)}, cluster
        ),
        lenient=_within(
            weighted_mean([*wrong.values()], [*weight.values()], [cluster[run] for run in judged])
        ),
        longer=more(lengths[run] > middle for run in judged),
        families={name: more(families[run] == name for run in judged) for name in names if len(names) > 1},
        same_again=raw_agreement(_turns(verdicts, swapped=False), cluster),
        same_swapped=raw_agreement(_turns(verdicts, swapped=True), cluster),
    )


def model_family(model: str) -> str:
    """Return the family of a model by its name: the first word of its last part, such as `gpt` of
    `openai/gpt-5-mini`.
    """
    name = model.lower().rpartition("/")[2]
    found = re.match(r"[^\W\d_]+", name)
    return found[0] if found else name


def weighted_mean(
    values: Sequence[float],
    weights: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    share: bool = False,
) -> Interval:
    """Return a weighted mean with a cluster-robust interval, by linearisation of the ratio; for a `share`
    with equal weights `proportion_interval`, which holds at the edges, too.
    """
    if not values:
        return NOTHING
    # Weights are quotients of floats: those of one draw differ by rounding only.
    if share and max(weights) - min(weights) < 1e-12 and set(values) <= {0.0, 1.0}:
        return proportion_interval(values, clusters)
    mean, parts = _linear(values, weights)
    found = _interval(mean, parts, clusters)
    if not share or math.isnan(found.low):
        return found
    # All agree: no spread seen is no certainty.
    if found.se < 1e-12:
        even = proportion_interval([round(mean)] * found.clusters)
        return Interval(mean=mean, low=even.low, high=even.high, clusters=found.clusters, n=found.n)
    low, high = max(0.0, found.low), min(1.0, found.high)
    return Interval(mean=mean, low=low, high=high, se=found.se, clusters=found.clusters, n=found.n)


def difference(
    values: Sequence[float],
    weights: Sequence[float],
    clusters: Sequence[Hashable],
    inside: Sequence[bool],
) -> Interval:
    """Return how much larger the weighted mean is inside a group than outside, cluster-robust; nothing where
    a side has fewer than two.
    """
    # One value shows no spread.
    if min(sum(inside), len(inside) - sum(inside)) < 2:
        return NOTHING
    places = range(len(values))
    sides = [[at for at in places if inside[at] is side] for side in (True, False)]
    (one, first), (other, second) = (
        _linear([values[at] for at in side], [weights[at] for at in side]) for side in sides
    )
    parts = [*first, *(-part for part in second)]
    return _interval(one - other, parts, [clusters[at] for side in sides for at in side])


def difference_within(
    values: Sequence[float],
    weights: Sequence[float],
    clusters: Sequence[Hashable],
    inside: Sequence[bool],
    strata: Sequence[Hashable],
) -> Interval:
    """Return how much larger the weighted mean is inside a group than outside, compared within each stratum
    and averaged over those with two or more on each side, cluster-robust; nothing where there is none.

    A stratum counts by what it can tell: by the product of its weights inside and outside over their sum.
    """
    strata_places = group_values((stratum, place) for place, stratum in enumerate(strata))
    mean, total, used, parts = 0.0, 0.0, list[int](), list[float]()
    for places in strata_places.values():
        first, second = ([at for at in places if inside[at] is side] for side in (True, False))
        # One value shows no spread.
        if min(len(first), len(second)) < 2:
            continue
        sums = [math.fsum(weights[at] for at in side) for side in (first, second)]
        share = sums[0] * sums[1] / sum(sums)
        (one, plus), (other, minus) = (
            _linear([values[at] for at in side], [weights[at] for at in side]) for side in (first, second)
        )
        mean, total = mean + share * (one - other), total + share
        used += [*first, *second]
        parts += [share * part for part in plus] + [-share * part for part in minus]
    if not used:
        return NOTHING
    return _interval(mean / total, [part / total for part in parts], [clusters[at] for at in used])


def _linear(values: Sequence[float], weights: Sequence[float]) -> tuple[float, list[float]]:
    """Return the weighted mean, and how much each value moves it."""
    total = math.fsum(weights)
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
    return mean, [w * (v - mean) / total for w, v in zip(weights, values, strict=True)]


def _interval(mean: float, parts: Sequence[float], clusters: Sequence[Hashable]) -> Interval:
    sums: dict[Hashable, float] = {}
    for part, cluster in zip(parts, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + part
    count = len(sums)
    if count < 2:
        return Interval(mean=mean, low=math.nan, high=math.nan, clusters=count, n=len(parts))
    se = math.sqrt(math.fsum(part * part for part in sums.values()) * count / (count - 1))
    reach = t_quantile(0.975, count - 1) * se
    return Interval(mean=mean, low=mean - reach, high=mean + reach, se=se, clusters=count, n=len(parts))


def _within(found: Interval) -> Interval:
    """Return the interval of a mean of values from -1 to 1 within these bounds; t knows of none."""
    if math.isnan(found.low):
        return found
    return replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))


def _turns(verdicts: Verdicts, *, swapped: bool) -> dict[str, dict[str, Hashable]]:
    """Return, by run, the verdicts to be compared: all rounds, or the first one in both orders."""
    return {
        run: {f"{one.round}{one.swapped}": one.value for one in given if _counts(one, swapped=swapped)}
        for run, given in verdicts.items()
        if not swapped or any(one.swapped for one in given)
    }


def _counts(said: TrialJudged, *, swapped: bool) -> bool:
    return said.round == 0 if swapped else not said.swapped


def _by_run(verdicts: Mapping[JudgeVersion, Verdicts]) -> dict[str, dict[str, Hashable]]:
    found: dict[str, dict[str, Hashable]] = {}
    for version, given in verdicts.items():
        for run, said in given.items():
            found.setdefault(run, {})[str(version)] = said[0].value
    return found


def _right(one: JudgeMeasures) -> tuple[str, ...]:
    shares = (one.sensitivity, one.specificity, one.agreement)
    return (
        one.version.short,
        str(one.labels),
        *("unknown" if not found.n else found.text("{:.0%}".format, "–") for found in shares),
        one.kappa.text("{:.2f}".format) if one.kappa.mean == one.kappa.mean else "unknown",
    )


def _leanings(one: JudgeMeasures) -> Iterable[tuple[str, ...]]:
    named = {
        "passes more than people": one.lenient,
        "more lenient to longer answers": one.longer,
        **{f"more lenient to {family}": found for family, found in one.families.items()},
    }
    points = [(name, found, "{:+.0f}".format, 100.0) for name, found in named.items() if found.n]
    shares = {"the same when asked again": one.same_again, "the same in the reverse order": one.same_swapped}
    points += [(name, found, "{:.0f}".format, 100.0) for name, found in shares.items() if found.n]
    for name, found, shown, factor in points:
        yield one.version.short, name, found.times(factor).text(shown), str(found.n)
