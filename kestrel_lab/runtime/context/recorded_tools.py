"""Recorded tools: tools of an imported run, which exist in its recording only and answer a fork from
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.events.union import Record, RunStarted, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.runtime.context.tool_selection import FIND_TOOL, MCP_INSTALL
from kestrel_lab.tools.argument_schema import SchemaArguments
from kestrel_lab.tools.macros import MACRO_RUN
from kestrel_lab.tools.skills import LOAD_SKILL
from kestrel_lab.tools.tool import Tool

RECORDED: Final = "recorded"
"""The version of such a tool, by which a log tells it from one of the same name that exists here."""


def recorded_tools_of(began: RunStarted) -> list[str]:
    """The names of the tools a run was offered, those left out that are made anew for each run."""
    return [
        str(item["name"])
        for item in began.tools
        if item["name"] not in {MACRO_RUN, LOAD_SKILL, FIND_TOOL, MCP_INSTALL}
    ]


def recorded_tool(name: str, description: str = "", schema: dict[str, Json] | None = None) -> dict[str, Json]:
    """Return a recorded tool as `RunStarted.tools` names it."""
    entry = _tool(name, description, schema or {}, lambda **_: "").named
    return (
        entry | ({"description": description} if description else {}) | ({"schema": schema} if schema else {})
    )


def recorded_tools(
    tools: Iterable[dict[str, Json]], recording: Iterable[Record], *, after: int
) -> list[Tool]:
    """Return those of `tools`, as a log names them, that are recorded ones.

    A call is answered with the recorded result of an equal call: of those behind event `after` the next, else
    the last before it. A call that was not recorded raises `ToolError` that says so to the model: nothing is
    made up, and nothing is done. No tool of this machine answers for one of the same name.
    """
    records = list(recording)
    made = {
        event.call: content_key(event.tool, event.args)
        for event in (one.event for one in records)
        if isinstance(event, ToolCalled)
    }
    past: dict[str, deque[ToolAnswered]] = {}
    future: dict[str, deque[ToolAnswered]] = {}
    for record in records:
        if isinstance(record.event, ToolAnswered) and record.event.call in made:
            side = future if record.seq > after else past
            side.setdefault(made[record.event.call], deque()).append(record.event)
    started = next((record.event for record in records if isinstance(record.event, RunStarted)), None)
    known = {str(tool["name"]): tool for tool in (started.tools if started is not None else ())}
    found = []
    for tool in tools:
        if tool.get("version") == RECORDED:
            name = str(tool["name"])
            more: dict[str, Any] = known.get(name, {})
            schema = more.get("schema") or _schema_from_calls(name, records)
            found.append(
                _tool(name, str(more.get("description", "")), schema, partial(_answer, name, past, future))
            )
    return found


def _answer(
    name: str, past: dict[str, deque[ToolAnswered]], future: dict[str, deque[ToolAnswered]], /, **args: Any
) -> str:
    key = content_key(name, args)
    if coming := future.get(key):
        answer = coming.popleft()
        past.setdefault(key, deque()).append(answer)
    elif key in past:
        answer = past[key][-1]
    else:
        raise ToolError(
            f"{name} exists in the recording only, and the recording has no call of it with these "
            "arguments; nothing was done"
        )
    if answer.error is not None:
        raise ToolError(str(answer.error.get("message", answer.text)))
    return answer.text


def _schema_from_calls(name: str, records: Iterable[Record]) -> dict[str, Json]:
    """Return a schema of the arguments that recorded calls have, where the recording has none."""
    calls = [
        record.event.args
        for record in records
        if isinstance(record.event, ToolCalled) and record.event.tool == name
    ]
    return {"type": "object", "properties": {key: {} for args in calls for key in args}}


def _tool(name: str, description: str, schema: dict[str, Json], function: Callable[..., str]) -> Tool:
    return Tool(
        name=name,
        description=description or "A tool of the recording; it answers calls that were recorded.",
        function=function,
        arguments=SchemaArguments(tool=name, schema=cast("dict[str, Json]", {"type": "object", **schema})),
        danger=Danger.SAFE,
        version=RECORDED,
        parallel_safe=False,
        reads=("private", "untrusted"),
        reaches="nothing",
    )
