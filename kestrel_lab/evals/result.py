"""What a suite run gave: one tidy row per trial, a summary with intervals, a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.stats import mean_interval, proportion_interval
from kestrel_lab.evals.suite import CountErrors, Suite
from kestrel_lab.log.store import EvalRow, SessionStore
from kestrel_lab.views.html import table_html

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = (
    *("suite", "scenario", "family", "config", "model", "model_kind", "epoch", "outcome", "success", "score"),
    *METRICS,
    *("reason", "run", "git_sha", "weight"),
)
"""Columns of `EvalResult.frame`."""
MEANS: Final = ("wall_s", "working_s", "tokens", "model_calls", "tool_calls", "cost_usd", "unpriced_calls", "cache_hits")
"""Metrics whose means a summary shows."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class EvalResult:
    """Trials of a suite, scenario × configuration × epoch."""

    suite: Suite
    rows: tuple[EvalRow, ...]
    store: SessionStore
    """Where the runs behind the rows are."""
    reused: int = 0
    """How many rows are of earlier runs."""
    why: dict[str, int] = field(default_factory=dict)
    """Why the others could not be reused, when reuse was asked for: trials by reason."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per trial, columns `COLUMNS`.

        `success` is 1 or 0, and missing for a trial that broke when the suite excludes those; `score` is the
        mean value of its checks; times in seconds.
        """
        import pandas as pd

        return pd.DataFrame([trial_record(row, self.suite.count_errors) for row in self.rows], columns=list(COLUMNS))

    @property
    def scores(self) -> pd.DataFrame:
        """One row per trial and check: `scenario`, `config`, `epoch`, `check`, `passed`, `value`, `reason`."""
        import pandas as pd

        rows = [
            {"scenario": row.scenario, "config": row.config, "epoch": row.epoch, **cast("dict[str, Any]", score)}
            for row in self.rows
            for score in cast("list[object]", row.result["scores"])
        ]
        return pd.DataFrame(rows, columns=["scenario", "config", "epoch", "check", "passed", "value", "reason"])

    def summary(self) -> pd.DataFrame:
        """One row per configuration.

        `success_rate` with its 95 % interval `low` and `high` (clustered by scenario), numbers of `trials`,
        `scenarios` and `errors` (trials that broke), means of `MEANS` per trial, `cost_known` (false where a
        model call has no known price), and `pareto`: whether no other configuration is at least as good in
        success, cost and working time and better in one.
        """
        import pandas as pd

        records = summarise(self.suite, self.rows)
        return pd.DataFrame(records).set_index("config")

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page with tables, plots and the transcripts of what did not pass; returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(report_page(self), encoding="utf-8")
        return target

    def __repr__(self) -> str:
        lines = [self._headline()]
        lines += [
            f"  {label(r['config'], r['model_kind'])}: {rate_text(r)}, {r['trials']} trials"
            + (f", {r['errors']} broke" if r["errors"] else "")
            + f", {r['working_s']:.2f} s, {r['tokens']:.0f} tokens, {cost_text(r)}"
            for r in summarise(self.suite, self.rows)
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return summary_html(self)

    def _headline(self) -> str:
        taken = f", {self.reused} taken from earlier runs" if self.reused else ""
        return f"suite {self.suite.name}: {len(self.rows)} trials of {len(self.suite.scenarios)} scenarios{taken}"
