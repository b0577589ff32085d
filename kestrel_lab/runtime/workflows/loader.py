"""Workflow files: ten kinds of plans in YAML, shipped ones by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from kestrel_lab.agents import GOAL, MakesPlan, with_goal
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.sanitize import shown_path

if TYPE_CHECKING:
    from kestrel_lab.core.yaml.reader import YamlFile
    from kestrel_lab.mcp.config import ServerConfig
    from kestrel_lab.runtime.workflows.models import AnyWorkflow, InputEntry

# Files are read through pydantic, whose import takes as long as that of all else a run needs: only who names
# a file waits for it.

SHIPPED: Final = Path(__file__).parent / "library" / "workflows"
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def load_plan(name_or_path: str | Path, goal: str, inputs: Mapping[str, Json] | None = None) -> Plan:
    """Return the plan of a workflow file for `goal`.

    Args:
        name_or_path: A shipped workflow by name (see `shipped_workflows`), or a YAML file: a `Path`, or a
            text with a folder or the ending `.yaml`.
        goal: The goal of the run: `{{goal}}` in the file, and an artifact.
        inputs: Values of the inputs that the file declares; artifacts too. A text for an input that is no
            text is read as JSON.

    Raises:
        UsageError: one line for each mistake in the file: file, line, key, what is wrong and the nearest
            right spelling; an input that is not declared, is missing, or of another type.
    """
    from kestrel_lab.answers.output_types import OutputType
    from kestrel_lab.runtime.operations.verify_plan import with_output_type
    from kestrel_lab.runtime.workflows.compile import Reading, compile_steps

    path = find_workflow(name_or_path)
    document, entry = read_workflow(path)
    scope: dict[str, Json] = {GOAL: goal, **input_values(document, entry.inputs, inputs or {})}
    reading = Reading(
        document=document, folder=path.parent, entry=entry, scope=scope, above=(path.resolve(),)
    )
    criteria = [
        reading.tried(("acceptance_criteria", place), partial(with_goal, text, scope))
        for place, text in enumerate(entry.acceptance_criteria)
    ]
    shape = compile_steps(reading)
    artifacts = {**scope, **shape.artifacts}
    made = reading.tried(
        (),
        lambda: Plan(steps=shape.steps, artifacts=artifacts, acceptance_criteria=tuple(map(str, criteria))),
    )
    output = reading.tried(("output",), lambda: OutputType.of(entry.output))
    answering = (
        made
        if made is None or output is None
        else reading.tried(("output",), lambda: with_output_type(made, goal, output))
    )
    reading.stop_at_problems()
    return cast("Plan", answering)


def workflow_servers(name_or_path: str | Path) -> tuple[ServerConfig, ...]:
    """Return the MCP servers that a workflow file names. They have to be approved like those of a settings
    file, and what the file says of their tools never makes these less dangerous.

    Raises `UsageError` with file and key for a server that cannot be read.
    """
    from kestrel_lab.mcp.config import cautious_server, read_server

    path = find_workflow(name_or_path)
    # Hardly any workflow has servers: the others are not read and checked a second time.
    if "mcp_servers" not in path.read_text(encoding="utf-8", errors="replace"):
        return ()
    document, entry = read_workflow(path)
    servers: dict[str, ServerConfig] = {}
    for place, table in enumerate(entry.mcp_servers):
        where = document.place(("mcp_servers", place))
        name = table.get("name")
        if not isinstance(name, str) or name in servers:
            raise UsageError(f"{where}: a server has a name of its own, not {name!r}")
        own = {key: value for key, value in table.items() if key != "name"}
        servers[name] = cautious_server(read_server(name, own, document.name))
    return tuple(servers.values())


def find_workflow(name_or_path: str | Path) -> Path:
    """Return a workflow's file; raises `UsageError` with the nearest shipped name if there is none."""
    from kestrel_lab.runtime.workflows.agent_files import is_file_name

    text = str(name_or_path)
    if isinstance(name_or_path, Path) or is_file_name(text):
        path = Path(name_or_path)
        if not path.is_file():
            raise UsageError(f"there is no workflow file {text!r}")
        return path
    known = shipped_workflows()
    if text not in known:
        raise UsageError(
            f"there is no shipped workflow {text!r}; {did_you_mean(text, known)} (a file is named with "
            f"its ending, {text}.yaml)"
        )
    return known[text]


def shipped_workflows() -> dict[str, Path]:
    """Return the shipped workflow files by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def read_workflow(path: Path) -> tuple[YamlFile, AnyWorkflow]:
    """Return a workflow file, validated; raises `UsageError` for mistakes that do not depend on the goal."""
    from kestrel_lab.core.yaml.reader import read_yaml
    from kestrel_lab.core.yaml.validation import validate
    from kestrel_lab.runtime.workflows.models import KINDS, PlanEntry

    document = read_yaml(path, shown_path(path))
    value = document.value
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind not in KINDS:
        found = "is missing" if kind is None else f"there is no kind {kind!r}"
        raise UsageError(f"{document.place(('kind',))}: {found}; {did_you_mean(str(kind), KINDS)}")
    return document, validate(document, KINDS.get(str(kind), PlanEntry))


def input_values(
    document: YamlFile, declared: Mapping[str, InputEntry], given: Mapping[str, Json]
) -> dict[str, Json]:
    """Return a workflow's input values; raises `UsageError` for missing, unknown or ill-typed ones."""
    for name in given:
        if name not in declared:
            raise UsageError(f"{document.name} has no input {name!r}; {did_you_mean(name, declared)}")
    found: dict[str, Json] = {}
    for name, entry in declared.items():
        if name == GOAL:
            raise UsageError(
                f"{document.place(('inputs', name))}: {GOAL!r} is what the run is asked to do: choose "
                "another name"
            )
        if name not in given and "default" not in entry.written:
            raise UsageError(
                f"{document.name} needs the input {name!r}"
                + (f": {entry.description}" if entry.description else "")
            )
        found[name] = _value(name, entry, given[name]) if name in given else cast("Json", entry.default)
    return found


def _value(name: str, entry: InputEntry, given: Json) -> Json:
    value = given
    if isinstance(given, str) and entry.type != "string":
        try:
            value = loads(given)
        except ValueError:
            # Not JSON: text, as most inputs are.
            value = given
    # A bool is an int in Python, so it would pass for a number.
    if not isinstance(value, _TYPES[entry.type]) or (isinstance(value, bool) and entry.type != "boolean"):
        raise UsageError(f"the input {name!r} must be of type {entry.type}, not {given!r}")
    if entry.minimum is not None and isinstance(value, int | float) and not value >= entry.minimum:
        raise UsageError(f"the input {name!r} must be at least {entry.minimum:g}, not {given!r}")
    return value


def plan_for(
    given: Plan | MakesPlan | str | Path | None, goal: str, inputs: Mapping[str, Json] | None = None
) -> Plan | None:
    """Return `given` as a plan for `goal`; `None` for a run without one.

    Raises `UsageError` for an invalid workflow, and for inputs without a workflow.
    """
    if isinstance(given, str | Path):
        return load_plan(given, goal, inputs)
    if inputs:
        raise UsageError(f"inputs ({', '.join(inputs)}) are for workflows: name one as the plan")
    if isinstance(given, Plan):
        return given.without_results()
    return None if given is None else given.plan(goal)
