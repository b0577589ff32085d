"""One turn's calls: together or in order, and every way a single one can go wrong."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from waits import FOREVER_S, PATIENCE_S, Meeting, becomes

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.errors import LimitError, UsageError
from kestrel_lab.core.events.union import Progress, SchedulerParallelBatch, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelAnswer, ToolRequest
from kestrel_lab.core.protocols import Handler
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedCall, ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool, ToolContext


def turn(
    session: Lab,
    workspace: Path,
    tools: list[Tool],
    calls: list[ScriptedCall] | ModelAnswer,
    **options: Any,
) -> Run:
    """A run of one turn of calls and an answer, every call allowed."""
    model = ScriptedModel([calls, "done"])
    return asyncio.run(
        session.run("go", model=model, tools=tools, workspace=workspace, approve="auto:critical", **options)
    )


def answered(run: Run) -> list[ToolAnswered]:
    """The tools' answers, in the order of their calls."""
    return sorted(
        (event for event in run.events() if isinstance(event, ToolAnswered)), key=lambda event: event.call
    )


def problem(run: Run) -> tuple[Json, str]:
    """Kind and text of the only answer, which is an error."""
    (event,) = answered(run)
    assert event.error is not None
    assert run.status is RunStatus.COMPLETE  # a failing call is the model's to deal with
    return event.error["kind"], event.text


def test_safe_calls_overlap(session: Lab, workspace: Path) -> None:
    """Four safe calls that wait for each other all end: they run at the same time, and the batch is
    recorded.
    """
    everyone = Meeting(4)

    @tool(danger_level="safe")
    async def meet(n: int) -> int:
        """Wait for the others."""
        async with everyone:
            return n

    run = turn(session, workspace, [meet], [("meet", {"n": n}) for n in range(4)])
    assert [event.text for event in answered(run)] == ["0", "1", "2", "3"]
    (batch,) = [event for event in run.events() if isinstance(event, SchedulerParallelBatch)]
    assert batch.calls == ["answer.1.1", "answer.1.2", "answer.1.3", "answer.1.4"]


def test_pure_calls_that_end_at_once_need_no_tasks(session: Lab, workspace: Path) -> None:
    """Pure calls run in the task of their step until one waits; then the rest begin beside it, in order. One
    that fails stops no other.

    Mutants: the rest begins only when the one that waits has ended; the call that waits is made once more.
    """
    others = Meeting(3)
    begun: list[tuple[int, asyncio.Task[Any] | None]] = []

    @tool(effect="pure")
    async def meet(n: int) -> int:
        """Wait for the others, all but the first two."""
        begun.append((n, asyncio.current_task()))
        if n == 1:
            raise ValueError("one")
        if n > 1:
            async with others:
                pass
        return n

    run = turn(session, workspace, [meet], [("meet", {"n": n}) for n in range(5)])
    assert [event.text for event in answered(run)] == ["0", "error: ValueError: one", "2", "3", "4"]
    assert [n for n, _ in begun] == [0, 1, 2, 3, 4]
    assert len({task for _, task in begun[:3]}) == 1
    assert len({task for _, task in begun}) == 3
    names = [
        type(event).__name__ + event.call[-1]
        for event in run.events()
        if isinstance(event, ToolCalled | ToolAnswered)
    ]
    assert names[:7] == [
        "ToolCalled1",
        "ToolAnswered1",
        "ToolCalled2",
        "ToolAnswered2",
        "ToolCalled3",
        "ToolCalled4",
        "ToolCalled5",
    ]


@pytest.mark.parametrize("waits", [False, True])
def test_a_call_that_cancels_itself_is_an_error_of_the_tool(
    waits: bool, session: Lab, workspace: Path
) -> None:
    """A tool that raises `CancelledError` by itself, at once or later, has failed: the others of its turn
    are answered, and the run goes on.
    """
    ended: list[int] = []

    @tool(effect="pure")
    async def give_up(n: int) -> int:
        """Give up, the first one."""
        if waits:
            await asyncio.sleep(0)
        if n == 0:
            raise asyncio.CancelledError
        ended.append(n)
        return n

    run = turn(session, workspace, [give_up], [("give_up", {"n": n}) for n in range(3)])
    assert ended == [1, 2]
    assert run.status is RunStatus.COMPLETE


def test_a_turn_of_pure_calls_is_stopped_as_a_whole(session: Lab, workspace: Path) -> None:
    """Whoever stops a run stops the call that is awaited in the task of the step and those that run beside
    it.
    """
    stopped: list[int] = []
    everyone = Meeting(3)

    @tool(effect="pure")
    async def wait(n: int) -> int:
        """Wait for ever."""
        try:
            async with everyone:
                await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            stopped.append(n)
            raise
        return n

    async def stop() -> Run:
        model = ScriptedModel([[("wait", {"n": n}) for n in range(3)], "done"])
        run = session.start("go", model=model, tools=[wait], workspace=workspace, approve="auto:critical")
        await becomes(lambda: everyone.most == 3)
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run.wait()
        return run

    run = asyncio.run(stop())
    assert sorted(stopped) == [0, 1, 2]
    assert run.status is RunStatus.CANCELLED


def test_risky_calls_keep_their_place(session: Lab, workspace: Path) -> None:
    """A risky call starts after every call before it has ended, and those after it start after it; its wait
    is recorded.
    """
    trace: list[str] = []
    readers = Meeting(2)

    async def traced(name: str) -> str:
        trace.append(f"+{name}")
        await asyncio.sleep(0.05)
        trace.append(f"-{name}")
        return name

    @tool(danger_level="safe")
    async def read(name: str) -> str:
        """Read."""
        trace.append(f"+{name}")
        async with readers:
            await asyncio.sleep(0.05)
        trace.append(f"-{name}")
        return name

    @tool(danger_level="high")
    async def write(name: str) -> str:
        """Write."""
        return await traced(name)

    calls: list[ScriptedCall] = [
        (what, {"name": name})
        for what, name in (("read", "a"), ("read", "b"), ("write", "c"), ("write", "d"), ("read", "e"))
    ]
    run = turn(session, workspace, [read, write], calls)
    assert sorted(trace[:2]) == ["+a", "+b"]
    assert trace[4:] == ["+c", "-c", "+d", "-d", "+e", "-e"]
    queued = [event.queued for event in answered(run)]
    assert queued[2] > queued[0] + 0.03
    assert queued[4] > queued[3] > queued[2]
    assert all(0.03 < event.seconds < PATIENCE_S for event in answered(run))


def test_a_call_that_may_not_run_beside_others_does_not(session: Lab, workspace: Path) -> None:
    """`parallel_safe=False` keeps even a safe call apart."""
    inside: list[str] = []

    @tool(danger_level="safe", parallel_safe=False)
    async def alone(name: str) -> str:
        """Be alone."""
        assert not inside
        inside.append(name)
        await asyncio.sleep(0.01)
        inside.remove(name)
        return name

    run = turn(session, workspace, [alone], [("alone", {"name": name}) for name in "abc"])
    assert [event.text for event in answered(run)] == ["a", "b", "c"]


def test_calls_beyond_the_limit_run_in_the_next_batch(session: Lab, workspace: Path) -> None:
    """Of seven calls five run together and the other two after them; none is refused, and no further model
    turn is needed.
    """
    together, ran = Meeting(5), []

    @tool(danger_level="safe")
    async def count(n: int) -> int:
        """Count."""
        async with together:
            await asyncio.sleep(0.01)
        ran.append(n)
        return n

    run = turn(session, workspace, [count], [("count", {"n": n}) for n in range(7)])
    assert (sorted(ran[:5]), sorted(ran[5:]), together.most) == ([0, 1, 2, 3, 4], [5, 6], 5)
    assert [event.error for event in answered(run)] == [None] * 7
    assert run.usage.model_calls == 2
    together.most, ran[:] = 0, []
    one_by_one = turn(
        session, workspace, [count], [("count", {"n": n}) for n in range(3)], limits=Limits(calls_per_turn=1)
    )
    assert ([event.error for event in answered(one_by_one)], ran, together.most) == ([None] * 3, [0, 1, 2], 1)


@tool(danger_level="safe")
async def read_page(url: str, limit: int = 10) -> str:
    """Read a page."""
    return f"{url} {limit}"


def test_an_unknown_tool_names_the_nearest(session: Lab, workspace: Path) -> None:
    """A tool that does not exist is answered with the nearest name."""
    assert problem(turn(session, workspace, [read_page], [("readpage", {})])) == (
        "unknown_tool",
        "error: there is no tool 'readpage'; did you mean 'read_page'?",
    )


def test_wrong_arguments_are_explained(session: Lab, workspace: Path) -> None:
    """Each wrong argument is named, and the tool was not run."""
    run = turn(session, workspace, [read_page], [("read_page", {"link": "x", "limit": "ten"})])
    kind, text = problem(run)
    assert kind == "invalid_arguments"
    assert all(word in text for word in ("url: required but missing", "link: unknown argument", "limit:"))
    assert not [event for event in run.events() if isinstance(event, ToolCalled)]


def test_arguments_that_are_no_json_are_explained(session: Lab, workspace: Path) -> None:
    """What a model wrote in place of arguments comes back with why it could not be read."""
    asked = ToolRequest(id="x", name="read_page", problem="Expecting ',' at character 12")
    kind, text = problem(turn(session, workspace, [read_page], ModelAnswer(calls=(asked,))))
    assert (kind, text) == (
        "invalid_arguments",
        "error: the arguments of read_page could not be read: Expecting ',' at character 12",
    )


def test_arguments_that_are_no_object_are_explained(session: Lab, workspace: Path) -> None:
    """A number in their place comes back with what is wanted, and the run goes on to its end."""
    run = turn(
        session,
        workspace,
        [read_page],
        ModelAnswer(calls=(ToolRequest(id="x", name="read_page", args=cast("Any", 3)),)),
    )
    reason = "the arguments of read_page have to be a JSON object, not 3"
    assert problem(run) == (
        "invalid_arguments",
        f"error: the arguments of read_page could not be read: {reason}",
    )
    assert run.status is RunStatus.COMPLETE


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such page"), "error: ValueError: no such page"),
        (UsageError("set PAGES first"), "error: set PAGES first"),
        (LimitError("seconds", "an inner run ran out"), "error: an inner run ran out"),
        (TimeoutError("slow"), "error: TimeoutError: slow"),
        (SystemExit(3), "error: SystemExit: 3"),
        (RecursionError("too deep"), "error: RecursionError: too deep"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_tool_raises_is_told_to_the_model(
    error: BaseException, text: str, session: Lab, workspace: Path
) -> None:
    """No error of a tool ends the run, not even an attempt to leave the program."""

    @tool
    async def broken() -> str:
        """Break."""
        raise error

    @tool
    async def fine() -> str:
        """Work."""
        return "fine"

    run = turn(session, workspace, [broken, fine], [("broken", {}), ("fine", {})])
    assert [event.text for event in answered(run)] == [text, "fine"]
    assert answered(run)[0].error == {
        "kind": "failed",
        "message": text.removeprefix("error: "),
        "transient": isinstance(error, TimeoutError),
    }
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "done")


def test_a_tool_that_leaves_the_program_does_not(session: Lab, workspace: Path) -> None:
    """`sys.exit` in a plain function is an error for the model, also when it is the only call."""

    @tool
    def leave() -> str:
        """Leave."""
        sys.exit(2)

    assert problem(turn(session, workspace, [leave], [("leave", {})])) == ("failed", "error: SystemExit: 2")


def test_a_slow_tool_is_stopped(session: Lab, workspace: Path) -> None:
    """After its seconds a tool is cancelled, the model is told, and others are not affected."""
    stopped = []

    @tool(timeout_s=0.5)
    async def sleep() -> str:
        """Sleep."""
        try:
            await asyncio.sleep(FOREVER_S)
        finally:
            stopped.append(True)
        return "rested"

    run = turn(session, workspace, [sleep], [("sleep", {})])
    assert problem(run) == ("timeout", "error: sleep was stopped after 0.5 s")
    assert stopped == [True]


def test_a_long_answer_is_cut_in_the_middle(session: Lab, workspace: Path) -> None:
    """The model is shown beginning and end of an answer that is too long, and how much is missing."""

    @tool(max_chars=30)
    async def recite() -> str:
        """Recite."""
        return "a" * 50 + "z" * 50

    (event,) = answered(turn(session, workspace, [recite], [("recite", {})]))
    assert event.truncated
    more = (
        f'[100 characters in all; read on with read_result(id="{event.whole}", offset=20), or find '
        "something in it with a pattern]"
    )
    assert event.text == "a" * 20 + "\n… 70 characters left out …\n" + "z" * 10 + "\n" + more


def test_a_tool_knows_its_call_and_tells_how_far_it_is(session: Lab, workspace: Path) -> None:
    """A tool sees run, call and workspace, and its progress is in the log."""
    seen: list[ToolContext] = []

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        seen.append(ctx)
        ctx.progress("half way", 0.5)
        return "done"

    run = turn(session, workspace, [work], [("work", {})])
    assert (seen[0].run_id, seen[0].call_id, seen[0].workspace.root) == (
        run.id,
        "answer.1.1",
        workspace.resolve(),
    )
    assert [event for event in run.events() if isinstance(event, Progress)] == [
        Progress(text="half way", fraction=0.5)
    ]


def test_the_intent_is_on_disk_before_the_effect(session: Lab, workspace: Path) -> None:
    """When a tool with side effects begins, its `tool_called` is in the log already."""
    found = []

    @tool
    async def act(ctx: ToolContext) -> str:
        """Act."""
        found.append(
            [r.event.call for r in session.store.records(ctx.run_id) if isinstance(r.event, ToolCalled)]
        )
        return "acted"

    turn(session, workspace, [act], [("act", {}), ("act", {})])
    assert all(f"answer.1.{place}" in calls for place, calls in enumerate(found, 1))


def test_no_error_of_a_turn_is_lost(session: Lab, workspace: Path) -> None:
    """Where a middleware breaks several calls of a turn at once, the run's reason names each of them."""

    class Breaks:
        async def __call__(self, call: Call, proceed: Handler) -> Result:
            if call.kind == "tool":
                msg = f"no {call.args['n']}"
                raise ValueError(msg)
            return await proceed(call)

    @tool(effect="pure")
    async def count(n: int) -> int:
        """Count."""
        return n

    session.change(middleware=(Breaks(),))
    run = turn(session, workspace, [count], [("count", {"n": n}) for n in (1, 2, 3)])
    assert run.status is RunStatus.FAILED
    assert all(f"the middleware 'Breaks' failed: ValueError: no {n}" in run.reason for n in (1, 2, 3))
