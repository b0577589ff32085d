"""Workflows: plans as YAML files, shipped ones by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.entries import attempt, checked, joined
from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.core.template import references, render
from kestrel_lab.core.yamlfile import YamlFile, read_yaml
from kestrel_lab.engine.workflow_entries import InputEntry, PlanEntry, StepEntry

SHIPPED: Final = Path(__file__).parent / "workflows"
GOAL: Final = "goal"
"""The artifact that every workflow has: what the run was asked to do."""
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def load_plan(name_or_path: str | Path, goal: str, inputs: Mapping[str, Json] | None = None) -> Plan:
    """The plan that a workflow file makes for `goal`.

    Args:
        name_or_path: A shipped workflow by name (see `shipped_plans`), or a YAML file: a `Path`, or a text
            with a folder or the ending `.yaml`.
        goal: What the run is asked to do: `{{goal}}` in the file, and an artifact.
        inputs: Values of the inputs that the file declares; artifacts too. A text for an input that is no
            text is read as JSON.

    Raises:
        UsageError: one line for each mistake in the file: file, line, key, what is wrong and the nearest
            right spelling; an input that is not declared, is missing, or of another type.
    """
    path = find_workflow(name_or_path)
    document = read_yaml(path, _shown(path))
    entry = checked(document, PlanEntry)
    given = _inputs(document, entry.inputs, inputs or {})
    scope: dict[str, Json] = {GOAL: goal, **given}
    problems: list[str] = []
    steps = [attempt(document, ("steps", number), problems, partial(_step, step, scope)) for number, step in enumerate(entry.steps)]
    criteria = [
        attempt(document, ("acceptance_criteria", number), problems, partial(_filled, text, scope))
        for number, text in enumerate(entry.acceptance_criteria)
    ]
    if problems:
        raise UsageError(joined(problems))
    made = attempt(
        document,
        ("steps",),
        problems,
        lambda: Plan(steps=tuple(filter(None, steps)), artifacts=scope, acceptance_criteria=tuple(map(str, criteria))),
    )
    if made is None:
        raise UsageError(joined(problems))
    return made


def find_workflow(name_or_path: str | Path) -> Path:
    """The file of a workflow; raises `UsageError` when there is none, with the nearest shipped name."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or "\\" in text or text.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        if not path.is_file():
            msg = f"there is no workflow file {text!r}"
            raise UsageError(msg)
        return path
    known = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    if text not in known:
        msg = f"there is no shipped workflow {text!r}; {nearest(text, known)} (a file is named with its ending, {text}.yaml)"
        raise UsageError(msg)
    return known[text]


def _step(entry: StepEntry, scope: Mapping[str, Json]) -> Step:
    given: dict[str, Any] = entry.model_dump(by_alias=True, exclude_unset=True)
    if entry.goal:
        given["goal"] = _filled(entry.goal, scope)
    return Step.from_json(given)


def _filled(text: str, scope: Mapping[str, Json]) -> str:
    """A text with the goal and the inputs put in: only what a person gave may become part of what agents are told to do."""
    if unknown := sorted(references(text) - set(scope)):
        msg = f"{{{{{unknown[0]}}}}} is neither the goal nor a declared input; {nearest(unknown[0], scope)}. What steps answer is consumed, not put in"
        raise UsageError(msg)
    found = render(text, scope)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _inputs(document: YamlFile, declared: Mapping[str, InputEntry], given: Mapping[str, Json]) -> dict[str, Json]:
    for name in given:
        if name not in declared:
            msg = f"{document.name} has no input {name!r}; {nearest(name, declared)}"
            raise UsageError(msg)
    found: dict[str, Json] = {}
    for name, entry in declared.items():
        if name not in given and "default" not in entry.model_fields_set:
            msg = f"{document.name} needs the input {name!r}" + (f": {entry.description}" if entry.description else "")
            raise UsageError(msg)
        found[name] = _value(name, entry, given[name]) if name in given else cast("Json", entry.default)
    return found


def _value(name: str, entry: InputEntry, given: Json) -> Json:
    if isinstance(given, str) and entry.type != "string":
        try:
            given = cast("Json", json.loads(given))
        except ValueError:
            pass
    if not isinstance(given, _TYPES[entry.type]) or (isinstance(given, bool) and entry.type != "boolean"):
        msg = f"the input {name!r} must be of type {entry.type}, not {given!r}"
        raise UsageError(msg)
    return given


def _shown(path: Path) -> str:
    """The path as people in this folder would write it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)
