"""Result of a comparison: a suite at two commits, differences with verdicts, flips."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.commits.difference_texts import (
    VERDICT_TONES,
    difference_cells,
    difference_record,
    unit_notes,
    verdict_sentence,
)
from kestrel_lab.evals.commits.no_difference import by_construction
from kestrel_lab.evals.commits.row_differences import MARGIN, PRIMARY, compare_families, compare_rows
from kestrel_lab.evals.commits.sequential_compare import SequentialRun, decided_in_turns
from kestrel_lab.evals.commits.success_difference import label_note
from kestrel_lab.evals.gate_bounds import FailOn
from kestrel_lab.evals.reports.change_phrases import VERDICT_HEADINGS, change_phrase
from kestrel_lab.evals.reports.gate_decisions import (
    GateReport,
    decide_change,
    decide_gates,
    decide_without_base,
)
from kestrel_lab.evals.reports.junit import case_groups, write_junit
from kestrel_lab.evals.reports.markdown import DIFFERENCE_HEADINGS, code_span, comparison_markdown
from kestrel_lab.evals.reports.page_data import interval_row, shown_table
from kestrel_lab.evals.reports.result_view import ResultView
from kestrel_lab.evals.reports.suite_page import gate_table, trials_of, write_page
from kestrel_lab.evals.scenario_groups import with_groups
from kestrel_lab.evals.stats.difference import (
    SAME_CONVERSATIONS,
    SAME_FILES,
    Difference,
    Verdict,
    compare_scenarios,
    overall_verdict,
)
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.best_configuration import format_points
from kestrel_lab.evals.summaries.corrected_differences import BY_LABELS
from kestrel_lab.evals.summaries.corrected_rates import with_annotations
from kestrel_lab.evals.summaries.result_table import broke_in, label_kind, with_unit
from kestrel_lab.evals.summaries.trial_age import MOST_DAYS, age_text, apart_note, outdated_base
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import headline_html, paragraph_html, table_html

if TYPE_CHECKING:
    import pandas as pd

AUTO: Final = "auto"
"""In place of a base: the nearest ancestor on the main branch that has results."""
_SHOWN_FLIPS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Side:
    """One commit of a comparison."""

    name: str
    """The name that the user gave."""
    sha: str
    rows: tuple[EvalRow, ...]
    reused: int = 0
    """How many rows were stored before."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Scenarios that this commit cannot try, and why."""
    newer: bool = False
    """Whether the commit does not have the suite: files that it lacks came from the present checkout."""
    prompts_differ: bool = False
    """Whether the commit ran its own suite file, since other prompts stand in it than in the present one."""
    new_scenarios: frozenset[str] = frozenset()
    """Scenarios that the commit's own suite file does not have."""

    @property
    def title(self) -> str:
        """The name with the short hash."""
        return (
            self.name if not self.sha or self.sha.startswith(self.name) else f"{self.name} ({self.sha[:10]})"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(ResultView):
    """What changed from `base` to `head`, with how sure that is."""

    suite: Suite
    base: Side
    head: Side
    margin: float = MARGIN
    """How large a change still counts as none: of the success rate in points, of other metrics relative to
    base.
    """
    store: SessionStore | None = None
    """The log of the runs, for transcripts in the report."""
    same_files: bool = False
    """Whether both commits have the same files, so that their trials are of the same code."""
    no_base: str = ""
    """Why there is nothing to compare with; empty where there is."""
    run_notes: tuple[str, ...] = ()
    """How the trials were made."""
    expected: frozenset[str] | None = None
    """The scenarios that a verdict speaks of; those without trials of both sides could turn it over. `None`
    where only some were to be compared.
    """
    fail_on: FailOn = "worse"
    """What the gates fail on beside bounds that do not hold."""
    most_days: float = MOST_DAYS
    """How much older than the others trials of a hosted model may be."""
    sequence: SequentialRun | None = None
    """The looks that decided it, where trials were made in turns until one did."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per configuration and metric.

        `base`, `head`, `compare_scenarios` (head minus base) with its 95 % interval `low` and `high`, `p`,
        `p_holm` (adjusted for all configurations and metrics together), `verdict`, `mde` (the smallest
        difference that four of five such comparisons would find), `scenarios` compared and how many of them
        are `lower` and `higher` at head; `scope`: whether interval and p speak of `scenarios like these` or,
        with fewer than six, of `these scenarios`; `test`, where p is from; `note`, why there is no verdict,
        where there can be none.
        """
        return unit_frame(
            [
                {"config": config, "model_kind": self._kinds[config], "metric": key, **difference_record(d)}
                for (config, key), d in self._differences.items()
            ]
        )

    @property
    def families(self) -> pd.DataFrame:
        """One row per configuration, family of scenarios and metric, as in `frame`: the success rate, what
        checks measure (`recall@K`, `score:NAME`) and the suite's own metrics.

        Asked together, apart from the questions of `frame`: they tell where a change is, and no gate depends
        on them.
        """
        return unit_frame(
            [
                {
                    "config": config,
                    "family": family,
                    "metric": metric,
                    "model_kind": self._kinds[config],
                    **difference_record(d),
                }
                for (config, family, metric), d in self._by_family.items()
            ]
        )

    @property
    def verdict(self) -> Verdict:
        """`regression`, `improvement`, `stable` or `inconclusive`, by the success rates of all
        configurations.
        """
        return overall_verdict(
            [d.verdict for (_, metric), d in self._differences.items() if metric == PRIMARY]
        )

    @property
    def flips(self) -> pd.DataFrame:
        """Trials that passed on one side only: `scenario`, `config`, `epoch`, `base`, `head`, `reason` and
        both run ids.
        """
        columns = ["scenario", "config", "epoch", "base", "head", "reason", "base_run", "head_run"]
        return unit_frame(self._flips, columns=columns)

    def report(self, path: str | Path) -> Path:
        """Write the page of the comparison: its verdict, what changed sides, both sides of each trial beside
        each other; returns its path. See `EvalResult.report`.
        """
        columns = {
            (config, side.title): self._column(config, side) for config in self._kinds for side in self._sides
        }
        rows = [
            replace(row, config=columns[row.config, side.title]) for side in self._sides for row in side.rows
        ]
        pairs = [tuple(columns[config, side.title] for side in self._sides) for config in self._kinds]
        with ExitStack() as opened:
            trials = trials_of(
                self.suite,
                rows,
                *self._stores(opened),
                columns=[*columns.values()],
                pairs=[] if self.no_base else pairs,
            )
            return write_page(path, trials, trials.index(self._title, **self._page_parts()))

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.base, self.head

    def _column(self, config: str, side: Side) -> str:
        """Return the name of a column of the page, without the kind of model, which the page adds."""
        title = side.title.removesuffix(f" ({self._kinds[config]})")
        return title if len(self._kinds) == 1 else f"{config} · {title}"

    def _page_parts(self) -> dict[str, Any]:
        """Return what the page says of a comparison in place of what it says of a suite."""
        tables: list[Any] = [["Differences", shown_table(self.table())]] if self._differences else []
        if len({family for _, family, _ in self._by_family}) > 1:
            tables.append(["Differences by family", shown_table(self._family_cells())])
        if self.suite.gates:
            tables.append(gate_table(self.gates()))
        page: dict[str, Any] = {
            "tables": tables,
            "notes": [*map(sanitize_text, self._notes())],
        }
        if self.no_base:
            return page
        return page | {
            "verdict": sanitize_text(self.sentence),
            "tone": VERDICT_TONES[self.verdict],
            "plots": [*self._plots()],
        }

    def _plots(self) -> Iterable[dict[str, Any]]:
        """Yield plots of the differences: of success rates in points, of other metrics relative to base."""
        for primary, title in (
            (True, "Change of the success rate, points"),
            (False, "Change of other metrics"),
        ):
            rows = []
            for (config, metric), d in self._differences.items():
                unit = 1.0 if primary else abs(d.base)
                if (metric == PRIMARY) == primary and unit > 0 and math.isfinite(d.interval.mean):
                    name = config if primary else f"{config} {metric}" if len(self._kinds) > 1 else metric
                    found = d.interval.times(1 / unit)
                    tone = VERDICT_TONES[d.verdict]
                    if primary:
                        # The change of a rate lies within 100 points; the interval of t knows no bounds.
                        found = replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))
                    row = interval_row(name, found.mean, found.low, found.high, tone)
                    rows.append(row | {"text": found.text(format_points)})
            if rows:
                yield {
                    "kind": "intervals",
                    "title": f"{title}, 95 % interval",
                    "unit": "points" if primary else "%",
                    "signed": True,
                    "rows": rows,
                }

    @property
    def _title(self) -> str:
        if self.no_base:
            return self.headline
        return f"{self.base.title} → {self.head.title}, suite {self.suite.name}"

    @property
    def changes(self) -> dict[str, Difference]:
        """The change of the success rate by configuration, named with the kind of model; empty without a
        base.
        """
        return {
            self._label(config): d for (config, metric), d in self._differences.items() if metric == PRIMARY
        }

    @property
    def sentence(self) -> str:
        """The verdict in sentences: for each configuration which side is better, by how much, how sure that
        is, and how many trials changed sides.
        """
        said = [
            (f"{self._label(config)}: " if len(self._kinds) > 1 else "")
            + verdict_sentence(self.base.title, self.head.title, d)
            for (config, metric), d in self._differences.items()
            if metric == PRIMARY
        ]
        count, lost = len(self.flipped), sum(base.outcome == "pass" for base, _ in self.flipped)
        changed = (
            f"{format_count(count, 'trial')} changed sides, {lost} to fail and {count - lost} to pass."
            if self.flipped
            else "No trial changed sides."
        )
        if any(d.test == BY_LABELS for d in self._differences.values()):
            changed = f"Before the correction by labels: {changed[:1].lower()}{changed[1:]}"
        return " ".join([*said, changed])

    def gates(self) -> GateReport:
        """Decide the suite's gates for `head`, and the verdicts of the comparison: of success rates, and of
        metrics with a gate.
        """
        if self.no_base:
            change = decide_without_base(self.suite, self.head.rows, self.no_base)
        else:
            change = decide_change(
                self.suite,
                self.head.rows,
                self.base.title,
                self._differences.items(),
                self.margin,
                self.outdated,
            )
        return GateReport(
            suite=self.suite.name,
            decisions=(*decide_gates(self.suite, self._rows[1]), *change),
            notes=tuple(self._notes()),
            fail_on=self.fail_on,
        )

    def junit(self, path: str | Path) -> Path:
        """Write JUnit XML of the trials of `head` and of `gates`; returns its path."""
        return write_junit(
            path, self.suite.name, [*case_groups(self.suite, self.head.rows), self.gates().group()]
        )

    def markdown(self, report: str = "") -> str:
        """Return a summary for a pull request: what changed and what flipped; `report` is the address of the
        HTML page.
        """
        cells = [
            [self._label(config), metric, *difference_cells(metric, d)]
            for (config, metric), d in self._differences.items()
        ]
        decided = self.gates()
        broken = decided.verdict if decided.verdict in ("broken", "unrecorded") else ""
        return comparison_markdown(
            (VERDICT_HEADINGS[broken or ("no base" if self.no_base else self.verdict)], self.suite.name),
            self._change_lines(),
            (self.base.title, self.head.title),
            cells,
            self._flips,
            self._notes(),
            decided if self.suite.gates or broken else None,
            report,
        )

    def _change_lines(self) -> Iterable[str]:
        """Yield what a comment says first: the change of each configuration, or why there is none."""
        if self.no_base:
            yield f"{code_span(self.no_base, 400)}, so only the gates of the suite are decided."
        if self.coverage and not self.no_base:
            yield f"**{self.coverage[0].upper()}{self.coverage[1:]}.** The others have no trials on one side."
        base = self.base.sha[:8] if self.base.name == AUTO else self.base.title
        for name, d in self.changes.items():
            yield f"{code_span(name)}: {change_phrase(d, code_span(base))}"

    def __repr__(self) -> str:
        return f"<comparison of {self.base.title} and {self.head.title} on suite {self.suite.name}>"

    def __str__(self) -> str:
        lines = []
        for (config, metric), d in self._differences.items():
            base, head, change, p, verdict, mde = difference_cells(metric, d)
            what = f"{self._label(config)} {metric}: {base} → {head}, difference {change}, p {p}"
            lines.append(f"{what}: {verdict}, smallest detectable {mde}")
        lines += [
            f"{f['scenario']} [{f['config']}] epoch {f['epoch']}: {f['base']} → {f['head']}  {f['reason']}"
            for f in self._flips[:_SHOWN_FLIPS]
        ]
        if len(self._flips) > _SHOWN_FLIPS:
            lines.append(
                f"… and {format_count(len(self._flips) - _SHOWN_FLIPS, 'more trial')} that passed "
                f"on one side only"
            )
        return "\n  ".join([self.headline, *lines, *self._notes()])

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings, and a row of texts per configuration and metric."""
        rows = [
            [self._label(config), with_unit(metric), *difference_cells(metric, d)]
            for (config, metric), d in self._differences.items()
        ]
        return self._headings("metric"), rows

    def _family_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return headings, and a row of texts per configuration, family and metric."""
        rows = [
            [self._label(config), family, with_unit(metric), *difference_cells(metric, d)]
            for (config, family, metric), d in self._by_family.items()
        ]
        return self._headings("family", "metric"), rows

    def _headings(self, *keys: str) -> list[str]:
        return ["configuration", *keys, self.base.title, self.head.title, *DIFFERENCE_HEADINGS]

    def _label(self, config: str) -> str:
        return label_kind(config, self._kinds[config])

    def _repr_html_(self) -> str:
        flips = [
            [f[key] for key in ("scenario", "config", "epoch", "base", "head", "reason")]
            for f in self._flips[:_SHOWN_FLIPS]
        ]
        parts = [headline_html(self.headline), table_html(*self.table())]
        if flips:
            parts.append(f"<p>Passed on one side only ({len(self._flips)}):</p>")
            parts.append(table_html(["scenario", "configuration", "epoch", "base", "head", "reason"], flips))
        parts += [paragraph_html(note) for note in self._notes()]
        return "".join(parts)

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {row.config: row.model_kind for row in (*self.base.rows, *self.head.rows)}

    @cached_property
    def _rows(self) -> tuple[list[EvalRow], list[EvalRow]]:
        """The trials of both sides with what people said of them and scanners found in them."""
        base, head = (
            [*with_groups(with_annotations(side.rows, self.store), self.suite)] for side in self._sides
        )
        return base, head

    @cached_property
    def _differences(self) -> dict[tuple[str, str], Difference]:
        if self.no_base:
            return {}
        found = compare_rows(
            self.suite,
            self._rows,
            margin=self.margin,
            same_files=self.same_files,
            expected=self.expected if self.sequence is None else None,
        )
        if self.sequence is not None:
            found = {
                key: decided_in_turns(d, self.sequence, primary=key[1] == PRIMARY) for key, d in found.items()
            }
        return {key: self._without_outdated(key[0], d) for key, d in found.items()}

    def _without_outdated(self, config: str, d: Difference) -> Difference:
        """Return a difference, without a verdict where one side's trials do not count any more."""
        reason = self.outdated.get(config)
        return d if reason is None else replace(d, verdict="inconclusive", note=reason)

    @cached_property
    def outdated(self) -> dict[str, str]:
        """Why sides cannot be compared, by configuration: see `summaries.trial_age`."""
        if self.no_base or self.same_files:
            return {}
        return outdated_base(self.base.rows, self.head.rows, self.most_days)

    @cached_property
    def _by_family(self) -> dict[tuple[str, str, str], Difference]:
        # The number of trials depends on what was seen, so tests of families would accuse too often.
        if self.no_base or self.sequence is not None:
            return {}
        found = compare_families(self.suite, self._rows, margin=self.margin, same_files=self.same_files)
        return {key: self._without_outdated(key[0], d) for key, d in found.items()}

    @cached_property
    def flipped(self) -> list[tuple[EvalRow, EvalRow]]:
        """Trials that passed on one side only, that of the base first."""
        before = {(row.scenario, row.config, row.epoch): row for row in self.base.rows}
        pairs = [
            (before[key], row)
            for row in self.head.rows
            if (key := (row.scenario, row.config, row.epoch)) in before
        ]
        return [(base, head) for base, head in pairs if (base.outcome == "pass") != (head.outcome == "pass")]

    @cached_property
    def _flips(self) -> list[dict[str, Any]]:
        return [
            {
                "scenario": head.scenario,
                "config": head.config,
                "epoch": head.epoch,
                "base": base.outcome,
                "head": head.outcome,
                "reason": one_line(str(head.reason or base.reason), 120),
                "base_run": base.run,
                "head_run": head.run,
            }
            for base, head in self.flipped
        ]

    def _stores(self, opened: ExitStack) -> list[SessionStore]:
        """Open the logs of the runs: a commit that brings a kestrel_lab of its own logged its runs apart."""
        if self.store is None:
            return []
        apart = [
            self.store.path.parent / "commits" / side.sha[:12] / self.store.path.name
            for side in (self.base, self.head)
        ]
        return [
            self.store,
            *(
                opened.enter_context(closing(SessionStore(path)))
                for path in dict.fromkeys(apart)
                if path.exists()
            ),
        ]

    @property
    def headline(self) -> str:
        """The verdict and what was compared, in one line."""
        if self.outdated:
            reason = next(iter(self.outdated.values()))
            return f"NO VERDICT: {self.base.title} → {self.head.title}, suite {self.suite.name}: {reason}"
        if self.no_base:
            return f"NO BASE: {self.head.title}, suite {self.suite.name}: {self.no_base}"
        compared = f", {self.coverage}" if self.coverage else ""
        sides = f"{self.base.title} → {self.head.title}"
        return f"{self.verdict.upper()}: {sides}, suite {self.suite.name}{compared}"

    @cached_property
    def coverage(self) -> str:
        """How many of the scenarios were compared, `1 of 6 scenarios compared`; empty for all of them."""
        if self.expected is None or self.sequence is not None:
            return ""
        sides = [{row.scenario for row in rows} for rows in self._rows]
        compared = len(self.expected & sides[0] & sides[1])
        total = len(self.expected)
        return "" if compared == total else f"{compared} of {format_count(total, 'scenario')} compared"

    def _time_notes(self) -> Iterable[str]:
        """Yield what the times of the trials take from the verdict."""
        if self.no_base or self.same_files:
            return
        yield from self.outdated.values()
        if note := apart_note(self.base.rows, self.head.rows):
            yield note

    def _notes(self) -> Iterable[str]:
        if self.no_base:
            yield f"{self.no_base}, so only the suite's own gates are decided"
            for scenario, why in list(self.base.skipped.items())[:3]:
                yield f"{self.base.title}: scenario {scenario}: {why}"
        for side in (self.head,) if self.no_base else (self.base, self.head):
            broke = any(row.outcome == "error" for row in side.rows)
            counted = "as failed" if self.suite.count_errors == "fail" else "in no rate"
            pulled = sum(bool(row.result.get("origin")) for row in side.rows)
            made = (
                f"{side.title}: {format_count(len(side.rows), 'trial')}, {side.reused} of them stored before"
            )
            made += f" ({pulled} pulled from what others pushed)" if pulled else ""
            age = age_text(side.rows, time.time())
            made += f"; {age}" if age else ""
            yield made + (f", broke: {broke_in(side.rows)}, counted {counted}" if broke else "")
            if side.newer:
                yield (
                    f"{side.title} does not have this suite: its code ran with the present suite, and "
                    "with the present files where it lacks them"
                )
            if side.prompts_differ:
                yield (
                    f"{side.title} ran its own suite file: goals or instructions there are not those of the "
                    "present file"
                )
            for scenario, why in side.skipped.items():
                yield f"{side.title}: scenario {scenario} is left out: {why}"
        yield from self._time_notes()
        same = by_construction(self._differences.values())
        if SAME_FILES in same:
            yield (
                f"{self.base.title} and {self.head.title} have the same files, so there is no "
                "difference; the trials count for both"
            )
        elif SAME_CONVERSATIONS in same:
            yield (
                "Scripts or recordings were asked the same and answered the same on both sides, so "
                "there is no difference; no chance is involved"
            )
        yield from self.run_notes
        notes = [(metric, d.note) for (_, metric), d in self._differences.items() if d.note]
        for note in dict.fromkeys(note for _, note in notes):
            yield f"{', '.join(dict.fromkeys(metric for metric, why in notes if why == note))}: {note}."
        yield from () if same else unit_notes(self._differences.values())
        yield from self._label_notes()

    def _label_notes(self) -> Iterable[str]:
        weights = {scenario.id: scenario.weight for scenario in self.suite.scenarios}
        groups = {row.scenario: row.group for rows in self._rows for row in rows}
        passes = partial(compare_scenarios, weights=weights, groups=groups, bounded=True)
        for (config, metric), d in self._differences.items():
            sides = [[row for row in rows if row.config == config] for rows in self._rows]
            if metric == PRIMARY and (said := label_note(d, sides, passes)):
                yield f"{self._label(config)}: {said}."
