"""A suite at two commits, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from kestrel_lab.core.text import one_line
from kestrel_lab.evals.difference import Difference, Verdict, difference, judge, overall
from kestrel_lab.evals.gating import GateReport, decide, decide_change
from kestrel_lab.evals.junit import write_junit
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.pullrequest import comparison_markdown
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.table import UNITS, labelled, trial_record
from kestrel_lab.evals.testcases import groups
from kestrel_lab.log.store import EvalRow
from kestrel_lab.views.frames import shown_frame
from kestrel_lab.views.html import headline_html, paragraph_html, table_html
from kestrel_lab.views.page import page

if TYPE_CHECKING:
    import pandas as pd

PRIMARY: Final = "success_rate"
COMPARED: Final = ("working_time", "token_usage", "model_calls", "tool_calls", "cost_estimate")
"""Metrics compared beside the success rate, over trials that did not break."""
_SHOWN_FLIPS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Side:
    """One commit of a comparison."""

    name: str
    """As the user called it."""
    sha: str
    rows: tuple[EvalRow, ...]
    reused: int = 0
    """How many rows were stored before."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Scenarios that this commit cannot try, and why."""

    @property
    def title(self) -> str:
        """The name with the short hash."""
        return self.name if self.sha.startswith(self.name) else f"{self.name} ({self.sha[:10]})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """What changed from `base` to `head`, with how sure that is."""

    suite: Suite
    base: Side
    head: Side
    margin: float = 0.05
    """How large a change still counts as none: of the success rate in points, of other metrics relative to base."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per configuration and metric.

        `base`, `head`, `difference` (head minus base) with its 95 % interval `low` and `high`, `p`, `p_holm`
        (adjusted for all success rates, or all other metrics, together), `verdict`, `mde` (the smallest
        difference such a comparison would find), `scenarios` compared and `scope`: whether interval and p
        speak of `scenarios like these` or, with fewer than six, of `these scenarios`.
        """
        rows = [
            {"config": config, "model_kind": self._kinds[config], "metric": metric, **_record(d)}
            for (config, metric), d in self._differences.items()
        ]
        return shown_frame(rows)

    @property
    def verdict(self) -> Verdict:
        """`regression`, `improvement`, `stable` or `inconclusive`, by the success rates of all configurations."""
        return overall([d.verdict for (_, metric), d in self._differences.items() if metric == PRIMARY])

    @property
    def flips(self) -> pd.DataFrame:
        """Trials that passed on one side only: `scenario`, `config`, `epoch`, `base`, `head`, `reason` and both run ids."""
        columns = ["scenario", "config", "epoch", "base", "head", "reason", "base_run", "head_run"]
        return shown_frame(self._flips, columns=columns)

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page of the comparison; returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(f"Suite {self.suite.name}: {self.base.title} → {self.head.title}", self._repr_html_()), encoding="utf-8")
        return target

    def gates(self) -> GateReport:
        """The suite's gates for `head`, and the verdicts of the comparison: of success rates, and of metrics with a gate."""
        change = decide_change(self.suite, self.head.rows, self.base.title, self._differences.items())
        return GateReport(suite=self.suite.name, decisions=(*decide(self.suite, self.head.rows), *change))

    def junit(self, path: str | Path) -> Path:
        """Write JUnit XML of the trials of `head` and of `gates`; returns its path."""
        return write_junit(path, self.suite.name, [*groups(self.suite, self.head.rows), self.gates().group()])

    def markdown(self, report: str = "") -> str:
        """A summary for a pull request: what changed and what flipped; `report` is where the HTML page will be found."""
        cells = [[labelled(config, self._kinds[config]), metric, *_shown(metric, d)] for (config, metric), d in self._differences.items()]
        heading = (self.verdict, self.base.title, self.head.title, self.suite.name)
        gates = self.gates() if self.suite.gates else None
        return comparison_markdown(heading, cells, self._flips, self._notes(), gates, report)

    def __repr__(self) -> str:
        # Cheap on purpose: `asyncio.run` makes the repr of a finished task's result.
        return f"<comparison of {self.base.title} and {self.head.title} on suite {self.suite.name}>"

    def __str__(self) -> str:
        lines = [self.headline, *(f"  {line}" for line in self._lines())]
        lines += [
            f"  {f['scenario']} [{f['config']}] epoch {f['epoch']}: {f['base']} → {f['head']}  {f['reason']}"
            for f in self._flips[:_SHOWN_FLIPS]
        ]
        if len(self._flips) > _SHOWN_FLIPS:
            lines.append(f"  … and {len(self._flips) - _SHOWN_FLIPS} more trials that passed on one side only")
        lines += [f"  {note}" for note in self._notes()]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython shows in a terminal."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        headings = ["configuration", "metric", self.base.title, self.head.title, "difference (95 %)", "p", "verdict", "smallest detectable"]
        cells = [
            [labelled(config, self._kinds[config]), _named(metric), *_shown(metric, d)] for (config, metric), d in self._differences.items()
        ]
        flips = [[f[key] for key in ("scenario", "config", "epoch", "base", "head", "reason")] for f in self._flips[:_SHOWN_FLIPS]]
        parts = [headline_html(self.headline), table_html(headings, cells)]
        if flips:
            parts.append(f"<p>Passed on one side only ({len(self._flips)}):</p>")
            parts.append(table_html(["scenario", "configuration", "epoch", "base", "head", "reason"], flips))
        parts += [paragraph_html(note) for note in self._notes()]
        return "".join(parts)

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {row.config: str(row.result["model_kind"]) for row in (*self.base.rows, *self.head.rows)}

    @cached_property
    def _differences(self) -> dict[tuple[str, str], Difference]:
        return compare_rows(self.suite, self.base.rows, self.head.rows, margin=self.margin)

    @cached_property
    def _flips(self) -> list[dict[str, Any]]:
        before = {(row.scenario, row.config, row.epoch): row for row in self.base.rows}
        pairs = [(before[key], row) for row in self.head.rows if (key := (row.scenario, row.config, row.epoch)) in before]
        return [
            {
                "scenario": head.scenario,
                "config": head.config,
                "epoch": head.epoch,
                "base": base.result["outcome"],
                "head": head.result["outcome"],
                "reason": one_line(str(head.result["reason"] or base.result["reason"]), 120),
                "base_run": base.result["run"],
                "head_run": head.result["run"],
            }
            for base, head in pairs
            if (base.result["outcome"] == "pass") != (head.result["outcome"] == "pass")
        ]

    @property
    def headline(self) -> str:
        """The verdict and what was compared, in one line."""
        return f"{self.verdict.upper()}: {self.base.title} → {self.head.title}, suite {self.suite.name}"

    def _lines(self) -> Iterable[str]:
        for (config, metric), d in self._differences.items():
            base, head, change, p, verdict, mde = _shown(metric, d)
            more = f", smallest detectable {mde}" if verdict == "inconclusive" else ""
            yield f"{labelled(config, self._kinds[config])} {metric}: {base} → {head}, difference {change}, p {p}: {verdict}{more}"

    def _notes(self) -> Iterable[str]:
        for side in (self.base, self.head):
            broke = sum(row.result["outcome"] == "error" for row in side.rows)
            counted = "as failed" if self.suite.count_errors == "fail" else "in no rate"
            made = f"{side.title}: {len(side.rows)} trials, {side.reused} of them stored before"
            yield made + (f", {broke} broke (counted {counted})" if broke else "")
            for scenario, why in side.skipped.items():
                yield f"{side.title}: scenario {scenario} is left out: {why}"
        if few := next((d.scenarios for d in self._differences.values() if d.scope == "these scenarios"), None):
            yield f"With {few} scenarios this speaks of these scenarios only; from six on it speaks of scenarios like these."


def compare_rows(suite: Suite, base: Sequence[EvalRow], head: Sequence[EvalRow], *, margin: float) -> dict[tuple[str, str], Difference]:
    """The difference with its verdict for each configuration and metric, success rates first."""
    before = [trial_record(row, suite.count_errors) for row in base]
    after = [trial_record(row, suite.count_errors) for row in head]
    weights = {scenario.id: scenario.weight for scenario in suite.scenarios}
    configs = list(dict.fromkeys(record["config"] for record in (*before, *after)))
    primary = [(config, PRIMARY) for config in configs]
    secondary = [(config, metric) for config in configs for metric in COMPARED]

    def differ(config: str, metric: str) -> Difference:
        sides = [_values(records, config, metric) for records in (before, after)]
        return difference(*sides, weights=weights, bounded=metric == PRIMARY)

    judged = judge([differ(*key) for key in primary], better=["higher"] * len(primary), margin=margin, relative=False)
    ways: list[Literal["higher", "lower"]] = [METRICS[metric].better for _, metric in secondary]
    more = judge([differ(*key) for key in secondary], better=ways, margin=margin, relative=True)
    found = dict(zip([*primary, *secondary], [*judged, *more], strict=True))
    return {key: found[key] for config in configs for key in found if key[0] == config}


def _values(records: Iterable[dict[str, Any]], config: str, metric: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in records:
        if record["config"] != config or (metric != PRIMARY and record["outcome"] == "error"):
            continue
        value = record["success" if metric == PRIMARY else metric]
        if not math.isnan(value):
            found.setdefault(record["scenario"], []).append(value)
    return found


def _record(d: Difference) -> dict[str, Any]:
    return {
        "base": d.base,
        "head": d.head,
        "difference": d.interval.mean,
        "low": d.interval.low,
        "high": d.interval.high,
        "p": d.p,
        "p_holm": d.p_holm,
        "verdict": d.verdict,
        "mde": d.mde,
        "scenarios": d.scenarios,
        "scope": d.scope,
    }


def _named(metric: str) -> str:
    """The metric with the unit of its values, where its name is not the unit."""
    return f"{metric}, {UNITS[metric]}" if metric in UNITS else metric


def _shown(metric: str, d: Difference) -> list[str]:
    """Base, head, difference with interval, p, verdict, smallest detectable difference, as text."""

    def text(value: float, sign: str = "") -> str:
        if not math.isfinite(value):
            return "–"
        return f"{100 * value:{sign}.1f} %" if metric == PRIMARY else f"{value:{sign}.4g}"

    change = f"{text(d.interval.mean, '+')} ({text(d.interval.low, '+')} to {text(d.interval.high, '+')})"
    return [text(d.base), text(d.head), change, f"{d.p_holm:.3f}", d.verdict, text(d.mde)]
