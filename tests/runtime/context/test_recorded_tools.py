"""Tools of an imported run: they answer from its recording, each call of it once and in its order, and make
nothing up.
"""

from typing import Any

import pytest

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.events.union import Event, Record, RunStarted, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.runtime.context.recorded_tools import recorded_tool, recorded_tools
from kestrel_lab.tools.tool import Tool

SCHEMA: dict[str, Json] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [recorded_tool("Read", "Reads a file.", SCHEMA), recorded_tool("Bash")]


def records(*events: Event) -> list[Record]:
    return [
        Record(run_id="r", seq=seq, eid=f"e{seq}", at=float(seq), event=event)
        for seq, event in enumerate(events, 1)
    ]


def call(
    number: int, tool: str, text: str, error: dict[str, Json] | None = None, **args: Json
) -> tuple[Event, Event]:
    """A call that was recorded, and its answer."""
    asked = ToolCalled(call=f"c{number}", step="answer", tool=tool, args=args)
    return asked, ToolAnswered(call=f"c{number}", step="answer", tool=tool, text=text, error=error)


RECORDING = records(
    RunStarted(goal="g", workspace="/w", model="m", tools=TOOLS),
    *call(1, "Read", "first", path="a"),  # events 2 and 3
    *call(2, "Read", "second", path="a"),  # 4 and 5
    *call(3, "Bash", "", {"message": "no such command", "kind": "failed"}, command="x"),  # 6 and 7
    *call(4, "Read", "third", path="a"),  # 8 and 9
    ToolAnswered(call="unknown", step="answer", tool="Read", text="of a call that was not recorded"),
)


def ask(tool: Tool, **args: Any) -> str:
    return str(tool.function(**args))


@pytest.mark.parametrize(
    ("after", "answers"),
    [
        (0, ["first", "second", "third", "third"]),
        (3, ["second", "third", "third"]),
        (7, ["third", "third"]),
        (10, ["third", "third"]),
    ],
)
def test_equal_calls_are_answered_in_the_order_of_the_recording(after: int, answers: list[str]) -> None:
    """With those behind the event of the fork first, one after the other; then, and before it, with the last
    there was.
    """
    read, _ = recorded_tools(TOOLS, RECORDING, after=after)

    assert [ask(read, path="a") for _ in answers] == answers


def test_before_any_of_them_is_used_up_the_last_before_the_fork_answers() -> None:
    """A call of which nothing comes behind the event gets what was said last before it."""
    cut = RECORDING[:5]

    assert ask(recorded_tools(TOOLS, cut, after=5)[0], path="a") == "second"


def test_what_was_not_recorded_is_refused() -> None:
    """With other arguments, and of a call that failed then, the model is given an error; nothing is made
    up.
    """
    read, bash = recorded_tools(TOOLS, RECORDING, after=0)
    with pytest.raises(ToolError, match=r"Read exists in the recording only, .* nothing was done"):
        ask(read, path="b")
    with pytest.raises(ToolError, match="no such command"):
        ask(bash, command="x")


def test_a_recorded_tool_is_offered_as_it_was() -> None:
    """With its description and the form of its arguments; where the recording has none, those that its calls
    had. It counts as words of others.
    """
    read, bash = recorded_tools(TOOLS, RECORDING, after=0)
    assert (read.description, read.schema["properties"]) == ("Reads a file.", SCHEMA["properties"])
    assert bash.description == "A tool of the recording; it answers calls that were recorded."
    assert bash.schema["properties"] == {"command": {}}
    for tool in (read, bash):
        assert (tool.danger, tool.version, tool.parallel_safe) == (Danger.SAFE, "recorded", False)
        assert "untrusted" in tool.flow.reads
    assert TOOLS[0]["description"] == "Reads a file."
    assert TOOLS[0]["schema"] == SCHEMA
    assert not {"description", "schema"} & TOOLS[1].keys()


def test_only_recorded_tools_are_taken_from_the_recording() -> None:
    """A tool that exists on this machine stays what it is here; without its beginning a recording still
    answers.
    """
    here: dict[str, Json] = {"name": "Read", "version": "1"}
    assert recorded_tools([here], RECORDING, after=0) == []
    (read,) = recorded_tools(TOOLS[:1], RECORDING[1:], after=0)
    assert (ask(read, path="a"), read.schema["properties"]) == ("first", {"path": {}})
