"""How each family of scenarios went, one column per configuration, and what bounds are set for: what a mean over all of them hides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from kestrel_lab.evals.gate import shown
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.reducer import reduced
from kestrel_lab.evals.suite import CountErrors
from kestrel_lab.evals.table import labelled, rate_text
from kestrel_lab.log.store import EvalRow

_PASSED = "success_rate"
_ALL = "all"


def family_table(rows: Iterable[EvalRow], count_errors: CountErrors, metrics: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Headings, and for each family a row with its success rate, one for each `recall@k` and each of `metrics`, with 95 % intervals.

    No rows for one family. Where there are `metrics` the first rows are those of all families together.
    """
    reducer = reduced(rows, count_errors)
    metrics = list(dict.fromkeys(name for name in metrics if name in METRICS))
    records = [record | {"family": _ALL} for record in reducer.grouped("config")] if metrics else []
    several = reducer.grouped("family")
    records += several if len({record["family"] for record in several}) > 1 else []
    families = list(dict.fromkeys(record["family"] for record in records))
    if not records:
        return [], []
    configs = {record["config"]: labelled(record["config"], record["model_kind"]) for record in records}
    cells = {(record["family"], record["config"]): record for record in records}
    recalls = sorted(
        (name for name in records[0] if name.startswith("recall@") and not name.endswith(("_low", "_high"))),
        key=lambda name: -int(name.removeprefix("recall@")),
    )
    table = []
    for family in families:
        for metric in (_PASSED, *recalls, *metrics):
            first = family or "no family" if metric == _PASSED else ""
            what = "passed" if metric == _PASSED else metric
            table.append([first, what, *(_told(cells.get((family, config)), metric) for config in configs)])
    return ["family", "(95 %)", *configs.values()], table


def _told(record: dict[str, Any] | None, metric: str) -> str:
    if record is None:
        return "–"
    if metric in METRICS:
        low, high = record[f"{metric}_low"], record[f"{metric}_high"]
        return shown(metric, record[metric]) + ("" if math.isnan(low) else f" ({shown(metric, low)}–{shown(metric, high)})")
    return rate_text({_PASSED: record[metric], "low": record[f"{metric}_low"], "high": record[f"{metric}_high"]})
