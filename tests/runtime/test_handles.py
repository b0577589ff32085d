"""What a user holds: a run's own account of itself, and a session that finds models, tools and the cache."""

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab.core.errors import ApprovalRequired, StoreError, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    CacheHit,
    Progress,
    RunStarted,
    ToolAnswered,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import start
from kestrel_lab.runtime.run import Run, is_working
from kestrel_lab.testing import RecordingListener, ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Toolbox


@tool(danger_level="high")
async def act() -> str:
    """Act."""
    return "acted"


def get_ipython_form(run: Run) -> object:
    """What IPython is given as the Markdown form."""
    form: Callable[[], object] = run._repr_markdown_
    return form()


def test_a_run_shows_itself(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """A run has a text, an HTML and a file form, all escaped, and says that its model was scripted; it has no
    Markdown form.
    """
    run = asyncio.run(session.run("<b>go</b>", model=ScriptedModel(["<script>"]), workspace=workspace))
    assert run.report.model == "scripted (scripted)"
    assert "COMPLETE" in repr(run.report)
    page = run.report(tmp_path / "new" / "run.html").read_text()
    for html in (run._repr_html_(), page):
        assert "<script>" not in html
        assert "&lt;script&gt;" in html
    assert get_ipython_form(run) is None
    with session.store._lock:  # whoever reads the log would wait for ever
        assert repr(run) == f"Run('{run.id}', COMPLETE, goal='<b>go</b>')"
    assert Run(session.store, "none", RunState()).report.model == ""
    with pytest.raises(UsageError, match="did you mean"):
        session.get(run.id + "x")


def test_a_run_in_progress_is_one_object(session: Lab, workspace: Path) -> None:
    """While a run is live, `get` and `resume` give the object that lives; cancelling an ended one does
    nothing.
    """

    async def scene() -> Run:
        model = ScriptedModel([[("act", {})], "done"])

        async def slow(asked: ApprovalAsked) -> ApprovalGiven:
            await asyncio.sleep(0.05)
            return ApprovalGiven(call=asked.call, granted=True, by="p", how="click")

        run = session.start("go", model=model, tools=[act], workspace=workspace, approver=slow)
        await asyncio.sleep(0.02)
        assert session.get(run.id) is run
        assert start.resume(session, run.id) is run
        assert is_working(run)
        return await run.wait()

    run = asyncio.run(scene())
    again = session.get(run.id)
    again.cancel()
    assert (again.status, is_working(run), is_working(again)) == (RunStatus.COMPLETE, False, False)


def test_a_scripted_model_by_file_is_found_again(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """A run by a script file is resumed without naming the model again; the session's own model serves
    likewise.
    """
    script = tmp_path / "script.yaml"
    script.write_text(
        "rules:\n  - when: go\n    turns:\n      - - tool: act\n          args: {}\n      - finished\n"
    )
    options = {"tools": [act], "workspace": workspace}
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", model=f"scripted:{script}", **options))
    done = asyncio.run(session.resume(caught.value.run_id, tools=[act], approve="auto"))
    assert (done.answer, done.report.model) == ("finished", f"scripted:{script} (scripted)")

    session.change(model=ScriptedModel([[("act", {})], "done"]))
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", **options))
    assert (
        asyncio.run(session.resume(caught.value.run_id, tools=Toolbox([act]), approve="auto")).answer
        == "done"
    )


def test_tools_are_given_in_any_form(session: Lab) -> None:
    """Names, tools, plain functions and a toolbox all make a toolbox, for a run and for all runs of a
    session; an unknown name is refused by both.
    """

    def plain(x: int) -> int:
        """Plain."""
        return x

    assert session.registry.resolve_tools([act, plain, "read_file"]).names == ("act", "plain", "read_file")
    box = Toolbox([act])
    assert session.registry.resolve_tools(box) is box
    with pytest.raises(UsageError, match="there is no tool 'wbe'; did you mean 'web'"):
        Lab(session.home, tools=["wbe"], env={})
    with pytest.raises(UsageError, match="there is no MCP server 'time'"):
        Lab(session.home, tools=["time:*"], env={})
    given = Lab(session.home, tools=["default", "find_references", "retrieval", act], env={})
    always = given.registry.resolve_tools(None).names
    given.close()
    assert always == (
        *session.registry.resolve_tools(None).names,
        "find_references",
        "search_code",
        "find_definition",
        "act",
    )


def test_pure_answers_are_reused_across_runs(session: Lab, workspace: Path) -> None:
    """A pure tool with a fingerprint is asked once for one state of the world; each reuse is recorded and
    costs nothing.
    """
    state = ["v1"]
    ran = []

    @tool(danger_level="safe", effect="pure", fingerprint=lambda args, ctx: state[0] or None)
    async def lookup(word: str) -> str:
        """Look up."""
        ran.append(word)
        return f"{word} {len(ran)}"

    def ask() -> tuple[str, bool, int]:
        run = asyncio.run(
            session.run(
                "go",
                model=ScriptedModel([[("lookup", {"word": "x"})], "done"]),
                tools=[lookup],
                workspace=workspace,
            )
        )
        (answer,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
        return answer.text, answer.cached, sum(isinstance(event, CacheHit) for event in run.events())

    assert [ask(), ask()] == [("x 1", False, 0), ("x 1", True, 1)]
    state[0] = "v2"
    assert ask() == ("x 2", False, 0)
    state[0] = ""
    assert [ask(), ask()] == [("x 3", False, 0), ("x 4", False, 0)]


@pytest.mark.parametrize("calls", [1, 2])
def test_an_interrupt_in_a_tool_stops_the_run(calls: int, session: Lab, workspace: Path) -> None:
    """Ctrl-C while a plain function runs on the main thread interrupts the run, not the event loop; resumed,
    it is called again.
    """
    pressed: list[int] = []

    @tool(danger_level="safe", effect="pure")
    def interrupted() -> str:
        """Be interrupted at first."""
        pressed.append(1)
        if len(pressed) == 1:
            signal.raise_signal(signal.SIGINT)
        return "at last"

    async def scene() -> Run:
        run = session.start(
            "go",
            model=ScriptedModel([[("interrupted", {})] * calls, "done"]),
            tools=[interrupted],
            workspace=workspace,
        )
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        return run

    assert threading.current_thread() is threading.main_thread()
    run = asyncio.run(scene())
    assert (run.status, run.report.interrupted, len(pressed)) == (RunStatus.EXECUTING, True, 1)
    again = asyncio.run(session.resume(run.id, model=ScriptedModel([[], "done"]), tools=[interrupted]))
    assert (again.id, again.status, again.answer) == (run.id, RunStatus.COMPLETE, "done")
    assert [event.text for event in again.events() if isinstance(event, ToolAnswered)] == ["at last"] * calls


def test_an_event_the_log_refuses_stops_the_next_effect(session: Lab, workspace: Path) -> None:
    """When something emitted earlier was refused, nothing with side effects begins after it and whoever waits
    is told.
    """
    acted = []

    @tool
    async def effect() -> str:
        """Have an effect."""
        acted.append(1)
        return "acted"

    async def scene() -> None:
        run = session.start(
            "go", model=ScriptedModel([[("effect", {})], "done"]), tools=[effect], workspace=workspace
        )
        assert run.ctx is not None
        run.ctx.emit(ApprovalGiven(call="never", question="never", granted=True, by="x", how="click"))
        await run.wait()

    with pytest.raises(StoreError, match="never asked"):
        asyncio.run(scene())
    assert acted == []


def test_a_decision_made_elsewhere_at_the_same_moment_stands(session: Lab, workspace: Path) -> None:
    """When the approver's own yes reaches the log just after another process's no, the no is what happens."""
    other = SessionStore(session.store.path)

    async def late(asked: ApprovalAsked) -> ApprovalGiven:
        (row,) = session.store.runs()
        other.decide(
            row.id,
            ApprovalGiven(call=asked.call, question=asked.question, granted=False, by="there", how="command"),
        )
        return ApprovalGiven(call=asked.call, granted=True, by="here", how="prompt")

    run = asyncio.run(
        session.run(
            "go",
            model=ScriptedModel([[("act", {})], "done"]),
            tools=[act],
            workspace=workspace,
            approver=late,
        )
    )
    (given,) = run._state.decisions.values()
    assert (given.by, given.granted, run.answer) == ("there", False, "done")
    assert run._state.events == len(run.records())
    other.close()


def test_a_run_of_which_nothing_was_written(session: Lab) -> None:
    """A run whose first event is all there is can be looked at."""
    session.store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    run = session.get("r")
    seen = RecordingListener()
    run.subscribe(seen)
    assert (run.status, run.goal, run.answer, run.outcome, [event.type for event in seen.events]) == (
        RunStatus.PLANNING,
        "g",
        "",
        "",
        ["run_started"],
    )
    assert run.report.model == "m"
    session.store.append("r", Progress(text="x"))
    assert len(run.records()) == 2
