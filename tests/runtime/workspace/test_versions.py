"""No edit is lost, and nothing is replaced that nobody has seen: across steps, agents, runs, processes and
what a person was shown.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waits import PATIENCE_S, Meeting

from kestrel_lab.core.calls import Call, Danger
from kestrel_lab.core.errors import ApprovalRequired, ConflictError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, ToolAnswered
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.plan_shapes import Part, Repeats, loop_plan
from kestrel_lab.core.run_types import Limits
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedApprover, ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.lock import lock_directory
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

LINES = "".join(f"line {number}\n" for number in range(6))
DONE = LINES.replace("line", "LINE")
CHANGES: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "edit_file": lambda path, number: {"path": path, "old": f"line {number}\n", "new": f"LINE {number}\n"},
    "multi_edit": lambda path, number: {
        "path": path,
        "edits": [{"old": f"line {number}\n", "new": f"LINE {number}\n"}],
    },
    "careless": lambda path, number: {"path": path, "old": f"line {number}\n", "new": f"LINE {number}\n"},
}
PLACES = ["f", "./f", "sub/../f", "f", "/f", "f"]


@tool
async def careless(path: str, old: str, new: str, ctx: ToolContext) -> str:
    """Edit a file as it was once: others come in between reading and writing."""
    place = ctx.workspace.root / path.lstrip("/")
    text = place.read_text()
    await asyncio.sleep(0)
    place.write_text(text.replace(old, new))
    return "edited"


def carry_out(session: Lab, workspace: Path, *steps: Step, **options: Any) -> Run:
    """The run of a plan, to its end."""
    given = {"model": ScriptedModel([]), "approve": "auto:medium", "workspace": workspace, **options}
    return asyncio.run(session.run("go", plan=Plan(steps=steps), **given))


def agent(session: Lab, workspace: Path, *turns: Turn, **options: Any) -> Run:
    """The run of one scripted agent, to its end."""
    given = {"model": ScriptedModel([*turns, "done"]), "approve": "auto", "workspace": workspace, **options}
    return asyncio.run(session.run("go", **given))


def answers(run: Run) -> list[str]:
    """What the tools answered, one line each."""
    return [event.text.splitlines()[0] for event in run.events() if isinstance(event, ToolAnswered)]


@pytest.mark.parametrize(("name", "lost"), [("edit_file", False), ("multi_edit", False), ("careless", True)])
def test_steps_that_edit_one_file_lose_no_edit(session: Lab, workspace: Path, name: str, lost: bool) -> None:
    """Six parallel steps, each with its own spelling of the path, leave six edits; a tool that reads and
    writes for itself does not.
    """
    (workspace / "sub").mkdir()
    (workspace / "f").write_text(LINES)
    places = [place if place != "/f" else str(workspace / "f") for place in PLACES] if not lost else ["f"] * 6
    steps = [
        Step(id=f"s{number}", tool=name, args=CHANGES[name](place, number))
        for number, place in enumerate(places)
    ]
    done = carry_out(session, workspace, *steps, tools=["edit_file", "multi_edit", careless])
    assert done.status == "COMPLETE"
    assert ((workspace / "f").read_text() != DONE) is lost


@pytest.mark.parametrize("at_once", [1, 8])
def test_of_steps_that_write_one_file_whole_one_does(session: Lab, workspace: Path, at_once: int) -> None:
    """Steps without an order among them do not replace what another wrote, also where they run one after the
    other.
    """
    steps = [
        Step(id=f"s{number}", tool="write_file", args={"path": "f", "content": f"{number}\n"})
        for number in range(4)
    ]
    done = carry_out(session, workspace, *steps, limits=Limits(steps_at_once=at_once))
    assert (done.status, (workspace / "f").read_text()) == ("FAILED", "0\n")
    assert [
        text for text in answers(done)[1:] if "f was not changed: step 's0' changed it" in text
    ] == answers(done)[1:]


def test_who_comes_later_may_replace_what_came_before(session: Lab, workspace: Path) -> None:
    """A step may replace what steps wrote that it waits for, and exclusive steps what those before them
    did.
    """
    first = Step(id="a", tool="write_file", args={"path": "f", "content": "a"})
    between = Step(id="b", goal="think", depends_on=("a",))
    last = Step(id="c", tool="write_file", args={"path": "f", "content": "c"}, depends_on=("b",))
    assert (
        carry_out(session, workspace, first, between, last, model=ScriptedModel(["ok"])).status == "COMPLETE"
    )
    alone = [
        Step(id=name, tool="write_file", args={"path": "g", "content": name}, parallelizable=False)
        for name in "xy"
    ]
    assert carry_out(session, workspace, *alone).status == "COMPLETE"
    assert ((workspace / "f").read_text(), (workspace / "g").read_text()) == ("c", "y")


def meddling(path: Path, text: str) -> Any:
    """A tool by which somebody else changes a file while the agent works."""

    @tool(danger_level=Danger.LOW)
    async def meddle() -> str:
        """Change a file behind the agent's back."""
        path.write_text(text)
        return "meddled"

    return meddle


WRITE = ("write_file", {"path": "f", "content": "mine\n"})
READ = ("read_file", {"path": "./f"})
FILES = ["read_file", "batch_read", "write_file", "edit_file", "delete_file", "restore_file"]


@pytest.mark.parametrize("change", [WRITE, ("delete_file", {"path": "f"})], ids=["write", "delete"])
@pytest.mark.parametrize(
    "first",
    [[READ], [("batch_read", {"paths": ["f"]})], [WRITE], []],
    ids=["read", "batch", "write", "nothing"],
)
def test_what_was_not_seen_is_not_replaced(
    session: Lab, workspace: Path, first: list[Any], change: Any
) -> None:
    """A file that changed since the agent read or wrote it, or began, is replaced only after it was read
    again.
    """
    (workspace / "f").write_text("one\n")
    turns = [*([first] if first else []), [("meddle", {})], [change], [READ], [change]]
    done = agent(session, workspace, *turns, tools=[*FILES, meddling(workspace / "f", "theirs\n")])
    refused, read, made = answers(done)[-3:]
    assert refused.startswith("error: f was not changed:")
    assert read == "theirs"
    assert made.startswith(("replaced f", "deleted f"))


def test_the_first_write_of_a_file_needs_no_reading(session: Lab, workspace: Path) -> None:
    """A file that was there before is replaced unread, and the change is told; what the agent wrote itself it
    may write again.
    """
    (workspace / "f").write_text("one\n")
    done = agent(
        session, workspace, [WRITE], [("write_file", {"path": "f", "content": "again\n"})], tools=FILES
    )
    assert [text.partition(" (")[0] for text in answers(done)] == ["replaced f", "replaced f"]


def test_reading_in_the_same_turn_is_not_seeing(session: Lab, workspace: Path) -> None:
    """Who asks for reading and writing in one turn has not read when it writes."""
    (workspace / "f").write_text("one\n")
    done = agent(
        session,
        workspace,
        [("meddle", {})],
        [READ, WRITE],
        tools=[*FILES, meddling(workspace / "f", "theirs\n")],
    )
    assert "you have not read it" in answers(done)[-1]
    assert (workspace / "f").read_text() == "theirs\n"


def test_an_edit_is_made_in_what_is_there_and_shows_no_more(session: Lab, workspace: Path) -> None:
    """An edit keeps what others did, and whoever edited blindly has not seen it."""
    (workspace / "f").write_text("one\ntwo\n")
    edit = ("edit_file", {"path": "f", "old": "one", "new": "ONE"})
    meddle = meddling(workspace / "f", "one\ntheirs\n")
    done = agent(session, workspace, [READ], [("meddle", {})], [edit], [WRITE], tools=[*FILES, meddle])
    assert (workspace / "f").read_text() == "ONE\ntheirs\n"
    assert "something else changed it" in answers(done)[-1]


def test_a_cached_answer_is_reading_too(session: Lab, workspace: Path) -> None:
    """Who is given a stored answer of a read knows the file as well as who read it."""
    session.cache.mode = "use"
    (workspace / "f").write_text("one\n")
    os.utime(workspace / "f", (1, 1))
    meddle = meddling(workspace / "f", "theirs\n")
    pause = meddling(workspace / "g", "")
    asyncio.run(asyncio.sleep(0.06))  # what is as new as this has no fingerprint yet
    for _ in range(2):
        done = agent(session, workspace, [READ], [("meddle", {})], [WRITE], tools=[*FILES, meddle])
        assert "something else changed it since you read" in answers(done)[-1]
        (workspace / "f").write_text("theirs\n")
        asyncio.run(asyncio.sleep(0.06))
        done = agent(session, workspace, [READ], [WRITE], tools=[*FILES, pause])
        assert answers(done)[-1].startswith("replaced f")


class Meddler(ScriptedApprover):
    """Says yes, and changes a file before the first answer."""

    def __init__(self, change: Callable[[], object], answers: list[Any]) -> None:
        super().__init__(answers)
        self.change = change

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Change the file once."""
        if not self.asked:
            self.change()
        return await super().__call__(asked)


ASKED = {
    "edit_file": {"path": "f", "old": "three", "new": "3"},
    "multi_edit": {"path": "f", "edits": [{"old": "three", "new": "3"}]},
    "write_file": {"path": "f", "content": "all\n"},
    "delete_file": {"path": "f"},
}


@pytest.mark.parametrize("name", ASKED)
def test_what_was_approved_is_what_is_done(session: Lab, workspace: Path, name: str) -> None:
    """A call that would do something else than what was shown is asked about again, with what it would do
    now.
    """
    file = workspace / "f"
    file.write_text("one\ntwo\nthree\n")
    os.utime(file, (1, 1))
    approver = Meddler(lambda: file.write_text("one\nTWO\nthree\n"), [True, "no, not any more"])
    done = agent(session, workspace, [(name, ASKED[name])], approve="ask", approver=approver, tools=[*ASKED])
    assert [("TWO" in asked.preview, asked.why) for asked in approver.asked] == [
        (False, "danger"),
        (True, "what it would change is not what was shown before"),
    ]
    assert file.read_text() == "one\nTWO\nthree\n"
    assert "denied by script: no, not any more" in answers(done)[-1]


def test_a_second_yes_does_what_it_showed(session: Lab, workspace: Path) -> None:
    """Six edits of neighbouring lines, each approved and asked about again where the line beside it changed,
    are all made.
    """
    (workspace / "f").write_text(LINES)
    steps = [
        Step(id=f"s{number}", tool="edit_file", args=CHANGES["edit_file"]("f", number)) for number in range(6)
    ]
    approver = ScriptedApprover([True] * 12)
    assert carry_out(session, workspace, *steps, approve="ask", approver=approver).status == "COMPLETE"
    assert (workspace / "f").read_text() == DONE
    assert len(approver.asked) > 6


def test_a_change_that_only_moved_is_not_asked_about_again(session: Lab, workspace: Path) -> None:
    """Lines that came in far above move the change; it is still the one that was shown."""
    file = workspace / "f"
    file.write_text("0\n" * 20 + LINES)
    approver = Meddler(lambda: file.write_text("new\n" + "0\n" * 20 + LINES), [True])
    agent(
        session,
        workspace,
        [("edit_file", CHANGES["edit_file"]("f", 3))],
        approve="ask",
        approver=approver,
        tools=["edit_file"],
    )
    assert file.read_text() == "new\n" + "0\n" * 20 + LINES.replace("line 3", "LINE 3")


def test_nothing_else_is_done_even_if_nobody_asks_again(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that never asks again changes nothing either: under the lock the tool looks itself whether it
    does what was shown.
    """

    async def sure(_: RunApprovals, __: Call) -> None:
        return None

    monkeypatch.setattr(RunApprovals, "confirm", sure)
    file = workspace / "f"
    for name, args in ASKED.items():
        file.write_text("one\ntwo\nthree\n")
        os.utime(file, (1, 1))
        approver = Meddler(lambda: file.write_text("one\nTWO\nthree\n"), [True])
        done = agent(session, workspace, [(name, args)], approve="ask", approver=approver, tools=[*ASKED])
        assert (len(approver.asked), file.read_text()) == (1, "one\nTWO\nthree\n")
        assert "was not changed" in answers(done)[-1] or "not what was approved" in answers(done)[-1]


def test_a_yes_from_elsewhere_holds_for_what_was_shown(session: Lab, workspace: Path) -> None:
    """A run that waits for a person and is resumed asks again if the file is another one by then, and keeps
    what it had read.
    """
    file = workspace / "f"
    file.write_text("one\n")

    model = ScriptedModel([[READ], [WRITE], "done"])
    with pytest.raises(ApprovalRequired) as waiting:
        agent(session, workspace, [READ], [WRITE], approve="ask", tools=FILES)
    run_id = waiting.value.run_id
    session.history.decide(run_id, granted=True, by="ann", how="command")
    file.write_text("theirs\n")
    with pytest.raises(ApprovalRequired):
        asyncio.run(session.resume(run_id, model=model))
    (open_now,) = session.get(run_id).questions
    with pytest.raises(ApprovalRequired):  # the same question, not another one
        asyncio.run(session.resume(run_id, model=model))
    assert session.get(run_id).questions == (open_now,)
    session.history.decide(run_id, granted=True, by="ann", how="command")
    done = asyncio.run(session.resume(run_id, model=model))
    asked = [event for event in done.events() if isinstance(event, ApprovalAsked)]
    assert [("-theirs" in event.preview) for event in asked] == [False, True]
    assert "something else changed it since you read" in answers(done)[-1]
    assert file.read_text() == "theirs\n"


def test_calls_that_may_change_the_same_are_alone_across_steps(session: Lab, workspace: Path) -> None:
    """Of calls of all steps that may change the workspace one runs at a time; calls that reach nothing there
    run beside them.
    """
    meetings = {"risky": Meeting(1), "far": Meeting(3)}

    async def work(kind: str) -> str:
        async with meetings[kind]:
            for _ in range(20):
                await asyncio.sleep(0)
        return kind

    @tool(danger_level="medium")
    async def risky() -> str:
        """May change anything."""
        return await work("risky")

    @tool(danger_level="medium", reaches="address", parallel_safe=True)
    async def far() -> str:
        """Changes nothing here."""
        return await work("far")

    steps = [Step(id=f"{name}{number}", tool=name) for name in ("risky", "far") for number in range(3)]
    assert carry_out(session, workspace, *steps, tools=[risky, far]).status == "COMPLETE"
    assert {kind: meeting.most for kind, meeting in meetings.items()} == {"risky": 1, "far": 3}


def test_a_tool_of_ones_own_cannot_replace_what_changed_since_it_read(tmp_path: Path) -> None:
    """In one call, what is read through the workspace is written back only if it is still that; a plain
    workspace has no such memory.
    """
    (tmp_path / "f").write_text("one")
    call, other = Workspace(tmp_path).for_call(), Workspace(tmp_path)
    text = call.read_text("f").text
    with pytest.raises(FileNotFoundError):
        call.read_text("new")
    other.write_text("f", "theirs")
    other.write_text("new", "theirs")
    for path in ("f", "./new"):
        with pytest.raises(ConflictError, match="something else changed it"):
            call.write_text(path, text + "more")
    assert call.read_text("f").text == "theirs"
    call.write_text("f", "mine")
    call.write_text("f", "mine again")
    assert (tmp_path / "f").read_text() == "mine again"


WORKER = """
import sys
from pathlib import Path
from kestrel_lab.tools.files.tools import edit_file
from kestrel_lab.tools.tool import ToolContext
from kestrel_lab.tools.files.workspace import Workspace
root, path, mine, how = sys.argv[1:]
ctx = ToolContext(workspace=Workspace(Path(root)))
print("ready", flush=True)
sys.stdin.readline()
for number in range(30):
    old, new = f"{mine}{number}.\\n", f"{mine}{number}!\\n"
    if how == "locked":
        edit_file(path, old, new, ctx)
    else:
        ctx.workspace.write_text(path, ctx.workspace.read_text(path).text.replace(old, new))
"""


def edits_of_processes(root: Path, how: str) -> int:
    """How many of the edits are left that three processes make in one file, each from another workspace."""
    (root / "in").mkdir(exist_ok=True)
    file = root / "in" / "f"
    file.write_text("".join(f"{who}{number}.\n" for number in range(30) for who in "abc"))
    (root / "link").symlink_to("in") if not (root / "link").is_symlink() else None
    places = [(root, "in/f", "a"), (root / "in", "f", "b"), (root / "link", str(root / "in" / "f"), "c")]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, place), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for place in places
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=PATIENCE_S)
    return file.read_text().count("!")


def test_processes_lose_no_edit(tmp_path: Path) -> None:
    """Three processes edit one file from workspaces within each other: every edit is there; with reading and
    writing apart some are not.
    """
    assert edits_of_processes(tmp_path, "locked") == 90
    assert any(edits_of_processes(tmp_path, "apart") < 90 for _ in range(5))


def test_a_killed_holder_of_the_lock_holds_up_nobody(tmp_path: Path) -> None:
    """The lock ends with the process, however that ends, and leaves nothing in the folder."""
    code = (
        "import sys,fcntl,os; fd=os.open(sys.argv[1],os.O_RDONLY); fcntl.flock(fd,fcntl.LOCK_EX); "
        "print('held',flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        fd = os.open(tmp_path, os.O_RDONLY)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kestrel_lab.tools.files.lock.WAIT_S", 0.01)
            with (
                pytest.raises(TimeoutError, match="another process has held the lock"),
                lock_directory(fd, "f"),
            ):
                pass
        os.close(fd)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        Workspace(tmp_path).write_text("f", "x")
    assert os.listdir(tmp_path) == ["f"]


def test_rounds_of_a_loop_may_write_what_the_last_one_wrote(session: Lab, workspace: Path) -> None:
    """Every round of a loop comes after the round before it, so its steps may replace what that one wrote."""
    count = iter("1234")

    @tool
    async def tick() -> str:
        """Count."""
        return next(count)

    body = [
        Part(Step(id="t", tool="tick", produces=("x",))),
        Part(
            Step(
                id="w",
                tool="write_file",
                args={"path": "f", "content": "{{x}}"},
                consumes=("x",),
                produces=("y",),
            )
        ),
    ]
    shape = loop_plan(body, until='x == "3"', repeats=Repeats(limit=5, result="x"))
    done = asyncio.run(
        session.run(
            "go",
            plan=Plan(steps=shape.steps, artifacts=shape.artifacts),
            approve="auto",
            workspace=workspace,
            tools=["write_file", tick],
        )
    )
    assert (done.status, (workspace / "f").read_text()) == ("COMPLETE", "3")
