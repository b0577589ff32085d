"""How often each check passed, where the scenarios of a suite have the same ones: success and safety apart, say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from kestrel_lab.evals.stats import proportion_interval
from kestrel_lab.evals.table import labelled, rate_text
from kestrel_lab.log.store import EvalRow

CHECK_HEADINGS: Final = ("configuration", "check", "passed (95 %)", "trials")


def check_rates(rows: Iterable[EvalRow]) -> list[dict[str, Any]]:
    """One record per configuration and check: its rate over the trials that were judged, with an interval clustered by scenario."""
    found: dict[tuple[str, str, str], list[tuple[float, str, float]]] = {}
    for row in rows:
        result = cast("dict[str, Any]", row.result)
        for score in result["scores"]:
            key = (row.config, result["model_kind"], score["check"])
            found.setdefault(key, []).append((float(score["passed"]), row.scenario, result["weight"]))
    records = []
    for (config, kind, check), judged in found.items():
        passed, scenarios, weights = (list(column) for column in zip(*judged, strict=True))
        rate = proportion_interval(cast("list[float]", passed), scenarios, cast("list[float]", weights))
        records.append(
            {"config": config, "model_kind": kind, "check": check, "success_rate": rate.mean, "low": rate.low, "high": rate.high}
        )
        records[-1]["trials"] = len(judged)
    return records


def shared_checks(rows: Iterable[EvalRow]) -> list[list[str]]:
    """`check_rates` as cells under `CHECK_HEADINGS`, if every trial that was judged has the same checks and there are several; else nothing."""
    rows = list(rows)
    judged = [tuple(score["check"] for score in cast("dict[str, Any]", row.result)["scores"]) for row in rows]
    kinds = {labels for labels in judged if labels}
    if len(kinds) != 1 or len(next(iter(kinds))) < 2:
        return []
    return [[labelled(one["config"], one["model_kind"]), one["check"], rate_text(one), str(one["trials"])] for one in check_rates(rows)]
