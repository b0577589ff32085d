"""Result of an ablation: what each part of a guidance file does to success, tokens and cost, with
intervals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.evals.commits.difference_texts import VERDICT_TONES, format_p_value
from kestrel_lab.evals.reports.page_data import interval_row, shown_table
from kestrel_lab.evals.reports.plots import EFFECT_WORDS, effects_figure
from kestrel_lab.evals.reports.result_view import ResultView
from kestrel_lab.evals.reports.suite_page import trials_of, write_page
from kestrel_lab.evals.stats.difference import Difference, no_difference
from kestrel_lab.evals.stats.factorial_pairs import Pair, Subset, judged_effects, part_effects
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval
from kestrel_lab.evals.stats.label_correction import ENOUGH_LABELS
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.studies.guidance_parts import DividedFile
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.best_configuration import format_points
from kestrel_lab.evals.summaries.corrected_differences import without_verdict
from kestrel_lab.evals.summaries.corrected_rates import is_judged
from kestrel_lab.evals.summaries.result_table import frame_record, label_kind, not_real
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_HEADINGS: Final = (
    "part",
    "verdict",
    "effect on success, points (95 %)",
    "p",
    "smallest detectable",
    "tokens (95 %)",
    "cost, USD (95 %)",
)
_METRICS: Final = {"token_usage": "tokens per trial", "cost_estimate": "cost per trial, USD"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOfTrials:
    """Two trials of one scenario: `first` had these parts of the file, `second` all the others."""

    parts: Subset
    first: EvalRow
    second: EvalRow


@dataclass(frozen=True, kw_only=True, repr=False)
class Ablation(ResultView):
    """What each part of a guidance file does, measured by pairs of trials."""

    suite: Suite
    file: str
    unit: str
    divided: DividedFile
    pairs: tuple[PairOfTrials, ...]
    margin: float
    """How large an effect on the success rate still counts as none."""
    reused: int
    """Trials that were stored before."""
    ended: str
    """What ended the study before all its trials were made; empty where nothing did."""
    store: SessionStore

    @property
    def frame(self) -> pd.DataFrame:
        """One row per part of the file.

        `part` (its number), `heading` above it, `text`, `verdict` (`helps`, `harms`, `no difference`, `no
        difference shown`); `effect` on the success rate with its 95 % interval `low` and `high`, `p`,
        `p_holm` (adjusted for all parts together), `mde` (the smallest effect that four of five such studies
        would find); `tokens` and `cost` with their intervals, missing where not known; `scope`, whether this
        speaks of `scenarios like these` or, with fewer than six, of `these scenarios`.
        """
        return unit_frame(
            [
                {
                    "part": part.number,
                    "heading": part.heading,
                    "text": part.text,
                    "verdict": EFFECT_WORDS[found.verdict],
                    "effect": found.interval.mean,
                    "low": found.interval.low,
                    "high": found.interval.high,
                    "p": found.p,
                    "p_holm": found.p_holm,
                    "mde": found.mde,
                    **tokens.columns("tokens"),
                    **cost.columns("cost"),
                    "scope": found.scope,
                }
                for part, found, tokens, cost in zip(
                    self.divided.parts, self.effects, *self._others.values(), strict=True
                )
            ]
        ).set_index("part")

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial, as in the frame of a suite's result, with the numbers of the `parts` that it
        had.
        """
        records = [
            {**frame_record(row, self.suite.count_errors), "parts": parts}
            for row, parts in self._with_parts()
        ]
        return unit_frame(records)

    def _with_parts(self) -> Iterator[tuple[EvalRow, str]]:
        """Yield each trial with the numbers of the parts that it had."""
        for pair in self.pairs:
            for row, mine in ((pair.first, True), (pair.second, False)):
                yield (
                    row,
                    " ".join(str(number) for number, inside in enumerate(pair.parts, 1) if inside is mine),
                )

    @cached_property
    def effects(self) -> list[Difference]:
        """The effect of each part on the success rate, with its verdict."""
        counted = [
            pair for pair in self.pairs if not (self.suite.count_errors == "exclude" and _is_broken(pair))
        ]
        pairs = [
            _pair(pair, *(float(row.outcome == "pass") for row in (pair.first, pair.second)))
            for pair in counted
        ]
        effects = judged_effects(pairs, margin=self.margin) or [no_difference()] * len(self.divided.parts)
        if not any(map(is_judged, self._rows)):
            return effects
        # Trials of many variants of a file are too few each for labels to correct them.
        note = (
            "no verdict: a model judge has a say in these rates, and may like or dislike what a part of the "
            "file does to answers; compare the file with and without the part (kestrel eval compare), where "
            f"{ENOUGH_LABELS} labels of people on each side correct the judge (kestrel eval label SUITE)"
        )
        return [without_verdict(effect, note) for effect in effects]

    @property
    def headline(self) -> str:
        """What was found, in one line."""
        counts = Counter(EFFECT_WORDS[found.verdict] for found in self.effects)
        effects = ", ".join(f"{counts[word]} {word}" for word in EFFECT_WORDS.values() if counts[word])
        suite = self.suite.name.partition("?ablate=")[0]
        return (
            f"{self.file}, {format_count(len(self.divided.parts), 'part')}: {effects} (suite "
            f"{suite}, {self._agent}, "
            f"{format_count(2 * len(self.pairs), 'trial')})"
        )

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return headings, and a row of texts for each part."""
        rows = []
        for part, found, tokens, cost in zip(
            self.divided.parts, self.effects, *self._others.values(), strict=True
        ):
            points, p = _text(found.interval.times(100), ".0f"), format_p_value(found.p_holm)
            mde = f"{100 * found.mde:.0f}" if math.isfinite(found.mde) else "–"
            rows.append(
                [
                    part.title,
                    EFFECT_WORDS[found.verdict],
                    points,
                    p,
                    mde,
                    _text(tokens, ".0f"),
                    _text(cost, ".4f"),
                ]
            )
        return _HEADINGS, rows

    def lines(self) -> list[str]:
        """Return what to read beside the table: what an effect is, how sure it is, what could not be
        decided.
        """
        scenarios = len({pair.first.scenario for pair in self.pairs})
        said = [
            "An effect is what a part changes on average over all choices of the other parts. Verdicts "
            "allow for all parts together: a part "
            "without an effect is said to help or to harm in at most one such study of twenty; "
            f"effects within {100 * self.margin:g} points count as none."
        ]
        open_ones = [found for found in self.effects if found.verdict == "inconclusive"]
        finite = [found.mde for found in open_ones if math.isfinite(found.mde)]
        if finite:
            # Half the effect takes four times the trials.
            reach = max(finite)
            said.append(
                f"{len(open_ones)} of {format_count(len(self.effects), 'part')} could not be "
                f"decided: with these "
                f"{format_count(2 * len(self.pairs), 'trial')} an effect is "
                f"found in four of five studies from {100 * reach:.0f} points on, with "
                f"{8 * len(self.pairs)} from about {50 * reach:.0f}."
            )
        elif open_ones and not open_ones[0].note:
            said.append("The trials do not suffice to tell the parts apart.")
        said += [f"{note[0].upper()}{note[1:]}." for note in {one.note for one in self.effects if one.note}]
        if self.ended:
            said.append(f"Ended because {self.ended}; asked again with more it goes on from here.")
        if self.reused:
            said.append(f"Stored before: {format_count(self.reused, 'trial')}.")
        if broke := sum(row.outcome == "error" for row in self._rows):
            said.append(
                f"{format_count(broke, 'trial')} broke (counted "
                f"{'as failed' if self.suite.count_errors == 'fail' else 'in no rate'})."
            )
        if self.effects and self.effects[0].scope == "these scenarios":
            said.append(
                f"With {format_count(scenarios, 'scenario')} this speaks of these scenarios only; "
                f"from six on it "
                "speaks of scenarios like these."
            )
        return [*said, *not_real({"config": self._config, "model_kind": kind} for kind in self._kinds)]

    def plot(self) -> Figure:
        """Draw the effects of all parts with their intervals: on success, tokens and cost."""
        others = {label: self._others[metric] for metric, label in _METRICS.items()}
        return effects_figure(
            self.headline, [part.title for part in self.divided.parts], self.effects, others
        )

    def report(self, path: str | Path) -> Path:
        """Write the page of the study: what each part does, the file with a verdict beside each of them, and
        every trial as on the page of a suite; returns its path.
        """
        numbers = Counter[str]()
        rows = []
        for row, parts in self._with_parts():
            numbers[row.scenario] += 1
            result = {**row.result, "model": f"{row.result['model']}, with parts {parts or 'none'}"}
            rows.append(replace(row, config=self._config, epoch=numbers[row.scenario], result=result))
        trials = trials_of(self.suite, rows, self.store, columns=[self._config])
        found = zip(self.divided.parts, self.effects, strict=True)
        texts = [[str(place), EFFECT_WORDS[d.verdict], part.text] for place, (part, d) in enumerate(found, 1)]
        tables: list[Json] = [
            ["Effects", shown_table(self.table())],
            ["The file, part by part", shown_table((("part", "verdict", "text"), texts))],
        ]
        index = trials.index(
            f"What {self.file} does, suite {self.suite.name.partition('?ablate=')[0]}",
            verdict=sanitize_text(f"{self.headline}."),
            plots=[effect_plot([part.title for part in self.divided.parts], self.effects)],
            tables=tables,
            notes=[*map(sanitize_text, self.lines())],
        )
        return write_page(path, trials, index)

    def __repr__(self) -> str:
        return (
            f"<ablation of {self.file} on suite {self.suite.name.partition('?ablate=')[0]}: "
            f"{format_count(2 * len(self.pairs), 'trial')}>"
        )

    def __str__(self) -> str:
        return TableView.__repr__(self)

    @property
    def _rows(self) -> list[EvalRow]:
        return [row for pair in self.pairs for row in (pair.first, pair.second)]

    @property
    def _config(self) -> str:
        return self.suite.configs[0].name.partition(" · ")[0]

    @property
    def _kinds(self) -> list[str]:
        return sorted({row.model_kind for row in self._rows})

    @property
    def _agent(self) -> str:
        """The configuration with the kinds of models that are not real: a scripted result is never shown
        without it.
        """
        return label_kind(self._config, ", ".join(kind for kind in self._kinds if kind != "real") or "real")

    @cached_property
    def _others(self) -> dict[str, list[Interval]]:
        """The effect of each part on other metrics, over pairs of which both trials have it."""
        found = {}
        for metric in _METRICS:
            values = [
                (pair, _value(pair.first, metric), _value(pair.second, metric))
                for pair in self.pairs
                if not _is_broken(pair)
            ]
            known = [_pair(pair, one, other) for pair, one, other in values if not math.isnan(one + other)]
            found[metric] = [interval for interval, _ in part_effects(known, bounded=False)] or [
                NOTHING
            ] * len(self.divided.parts)
        return found


def effect_plot(titles: Sequence[str], effects: Sequence[Difference]) -> dict[str, Any]:
    """Return the effects of parts on the success rate as a plot of the page."""
    return {
        "kind": "intervals",
        "title": "Effect on the success rate, points, 95 % interval",
        "unit": "points",
        "signed": True,
        "rows": [
            interval_row(title, d.interval.mean, d.interval.low, d.interval.high, VERDICT_TONES[d.verdict])
            | {"text": d.interval.text(format_points)}
            for title, d in zip(titles, effects, strict=True)
            if math.isfinite(d.interval.mean)
        ],
    }


def _pair(pair: PairOfTrials, first: float, second: float) -> Pair:
    return Pair(
        group=pair.first.group,
        parts=pair.parts,
        first=first,
        second=second,
        weight=pair.first.result["weight"],
    )


def _is_broken(pair: PairOfTrials) -> bool:
    return "error" in (pair.first.outcome, pair.second.outcome)


def _value(row: EvalRow, metric: str) -> float:
    """Return a metric of a trial; not a number where it is not known, as a cost without a price, or a cost of
    nothing.
    """
    value = float(row.metrics.get(metric, math.nan))
    unknown = metric == "cost_estimate" and (not value or row.metrics.get("unpriced_calls", 0) > 0)
    return math.nan if unknown else value


def _text(interval: Interval, form: str) -> str:
    return "–" if math.isnan(interval.mean) else interval.text(lambda value: f"{value:+{form}}")
