"""Data of a learned router: prompts with the success and cost of each model, from stored trials or from a
tidy frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Loaded at import: only the command of the learned router imports this module, when it runs.
import numpy as np
import pandas as pd

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stored.rescore import selected_rows
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.result_table import frame_record
from kestrel_lab.runtime.services import Services

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AnsweredPrompts:
    """Prompts with the score of each model."""

    models: tuple[str, ...]
    prompts: tuple[str, ...]
    scores: Array
    """A row per prompt and a column per model, from 0 to 1."""
    prices: tuple[float, ...]
    """The mean cost of a call of each model; empty where unknown."""
    unit: str
    left_out: int = 0
    """Prompts that not every model answered."""


def routing_frame(
    lab: Services,
    suite: str | Path | Suite,
    *,
    commit: str | None = None,
    configs: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return a row per stored trial of a suite that counts, of `commit` or of the commit that was tried last:
    `scenario`, `prompt`, `config` (the model's name), `success` and `cost_estimate`.

    Raises `UsageError` when none are stored, and where two configurations have the same model: a router
    chooses models.
    """
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    goals = {scenario.id: scenario.goal for scenario in loaded.scenarios}
    known: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for row in selected_rows(lab, loaded, {"configs": configs, "commit": commit}):
        record = frame_record(row, loaded.count_errors)
        model = str(record["model"])
        if known.setdefault(model, row.config) != row.config:
            raise UsageError(
                f"the configurations {known[model]} and {row.config} have the same model {model}: name "
                "one of them (--config)"
            )
        if row.scenario in goals and not math.isnan(
            record["success"]
        ):  # as that of a trial that broke may be
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


def answered_prompts(frame: pd.DataFrame, prices: Mapping[str, float] | None) -> AnsweredPrompts:
    """Return the prompts of a tidy frame that every model answered, the mean of repeated trials counting.

    Without prices and costs the better of two models costs 1 and the other nothing: the price is a share of
    prompts. Raises `UsageError` for missing columns, fewer than two models, and scores or prices out of
    range.
    """
    if missing := {"scenario", "prompt", "config", "success"} - set(frame.columns):
        raise UsageError(f"the data of a router has no column {', '.join(sorted(missing))}")
    wide = frame.pivot_table(index="scenario", columns="config", values="success", aggfunc="mean", sort=False)
    # A prompt that one model was not asked would be compared with nothing.
    whole = wide.dropna()
    if len(wide.columns) < 2 or not len(whole):
        raise UsageError(
            "a router needs prompts that two models or more answered; the models are "
            f"{', '.join(map(str, wide.columns)) or 'none'}"
        )
    scores = whole.to_numpy(dtype=float)
    if not ((scores >= 0) & (scores <= 1)).all():
        raise UsageError("the scores of a router's data are from 0 to 1: rescale them")
    models = tuple(map(str, wide.columns))
    prompts = frame.drop_duplicates("scenario").set_index("scenario")["prompt"].reindex(whole.index)
    found: tuple[float, ...] = ()
    unit = "US dollars per prompt"
    if prices is not None:
        if set(prices) != set(models) or not all(
            math.isfinite(price) and price >= 0 for price in prices.values()
        ):
            raise UsageError(f"prices are a number from 0 on for each of {', '.join(models)}")
        found, unit = tuple(float(prices[name]) for name in models), "price per prompt"
    elif "cost_estimate" in frame and not frame["cost_estimate"].isna().any():
        costs = frame.groupby("config", sort=False)["cost_estimate"].mean()
        found = tuple(float(costs[name]) for name in wide.columns)
    elif len(models) == 2:
        better = int(np.argmax(scores.mean(axis=0)))
        found, unit = tuple(float(n == better) for n in range(2)), f"share of prompts at {models[better]}"
    return AnsweredPrompts(
        models=models,
        prompts=tuple(map(str, prompts)),
        scores=scores,
        prices=found,
        unit=unit if found else "",
        left_out=len(wide) - len(whole),
    )
