"""Attacks on edits, paths, times and text protocols that nobody listed: what can still be lost, overwritten
or taken for something else.
"""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import ApprovalRequired, ConflictError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, ToolAnswered
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedApprover, ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.lock import LockedFile
from kestrel_lab.tools.files.tools import edit_file, write_file
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

FILES = ["read_file", "write_file", "edit_file", "delete_file", "restore_file"]


def answers(run: Run) -> list[str]:
    """What the tools answered, one line each."""
    return [event.text.splitlines()[0] for event in run.events() if isinstance(event, ToolAnswered)]


def agents(*scripts: list[Turn]) -> ScriptedModel:
    """Agents whose goals are the numbers of their scripts."""

    def play(request: ModelRequest) -> Turn:
        goal = next(message.text for message in request.messages if message.role == "user")
        played = sum(message.role == "assistant" for message in request.messages)
        return [*scripts[int(goal)], "done"][played]

    return ScriptedModel(play)


def test_agents_that_read_together_do_not_write_over_each_other(session: Lab, workspace: Path) -> None:
    """Three agents read one file at the same time and each writes it whole: one write stands, the others are
    refused and read again.
    """
    (workspace / "f").write_text("0\n")
    together = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        """Wait for the others."""
        await together.wait()
        return "met"

    def script(number: int) -> list[Turn]:
        write = ("write_file", {"path": "f", "content": f"mine {number}\n"})
        return [[("read_file", {"path": "f"})], [("meet", {})], [write]]

    steps = tuple(Step(id=f"s{number}", goal=str(number)) for number in range(3))
    done = asyncio.run(
        session.run(
            "go",
            plan=Plan(steps=steps),
            model=agents(*map(script, range(3))),
            approve="auto",
            workspace=workspace,
            tools=[*FILES, meet],
        )
    )
    written = [
        text for text in answers(done) if "f" in text and ("replaced" in text or "not changed" in text)
    ]
    assert sorted(text.startswith("replaced") for text in written) == [False, False, True]
    assert (workspace / "f").read_text() in {f"mine {number}\n" for number in range(3)}


def test_two_runs_do_not_write_over_each_other(session: Lab, workspace: Path) -> None:
    """What another run of the home writes after this one has read is seen before it is replaced."""
    (workspace / "f").write_text("0\n")
    write = ("write_file", {"path": "f", "content": "theirs\n"})

    @tool
    async def other_run() -> str:
        """Let another run do its work."""
        await session.run(
            "other", model=ScriptedModel([[write], "ok"]), approve="auto", workspace=workspace, tools=FILES
        )
        return "done"

    mine: list[Turn] = [
        [("read_file", {"path": "f"})],
        [("other_run", {})],
        [("write_file", {"path": "f", "content": "mine\n"})],
        "done",
    ]
    done = asyncio.run(
        session.run(
            "go", model=ScriptedModel(mine), approve="auto", workspace=workspace, tools=[*FILES, other_run]
        )
    )
    assert "something else changed it" in answers(done)[-1]
    assert (workspace / "f").read_text() == "theirs\n"


def test_deleting_and_writing_again_is_a_change(session: Lab, workspace: Path) -> None:
    """A file that was deleted by this agent and made anew by somebody else is not its own any more."""
    (workspace / "f").write_text("0\n")

    @tool
    async def meddle() -> str:
        """Make the file anew."""
        (workspace / "f").write_text("theirs\n")
        return "made"

    turns: list[Turn] = [
        [("read_file", {"path": "f"})],
        [("delete_file", {"path": "f"})],
        [("meddle", {})],
        [("write_file", {"path": "f", "content": "mine\n"})],
        "done",
    ]
    done = asyncio.run(
        session.run(
            "go", model=ScriptedModel(turns), approve="auto", workspace=workspace, tools=[*FILES, meddle]
        )
    )
    assert "was not changed" in answers(done)[-1]
    assert (workspace / "f").read_text() == "theirs\n"


def test_an_editor_that_knows_no_lock_is_noticed(tmp_path: Path) -> None:
    """Who saves the file between the reading and the writing of an edit, in place or by replacing it, loses
    nothing: the edit is refused.
    """
    for save in (
        lambda file: file.write_text("theirs\n"),
        lambda file: ((file.parent / "new").write_text("theirs\n"), (file.parent / "new").rename(file)),
    ):
        file = tmp_path / "f"
        file.write_text("one\n")
        with Workspace(tmp_path).locked("f") as held:
            assert held.read_bytes() == b"one\n"
            save(file)
            with pytest.raises(ConflictError):
                held.write_bytes(b"two\n")
        assert file.read_text() == "theirs\n"
    assert sorted(os.listdir(tmp_path)) == ["f"]


def test_hard_links_lose_no_edit_under_their_name(tmp_path: Path) -> None:
    """Two names of one file, edited at the same time: each name has every edit that was made under it, and
    the other keeps its content.
    """
    (tmp_path / "a").write_text("one two\n")
    os.link(tmp_path / "a", tmp_path / "b")
    ctx = ToolContext(workspace=Workspace(tmp_path))
    work = [
        threading.Thread(target=edit_file, args=(name, old, old.upper(), ctx))
        for name in "ab"
        for old in ("one", "two")
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert [(tmp_path / name).read_text() for name in "ab"] == ["ONE TWO\n"] * 2


def test_a_crash_in_the_middle_leaves_the_file_and_the_lock_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that breaks off at any point leaves what was there, no other file, and nobody locked out."""
    ctx = ToolContext(workspace=Workspace(tmp_path))
    (tmp_path / "f").write_text("one\n")
    for name in ("fsync", "rename", "fchmod"):
        with monkeypatch.context() as broken:

            def fail(*_: Any, **__: Any) -> None:
                raise OSError(5, "broken")

            broken.setattr(os, name, fail)
            with pytest.raises(OSError, match=r"broken|Input"):
                write_file("f", "two\n", ctx)
        assert ((tmp_path / "f").read_text(), os.listdir(tmp_path)) == ("one\n", ["f"])
    write_file("f", "three\n", ctx)
    assert (tmp_path / "f").read_text() == "three\n"


def test_a_step_that_is_cancelled_lets_go_of_its_turn(session: Lab, workspace: Path) -> None:
    """A risky call that runs into its time limit, or fails, holds up no risky call of another step."""

    @tool(danger_level="medium", timeout_s=0.01)
    async def stuck() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    @tool(danger_level="medium")
    async def broken() -> str:
        """Fail."""
        raise RuntimeError

    write = Step(id="w", tool="write_file", args={"path": "f", "content": "x"}, depends_on=())
    steps = (Step(id="a", tool="stuck"), Step(id="b", tool="broken"), write)
    done = asyncio.run(
        asyncio.wait_for(
            session.run(
                "go",
                plan=Plan(steps=steps),
                model=ScriptedModel([]),
                approve="auto",
                workspace=workspace,
                tools=[*FILES, stuck, broken],
            ),
            30,
        )
    )
    assert (done.status, (workspace / "f").read_text()) == ("FAILED", "x")


def test_an_agent_that_never_says_an_answer_never_has_one(session: Lab, workspace: Path) -> None:
    """A ReAct model that goes on writing actions nobody can read ends at its limit and not with one of them
    as its answer.
    """
    says = [
        "Action: read_file[f]",
        "<tool_call>read f</tool_call>",
        "{'tool': 'read_file', 'arguments': {'path': 'f'}}",
    ]
    plan = Plan(steps=(Step(id="a", goal="go", react=True, turns=3),))
    done = asyncio.run(
        session.run("go", plan=plan, model=ScriptedModel(says), workspace=workspace, tools=FILES)
    )
    assert done.status == "FAILED"
    assert all("neither a call that can be read" in text for text in answers(done))
    better = ScriptedModel(
        [says[0], '{"tool": "read_file", "arguments": {"path": "f"}}', '{"answer": "red"}']
    )
    (workspace / "f").write_text("red\n")
    done = asyncio.run(session.run("go", plan=plan, model=better, workspace=workspace, tools=FILES))
    assert (done.status, done.answer) == ("COMPLETE", "red")


def test_a_folder_that_changes_places_while_it_is_locked(tmp_path: Path) -> None:
    """A folder that is moved away and replaced in the middle of a write keeps the write; what took its place
    is not touched.
    """
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("one\n")
    with Workspace(tmp_path).locked("d/f") as held:
        assert isinstance(held, LockedFile)
        held.read_bytes()
        (tmp_path / "d").rename(tmp_path / "old")
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "f").write_text("other\n")
        held.write_bytes(b"two\n")
    assert ((tmp_path / "old" / "f").read_text(), (tmp_path / "d" / "f").read_text()) == ("two\n", "other\n")


def test_own_tools_of_one_turn_conflict_and_lose_nothing(session: Lab, workspace: Path) -> None:
    """Two calls of somebody's own tool that read together and write one after the other: the second is
    refused, the first is kept.
    """
    (workspace / "f").write_text("0")
    both = asyncio.Barrier(2)

    @tool
    async def add(word: str, ctx: ToolContext) -> str:
        """Add a word to a file."""
        text = ctx.workspace.read_text("f").text
        await both.wait()
        ctx.workspace.write_text("f", text + word)
        return "added"

    model = ScriptedModel([[("add", {"word": "a"}), ("add", {"word": "b"})], "done"])
    done = asyncio.run(session.run("go", model=model, workspace=workspace, tools=[add]))
    assert sorted(text.partition(":")[0] for text in answers(done)) == ["added", "error"]
    assert (workspace / "f").read_text() in ("0a", "0b")


def test_a_link_to_a_folder_is_no_way_round(session: Lab, workspace: Path) -> None:
    """Who reads a file through a symlinked folder and writes it by its own name is refused what changed in
    between.
    """
    (workspace / "d").mkdir()
    (workspace / "link").symlink_to("d")
    (workspace / "d" / "f").write_text("0\n")

    @tool
    async def meddle() -> str:
        """Change the file."""
        (workspace / "d" / "f").write_text("theirs\n")
        return "made"

    turns: list[Turn] = [
        [("read_file", {"path": "link/f"})],
        [("meddle", {})],
        [("write_file", {"path": "d/f", "content": "mine\n"})],
        [("write_file", {"path": "link/f", "content": "mine\n"})],
        "done",
    ]
    done = asyncio.run(
        session.run(
            "go", model=ScriptedModel(turns), approve="auto", workspace=workspace, tools=[*FILES, meddle]
        )
    )
    assert all("was not changed" in text or "symlink" in text for text in answers(done)[-2:])
    assert (workspace / "d" / "f").read_text() == "theirs\n"


@pytest.mark.parametrize(
    ("second", "left"), [("no", "theirs one\n"), ({"path": "f", "old": "theirs", "new": "our"}, "our one\n")]
)
def test_what_a_person_says_the_second_time_stands(
    session: Lab, workspace: Path, second: Any, left: str
) -> None:
    """A no, or other arguments, to the second question about a call is what happens, whatever was said to the
    first.
    """
    file = workspace / "f"
    file.write_text("my one\n")

    class Slow(ScriptedApprover):
        async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
            if not self.asked:
                file.write_text("theirs one\n")
            return await super().__call__(asked)

    edit = ("edit_file", {"path": "f", "old": "one", "new": "two"})
    approver = Slow([True, second])
    asyncio.run(
        session.run(
            "go",
            model=ScriptedModel([[edit], "done"]),
            approve="ask",
            approver=approver,
            workspace=workspace,
            tools=FILES,
        )
    )
    assert (len(approver.asked), file.read_text()) == (2, left)


def test_a_no_to_the_second_question_outlives_the_session(session: Lab, workspace: Path) -> None:
    """A run that waits with its second question, is told no from elsewhere and resumed does nothing."""
    file = workspace / "f"
    file.write_text("my one\n")
    model = ScriptedModel([[("edit_file", {"path": "f", "old": "one", "new": "two"})], "done"])
    with pytest.raises(ApprovalRequired) as waiting:
        asyncio.run(session.run("go", model=model, approve="ask", workspace=workspace, tools=FILES))
    run_id = waiting.value.run_id
    for granted, text in ((True, "theirs one\n"), (False, "theirs one\n")):
        session.history.decide(run_id, granted=granted, by="ann", how="command")
        file.write_text(text)
        if granted:
            with pytest.raises(ApprovalRequired):
                asyncio.run(session.resume(run_id, model=model))
    done = asyncio.run(session.resume(run_id, model=model))
    assert (done.status, file.read_text()) == ("COMPLETE", "theirs one\n")
    assert "denied by ann" in answers(done)[-1]
