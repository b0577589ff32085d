"""Errors of tools: whatever a tool raises or returns, the model reads what happened, and the run goes on."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from test_turns import answered, turn
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError, error_text
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import ToolContext


class BadText(Exception):
    """Its message cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("bad str")


class NoText(BadText):
    """Nothing of it can be had."""

    def __repr__(self) -> str:
        raise ValueError("bad repr")


class NotText(Exception):
    """Its message is no text."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # the point of it  # noqa: PLE0307


class Prying(Exception):
    """Its properties raise."""

    @property
    def response(self) -> NoReturn:
        """As that of some HTTP clients."""
        raise RuntimeError("the request is not set")

    status_code = error = response


class Own(BaseException):
    """No `Exception`."""


def raised(error: BaseException, cause: BaseException | None = None, note: str = "") -> BaseException:
    """An error with a cause and a note."""
    error.__cause__ = cause
    if note:
        error.add_note(note)
    return error


def circle() -> BaseException:
    """Two errors that cause each other."""
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def deep(levels: int) -> BaseException:
    """Groups in groups."""
    error: Exception = ValueError("at the bottom")
    for level in range(levels):
        error = ExceptionGroup(f"level {level}", [error])
    return error


def recurse() -> NoReturn:
    """Recurse for ever."""
    recurse()


ERRORS: list[tuple[Callable[[], BaseException], list[str]]] = [
    (lambda: BadText("said"), ["BadText", "__str__ raised RuntimeError", "said"]),
    (lambda: BadText(NoText()), ["BadText", "__str__ raised RuntimeError", "repr raised ValueError"]),
    (lambda: NotText("said"), ["NotText", "__str__ raised TypeError", "said"]),
    (lambda: ValueError(), ["ValueError"]),
    (lambda: ValueError(1, {"port": 8080}, b"\xff"), ["8080"]),
    (lambda: Prying("said"), ["Prying: said"]),
    (
        lambda: raised(RuntimeError("no server"), ValueError("port 8080 is taken")),
        ["RuntimeError: no server", "caused by ValueError: port 8080"],
    ),
    (lambda: raised(ValueError("bad"), note="look at line 7"), ["ValueError: bad", "note: look at line 7"]),
    (
        lambda: ExceptionGroup("two", [ValueError("port 8080"), raised(OSError("gone"), KeyError("k"))]),
        ["port 8080", "OSError: gone", "'k'"],
    ),
    (lambda: BaseExceptionGroup("both", [Own("port 8080")]), ["Own: port 8080"]),
    (lambda: ExceptionGroup("bad", [BadText()]), ["BadText"]),
    (lambda: deep(3), ["at the bottom"]),
    (lambda: deep(50), ["level 49"]),
    (lambda: ExceptionGroup("many", [ValueError(n) for n in range(100)]), ["ValueError: 0", "and more"]),
    (circle, ["ValueError: one", "caused by KeyError: 'other'"]),
    (lambda: ValueError("x" * 10**7), ["ValueError: xx", "characters left out"]),
    (lambda: ValueError("half \ud800 a character"), [r"half \ud800 a character"]),
    (lambda: SystemExit(3), ["SystemExit: 3"]),
    (lambda: Own("said"), ["Own: said"]),
    (lambda: StopIteration("said"), ["StopIteration", "said"]),
    (lambda: StopAsyncIteration("said"), ["StopAsyncIteration", "said"]),
]


HOWS = [
    (how, make, expected)
    for how in ("plain", "async", "thread", "timed", "task group")
    for make, expected in ERRORS
    if how != "task group"
    or isinstance(make(), Exception)  # asyncio itself takes no other errors from a task
]


@pytest.mark.parametrize(("how", "make", "expected"), HOWS)
def test_what_a_tool_raises_is_read_by_the_model(
    how: str, make: Callable[[], BaseException], expected: list[str], session: Lab, workspace: Path
) -> None:
    """Class, message, notes, errors of a group and causes, of any error; the run completes."""

    def plain(x: int) -> str:
        """Fail."""
        raise make()

    async def suspending(x: int) -> str:
        """Fail."""
        await asyncio.sleep(0)
        raise make()

    async def grouped(x: int) -> str:
        """Fail in a group of tasks."""
        async with asyncio.TaskGroup() as group:
            group.create_task(suspending(x))
        return ""

    made = {
        "plain": lambda: tool(name="f")(plain),
        "async": lambda: tool(name="f")(suspending),
        "thread": lambda: tool(name="f", thread=True)(plain),
        "timed": lambda: tool(name="f", timeout_s=PATIENCE_S)(plain),
        "task group": lambda: tool(name="f")(grouped),
    }[how]()
    run = turn(session, workspace, [made], [("f", {"x": 1})])
    (answer,) = answered(run)
    assert run.status is RunStatus.COMPLETE
    assert answer.error is not None
    assert len(answer.text) < 20_000
    for part in expected:
        assert part in answer.text
    answer.text.encode()


def test_a_recursion_without_end_is_an_error_of_its_call(session: Lab, workspace: Path) -> None:
    """It is told as any other."""

    @tool
    def f(x: int) -> str:
        """Fail."""
        recurse()

    (answer,) = answered(turn(session, workspace, [f], [("f", {"x": 1})]))
    assert "RecursionError" in answer.text


@pytest.mark.parametrize("how", ["thread", "timed"])
def test_an_interrupt_in_a_thread_is_the_tools_own(how: str, session: Lab, workspace: Path) -> None:
    """Ctrl-C reaches only the main thread: what a function raises in another one is its failure, and ends no
    run.
    """

    def f(x: int) -> str:
        """Fail."""
        raise KeyboardInterrupt

    made = tool(thread=True)(f) if how == "thread" else tool(timeout_s=PATIENCE_S)(f)
    run = turn(session, workspace, [made], [("f", {"x": 1})])
    assert "KeyboardInterrupt" in answered(run)[0].text
    assert run.status is RunStatus.COMPLETE


class Unprintable:
    """A value that says nothing."""

    def __repr__(self) -> str:
        raise RuntimeError("bad repr")

    __str__ = __repr__


class Converting(Unprintable):
    """An array that does not convert."""

    def tolist(self) -> NoReturn:
        """Fail, with an error that has no text."""
        raise BadText


class Sub(str):
    """A text that is not itself."""

    def __str__(self) -> str:
        raise RuntimeError("bad str")


@pytest.mark.parametrize(
    "value",
    [
        Unprintable(),
        [Unprintable()],
        {Unprintable(): 1},
        Converting(),
        {"a": Converting()},
        object(),
        Sub("x"),
    ],
)
def test_a_value_that_cannot_be_told_costs_itself(value: Any, session: Lab, workspace: Path) -> None:
    """The call took place and its answer is kept: a type is named where nothing else can be, a text is a
    text.
    """

    @tool
    def f(x: int) -> Any:
        """Return it."""
        return value

    run = turn(session, workspace, [f], [("f", {"x": 1})])
    assert run.status is RunStatus.COMPLETE
    (answer,) = answered(run)
    assert answer.error is None
    assert answer.text == "x" or "cannot be shown" in answer.text or "object" in answer.text


def test_what_a_call_did_before_it_failed_can_be_undone(session: Lab, workspace: Path) -> None:
    """The files that a tool changed and then raised are in its answer as those of one that succeeded."""
    (workspace / "f").write_text("old")

    @tool(reads="workspace", reaches="workspace")
    def f(path: str, ctx: ToolContext) -> str:
        """Change a file and fail."""
        with ctx.workspace.locked(path) as file:
            before = ctx.versions.check(file)
            file.write_bytes(b"new")
            ctx.versions.replaced(file, before, b"new", new=False)
        raise ValueError("afterwards")

    (answer,) = answered(turn(session, workspace, [f], [("f", {"path": "f"})]))
    assert answer.error is not None
    assert answer.changed == ["f"]
    assert answer.before["f"]["existed"] is True


# Time limits of functions.

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("COLOUR")


def test_a_plain_function_keeps_its_time_limit_and_the_loop_goes_on(session: Lab, workspace: Path) -> None:
    """A function that hangs is given up, and said to be so, while another call of the turn is answered; it
    ends neither run nor process.
    """
    free, beats = threading.Event(), 0

    @tool(danger_level="safe", timeout_s=0.2)
    def hang(x: int) -> str:
        """Wait."""
        free.wait(PATIENCE_S)
        return "too late"

    @tool(danger_level="safe")
    async def beat(x: int) -> str:
        """Count turns of the loop."""
        nonlocal beats
        for _ in range(20):
            await asyncio.sleep(0.001)
            beats += 1
        return "beaten"

    began = time.monotonic()
    run = turn(session, workspace, [hang, beat], [("hang", {"x": 1}), ("beat", {"x": 1})])
    hung, other = answered(run)
    assert time.monotonic() - began < PATIENCE_S
    free.set()
    assert hung.error is not None
    assert hung.error["kind"] == "timeout"
    assert (
        "hang did not end within 0.2 s and was given up; it cannot be stopped, so it may still go on"
        in hung.text
    )
    assert (other.text, beats) == ("beaten", 20)


def test_many_functions_that_hang_leave_room_for_others(session: Lab, workspace: Path) -> None:
    """An abandoned thread is no thread of the event loop's: forty of them keep no other tool waiting."""
    free = threading.Event()

    @tool(danger_level="safe", timeout_s=0.2)
    def hang(x: int) -> str:
        """Wait."""
        free.wait(PATIENCE_S)
        return "too late"

    (workspace / "f").write_text("here")
    calls: list[Any] = [("hang", {"x": n}) for n in range(40)]
    run = turn(
        session,
        workspace,
        [hang, session.registry.toolbox.get("read_file")],
        [*calls, ("read_file", {"path": "f"})],
    )
    free.set()
    assert [answer.text for answer in answered(run) if answer.error is None] == ["here"]


@pytest.mark.parametrize("options", [{"timeout_s": PATIENCE_S}, {"thread": True}])
def test_a_function_in_a_thread_has_the_context_of_its_call(
    options: Any, session: Lab, workspace: Path
) -> None:
    """Context variables are those of whoever began the run."""
    COLOUR.set("red")

    @tool(**options)
    def f(x: int) -> str:
        """Tell."""
        assert threading.current_thread() is not threading.main_thread()
        return COLOUR.get()

    assert answered(turn(session, workspace, [f], [("f", {"x": 1})]))[0].text == "red"


def test_a_function_without_a_limit_stays_on_its_thread(session: Lab, workspace: Path) -> None:
    """Objects that belong to one thread, such as connections of sqlite3, can be used by plain functions."""

    @tool
    def f(x: int) -> bool:
        """Tell."""
        return threading.current_thread() is threading.main_thread()

    assert answered(turn(session, workspace, [f], [("f", {"x": 1})]))[0].text == "true"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "1"])
def test_a_time_limit_is_a_positive_number(seconds: Any) -> None:
    """Anything else is refused where the tool is made."""
    with pytest.raises(UsageError, match="timeout_s is a positive number of seconds"):
        tool(timeout_s=seconds)


def test_an_errors_text_is_one_line_where_nothing_is_added() -> None:
    """The usual error reads as ever."""
    assert error_text(ValueError("bad")) == "ValueError: bad"
