"""Toolboxes from whatever a caller may give as tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.engine.options import Tools
from kestrel_lab.models.wire import wire_name
from kestrel_lab.tools.decorator import tool as as_tool
from kestrel_lab.tools.registry import Tool, Toolbox


def chosen_tools(known: Toolbox, tools: Tools | Toolbox | None) -> Toolbox:
    """The toolbox that `tools` describe, names being those of `known`; all of it if `None`.

    Raises `UsageError` for an unknown name.
    """
    if tools is None:
        return known
    if isinstance(tools, Toolbox):
        return tools
    if isinstance(tools, str):
        msg = f"tools must be a list, not the text {tools!r}"
        raise UsageError(msg)
    return Toolbox(known.get(item) if isinstance(item, str) else given_tool(item) for item in tools)


def apart_on_the_wire(toolbox: Toolbox) -> Toolbox:
    """`toolbox`; raises `UsageError` where a model could not tell two of its tools apart."""
    seen: dict[str, str] = {}
    for name in toolbox.names:
        if (other := seen.setdefault(wire_name(name), name)) != name:
            msg = f"models are told of {other!r} and of {name!r} by the same name, {wire_name(name)!r}: rename one of them"
            raise UsageError(msg)
    return toolbox


def given_tool(item: Tool | Callable[..., Any] | str) -> Tool:
    """The tool that a tool or a plain function is; raises `UsageError` for a name."""
    if isinstance(item, str):
        msg = f"{item!r} is a name: give the tool or function itself"
        raise UsageError(msg)
    return item if isinstance(item, Tool) else as_tool(item)
