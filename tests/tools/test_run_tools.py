"""Tools that belong to a run, called by themselves: the task list, notes, kept answers and code search."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.events.union import TaskChanged
from kestrel_lab.retrieval.workspace_indexes import WorkspaceIndexes
from kestrel_lab.tools.code_search import retrieval_tools
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.interaction import state_effects, task_tools
from kestrel_lab.tools.memory_tools import memory_tools
from kestrel_lab.tools.read_result import read_result
from kestrel_lab.tools.tool import Notes, StoredAnswer, Tasks, Tool, ToolContext


def use(tools: list[Tool], name: str, ctx: ToolContext, /, **args: Any) -> Any:
    """Validate and run one of the tools."""
    made = next(one for one in tools if one.name == name)
    return asyncio.run(made.run(made.validate(args), ctx))


class TaskList:
    """The task list of a run."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskChanged] = {}
        self.changes = 0

    def change(self, task: TaskChanged) -> None:
        """Keep a change."""
        self.tasks[task.task] = task
        self.changes += 1

    def use(self, name: str, call: str = "", **args: Any) -> str:
        """Run a tool for a call."""
        tasks = Tasks(listed=lambda: tuple(self.tasks.values()), change=self.change)
        return str(
            use(
                task_tools(),
                name,
                ToolContext(workspace=Workspace(Path.cwd()), call_id=call, tasks=tasks),
                **args,
            )
        )


def test_tasks_are_put_on_the_list_and_changed() -> None:
    """Each answer is the whole list; what is left out stays as it is, and what changes nothing is no
    event.
    """
    run = TaskList()
    assert run.use("list_tasks") == "[the task list is empty]"
    assert run.use("create_tasks", titles=["read\nit", "write it"]) == "1. [todo] read it\n2. [todo] write it"
    assert (
        run.use("update_task", task="1", status="done", note="two\nfiles")
        == "1. [done] read it (two files)\n2. [todo] write it"
    )
    assert (
        run.use("update_task", task="2", title="drop it")
        == "1. [done] read it (two files)\n2. [todo] drop it"
    )
    assert run.use("update_task", task="1", note="three").startswith("1. [done] read it (three)")
    before = run.changes
    assert run.use("update_task", task="1") == run.use("list_tasks")
    assert run.changes == before
    assert run.use("create_tasks", titles=["more"]).endswith("\n3. [todo] more")


def test_a_call_that_was_interrupted_makes_only_what_is_missing() -> None:
    """Its tasks are known by the call; other calls make their own."""
    run = TaskList()
    run.change(TaskChanged(task="1", title="a", call="c1"))
    assert run.use("create_tasks", call="c1", titles=["a", "b"]) == "1. [todo] a\n2. [todo] b"
    assert run.use("create_tasks", call="c2", titles=["a"]).endswith("3. [todo] a")
    assert run.use("create_tasks", titles=["a"]).endswith("4. [todo] a")


def test_the_task_list_has_bounds() -> None:
    """A hundred tasks, none empty; an unknown number is told with the nearest."""
    run = TaskList()
    for wrong in ([], ["a", " "]):
        with pytest.raises(
            ValueError, match="titles must be a list of at least one text, none of them empty"
        ):
            run.use("create_tasks", titles=wrong)
    with pytest.raises(ValueError, match=r"no task '1'; the list is empty: create_tasks puts"):
        run.use("update_task", task="1")
    assert run.use("create_tasks", call="c", titles=["a"] * 100).count("\n") == 99
    with pytest.raises(ValueError, match="at most 100 tasks, and this one has 100"):
        run.use("create_tasks", titles=["one more"])
    assert run.use("create_tasks", call="c", titles=["a"] * 100).count("\n") == 99
    with pytest.raises(ValueError, match="no task '101'; did you mean"):
        run.use("update_task", task="101")
    with pytest.raises(ValueError, match="task lists belong to runs"):
        use(task_tools(), "list_tasks", ToolContext(workspace=Workspace(Path.cwd())))


def test_stated_effects_are_counted(tmp_path: Path) -> None:
    """The call is the statement."""
    effects = [{"tool": "a"}, {"tool": "b", "times": 2, "arguments": {"x": 1}}]
    assert (
        use([state_effects], "state_effects", ToolContext(workspace=Workspace(tmp_path)), effects=effects)
        == "2 stated"
    )


def test_notes_are_asked_for_kept_and_forgotten_by_what_the_run_has(tmp_path: Path) -> None:
    """Arguments are passed on as they are meant; what cannot be is refused before."""
    asked: list[Any] = []

    async def recall(*given: Any) -> list[Any]:
        asked.append(given)
        return [{"text": "found"}]

    async def remember(*given: Any) -> str:
        asked.append(given)
        return "kept"

    async def forget(selector: str) -> str:
        return f"forgot {selector}"

    ctx = ToolContext(
        workspace=Workspace(tmp_path),
        call_id="c",
        notes=Notes(
            recall=recall,
            remember=remember,
            chosen=lambda selector: f"would forget {selector}",
            forget=forget,
        ),
    )
    tools = memory_tools()
    assert use(tools, "recall", ctx, query=" rows ") == [{"text": "found"}]
    use(tools, "recall", ctx, query="rows", top_k=20, tags=["a"])
    assert use(tools, "remember", ctx, text=" a fact ") == "kept"
    use(tools, "remember", ctx, text="b", kind="decision", tags=["t"], confidence=1, ttl_days=0.5)
    use(tools, "remember", ctx, text="b", confidence=0)
    assert asked == [
        ("rows", 5, ()),
        ("rows", 20, ("a",)),
        ("a fact", "fact", (), 0.6, None, "c"),
        ("b", "decision", ("t",), 1, 0.5, "c"),
        ("b", "fact", (), 0, None, "c"),
    ]
    assert use(tools, "forget", ctx, selector="tainted") == "forgot tainted"
    preview = tools[2].preview
    assert preview is not None and preview({"selector": "n1"}, ctx) == "would forget n1"
    for wrong in ({"query": " "}, {"query": "a", "top_k": 0}, {"query": "a", "top_k": 21}):
        with pytest.raises(ValueError, match="top_k from 1 to 20"):
            use(tools, "recall", ctx, **wrong)
    for wrong in ({"confidence": 1.1}, {"confidence": -0.1}, {"ttl_days": 0}, {"ttl_days": -1}):
        with pytest.raises(ValueError, match="confidence is from 0 to 1, and ttl_days more than 0"):
            use(tools, "remember", ctx, text="a", **wrong)
    with pytest.raises(ValueError, match="only within a run"):
        use(tools, "forget", replace(ctx, notes=None), selector="x")


@pytest.fixture
def kept(tmp_path: Path) -> ToolContext:
    """A run that has kept one answer: lines of ten characters."""
    path = tmp_path / "kept"
    path.write_text("".join(f"line {number:04}\n" for number in range(3_000)))
    return ToolContext(
        workspace=Workspace(tmp_path), kept=lambda _: StoredAnswer(path=path, chars=30_000, tool="bash")
    )


def test_a_kept_answer_is_read_on_from_piece_to_piece(kept: ToolContext) -> None:
    """The note says which characters, and where to go on; the last piece has none of that."""
    assert (
        use([read_result], "read_result", kept, id="k", limit=10)
        == "line 0000\n\n[characters 0 to 9 of 30,000; go on with offset=10]"
    )
    assert use([read_result], "read_result", kept, id="k", offset=29_990, limit=10).endswith(
        "\n[characters 29,990 to 29,999 of 30,000]"
    )
    assert len(use([read_result], "read_result", kept, id="k", limit=18_000)) > 18_000
    for args in ({"offset": -1}, {"limit": 0}, {"limit": 18_001}):
        with pytest.raises(ValueError, match="offset counts from 0 and limit is from 1 to 18000"):
            use([read_result], "read_result", kept, id="k", **args)
    with pytest.raises(ValueError, match=r"the answer has 30,000 characters, so none from offset 30,000 on"):
        use([read_result], "read_result", kept, id="k", offset=30_000)
    with pytest.raises(ValueError, match="only within a run"):
        use([read_result], "read_result", replace(kept, kept=None), id="k")


def test_a_kept_answer_is_searched(kept: ToolContext) -> None:
    """Lines with their offsets, from the one that is asked for on, a hundred at once."""
    assert (
        use([read_result], "read_result", kept, id="k", pattern="0007$")
        == "offset 70: line 0007\n[1 line matches]"
    )
    assert (
        use([read_result], "read_result", kept, id="k", pattern="000[67]", offset=61)
        == "offset 70: line 0007\n[1 line matches]"
    )
    assert use([read_result], "read_result", kept, id="k", pattern="000[67]", offset=60).endswith(
        "\n[2 lines match]"
    )
    assert use([read_result], "read_result", kept, id="k", pattern="nothing") == "\n[0 lines match]"
    many = use([read_result], "read_result", kept, id="k", pattern="line 0[01]").splitlines()
    assert (len(many), many[-1]) == (101, "[200 lines match; go on with offset=1000]")
    assert (
        use([read_result], "read_result", kept, id="k", pattern="line 00").splitlines()[-1]
        == "[100 lines match]"
    )


def test_what_others_wrote_is_marked_when_it_is_read_on(kept: ToolContext) -> None:
    """As it was when it was shown first."""
    assert kept.kept is not None
    foreign = replace(kept.kept("k"), untrusted=True)
    shown = use([read_result], "read_result", replace(kept, kept=lambda _: foreign), id="k", limit=10)
    assert "part of an answer of bash" in shown and "line 0000" in shown


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Tool], ToolContext]]:
    """The tools in a small project."""
    root = tmp_path_factory.mktemp("project")
    (root / "shapes.py").write_text(
        'def area(side):\n    """How large a square is."""\n    return side * side\n\n\nLIMIT = 3\n'
    )
    (root / "use.py").write_text("from shapes import area\n\nprint(area(2))\nfound = area\n")
    indexes = WorkspaceIndexes(tmp_path_factory.mktemp("home"))
    yield retrieval_tools(indexes), ToolContext(workspace=Workspace(root))
    indexes.close()


def test_definitions_and_uses_are_found_by_name(code: tuple[list[Tool], ToolContext]) -> None:
    """With the first lines; uses in the order definition, import, call, use."""
    tools, ctx = code
    found = use(tools, "find_definition", ctx, name=" area ")
    assert found.startswith("shapes.py") and "     1  def area(side):" in found
    assert use(tools, "find_definition", ctx, name="aera").startswith(
        "[nothing called aera is defined here; "
    )
    assert [
        line.split(": ")[:2] for line in use(tools, "find_references", ctx, name="area").splitlines()
    ] == [
        ["shapes.py:1", "definition"],
        ["use.py:1", "import"],
        ["use.py:3", "call"],
        ["use.py:4", "use"],
    ]
    assert use(tools, "find_references", ctx, name="nowhere") == "[nothing uses nowhere]"


def test_code_is_found_by_what_it_is_about(code: tuple[list[Tool], ToolContext]) -> None:
    """The best first, with how much of the question is covered; look-ups are recorded."""
    tools, ctx = code
    recorded: list[object] = []
    found = use(tools, "search_code", replace(ctx, looked_up=recorded.append), query="how large is a square")
    assert found.startswith("shapes.py") and "of the question" in found.splitlines()[-1]
    assert recorded
    assert use(tools, "search_code", ctx, query="how large is a square") == found
    assert use(tools, "search_code", ctx, query="xyzzy").startswith("[")
    for top_k in (0, 51):
        with pytest.raises(ValueError, match=f"top_k must be from 1 to 50, not {top_k}"):
            use(tools, "search_code", ctx, query="area", top_k=top_k)
