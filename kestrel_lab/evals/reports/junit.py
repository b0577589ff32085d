"""JUnit XML, from which continuous-integration servers read test results, and trials as its test cases."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

# XML is only written here, never parsed, so no attack by entities is possible.
from xml.etree import ElementTree as ET

from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.gate_bounds import SUCCESS, format_lower_bound
from kestrel_lab.evals.reports.result_view import write_text
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import label_kind, trial_record
from kestrel_lab.evals.summaries.streaming_summary import MEANS
from kestrel_lab.views.formatting import format_count

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import Suite

Outcome = Literal["passed", "failure", "error", "skipped"]

# What XML 1.0 cannot hold at all and `sanitize_text` leaves as it is.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One `testcase`."""

    name: str
    seconds: float = 0.0
    outcome: Outcome = "passed"
    kind: str = ""
    """Type of the failure, error or skip, in a word."""
    message: str = ""
    """Why it did not pass, in one line."""
    text: str = ""
    """Why it did not pass, in full."""
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One `testsuite`; its name is the class name of its cases."""

    name: str
    cases: Sequence[Case]
    properties: Mapping[str, object] = field(default_factory=dict)


def junit_xml(name: str, groups: Sequence[Group]) -> str:
    """Return a `testsuites` document.

    Foreign text is escaped, and what XML cannot contain is shown as an escape.
    """
    root = ET.Element(
        "testsuites",
        {"name": _escape_xml(name), **_counts([case for group in groups for case in group.cases])},
    )
    for group in groups:
        suite = ET.SubElement(root, "testsuite", {"name": _escape_xml(group.name), **_counts(group.cases)})
        _properties(suite, group.properties)
        for case in group.cases:
            _case(suite, group, case)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def write_junit(path: str | Path, name: str, groups: Sequence[Group]) -> Path:
    """Write `junit_xml` to a file, its folder made where missing; returns its path."""
    return write_text(path, junit_xml(name, groups))


def _case(suite: ET.Element, group: Group, case: Case) -> None:
    node = ET.SubElement(
        suite,
        "testcase",
        classname=_escape_xml(group.name),
        name=_escape_xml(case.name),
        time=_seconds(case.seconds),
    )
    _properties(node, case.properties)
    if case.outcome != "passed":
        why = ET.SubElement(
            node, case.outcome, message=_escape_xml(case.message), type=_escape_xml(case.kind or case.outcome)
        )
        why.text = _escape_xml(case.text or case.message)


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    counts = {
        plural: str(sum(case.outcome == one for case in cases))
        for plural, one in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    return {"tests": str(len(cases)), **counts, "time": _seconds(math.fsum(case.seconds for case in cases))}


def _properties(parent: ET.Element, properties: Mapping[str, object]) -> None:
    if not properties:
        return
    listed = ET.SubElement(parent, "properties")
    for key, value in properties.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        ET.SubElement(listed, "property", name=_escape_xml(key), value=_escape_xml(text))


def _seconds(value: float) -> str:
    return f"{value if math.isfinite(value) else 0.0:.3f}"


def _escape_xml(text: str) -> str:
    return _NO_XML.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", sanitize_text(text))


def needed_rate(suite: Suite, config: str, family: str) -> float:
    """Return the share of epochs that has to pass: the highest bound of a gate for the success rate, else all
    of them.
    """
    bounds = [gate.at_least for gate in suite.gates if gate.metric == SUCCESS and gate.covers(config, family)]
    return max((bound for bound in bounds if bound is not None), default=1.0)


def case_groups(suite: Suite, rows: Iterable[EvalRow]) -> list[Group]:
    """Return a group per configuration with a case per scenario.

    A case is an error when a trial broke and the suite counts that as failed, or when none counts at all; it
    is a failure when a smaller share of its counted epochs passed than `needed_rate` says.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        record = trial_record(row, suite.count_errors)
        found.setdefault(row.config, {}).setdefault(row.scenario, []).append(record)
    made = []
    for config, scenarios in found.items():
        first = next(iter(scenarios.values()))[0]
        cases = [_scenario_case(suite, scenario, records) for scenario, records in scenarios.items()]
        name = f"{suite.name}.{label_kind(config, first['model_kind'])}"
        made.append(
            Group(
                name=name,
                cases=cases,
                properties={"model": first["model"], "model_kind": first["model_kind"]},
            )
        )
    return made


def _scenario_case(suite: Suite, scenario: str, records: Sequence[dict[str, Any]]) -> Case:
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
        # Without the calls of unknown price the sum is only a lower bound.
        cost = cast("float", properties["cost_estimate"])
        properties["cost_estimate"] = format_lower_bound(f"{cost:.6g}" if cost else "")
    case = Case(
        name=scenario,
        seconds=math.fsum(r["wall_time"] for r in records if not math.isnan(r["wall_time"])),
        properties=properties,
    )
    if not counted or (broke and suite.count_errors == "fail"):
        return _not_passed(
            case, "error", f"{len(broke)} of {format_count(len(records), 'trial')} broke", broke
        )
    if passed / len(counted) < needed:
        failed = [record for record in records if record["outcome"] != "pass"]
        return _not_passed(
            case,
            "failure",
            f"{passed} of {format_count(len(counted), 'trial')} passed, needed {100 * needed:.3g} %",
            failed,
        )
    return case


def _not_passed(case: Case, outcome: Any, message: str, records: Sequence[dict[str, Any]]) -> Case:
    lines = [
        f"epoch {record['epoch']}: {record['outcome']}: {record['reason']} (run {record['run']})"
        for record in records
    ]
    first = one_line(str(records[0]["reason"]), 200) if records else ""
    kind = "broke" if outcome == "error" else "below the rate"
    return replace(
        case,
        outcome=outcome,
        kind=kind,
        message=f"{message}: {first}" if first else message,
        text="\n".join(lines),
    )
