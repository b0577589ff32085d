"""JUnit XML, from which continuous-integration servers read test results."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET  # only written here, never parsed

from kestrel_lab.core.sanitize import plain

Outcome = Literal["passed", "failure", "error", "skipped"]

# What XML 1.0 cannot hold at all and `plain` leaves as it is.
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
    """Return a `testsuites` document. Foreign text is escaped, and what XML cannot contain is shown as an escape."""
    root = ET.Element("testsuites", {"name": _safe(name), **_counts([case for group in groups for case in group.cases])})
    for group in groups:
        suite = ET.SubElement(root, "testsuite", {"name": _safe(group.name), **_counts(group.cases)})
        _properties(suite, group.properties)
        for case in group.cases:
            _case(suite, group, case)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def write_junit(path: str | Path, name: str, groups: Sequence[Group]) -> Path:
    """Write `junit_xml` to a file, its folder made where missing; returns its path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(junit_xml(name, groups), encoding="utf-8")
    return target


def _case(suite: ET.Element, group: Group, case: Case) -> None:
    node = ET.SubElement(suite, "testcase", classname=_safe(group.name), name=_safe(case.name), time=_seconds(case.seconds))
    _properties(node, case.properties)
    if case.outcome != "passed":
        why = ET.SubElement(node, case.outcome, message=_safe(case.message), type=_safe(case.kind or case.outcome))
        why.text = _safe(case.text or case.message)


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
        ET.SubElement(listed, "property", name=_safe(key), value=_safe(text))


def _seconds(value: float) -> str:
    return f"{value if math.isfinite(value) else 0.0:.3f}"


def _safe(text: str) -> str:
    return _NO_XML.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", plain(text))
