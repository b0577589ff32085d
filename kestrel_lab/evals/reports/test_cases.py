"""Trials as JUnit test cases: one for each scenario and configuration, its epochs together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.gate_bounds import SUCCESS, at_least
from kestrel_lab.evals.reports.junit import Case, Group
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.result_table import labelled, trial_record
from kestrel_lab.evals.summaries.streaming_summary import MEANS


def needed_rate(suite: Suite, config: str, family: str) -> float:
    """Return the share of epochs that has to pass: the highest bound of a gate for the success rate, else all of them."""
    bounds = [gate.at_least for gate in suite.gates if gate.metric == SUCCESS and gate.covers(config, family)]
    return max((bound for bound in bounds if bound is not None), default=1.0)


def groups(suite: Suite, rows: Iterable[EvalRow]) -> list[Group]:
    """Return a group per configuration with a case per scenario.

    A case is an error when a trial broke and the suite counts that as failed, or when none counts at all; it is
    a failure when a smaller share of its counted epochs passed than `needed_rate` says.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        record = trial_record(row, suite.count_errors)
        found.setdefault(row.config, {}).setdefault(row.scenario, []).append(record)
    return [
        Group(
            name=f"{suite.name}.{labelled(config, _first(scenarios)['model_kind'])}",
            cases=[_case(suite, scenario, records) for scenario, records in scenarios.items()],
            properties={"model": _first(scenarios)["model"], "model_kind": _first(scenarios)["model_kind"]},
        )
        for config, scenarios in found.items()
    ]


def _first(scenarios: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return next(iter(scenarios.values()))[0]


def _case(suite: Suite, scenario: str, records: Sequence[dict[str, Any]]) -> Case:
    counted = [record for record in records if not math.isnan(record["success"])]
    passed = sum(record["outcome"] == "pass" for record in counted)
    broke = [record for record in records if record["outcome"] == "error"]
    needed = needed_rate(suite, records[0]["config"], records[0]["family"])
    properties: dict[str, object] = {
        "family": records[0]["family"],
        "epochs": len(records),
        "passed": passed,
        "errors": len(broke),
        "success_rate": passed / len(counted) if counted else math.nan,
        "needed_rate": needed,
        **{name: math.fsum(record[name] for record in records) / len(records) for name in MEANS},
    }
    if any(record["unpriced_calls"] > 0 for record in records):
        cost = cast("float", properties["cost_estimate"])
        properties["cost_estimate"] = at_least(f"{cost:.6g}" if cost else "")
    told = Case(name=scenario, seconds=math.fsum(_known(record["wall_time"]) for record in records), properties=properties)
    if not counted or (broke and suite.count_errors == "fail"):
        return _not_passed(told, "error", f"{len(broke)} of {len(records)} trials broke", broke)
    if passed / len(counted) < needed:
        failed = [record for record in records if record["outcome"] != "pass"]
        return _not_passed(told, "failure", f"{passed} of {len(counted)} trials passed, needed {100 * needed:.3g} %", failed)
    return told


def _not_passed(case: Case, outcome: Any, message: str, records: Sequence[dict[str, Any]]) -> Case:
    lines = [f"epoch {record['epoch']}: {record['outcome']}: {record['reason']} (run {record['run']})" for record in records]
    first = one_line(str(records[0]["reason"]), 200) if records else ""
    return Case(
        name=case.name,
        seconds=case.seconds,
        properties=case.properties,
        outcome=outcome,
        kind="broke" if outcome == "error" else "below the rate",
        message=f"{message}: {first}" if first else message,
        text="\n".join(lines),
    )


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value
