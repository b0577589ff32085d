"""Tool `macro_run`: run a macro in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ToolError, UsageError, nearest
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.shell_syntax.template import render_call
from kestrel_lab.tools.argument_schema import ToolArgumentsError
from kestrel_lab.tools.macros.macro import MACRO_RUN, Macro
from kestrel_lab.tools.tool import Parts, Tool, Toolbox, ToolContext


def with_macros(toolbox: Toolbox, macros: Iterable[Macro]) -> Toolbox:
    """`toolbox` with `macro_run` before all other tools, if there is a macro whose tools are all in it."""
    usable = {macro.name: macro for macro in macros if all(step.tool in toolbox for step in macro.steps)}
    return Toolbox([macro_tool(usable), *toolbox]) if usable and MACRO_RUN not in toolbox else toolbox


def macro_tool(macros: Mapping[str, Macro]) -> Tool:
    """Return the tool for these macros. Its own danger is none: each call it makes is asked about as if the agent had made it."""

    async def macro_run(name: str, args: dict[str, Json], ctx: ToolContext) -> Json:
        if ctx.parts is None:
            raise UsageError("macros run only within a run: their calls are approved and recorded there")
        return await run_macro(macros[name], args, ctx.parts)

    return Tool(
        name=MACRO_RUN,
        description=_told(macros.values()),
        function=macro_run,
        arguments=MacroArguments(macros=macros),
        danger=Danger.SAFE,
        effect="pure",
        reads=(),  # its calls have flows of their own
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
            answer = await parts(place, step.tool, render_call(step.args, {**args, "previous": previous, "steps": results}))
        except UsageError as error:
            raise _stopped(macro, place, str(error), parts) from error
        if answer.error is not None:
            raise _stopped(macro, place, answer.error.message, parts)
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
        return {"type": "object", "properties": {"name": name, "args": args}, "required": ["name", "args"], "additionalProperties": False}

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return the arguments with the macro's defaults; raises `ToolArgumentsError` with the nearest name or each wrong parameter."""
        name, given = args.get("name"), args.get("args", {})
        if not isinstance(name, str) or name not in self.macros:
            raise ToolArgumentsError(f"there is no macro {one_line(str(name))!r}; {nearest(str(name), self.macros)}")
        if not isinstance(given, dict) or set(args) - {"name", "args"}:
            raise ToolArgumentsError(f"{MACRO_RUN} takes name and args, and args is an object: use {self.macros[name].signature}")
        return {"name": name, "args": self.macros[name].arguments(given)}

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Return a copy."""
        return dict(args)


def _stopped(macro: Macro, place: int, reason: str, parts: Parts) -> ToolError:
    step = macro.steps[place - 1]
    done = ", ".join(f"{number} {earlier.tool}" for number, earlier in enumerate(macro.steps[: place - 1], 1)) or "none"
    parts.end(ok=False, reason=f"step {place}, {step.tool}: {reason}")
    return ToolError(
        f"macro {macro.name} stopped at step {place} of {len(macro.steps)}, {step.tool}: {reason}\nSteps done before it: {done}."
    )


def _told(macros: Iterable[Macro]) -> str:
    """Return the description for the model: every macro with its parameters and the tools it calls."""
    lines = ["Do several tool calls in one: prefer a macro that fits to its tools. Macros:"]
    for macro in macros:
        lines.append(f"- {macro.signature}: {one_line(macro.description, 300)} Calls {', '.join(step.tool for step in macro.steps)}.")
        required = cast("list[str]", macro.schema.get("required") or [])
        for name, about in macro.parameters.items():
            kind = about.get("type", "any") if isinstance(about, dict) else "any"
            kinds = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
            note = one_line(str(about.get("description", "")), 200) if isinstance(about, dict) else ""
            need = "" if name in required else ", optional"
            lines.append(f"  - {name} ({kinds}{need}){': ' + note if note else ''}")
    return "\n".join(lines)
