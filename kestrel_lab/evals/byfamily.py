"""How each family of scenarios went, one column per configuration: what a mean over all of them hides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kestrel_lab.evals.reducer import reduced
from kestrel_lab.evals.suite import CountErrors
from kestrel_lab.evals.table import labelled, rate_text
from kestrel_lab.log.store import EvalRow

_PASSED = "success_rate"


def family_table(rows: Iterable[EvalRow], count_errors: CountErrors) -> tuple[list[str], list[list[str]]]:
    """Headings, and for each family a row with its success rate and one for each `recall@k`, with 95 % intervals; no rows for one family."""
    records = reduced(rows, count_errors).grouped("family")
    families = list(dict.fromkeys(record["family"] for record in records))
    if len(families) < 2:
        return [], []
    configs = {record["config"]: labelled(record["config"], record["model_kind"]) for record in records}
    cells = {(record["family"], record["config"]): record for record in records}
    recalls = sorted(
        (name for name in records[0] if name.startswith("recall@") and not name.endswith(("_low", "_high"))),
        key=lambda name: -int(name.removeprefix("recall@")),
    )
    table = []
    for family in families:
        for metric in (_PASSED, *recalls):
            first = family or "no family" if metric == _PASSED else ""
            what = "passed" if metric == _PASSED else metric
            table.append([first, what, *(_told(cells.get((family, config)), metric) for config in configs)])
    return ["family", "(95 %)", *configs.values()], table


def _told(record: dict[str, Any] | None, metric: str) -> str:
    if record is None:
        return "–"
    return rate_text({_PASSED: record[metric], "low": record[f"{metric}_low"], "high": record[f"{metric}_high"]})
