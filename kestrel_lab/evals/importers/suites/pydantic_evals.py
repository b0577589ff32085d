"""Datasets of pydantic-evals, in YAML or JSON: cases, expected outputs, and the evaluators that ours has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.yaml.reader import read_yaml
from kestrel_lab.evals.importers.suites.draft import SuiteDraft, as_list

_FIRST: Final = {
    "Equals": "value",
    "Contains": "value",
    "IsInstance": "type_name",
    "MaxDuration": "seconds",
    "LLMJudge": "rubric",
    "ToolCorrectness": "expected_tools",
    "TrajectoryMatch": "expected_trajectory",
    "ArgumentCorrectness": "tool_name",
    "MaxToolCalls": "max_calls",
    "MaxModelRequests": "max_requests",
    "GEval": "criteria",
}
"""The argument that an evaluator takes where one value stands alone."""


def read_pydantic_evals(path: Path) -> SuiteDraft:
    """Return the suite of a dataset; raises `UsageError` for a file that is none."""
    # JSON is YAML.
    value = read_yaml(path, aliases=True).value
    if not isinstance(value, dict) or not isinstance(value.get("cases"), list):
        raise UsageError(f"{path} has no list of cases: it is no dataset of pydantic-evals")
    draft = SuiteDraft(source=path, tool="pydantic-evals")
    draft.suite = {"name": str(value.get("name") or path.stem), "defaults": {"tools": []}}
    for key in sorted(set(value) - {"name", "cases", "evaluators", "report_evaluators", "$schema"}):
        draft.lost(key, f"the key {key}", "metadata of the scenarios")
    for place, one in enumerate(as_list(value.get("report_evaluators"))):
        name, _ = _spec(one)
        draft.lost(f"report_evaluators[{place}]", f"the report evaluator {name}", "summary, frame and --csv")
    shared = as_list(value.get("evaluators"))
    for place, case in enumerate(as_list(value["cases"])):
        if isinstance(case, dict):
            _case(draft, f"cases[{place}]", case, shared, place + 1)
        else:
            draft.lost(f"cases[{place}]", "it is no mapping", "write it as a case")
    return draft


def _case(draft: SuiteDraft, where: str, case: dict[str, Any], shared: list[Any], number: int) -> None:
    goal, note = _goal(case.get("inputs"))
    if note:
        draft.lost(f"{where}.inputs", note, "write the goal as the task function makes its prompt")
    expected = case.get("expected_output")
    specs = [
        *((f"evaluators[{place}]", one) for place, one in enumerate(shared)),
        *((f"{where}.evaluators[{at}]", one) for at, one in enumerate(as_list(case.get("evaluators")))),
    ]
    checks: list[Json] = []
    for at, one in specs:
        name, given = _spec(one)
        try:
            made = _check(name, given, expected)
            for item in made:
                parse_check(item)
        except UsageError as error:
            draft.lost(
                at,
                f"the evaluator {name}: {error}",
                _WAYS.get(name, "a python_check with the same function, beside the suite"),
            )
            continue
        if name in _NOTES:
            draft.lost(at, f"{name} as it is judged there", _NOTES[name])
        checks += made
    metadata = case.get("metadata")
    draft.add(
        where,
        {
            "id": str(case.get("name") or f"case-{number}"),
            "goal": goal,
            "expected": expected,
            "checks": checks,
            "metadata": metadata
            if isinstance(metadata, dict)
            else {}
            if metadata is None
            else {"metadata": metadata},
        },
    )


def _goal(inputs: Json) -> tuple[str, str]:
    """Return inputs as a goal, and why that is a guess; empty for a text, which is none."""
    if isinstance(inputs, str):
        return inputs or " ", ""
    if isinstance(inputs, dict) and len(inputs) == 1 and isinstance(only := next(iter(inputs.values())), str):
        return only or " ", f"inputs with the key {next(iter(inputs))!r}: its text is the goal"
    if isinstance(inputs, dict):
        lines = (f"{key}: {one if isinstance(one, str) else dumps(one)}" for key, one in inputs.items())
        return "\n".join(lines), "inputs with several keys: they are written one below the other"
    return dumps(inputs), "inputs that are no text: the goal is their JSON"


def _spec(one: Any) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of an evaluator: a name, a name with one value, or with a mapping of them."""
    if not isinstance(one, dict) or len(one) != 1:
        return str(one.get("name", one) if isinstance(one, dict) else one), {}
    ((name, given),) = one.items()
    if isinstance(given, dict) and not (name in ("Equals", "Contains") and "value" not in given):
        return name, given
    return name, {_FIRST.get(name, "value"): given}


def _check(name: str, given: Mapping[str, Any], expected: Json) -> list[dict[str, Json]]:
    """Return the checks of an evaluator, none where it says nothing of this case; raises `UsageError` for one
    that ours does not have.
    """
    make = _EVALUATORS.get(name)
    if make is None:
        raise UsageError("ours has no such check")
    made = make(given, expected)
    label = given.get("evaluation_name")
    return [{**one, "name": str(label)} for one in made] if label else made


def _equal(value: Json) -> list[dict[str, Json]]:
    if isinstance(value, str):
        return [{"answer_equals": {"text": value, "compare": "exact"}}]
    return [{"is_json": {"schema": {"const": value}}}]


def _contains(given: Mapping[str, Any], _: Json) -> list[dict[str, Json]]:
    value = given.get("value")
    if not isinstance(value, str) and not given.get("as_strings"):
        raise UsageError("it looks into a value that is no text")
    compare = "exact" if given.get("case_sensitive", True) else "caseless"
    return [{"answer_contains": {"texts": [str(value)], "compare": compare}}]


def _instance(given: Mapping[str, Any], _: Json) -> list[dict[str, Json]]:
    if given.get("type_name") != "str":
        raise UsageError(f"the answer of an agent is text, not {given.get('type_name')}")
    return []


def _judge(given: Mapping[str, Any], _: Json) -> list[dict[str, Json]]:
    config: dict[str, Json] = {"rubric": str(given.get("rubric") or given.get("criteria") or "")}
    if isinstance(model := given.get("model"), str):
        config["model"] = model.replace(":", "/", 1).replace("google-gla/", "gemini/")
    return [{"graded": config}]


def _tools(given: Mapping[str, Any], _: Json) -> list[dict[str, Json]]:
    tools: list[Json] = [str(name) for name in as_list(given.get("expected_tools"))]
    made: list[dict[str, Json]] = [{"trajectory_match": {"calls": tools, "mode": "recall"}}]
    if not given.get("allow_extra"):
        made.append({"trajectory_match": {"calls": tools, "mode": "precision"}})
    return made


def _trajectory(given: Mapping[str, Any], _: Json) -> list[dict[str, Json]]:
    calls: list[Json] = [str(name) for name in as_list(given.get("expected_trajectory"))]
    mode = {"exact": "exact", "in_order": "in_order", "any_order": "any_order"}.get(
        str(given.get("order", "in_order"))
    )
    if mode is None:
        raise UsageError(f"an order {given.get('order')!r}")
    return [{"trajectory_match": {"calls": calls, "mode": mode}}]


def _arguments(given: Mapping[str, Any], _: Json) -> list[dict[str, Json]]:
    args = given.get("expected_arguments")
    call: dict[str, Json] = {
        "tool": str(given.get("tool_name")),
        "args": args if isinstance(args, dict) else {},
    }
    return [{"trajectory_match": {"calls": [call], "mode": "any_order"}}]


_EVALUATORS: Final[dict[str, Callable[[Mapping[str, Any], Json], list[dict[str, Json]]]]] = {
    "EqualsExpected": lambda _, expected: [] if expected is None else _equal(expected),
    "Equals": lambda given, _: _equal(given.get("value")),
    "Contains": _contains,
    "IsInstance": _instance,
    "MaxDuration": lambda given, _: [{"seconds_at_most": given.get("seconds")}],
    "LLMJudge": _judge,
    "GEval": _judge,
    "ToolCorrectness": _tools,
    "TrajectoryMatch": _trajectory,
    "ArgumentCorrectness": _arguments,
    "MaxModelRequests": lambda given, _: [{"turns_at_most": given.get("max_requests")}],
}
_WAYS: Final = {
    "HasMatchingSpan": "tool_used, tools_in_order or trajectory_match, which read the log: no spans",
    "MaxToolCalls": "tool_at_most for each tool, or a gate on tool_calls",
    "IsInstance": "answer_schema or is_json with a schema; output: of the scenario",
}
_NOTES: Final = {
    "LLMJudge": "a graded check: another prompt, and a score of .5 passes",
    "GEval": "a graded check with the criteria as its rubric, without steps and range",
    "ArgumentCorrectness": "trajectory_match: any call of the tool with these arguments",
    "TrajectoryMatch": "trajectory_match, which passes from at_least on; theirs is a score",
}
