"""Stored trials as the data of a learned router: goals, models, success and cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.options import Selection
from kestrel_lab.evals.stored.rescore import selects, stored_rows
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.result_table import frame_record, trial_record
from kestrel_lab.runtime.session import Session

if TYPE_CHECKING:
    import pandas as pd


def routing_frame(session: Session, suite: str | Path | Suite, commit: str | None, parts: Selection) -> pd.DataFrame:
    """Return a row per stored trial that counts: `scenario`, `prompt`, `config` (the model's name), `success` and `cost_estimate`.

    Raises `UsageError` when none are stored, and where two configurations have the same model: a router chooses models.
    """
    import pandas as pd

    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    goals = {scenario.id: scenario.goal for scenario in loaded.scenarios}
    configs: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for row in filter(selects(loaded, parts), stored_rows(session, loaded, commit)):
        record = frame_record(trial_record(row, loaded.count_errors))
        model = str(record["model"])
        if configs.setdefault(model, row.config) != row.config:
            raise UsageError(
                f"the configurations {configs[model]} and {row.config} have the same model {model}: name one of them (--config)"
            )
        if row.scenario in goals and not math.isnan(record["success"]):  # as that of a trial that broke may be
            rows.append(
                {
                    "scenario": row.scenario,
                    "prompt": goals[row.scenario],
                    "config": model,
                    "success": record["success"],
                    "cost_estimate": record["cost_estimate"],
                }
            )
    if not rows:
        raise UsageError(f"no stored trial of the suite {loaded.name} counts: kestrel eval run makes them")
    return pd.DataFrame(rows)
