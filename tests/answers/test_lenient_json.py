"""What a model plainly means is read as the schema has it; what is ambiguous stays as it is, and is
refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from kestrel_lab.answers.contracts import sections_of
from kestrel_lab.answers.lenient_json import fit_to_schema
from kestrel_lab.checks.llm_judge import verdict_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.runtime.agent.structured_output import read_json
from kestrel_lab.runtime.operations.plan import SCHEMA as PLAN
from kestrel_lab.runtime.operations.quality import REPORT
from kestrel_lab.runtime.operations.verifiers import VERDICT

SHARE: Json = {"type": "number", "minimum": 0, "maximum": 1}
SEVERITY: Json = {"enum": ["critical", "major", "minor", "not known"]}


def closed(**properties: Json) -> dict[str, Json]:
    """A closed object of which every key is required."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("value", "schema", "read"),
    [
        ({"a": 1, "note": "x"}, closed(a={"type": "integer"}), {"a": 1}),
        ({"A": 1}, closed(a={"type": "integer"}), {"a": 1}),
        ({"Missing-Evidence": []}, closed(missing_evidence={"type": "array"}), {"missing_evidence": []}),
        ("High Severity", {"enum": ["high_severity", "low"]}, "high_severity"),
        ("MAJOR.", SEVERITY, "major"),
        ("not_known", SEVERITY, "not known"),
        ("0.9", SHARE, 0.9),
        (" 90 % ", SHARE, 0.9),
        ("3", {"type": "integer"}, 3),
        (3.0, {"type": "integer"}, 3),
        ("Yes", {"type": "boolean"}, True),
        (5, {"type": "string"}, "5"),
        ("main.1.1", {"type": "array", "items": {"type": "string"}}, ["main.1.1"]),
        ([{"x": "1", "y": 2}], {"type": "array", "items": closed(x={"type": "integer"})}, [{"x": 1}]),
        (
            {"a": None},
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
            {},
        ),
        (
            {"one": {"a": "2", "b": 1}},
            {**closed(one={"$ref": "#/$defs/One"}), "$defs": {"One": closed(a={"type": "integer"})}},
            {"one": {"a": 2}},
        ),
    ],
)
def test_what_is_plain_is_read(value: Json, schema: dict[str, Any], read: Json) -> None:
    """Keys that are not asked for, case, numbers and truth values as texts, one value for a list."""
    assert fit_to_schema(value, schema) == read


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("medium", SEVERITY),
        ("90", {"type": "boolean"}),
        ("nine", SHARE),
        ("50 %", {"type": "integer"}),
        ({"A": 1, "a ": 2}, closed(a={"type": "integer"})),
        ("yes", {"enum": ["Yes", "YES"]}),
        (True, {"type": "string"}),
        (None, {"type": "string"}),
        ([1], {"type": "string"}),
        ("x", {"type": ["array", "null"], "items": {"type": "string"}}),
        (
            {"a": 1, "b": 2},
            {"type": "object", "properties": {"a": {"type": "integer"}}},
        ),  # an open object keeps its keys
    ],
)
def test_what_is_ambiguous_stays(value: Json, schema: dict[str, Any]) -> None:
    """Nothing is guessed: whoever validates it refuses it with the reason."""
    assert fit_to_schema(value, schema) in (value, {} if isinstance(value, dict) else value)


CRITERION = '{"criterion": "1", "met": "true", "why": "w", "evidence": "main.1.1", "score": 5}'


@pytest.mark.parametrize(
    ("text", "schema", "read"),
    [
        (
            f'{{"criteria": [{CRITERION}], "confidence": "0.9", "verdict": "PASS"}}',
            VERDICT,
            ("confidence", 0.9),
        ),
        (
            f'Here it is:\n```json\n{{"criteria": [{CRITERION}], "confidence": 0.9, "reasoning": '
            f'"r"}}\n```\nDone.',
            VERDICT,
            ("confidence", 0.9),
        ),
        (
            '{"steps": [{"id": "a", "goal": "g", "description": "d", "depends_on": "b"}], '
            '"acceptance_criteria": "it works", "title": "t"}',
            PLAN,
            ("acceptance_criteria", ["it works"]),
        ),
        (
            '{"issues": [{"severity": "Critical", "place": "p", "what": "w", "fix": "f", "line": 3}], '
            '"missing_evidence": [], "pass": false}',
            REPORT,
            ("missing_evidence", []),
        ),
        ('I use {braces} and then {"Issues": [], "missing_evidence": []}', REPORT, ("issues", [])),
        (
            '{"issues": [], "missing_evidence": []} {"issues": [], "missing_evidence": []}',
            REPORT,
            ("issues", []),
        ),
    ],
)
def test_answers_of_models_are_read(text: str, schema: dict[str, Json], read: tuple[str, Json]) -> None:
    """Verdicts, plans and reports with more than was asked for, in other cases, in a fence or among words."""
    found = read_json(text, schema)
    assert isinstance(found, dict)
    assert found[read[0]] == read[1]


@pytest.mark.parametrize(
    ("text", "schema", "why"),
    [
        (
            '{"issues": [], "missing_evidence": []} or {"issues": [], "missing_evidence": ["x"]}',
            REPORT,
            "2 different answers",
        ),
        ('{"issues": [], "confidence": 1}', REPORT, "'missing_evidence' is a required property"),
        (
            '{"issues": [{"severity": "medium", "place": "", "what": "", "fix": ""}], '
            '"missing_evidence": []}',
            REPORT,
            "'medium' is not one of",
        ),
        ('{"criteria": [], "confidence": "very"}', VERDICT, "'very' is not of type 'number'"),
        ('{"criteria": [], "confidence": 90}', VERDICT, "90 is greater than the maximum"),
        ("no", VERDICT, "there is no JSON in it"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, schema: dict[str, Json], why: str) -> None:
    """Two answers that differ, a key that is missing, a word or number that is none."""
    with pytest.raises(UsageError, match=why):
        read_json(text, schema)


def test_verdicts_on_claims() -> None:
    """In any case and among words; two that differ are none."""
    assert (verdict_of('{"Verdict": "ENTAILED", "confidence": "0.8", "why": "w"}').confidence) == 0.8
    assert verdict_of('so {"verdict": "Neither"} it is').verdict == "neither"
    with pytest.raises(UsageError, match="which differ"):
        verdict_of('{"verdict": "entailed"} or {"verdict": "neither"}')


@pytest.mark.parametrize(
    "answer",
    [
        "## Goal\nx\n## Steps:\ny",
        "## 1. **Goal**\nx\n### 2) Steps\ny",
        "**Goal**\nx\n\n**Steps:**\ny",
        "# 🎯 GOAL\nx\n# Steps #\ny",
    ],
)
def test_headings_are_read_in_the_ways_models_write_them(answer: str) -> None:
    """Numbers, bold, colons and signs make no difference."""
    assert sections_of(answer) == {"goal": "x", "steps": "y"}
