"""Selects the tools offered to a model among very many: those it always needs, those it used, and those that
its goal names.

What was chosen is an event, so a resumed run shows the same; the list only grows, so that a model's cache of
its prompt lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from kestrel_lab.core.events.union import Event, ToolsShown
from kestrel_lab.core.messages import ToolRequest
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.delegation import delegate
from kestrel_lab.tools.interaction import task_tools
from kestrel_lab.tools.macros import MACRO_RUN
from kestrel_lab.tools.memory_tools import memory_tools
from kestrel_lab.tools.read_result import NAME as READ_RESULT
from kestrel_lab.tools.skills import LOAD_SKILL
from kestrel_lab.tools.tool import Tool, Toolbox
from kestrel_lab.tools.tool_search import ToolIndex, tool_from_definition, tool_index

MOST_SHOWN = 40
"""Up to so many tools are offered all at once; of more, a selection."""
FOR_QUESTION, FOR_NEED = 12, 8
"""How many are looked out for a question that is put to it, more where there is room; and for a need of its
own.
"""
FIND_TOOL, MCP_INSTALL = "find_tool", "mcp_install"


class Growth(Protocol):
    """What a run asks for tools that it does not have."""

    def attach(self, ctx: Any) -> None:
        """Work for the run of this `RunContext`."""
        ...

    def allowed(self, named: tuple[str, ...]) -> tuple[str, ...]:
        """The tools of a step that names `named`: where it may look for more, those that were found too."""
        ...

    async def missing(self, request: ToolRequest, problem: str) -> str:
        """Return the answer to a call of an unknown tool: `problem`, and the tools that might be meant."""
        ...


def select_tools(
    step: str,
    offered: tuple[str, ...] | None,
    toolbox: Toolbox,
    state: RunState,
    emit: Callable[[Event], Any],
) -> tuple[str, ...]:
    """The tools offered to the model of `step` out of more than `MOST_SHOWN`; new choices are recorded."""
    may = toolbox.names if offered is None else offered
    questions = [message.text for message in state.conversation(step).messages if message.role == "user"]
    if len(questions) > state.questions_shown.get(step, 0):
        others = tuple(toolbox.get(name) for name in may if not always_shown(name))
        room = MOST_SHOWN - (len(may) - len(others))
        found = index_of(others).search(questions[-1], max(FOR_QUESTION, room))
        emit(ToolsShown(tools=list(found), step=step, messages=len(questions)))
    wanted = {*state.shown.get(step, ()), *state.shown.get("", ()), *_used_tools(step, state)}
    return tuple(name for name in may if name in wanted or always_shown(name))


def always_shown(name: str) -> bool:
    """Whether the tool of that name is offered whatever the goal."""
    return name in _core()


@lru_cache(maxsize=8)
def index_of(tools: tuple[Tool, ...]) -> ToolIndex:
    """Return the index of these very tools, made once."""
    return tool_index(
        tool_from_definition(tool.name, tool.description, tool.schema, tool.name.partition(":")[0])
        for tool in tools
    )


@lru_cache(maxsize=1)
def _core() -> frozenset[str]:
    tools = [*native_tools(), *task_tools(), delegate, *memory_tools()]
    return frozenset(
        [*(tool.name for tool in tools), READ_RESULT, MACRO_RUN, LOAD_SKILL, FIND_TOOL, MCP_INSTALL]
    )


def _used_tools(step: str, state: RunState) -> set[str]:
    return {request.name for message in state.conversation(step).messages for request in message.calls}
