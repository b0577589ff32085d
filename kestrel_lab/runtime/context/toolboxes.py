"""Toolboxes from whatever a caller may give as tools."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.plan import Step
from kestrel_lab.models.chat_format import wire_name
from kestrel_lab.tools.decorator import tool as as_tool
from kestrel_lab.tools.delegation import DELEGATE
from kestrel_lab.tools.tool import Tool, Toolbox

Tools = Iterable["str | Tool | Callable[..., Any]"]
"""Tools by name, as made by `@tool`, or as plain functions."""

DEFAULT = "default"
"""Stands for the tools that every run is offered unless it names some."""


def known_tools(own: Iterable[Tool], given: Tools, servers: Collection[str] = ()) -> Toolbox:
    """The tools of the package and those that a caller gives to every run: tools, functions, and the names
    that `chosen_tools` takes.

    A given tool takes the place of one that is offered on request only; one of those that is named is offered
    to every run. Tools of the `servers` are already. Raises `UsageError` for an unknown name.
    """
    known, added = Toolbox(own), list[Tool]()
    for item in given:
        server, colon, _ = item.partition(":") if isinstance(item, str) else ("", "", "")
        if colon and server not in servers:
            raise UsageError(f"there is no MCP server {server!r}; {did_you_mean(server, servers)}")
        if not isinstance(item, str):
            added.append(replace(to_tool(item), group=""))
        elif not colon:
            named = [replace(tool, group="") for tool in _tools_named(known, item) if tool.group]
            added += [
                tool for tool in named if tool.name not in {one.name for one in added}
            ]  # a tool and its group may both be named
    taken = {tool.name for tool in added}
    return Toolbox([*(tool for tool in known if not (tool.group and tool.name in taken)), *added])


def chosen_tools(known: Toolbox, tools: Tools | Toolbox | None, steps: Iterable[Step] = ()) -> Toolbox:
    """The toolbox that `tools` describe, names being those of `known`, of their groups, or `default`.

    For `None` it is all that belong to no group, and those that `steps` name; with `delegate` where one of
    them has a team. Raises `UsageError` for an unknown name.
    """
    if tools is None:
        named = {
            name
            for step in steps
            for name in (step.tool, *(step.tools or ()), *((DELEGATE,) if step.team else ()))
        }
        return Toolbox([tool for tool in known if not tool.group or tool.name in named])
    teams = [known.get(DELEGATE)] if DELEGATE in known and any(step.team for step in steps) else []
    if isinstance(tools, Toolbox):
        missing = [tool for tool in teams if tool.name not in tools]
        return Toolbox([*tools, *missing]) if missing else tools
    if isinstance(tools, str):
        raise UsageError(f"tools must be a list, not the text {tools!r}")
    found: list[Tool] = []
    for item in tools:
        if isinstance(item, str):
            found += [
                tool for tool in _tools_named(known, item) if tool not in found
            ]  # a tool and its group may both be named
        else:
            found.append(to_tool(item))
    return Toolbox([*found, *(tool for tool in teams if tool not in found)])


def group_names(known: Toolbox) -> list[str]:
    """The words that stand for several tools."""
    return [DEFAULT, *dict.fromkeys(tool.group for tool in known if tool.group)]


def check_wire_names(toolbox: Toolbox) -> Toolbox:
    """`toolbox`; raises `UsageError` where a model could not tell two of its tools apart."""
    seen: dict[str, str] = {}
    for name in toolbox.names:
        if (other := seen.setdefault(wire_name(name), name)) != name:
            raise UsageError(
                f"models would see {other!r} and {name!r} under the same name, {wire_name(name)!r}: "
                "rename one of them"
            )
    return toolbox


def to_tool(item: Tool | Callable[..., Any] | str) -> Tool:
    """The tool that a tool or a plain function is; raises `UsageError` for a name."""
    if isinstance(item, str):
        raise UsageError(f"{item!r} is a name: give the tool or function itself")
    return item if isinstance(item, Tool) else as_tool(item)


def _tools_named(known: Toolbox, name: str) -> Iterator[Tool]:
    if name in known:
        yield known.get(name)
    elif name in (groups := group_names(known)):
        yield from (tool for tool in known if tool.group == ("" if name == DEFAULT else name))
    else:
        from kestrel_lab.tools.builtin import NEEDS  # with it come all shipped tools: not to name an option

        needs = next(
            (what for start, what in NEEDS.items() if name == start or name.startswith(f"{start}_")), ""
        )
        msg = f"there is no tool {name!r}; " + (
            f"it needs {needs} in the environment" if needs else did_you_mean(name, [*known.names, *groups])
        )
        raise UsageError(msg)
