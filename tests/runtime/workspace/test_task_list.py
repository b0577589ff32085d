"""The task list of a run: durable, the same for agent and watcher, never doubled."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.events.union import TaskChanged
from kestrel_lab.eventlog.checkpoints import encode_state, pack_snapshot, restore_state
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.interaction import task_tools
from kestrel_lab.tools.tool import Tasks, ToolContext
from kestrel_lab.views.rows import NoticeRow
from kestrel_lab.views.run_text import run_text
from kestrel_lab.views.run_view import view_of

TOOLS = {made.name: made for made in task_tools()}


def use(state: RunState, name: str, call: str = "", **args: Any) -> str:
    """Validate and run a tool for a run in that state."""
    tasks = Tasks(listed=lambda: tuple(state.tasks.values()), change=lambda event: state.apply(event, 0.0))
    made, ctx = TOOLS[name], ToolContext(workspace=Workspace(Path.cwd()), call_id=call, tasks=tasks)
    said = asyncio.run(made.run(made.validate(args), ctx))
    assert isinstance(said, str)
    return said


def test_an_agent_plans_and_ticks_off(session: Lab, workspace: Path) -> None:
    """Each change is an event and one row that is kept up to date; a fold and a snapshot have the same
    list.
    """
    model = ScriptedModel(
        [
            [("create_tasks", {"titles": ["read", "write <b>it</b>"]})],
            [
                ("update_task", {"task": "1", "status": "done", "note": "three files"}),
                ("update_task", {"task": "2", "status": "doing"}),
            ],
            [("list_tasks", {})],
            "planned",
        ]
    )
    run = session.run_sync("work", model=model, tools=["tasks"], workspace=workspace)
    assert run.answer == "planned"
    records = run.records()
    changes = [record.event for record in records if isinstance(record.event, TaskChanged)]
    assert [(one.task, one.status) for one in changes] == [
        ("1", "todo"),
        ("2", "todo"),
        ("1", "done"),
        ("2", "doing"),
    ]
    state = fold(records)
    assert use(state, "list_tasks") == "1. [done] read (three files)\n2. [doing] write <b>it</b>"
    assert restore_state(pack_snapshot(encode_state(state))).tasks == state.tasks
    view = view_of(list(records))
    (row, *_) = [row for row in view.rows.values() if isinstance(row, NoticeRow)]
    assert (row.text, row.items) == ("tasks: 1 of 2 done", ["☑ read: three files", "▶ write <b>it</b>"])
    assert "☑ read: three files" in run_text(view)


def test_the_same_call_again_adds_nothing() -> None:
    """Interrupted between its events and answered anew: what is missing is added, what is there is not."""
    state = RunState()
    state.apply(TaskChanged(task="1", title="a", call="c1"), 0.0)
    assert use(state, "create_tasks", "c1", titles=["a", "b"]) == "1. [todo] a\n2. [todo] b"
    assert use(state, "create_tasks", "c1", titles=["a", "b"]) == "1. [todo] a\n2. [todo] b"
    assert use(state, "create_tasks", "c2", titles=["a"]).endswith("3. [todo] a")
    before = state.events
    use(state, "update_task", "c3", task="1", status="todo")
    assert state.events == before


def test_mistakes_are_told() -> None:
    """Unknown tasks, empty and too many of them, and no run at all."""
    state = RunState()
    for name, args, message in (
        ("update_task", {"task": "1"}, "the list is empty"),
        ("create_tasks", {"titles": []}, "at least one text"),
        ("create_tasks", {"titles": [" "]}, "at least one text"),
        ("create_tasks", {"titles": ["x"] * 101}, "at most 100 tasks"),
    ):
        with pytest.raises(ValueError, match=message):
            use(state, name, **args)
    use(state, "create_tasks", titles=["x"])
    with pytest.raises(ValueError, match="there is no task '7'"):
        use(state, "update_task", task="7", status="done")
    made = TOOLS["list_tasks"]
    with pytest.raises(ValueError, match="task lists belong to runs"):
        asyncio.run(made.run({}, ToolContext(workspace=Workspace(Path.cwd()))))


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["todo", "doing", "done", "dropped"])), max_size=12)
)
def test_numbers_stay_with_their_tasks(changes: list[tuple[int, str]]) -> None:
    """Whatever is changed in whatever order, the list keeps its order and each task its last state."""
    state, last = RunState(), {}
    use(state, "create_tasks", titles=[f"t{number}" for number in range(1, 6)])
    for task, status in changes:
        use(state, "update_task", task=str(task), status=status)
        last[task] = status
    assert [(one.task, one.title, one.status) for one in state.tasks.values()] == [
        (str(number), f"t{number}", last.get(number, "todo")) for number in range(1, 6)
    ]
