"""Macros: named, versioned sequences of tool calls, the table that stores them, and the tool `macro_run`,
which makes one call of them.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ToolError, UsageError, did_you_mean
from kestrel_lab.core.expressions import templates as template
from kestrel_lab.core.expressions.json_paths import JsonPath
from kestrel_lab.core.json_types import Json, content_key, dumps, readable
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.shell_syntax.template import check_command, render_call
from kestrel_lab.tools.argument_schema import ToolArgumentsError
from kestrel_lab.tools.tool import Parts, Tool, Toolbox, ToolContext
from kestrel_lab.views.html.table_view import TextView

MACRO_RUN = "macro_run"
"""The tool that runs macros; it may not be a step of one."""
MAX_STEPS = 50

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_RESULTS = ("previous", "steps")
"""Names that steps use for earlier results, besides parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MacroStep:
    """One tool call; `{{parameter}}`, `{{previous.content}}` and `{{steps[0].content}}` in its arguments are
    filled in when it is made.
    """

    tool: str
    args: dict[str, Json] = field(default_factory=dict)

    def as_json(self) -> dict[str, Json]:
        """As it is stored."""
        return {"type": "tool", "name": self.tool, "args": self.args}


@dataclass(frozen=True, kw_only=True, slots=True)
class Macro(TextView):
    """A named, versioned sequence of tool calls, valid by construction.

    `content` of an earlier step is the JSON value its tool returned. Raises `UsageError` for a name that
    cannot be typed, a schema that is not JSON Schema of an object, no steps or more than 50, a step that is
    `macro_run`, and a reference to anything that is neither a property of the schema nor an earlier step.
    """

    name: str
    description: str
    schema: dict[str, Json]
    """JSON Schema of the parameters, an object schema; its `default`s are filled in."""
    steps: tuple[MacroStep, ...]
    version: int = 1
    enabled: bool = True
    stored: bool = field(default=False, compare=False, repr=False)
    """True if it was stored before: commands that only an earlier version accepted fail when run, not when
    read.
    """

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{one_line(self.name)!r} cannot be a macro's name: use up to 64 letters, digits, _ "
                "and -, beginning with a letter"
            )
        if not self.description.strip():
            raise UsageError(
                f"macro {self.name!r} has no description: say in one line what it "
                "does, for the agents that use it"
            )
        if not 1 <= len(self.steps) <= MAX_STEPS:
            raise UsageError(f"macro {self.name!r} has {len(self.steps)} steps: give 1 to {MAX_STEPS}")
        self._check_schema()
        for place, step in enumerate(self.steps):
            self._check_step(place, step)

    @classmethod
    def from_json(
        cls, name: str, description: str, schema: dict[str, Json], steps: Iterable[Json], **more: Any
    ) -> Macro:
        """Return a macro whose steps are JSON: `{"type": "tool", "name": …, "args": {…}}`.

        Contract: the class.
        """
        return cls(
            name=name,
            description=description,
            schema=schema,
            steps=tuple(_step(name, item) for item in steps),
            **more,
        )

    @property
    def parameters(self) -> dict[str, dict[str, Json]]:
        """The schema of each parameter."""
        return cast("dict[str, dict[str, Json]]", self.schema.get("properties") or {})

    @property
    def signature(self) -> str:
        """The macro as it is called: `name(parameter, optional?)`."""
        required = cast("list[str]", self.schema.get("required") or [])
        names = [name if name in required else f"{name}?" for name in self.parameters]
        return f"{self.name}({', '.join(names)})"

    def arguments(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return `args` completed with defaults; raises `ToolArgumentsError` with all mistakes."""
        from jsonschema import Draft202012Validator  # loaded on use
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        defaults = {
            name: about["default"]
            for name, about in self.parameters.items()
            if isinstance(about, dict) and "default" in about
        }
        complete = {**defaults, **args}
        # Knows nothing and fetches nothing: a schema cannot reach out.
        registry: Any = Registry()
        try:
            errors = list(Draft202012Validator(self.schema, registry=registry).iter_errors(complete))
        except Unresolvable as error:
            raise ToolArgumentsError(
                f"macro {self.name} was not run: its schema refers to something that it does not "
                f"contain ({error})"
            ) from error
        if errors:
            lines = [
                f"- {'.'.join(map(str, error.absolute_path)) or 'args'}: {one_line(error.message, 200)}"
                for error in errors[:10]
            ]
            raise ToolArgumentsError(
                "\n".join(
                    [
                        f"macro {self.name} was not run, its arguments are wrong:",
                        *lines,
                        f"use {self.signature}",
                    ]
                )
            )
        return complete

    def _check_schema(self) -> None:
        from jsonschema import Draft202012Validator  # loaded on use
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            raise UsageError(
                f"the schema of macro {self.name!r} is not JSON Schema: {one_line(error.message, 200)}"
            ) from error
        if self.schema.get("type") != "object":
            raise UsageError(
                f"the schema of macro {self.name!r} must describe an object: {{'type': 'object', "
                f"'properties': …}}"
            )
        if taken := [name for name in self.parameters if name in _RESULTS]:
            raise UsageError(
                f"macro {self.name!r} has a parameter {taken[0]!r}, which means the results of its "
                "steps: choose another name"
            )

    def _check_step(self, place: int, step: MacroStep) -> None:
        where = f"step {place + 1} of macro {self.name!r}"
        if not step.tool or step.tool == MACRO_RUN:
            raise UsageError(
                f"{where} {'is a macro: write its steps instead' if step.tool else 'names no tool'}"
            )
        try:
            dumps(step.args)
            found = template.references_in(step.args)
            if not self.stored:
                check_command(step.args)
        except (UsageError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{where}: {error}") from error
        for path in found:
            if problem := self._problem(path, place):
                raise UsageError(f"{where} refers to {str(path)!r}: {problem}")

    def _problem(self, path: JsonPath, place: int) -> str:
        """Return what is wrong with a reference in step `place`, counted from 0; empty if nothing is."""
        match path.root, path.parts:
            case "previous", ("content", *_):
                return "" if place else "there is no step before it"
            case "steps", (int() as earlier, "content", *_):
                return (
                    ""
                    if earlier < place
                    else f"only steps before it have results, counted from [0] to [{place - 1}]"
                )
            case (("previous" | "steps"), _):
                return "results are previous.content and steps[0].content, with .key or [0] after that"
            case root, _:
                return (
                    ""
                    if root in self.parameters
                    else f"no such parameter; {did_you_mean(root, [*self.parameters, *_RESULTS])}"
                )

    def __repr__(self) -> str:
        state = f"version {self.version}" if self.enabled else f"version {self.version}, disabled"
        lines = [f"macro {self.signature} · {state}", f"  {self.description}"]
        return "\n".join(
            lines
            + [f"  {place}. {step.tool} {readable(step.args)}" for place, step in enumerate(self.steps, 1)]
        )


class MacroRegistry:
    """The macros of one workspace, as the log stores them; the newest version of each counts."""

    def __init__(self, store: SessionStore, workspace: str) -> None:
        self._store = store
        self.workspace = workspace

    def list(self) -> list[Macro]:
        """Return the newest version of each macro, by name."""
        return list({str(row[0]): _macro(row) for row in self._rows()}.values())

    def get(self, name: str, version: int | None = None) -> Macro:
        """Return a macro by its name; raises `UsageError` with the nearest name when there is none."""
        rows = self._rows()
        fitting = [row for row in rows if row[0] == name and version in {None, row[4]}]
        if not fitting:
            what = f"macro {name!r}" if version is None else f"version {version} of macro {name!r}"
            raise UsageError(
                f"there is no {what} for {self.workspace}; {did_you_mean(name, {row[0] for row in rows})}"
            )
        return _macro(fitting[-1])

    def save(self, macro: Macro) -> Macro:
        """Store `macro` as its name's next version, unless it equals the newest; return the stored one."""
        macro = replace(macro, stored=False)
        newest = next((known for known in self.list() if known.name == macro.name), None)
        if newest is None or replace(macro, version=newest.version, enabled=newest.enabled) != newest:
            add_macro(self._store, self.workspace, macro)
        return self.get(macro.name)

    def enable(self, name: str) -> Macro:
        """Enable a macro for new runs; raises `UsageError` for an unknown name."""
        return self._set(name, enabled=True)

    def disable(self, name: str) -> Macro:
        """Keep a macro but no longer offer it; raises `UsageError` when there is none of that name."""
        return self._set(name, enabled=False)

    def remove(self, name: str) -> None:
        """Delete every version of a macro; raises `UsageError` when there is none of that name."""
        if name not in (known := {row[0] for row in self._rows()}):
            raise UsageError(f"there is no macro {name!r} for {self.workspace}; {did_you_mean(name, known)}")
        self._store.execute(
            "DELETE FROM macros WHERE workspace_id = ? AND name = ?",
            (self.workspace, name),
            f"macro {name!r}",
        ).result()

    def _set(self, name: str, *, enabled: bool) -> Macro:
        self.get(name)
        self._store.execute(
            "UPDATE macros SET enabled = ?, updated_at = ? WHERE workspace_id = ? AND name = ? AND "
            "enabled IS NOT ?",
            (int(enabled), time.time(), self.workspace, name, int(enabled)),
            f"macro {name!r}",
        ).result()
        return self.get(name)

    def _rows(self) -> Sequence[tuple[Any, ...]]:
        """Return every version of every macro, by name, the oldest version first."""
        columns = "name, description, schema_json, steps_json, version, enabled"
        return self._store.query(
            f"SELECT {columns} FROM macros WHERE workspace_id = ? ORDER BY name, version", (self.workspace,)
        )


def offer_macros(
    toolbox: Toolbox, registry: MacroRegistry, listed: Iterable[Macro], state: RunState | None = None
) -> Toolbox:
    """`toolbox` with `macro_run` for the enabled ones of the macros `listed` in the registry.

    A macro that a resumed run had begun stays in the version it was begun with.
    """
    macros = {macro.name: macro for macro in listed if macro.enabled}
    for begun in state.macros.values() if state is not None else ():
        try:
            macros[begun.started.macro] = registry.get(begun.started.macro, begun.started.version)
        except UsageError:  # removed meanwhile: a call of it is answered with "no such tool"
            macros.pop(begun.started.macro, None)
    return with_macros(toolbox, macros.values()) if macros else toolbox


def _macro(row: tuple[Any, ...]) -> Macro:
    name, description, schema, steps, version, enabled = row
    return Macro.from_json(
        name,
        description,
        json.loads(schema),
        json.loads(steps),
        version=version,
        enabled=bool(enabled),
        stored=True,
    )


_COLUMNS = (
    "id, workspace_id, name, description, schema_json, steps_json, version, enabled, created_at, updated_at"
)


def add_macro(store: SessionStore, workspace: str, macro: Macro) -> None:
    """Store `macro` as the next version of its name, whatever `version` it has; wait until it is on disk."""
    now = time.time()
    store.execute(
        f"INSERT INTO macros({_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?, coalesce(max(version), 0) + 1, ?, ?, ?"
        " FROM macros WHERE workspace_id = ? AND name = ?",
        (
            str(uuid.uuid4()),
            workspace,
            macro.name,
            macro.description,
            dumps(macro.schema),
            dumps([step.as_json() for step in macro.steps]),
            int(macro.enabled),
            now,
            now,
            workspace,
            macro.name,
        ),
        f"macro {macro.name!r}",
    ).result()


def _step(macro: str, item: Json) -> MacroStep:
    match item:
        case {"type": "tool", "name": str() as name, **rest} if set(rest) <= {"args"} and isinstance(
            rest.get("args", {}), dict
        ):
            return MacroStep(tool=name, args=cast("dict[str, Json]", rest.get("args", {})))
    raise UsageError(
        f'a step of macro {macro!r} is {one_line(repr(item), 100)}: write {{"type": "tool", "name": …, '
        f'"args": {{…}}}}'
    )


# Running them.


def with_macros(toolbox: Toolbox, macros: Iterable[Macro]) -> Toolbox:
    """Return `toolbox` with `macro_run` first, if there is a macro whose tools are all in it."""
    usable = {macro.name: macro for macro in macros if all(step.tool in toolbox for step in macro.steps)}
    return Toolbox([macro_tool(usable), *toolbox]) if usable and MACRO_RUN not in toolbox else toolbox


def offered_macros(toolbox: Toolbox) -> tuple[str, ...]:
    """Return the names of the macros that a toolbox offers."""
    if MACRO_RUN not in toolbox:
        return ()
    arguments = toolbox.get(MACRO_RUN).arguments
    return tuple(arguments.macros) if isinstance(arguments, MacroArguments) else ()


def macro_tool(macros: Mapping[str, Macro]) -> Tool:
    """Return the tool for these macros.

    Its own danger is none: each call it makes is asked about as if the agent had made it.
    """

    async def macro_run(name: str, args: dict[str, Json], ctx: ToolContext) -> Json:
        if ctx.parts is None:
            raise UsageError("macros run only within a run: their calls are approved and recorded there")
        return await run_macro(macros[name], args, ctx.parts)

    return Tool(
        name=MACRO_RUN,
        description=_macros_prompt(macros.values()),
        function=macro_run,
        arguments=MacroArguments(macros=macros),
        danger=Danger.SAFE,
        effect="pure",
        # Its calls have flows of their own.
        reads=(),
        reaches="nothing",
        version=content_key([[name, macro.version] for name, macro in macros.items()])[:12],
        parts=lambda args: tuple(step.tool for step in macros[str(args["name"])].steps),
        context_parameter="ctx",
    )


async def run_macro(macro: Macro, args: dict[str, Json], parts: Parts) -> Json:
    """Make the calls of `macro` one after the other; returns what each gave, under its number and tool.

    Raises `ToolError` at the first that fails; it names step, tool and reason and says what was done before.
    """
    parts.begin(macro.name, macro.version, args)
    results: list[Json] = []
    for place, step in enumerate(macro.steps, 1):
        previous = results[-1] if results else None
        try:
            answer = await parts(
                place, step.tool, render_call(step.args, {**args, "previous": previous, "steps": results})
            )
        except UsageError as error:
            raise _stopped_error(macro, place, str(error), parts) from error
        if answer.error is not None:
            raise _stopped_error(macro, place, answer.error.message, parts)
        results.append({"content": answer.value})
    parts.end(ok=True)
    return {
        f"{place} {step.tool}": cast("dict[str, Json]", result)["content"]
        for place, (step, result) in enumerate(zip(macro.steps, results, strict=True), 1)
    }


@dataclass(frozen=True, kw_only=True)
class MacroArguments:
    """Which macro, and its own arguments by its own schema."""

    macros: Mapping[str, Macro]

    @cached_property
    def schema(self) -> dict[str, Json]:
        """JSON Schema: a name out of those there are, and an object."""
        name: dict[str, Json] = {"type": "string", "enum": list(self.macros), "description": "Which macro."}
        args: dict[str, Json] = {"type": "object", "description": "Its parameters by name."}
        return {
            "type": "object",
            "properties": {"name": name, "args": args},
            "required": ["name", "args"],
            "additionalProperties": False,
        }

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return the arguments with the macro's defaults; raises `ToolArgumentsError` with the nearest name
        or each wrong parameter.
        """
        name, given = args.get("name"), args.get("args", {})
        if not isinstance(name, str) or name not in self.macros:
            raise ToolArgumentsError(
                f"there is no macro {one_line(str(name))!r}; {did_you_mean(str(name), self.macros)}"
            )
        if not isinstance(given, dict) or set(args) - {"name", "args"}:
            raise ToolArgumentsError(
                f"{MACRO_RUN} takes name and args, and args is an object: use {self.macros[name].signature}"
            )
        return {"name": name, "args": self.macros[name].arguments(given)}

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Return a copy."""
        return dict(args)


def _stopped_error(macro: Macro, place: int, reason: str, parts: Parts) -> ToolError:
    step = macro.steps[place - 1]
    done = (
        ", ".join(f"{number} {earlier.tool}" for number, earlier in enumerate(macro.steps[: place - 1], 1))
        or "none"
    )
    parts.end(ok=False, reason=f"step {place}, {step.tool}: {reason}")
    return ToolError(
        f"macro {macro.name} stopped at step {place} of {len(macro.steps)}, {step.tool}: "
        f"{reason}\nSteps done before it: {done}."
    )


def _macros_prompt(macros: Iterable[Macro]) -> str:
    """Return the description for the model: every macro with its parameters and the tools it calls."""
    lines = ["Do several tool calls in one: prefer a macro that fits to its tools. Macros:"]
    for macro in macros:
        lines.append(
            f"- {macro.signature}: {one_line(macro.description, 300)} Calls "
            f"{', '.join(step.tool for step in macro.steps)}."
        )
        required = cast("list[str]", macro.schema.get("required") or [])
        for name, about in macro.parameters.items():
            kind = about.get("type", "any") if isinstance(about, dict) else "any"
            kinds = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
            note = one_line(str(about.get("description", "")), 200) if isinstance(about, dict) else ""
            need = "" if name in required else ", optional"
            lines.append(f"  - {name} ({kinds}{need}){': ' + note if note else ''}")
    return "\n".join(lines)
