"""What was labelled: numbers by person, agreement between persons, and each person's own consistency."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel_lab.checks.llm_judge import hash_rubric
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.labels.agreement import Ratings, cohen_kappa, krippendorff_alpha, raw_agreement
from kestrel_lab.evals.labels.stored_labels import Label, current_rubric, stored_labels
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval, wilson_proportion
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class LabelReport(PartsView):
    """The labels of a suite by its current rubric; those of earlier versions are only counted."""

    suite: str
    rubric: str
    labels: tuple[Label, ...]
    older: tuple[Label, ...] = ()
    """Labels by earlier versions of the rubric."""
    clusters: Mapping[str, str] | None = None
    """By run, the group of its scenario: trials of one group resemble each other."""

    @property
    def headline(self) -> str:
        """How many trials are labelled, by how many persons."""
        runs = {label.run for label in self.labels if label.said.value is not None}
        people = {label.said.who for label in self.labels}
        return (
            f"suite {self.suite}: {format_count(len(runs), 'trial')} labelled by "
            f"{format_count(len(people), 'person')}"
        )

    @property
    def frame(self) -> pd.DataFrame:
        """One row per label: `run`, `who`, `value`, `note`, `probability`, `repeat`, `rubric_hash`, `at`, and
        whether its rubric is the `current` one.
        """
        wanted = hash_rubric(self.rubric) if self.rubric else ""
        return unit_frame(
            [
                {
                    "run": label.run,
                    "who": label.said.who,
                    "value": label.said.value,
                    "note": label.said.note,
                    "probability": label.said.probability,
                    "repeat": label.said.repeat,
                    "rubric_hash": label.said.rubric_hash,
                    "at": label.at,
                    "current": label.said.rubric_hash == wanted,
                }
                for label in (*self.older, *self.labels)
            ]
        )

    def parts(self) -> Iterable[Part]:
        """Return the numbers by person, the agreement, and what is left out."""
        found: list[Part] = [
            f"rubric: {one_line(self.rubric, 300)}",
            Table(("who", "labels", "rubric met", "skipped", "same label again"), [*self._people()]),
        ]
        if len({label.said.who for label in self.labels}) > 1:
            found += [
                "",
                "agreement between people (95 %)",
                Table(("measure", "value (95 %)", "trials"), agreement_rows(self.between())),
            ]
        if self.older:
            found.append(
                f"{format_count(len(self.older), 'label')} by earlier versions of the rubric: marked, and "
                "counted nowhere"
            )
        return found

    def between(self) -> dict[str, Interval]:
        """Return Krippendorff's alpha, Cohen's kappa and raw agreement between people."""
        return measures_of(
            _ratings((label, label.said.who) for label in self.labels if not label.said.repeat),
            self.clusters,
        )

    def within(self, who: str) -> Interval:
        """Return how often a person gave a trial that came back the same label."""
        first = {label.run: label.said.value for label in self.labels if _is(label, who, repeat=False)}
        again = [label for label in self.labels if _is(label, who, repeat=True) and label.run in first]
        same = sum(label.said.value == first[label.run] for label in again)
        return wilson_proportion(same, len(again)) if again else NOTHING

    def _people(self) -> Iterable[Sequence[str]]:
        for who in dict.fromkeys(label.said.who for label in self.labels):
            values = [label.said.value for label in self.labels if _is(label, who, repeat=False)]
            own = self.within(who)
            given = [value for value in values if value is not None]
            yield (
                who,
                str(len(given)),
                f"{sum(given)} of {len(given)}",
                str(len(values) - len(given) or ""),
                f"{own.text('{:.0%}'.format, '–')} of {own.n}" if own.n else "none came back yet",
            )


def label_report(store: SessionStore, suite: str, clusters: Mapping[str, str] | None = None) -> LabelReport:
    """Return what was labelled of a suite, without anything of trials that were removed."""
    rubric = current_rubric(store, suite)
    labels = stored_labels(store, suite)
    wanted = hash_rubric(rubric) if rubric else ""
    return LabelReport(
        suite=suite,
        rubric=rubric,
        labels=tuple(label for label in labels if label.said.rubric_hash == wanted),
        older=tuple(label for label in labels if label.said.rubric_hash != wanted),
        clusters=clusters,
    )


def measures_of(ratings: Ratings, clusters: Mapping[str, str] | None) -> dict[str, Interval]:
    """Return the measures of agreement by name."""
    return {
        "Krippendorff's alpha": krippendorff_alpha(ratings, clusters),
        "Cohen's kappa": cohen_kappa(ratings, clusters),
        "raw agreement": raw_agreement(ratings, clusters),
    }


def agreement_rows(measures: Mapping[str, Interval]) -> list[tuple[str, str, str]]:
    """Return a row of texts per measure; one that cannot be computed says why."""
    return [
        (
            name,
            found.text("{:.2f}".format, " to ") if found.mean == found.mean else "unknown: no two differ",
            str(found.n),
        )
        for name, found in measures.items()
    ]


def _ratings(labels: Iterable[tuple[Label, str]]) -> dict[str, dict[str, Hashable]]:
    found: dict[str, dict[str, Hashable]] = {}
    for label, who in labels:
        if label.said.value is not None:
            found.setdefault(label.run, {})[who] = label.said.value
    return found


def _is(label: Label, who: str, *, repeat: bool) -> bool:
    """Return whether it is a first label, or a later one, of the person."""
    return label.said.who == who and label.said.repeat == repeat
