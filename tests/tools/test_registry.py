"""Running tools, and the toolbox."""

import asyncio
import contextvars
import math
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from waits import FOREVER_S, PATIENCE_S

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.argument_schema import SchemaArguments
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.results import to_json
from kestrel_lab.tools.tool import Tool, ToolArgumentsError, Toolbox, ToolContext, render_result


@tool
async def add(a: int, b: int = 2) -> int:
    """Add <b>numbers</b>."""
    return a + b


@tool
def where() -> int:
    """Tell the thread."""
    return threading.get_ident()


def context(root: Path) -> ToolContext:
    """A context in `root`."""
    return ToolContext(workspace=Workspace(root))


def test_a_synchronous_function_runs_on_the_loop_and_with_thread_in_a_worker(tmp_path: Path) -> None:
    """`thread=True` keeps the event loop free and carries context variables over."""
    var = contextvars.ContextVar("var", default="unset")

    @tool(thread=True)
    def apart() -> list[Any]:
        """Tell."""
        return [threading.get_ident(), var.get()]

    async def main() -> None:
        var.set("set")
        ctx = context(tmp_path)
        assert await where.run({}, ctx) == threading.get_ident()
        answer = await apart.run({}, ctx)
        assert isinstance(answer, list)
        assert (answer[0] != threading.get_ident(), answer[1]) == (True, "set")

    asyncio.run(main())


def test_stop_interrupts_a_synchronous_tool_at_once(tmp_path: Path) -> None:
    """SIGINT during a synchronous tool raises KeyboardInterrupt in it, and the handler from before is put
    back.
    """

    @tool
    def slow() -> str:
        """Sleep."""
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(FOREVER_S)
        return "slept"

    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: calls.append(number))
    handler = signal.getsignal(signal.SIGINT)
    coroutine = slow.run({}, context(tmp_path))
    try:
        with pytest.raises(KeyboardInterrupt):
            coroutine.send(None)
        assert (signal.getsignal(signal.SIGINT), calls) == (handler, [])
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_synchronous_tool_runs_on_a_loop_of_another_thread(tmp_path: Path) -> None:
    """Signals can only be set on the main thread: elsewhere the function just runs."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(where.run({}, context(tmp_path)))))
    thread.start()
    thread.join(PATIENCE_S)
    assert found == [thread.ident]


@dataclass
class Point:
    """A value to return."""

    x: float


endless: list[object] = []
endless.append(endless)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        ("é\ud800", "é?"),
        (1.5, 1.5),
        ([math.inf, -math.inf, math.nan], ["Infinity", "-Infinity", "NaN"]),
        (Danger.HIGH, 3),
        ({1: {"b": "\udc80"}}, {"1": {"b": "?"}}),
        ({"a": (1, {2})}, {"a": [1, [2]]}),
        ([Point(1.0)], [{"x": 1.0}]),
        (Path("a/b"), "a/b"),
        (pd.Series([1, 2]).to_numpy(), [1, 2]),
        (pd.DataFrame({"a": [1]}), "   a\n0  1"),
    ],
)
def test_return_values_become_json(value: object, expected: object) -> None:
    """Ordinary Python values have an obvious JSON form."""
    assert to_json(value) == expected


def test_what_a_model_is_shown() -> None:
    """Text stays as it is, objects with long text are shown in blocks, everything else as JSON."""
    assert render_result("a\nb") == "a\nb"
    assert render_result({"a": 1, "é": None}) == '{"a": 1, "é": null}'
    assert render_result({"out": "x\ny", "code": 0, "name": "n"}) == "code: 0\nname: n\nout:\nx\ny"


def test_arguments_known_only_by_schema(tmp_path: Path) -> None:
    """A tool of a server is described by the server's schema; missing and unknown keys are still
    explained.
    """

    async def remote(**args: Any) -> Any:
        return args

    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"query": {}},
        "required": ["query"],
        "additionalProperties": False,
    }
    made = Tool(
        name="find",
        description="Find.",
        function=remote,
        arguments=SchemaArguments(tool="find", schema=schema),
    )
    assert asyncio.run(made.run(made.validate({"query": "x"}), context(tmp_path))) == {"query": "x"}
    with pytest.raises(ToolArgumentsError) as caught:
        made.validate({"qery": "x"})
    assert str(caught.value).splitlines()[1:] == [
        "- query: required but missing",
        "- qery: unknown argument; did you mean 'query'?",
    ]


def test_toolbox_keeps_order_and_refuses_duplicates() -> None:
    """It is an ordered, immutable collection with names that are unique."""
    box = Toolbox([add]) + Toolbox([where])
    assert (box.names, len(box), "add" in box, box.get("where") is where) == (("add", "where"), 2, True, True)
    assert box.only(["where", "add"]).names == ("where", "add")
    assert box.specs() is box.specs()
    assert [spec.name for spec in box.specs()] == ["add", "where"]
    with pytest.raises(UsageError, match="two tools are called 'add'"):
        box + Toolbox([add])
    with pytest.raises(UsageError, match="did you mean 'where'"):
        box.get("wher")
    with pytest.raises(UsageError, match="decorate the function with @tool"):
        Toolbox([print])  # type: ignore[list-item]


def test_toolbox_is_shown_as_a_table_without_markup_from_tools() -> None:
    """Descriptions are text in every representation."""
    box = Toolbox([add])
    assert repr(box).splitlines() == [
        "name  danger  effect  description",
        "add   LOW     opaque  Add <b>numbers</b>.",
    ]
    assert "Add &lt;b&gt;numbers&lt;/b&gt;." in box._repr_html_()
    assert "<b>" not in box._repr_html_()


def test_overhead_of_a_trivial_call_is_small(tmp_path: Path) -> None:
    """Validating two arguments and running an async tool leave the engine's time per turn alone."""
    ctx = context(tmp_path)

    def per_call(function: Any) -> float:
        rounds = []
        for _ in range(5):
            started = time.thread_time()
            for _ in range(500):
                function()
            rounds.append((time.thread_time() - started) / 500)
        return min(rounds) * 1e6

    def run_once() -> None:
        with pytest.raises(StopIteration):
            add.run({"a": 1, "b": 2}, ctx).send(None)

    def drive() -> None:
        try:
            add.run({"a": 1, "b": 2}, ctx).send(None)
        except StopIteration:
            return

    run_once()
    assert per_call(lambda: add.validate({"a": 1, "b": 2})) < 25
    assert per_call(drive) < 15
