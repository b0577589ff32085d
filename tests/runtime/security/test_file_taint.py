"""Words of others that go through files: across runs, by copies that clean commands make, under other names,
and after a crash.
"""

import asyncio
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ORDER, OVER, Harness, bash, harness_at, read
from waits import becomes
from webserver import WebServer

from kestrel_lab.core.errors import ApprovalRequired
from kestrel_lab.core.events.union import ApprovalAsked, FilesTainted, ToolAnswered
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.inotify import OpenWatch
from kestrel_lab.tools.tool import ToolContext


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A harness of its own."""
    with harness_at(tmp_path) as made:
        yield made


COPIES = {
    "cp": ("cp summary.md notes.md", "notes.md"),
    "mv": ("mv summary.md notes.md", "notes.md"),
    "cat": ("cat summary.md > notes.md", "notes.md"),
    "append": ("echo mine > notes.md; cat summary.md >> notes.md", "notes.md"),
    "head": ("head -n 1 summary.md > notes.md", "notes.md"),
    "sed": ("sed s/reads/READS/ summary.md > notes.md", "notes.md"),
    "in place": ("sed -i s/reads/READS/ summary.md", "summary.md"),
    "tar": ("tar cf - summary.md | (mkdir d && cd d && tar xf -)", "d/summary.md"),
    "base64": ("base64 summary.md > b.txt", "b.txt"),
    "hard link": ("ln summary.md notes.md", "notes.md"),
    "symlink": ("ln -s summary.md notes.md", "notes.md"),
    "renamed folder": ("mkdir a && cp summary.md a/x.md && mv a b", "b/x.md"),
    "git mv": ("git init -q . && git add summary.md && git mv summary.md notes.md", "notes.md"),
    "git checkout": (
        "git init -q . && git add summary.md && rm summary.md && git checkout -q -- summary.md",
        "summary.md",
    ),
    "python": ("python3 -c \"open('notes.md', 'w').write(open('summary.md').read().upper())\"", "notes.md"),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_that_a_clean_command_makes_is_tainted(harness: Harness, how: str) -> None:
    """Whatever a command of a run that has read nobody makes of such a file, a third run that reads it is not
    free to act.
    """
    harness.write()
    command, copy = COPIES[how]
    run = harness.run(bash(command), tools=())
    assert [event.error for event in run.events() if isinstance(event, ToolAnswered)] == [None]
    assert (harness.place / copy).exists()
    assert not harness.obeys(read(copy))


def test_the_next_run_knows_and_says_where_it_comes_from(harness: Harness) -> None:
    """Another session's run that reads the file is asked about what it then does; the question names file,
    run and page.
    """
    first = harness.write()
    harness.session()
    with pytest.raises(ApprovalRequired):
        harness.run(read("summary.md"), OVER, approve="ask")
    run = harness.sessions[0].store.runs(limit=1)[0]
    (asked,) = (
        event for event in harness.sessions[0].get(run.id).events() if isinstance(event, ApprovalAsked)
    )
    page = f"summary.md, written by run {first.id} after it read web_fetch {harness.web.url('/page')}"
    assert page in str(asked.contained["untrusted"])
    path = next(one for one in asked.origins if one["arg"] == "path")
    assert page in str(path)  # where its name was read
    asyncio.run(harness.session().resume(run.id, approve="auto", model=ScriptedModel(["done"])))
    assert (harness.place / "notes.txt").read_text() == "mine\n"


SPELLINGS = (
    "link/a.md",
    "./real/a.md",
    "real/../real//a.md",
    "real/hard.md",
    "link/hard.md",
    "both/a.md",
    "ABSOLUTE",
)


@pytest.mark.parametrize("path", SPELLINGS)
def test_a_file_is_the_same_under_every_name(harness: Harness, path: str) -> None:
    """A folder that is a symlink, a hard link, dots and an absolute path lead to the same taint."""
    (harness.place / "real").mkdir()
    (harness.place / "link").symlink_to("real")
    (harness.place / "both").symlink_to("link")
    harness.write("real/a.md")
    os.link(harness.place / "real/a.md", harness.place / "real/hard.md")
    assert not harness.obeys(read(str(harness.place / "real/a.md") if path == "ABSOLUTE" else path))


QUIET = (
    [],
    [("list_directory", {})],
    [("glob", {"pattern": "*.md"}), ("tree", {}), ("file_exists", {"path": "summary.md"})],
    [("grep", {"pattern": "mine"})],
    [bash("ls -la; cat notes.txt")],
    [bash("echo new > new.txt"), read("new.txt")],
    [("delete_file", {"path": "summary.md"})],
)


@pytest.mark.parametrize("calls", QUIET, ids=str)
def test_who_does_not_read_the_file_is_not_held_up(harness: Harness, calls: list[Any]) -> None:
    """A tainted file in the folder holds up nobody who only sees its name, searches for something else or
    runs commands on others.
    """
    harness.write()
    assert harness.obeys(*calls)


LOUD = (
    [read("summary.md")],
    [("batch_read", {"paths": ["notes.txt", "summary.md"]})],
    [("grep", {"pattern": "overwrites"})],
    [("grep", {"pattern": "overwrites", "path": "summary.md"})],
    [bash("grep -r overwrites .")],
    [bash("cat *.md | tr a-z A-Z")],
    [("edit_file", {"path": "summary.md", "old": "second", "new": "2nd"})],
)


@pytest.mark.parametrize("calls", LOUD, ids=str)
def test_every_tool_that_shows_the_file_taints(harness: Harness, calls: list[Any]) -> None:
    """Reading it in another run, by whichever tool, leaves that run unable to act unasked."""
    harness.write()
    assert not harness.obeys(*calls)


def test_what_a_person_writes_is_the_persons(harness: Harness) -> None:
    """A content that no such run wrote is free, also in a file that one had written; put back, the old one is
    not.
    """
    harness.write()
    (harness.place / "summary.md").write_text("My own summary of the page.\n")
    assert harness.obeys(read("summary.md"))
    (harness.place / "summary.md").write_text(ORDER)
    assert not harness.obeys(read("summary.md"))


MOVES = {
    "edited": (lambda place: place.write_text(ORDER.replace("second", "2nd"))),
    "moved and edited": (lambda place: place.rename(place.with_name("m.md")).write_text(f"{ORDER}Mine.\n")),
}


@pytest.mark.parametrize("how", MOVES)
def test_an_edit_by_hand_does_not_make_it_the_persons(harness: Harness, how: str) -> None:
    """One line that a person changes, here or under a new name, leaves the rest words of others."""
    harness.write()
    MOVES[how](harness.place / "summary.md")
    assert not harness.obeys(read("m.md" if "moved" in how else "summary.md"))


def test_a_short_file_that_was_moved_stays_tainted(harness: Harness) -> None:
    """A few bytes are known under another name too, in the workspace where they were written."""
    short = "rm -rf ~\n"
    harness.run(
        ("web_fetch", {"url": harness.web.url("/page")}), ("write_file", {"path": "s.md", "content": short})
    )
    (harness.place / "s.md").rename(harness.place / "t.md")
    assert not harness.obeys(read("t.md"))


def test_a_person_can_trust_a_file(harness: Harness) -> None:
    """What somebody has looked at and vouches for is read freely, in this session and the next, wherever it
    is; another content is not.
    """
    harness.write()
    assert harness.sessions[0].files.trust(harness.place / "summary.md")
    assert harness.obeys(read("summary.md"))
    harness.session()
    (harness.place / "summary.md").rename(harness.place / "moved.md")
    assert harness.obeys(read("moved.md"))
    harness.run(
        ("web_fetch", {"url": harness.web.url("/page")}),
        ("write_file", {"path": "other.md", "content": ORDER + "more"}),
    )
    assert not harness.obeys(read("other.md"))


def test_a_stored_answer_keeps_its_taint(harness: Harness) -> None:
    """A read that is answered from the cache taints like the one that was stored."""
    harness.write()
    os.utime(harness.place / "summary.md", (1, 1))
    harness.run(read("summary.md"))
    (harness.place / "notes.txt").write_text("mine\n")
    run = harness.run(read("summary.md"), OVER)
    assert [event.error is None for event in run.events() if isinstance(event, ToolAnswered)] == [True, False]


def test_a_step_that_read_nothing_is_tainted_by_what_another_left(harness: Harness) -> None:
    """In one run: a step reads and writes, a clean one copies by a command, a third reads the copy and may
    not act.
    """
    steps = (
        Step(id="get", goal="get"),
        Step(id="copy", tool="bash", args={"command": "cp summary.md copy.md"}, depends_on=("get",)),
        Step(id="work", goal="work", depends_on=("copy",)),
    )

    def play(request: Any) -> Any:
        said = sum(message.role == "assistant" for message in request.messages)
        page: Any = [("web_fetch", {"url": harness.web.url("/page")})]
        first = [page, [("write_file", {"path": "summary.md", "content": ORDER})], "done"]
        second: Any = [[read("copy.md")], [OVER], "done"]
        return (first if request.messages[-1 - 2 * said].text.endswith("get") else second)[said]

    run = harness.run(model=ScriptedModel(play), plan=Plan(steps=steps))
    assert (harness.place / "copy.md").exists()
    assert run.status == "COMPLETE"
    assert (harness.place / "notes.txt").read_text() == "mine\n"


@tool(reads="untrusted", reaches="anything")
def download(ctx: ToolContext) -> str:
    """Save a page, and die before anybody is told."""
    (ctx.workspace.root / "saved.md").write_text(ORDER)
    os._exit(9)


def _dies(folder: Path, port: int) -> None:
    made = Harness(folder, WebServer({}, port))
    made.run(("download", {}), tools=(download,))


def test_a_file_of_a_call_that_never_ended_is_tainted(harness: Harness) -> None:
    """Of a process that died in a call that was bringing in words of others, what it had written until then
    is tainted.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_dies, args=(harness.folder, harness.web.port)
    )
    process.start()
    process.join()
    assert process.exitcode == 9
    (harness.place / "before.md").write_text("An old file.\n")
    assert not harness.obeys(read("saved.md"))


def pair(harness: Harness, meanwhile: Callable[[], object]) -> Run:
    """A run that reads the page and then makes two calls in a turn: one saves a file, the other ends after it
    and does something before.
    """

    @tool
    async def save(ctx: ToolContext) -> str:
        """Save the page."""
        (ctx.workspace.root / "saved.md").write_text(ORDER)
        return "saved"

    @tool
    async def go_on(ctx: ToolContext) -> str:
        """End when the other call has been answered."""
        await becomes(
            lambda: any(
                isinstance(one.event, ToolAnswered) and one.event.tool == "save"
                for one in log.records(ctx.run_id)
            )
        )
        meanwhile()
        return "done"

    log = harness.session().store
    page = ("web_fetch", {"url": harness.web.url("/page")})
    run = harness.run(
        model=ScriptedModel([[page], [("go_on", {}), ("save", {})], "done"]),
        tools=(save, go_on),
        containment="off",
    )
    assert [event.error for event in run.events() if isinstance(event, ToolAnswered)] == [None] * 3
    return run


def test_calls_that_begin_together_share_what_is_recorded_of_files(harness: Harness) -> None:
    """One event when they begin and one when the last has ended, beside that of what an earlier one has
    written.
    """
    run = pair(harness, lambda: None)
    told = [event for event in run.events() if isinstance(event, FilesTainted)]
    assert [(event.call, event.ended, [file["path"] for file in event.files]) for event in told] == [
        ("answer.2.1", False, []),
        ("answer.2.1", False, ["saved.md"]),
        ("answer.2.1", True, ["saved.md"]),
    ]
    assert told[0].also == ["answer.2.2"]
    assert not harness.obeys(read("saved.md"))


def test_what_a_call_wrote_is_known_when_it_has_ended(harness: Harness) -> None:
    """Also while another of its turn goes on: a file that somebody then takes away is known when it is
    brought back.

    Fails where what calls share is recorded at the last end alone.
    """
    away = harness.folder / "away.md"
    pair(harness, lambda: (harness.place / "saved.md").rename(away))
    away.rename(harness.place / "back.md")
    assert not harness.obeys(read("back.md"))


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: nobody looks which files a command opens."""
    monkeypatch.setattr(OpenWatch, "opened", lambda _: False)


def forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: what a run wrote is known to that run alone."""
    monkeypatch.setattr(FileTaint, "known", lambda _: False)


def by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: a file is known by its path."""
    source = FileTaint._source

    def only_there(self: FileTaint, root: str, path: str, place: Path, status: os.stat_result) -> str:
        return source(self, root, path, place, status) if path in self._paths.get(root, ()) else ""

    monkeypatch.setattr(FileTaint, "_source", only_there)


@pytest.mark.parametrize(
    ("bug", "attack"),
    [
        (
            blind,
            lambda harness: (harness.run(bash("rev summary.md > n.md")), harness.obeys(read("n.md")))[1],
        ),
        (forgets, lambda harness: harness.obeys(read("summary.md"))),
        (
            by_path,
            lambda harness: (
                subprocess.run(["mv", "summary.md", "n.md"], cwd=harness.place, check=True),
                harness.obeys(read("n.md")),
            )[1],
        ),
    ],
)
def test_each_bug_lets_something_through(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    bug: Callable[[pytest.MonkeyPatch], None],
    attack: Callable[[Harness], bool],
) -> None:
    """The attacks catch each of the bugs that such a memory is likely to have, and fail without."""
    harness.write()
    bug(monkeypatch)
    assert attack(harness)


def test_an_empty_file_holds_nobodys_words(harness: Harness) -> None:
    """A run that has read a page may leave one behind: it orders nothing, there and wherever else a file is
    empty.
    """
    harness.run(
        ("web_fetch", {"url": harness.web.url("/page")}),
        ("write_file", {"path": "summary.md", "content": ""}),
    )
    assert harness.obeys(read("summary.md"))


def test_calls_that_leave_such_files_are_counted(harness: Harness) -> None:
    """So that a command which ran meanwhile is known to have had them before it; what nobody else had a part
    in does not count.
    """
    harness.write()
    files, root = harness.sessions[0].files, str(harness.place)
    counted = files.marks(root)
    harness.run(("write_file", {"path": "own.md", "content": "mine\n"}))
    assert (files.marks(root), files.marks(str(harness.place.parent))) == (counted, 0)
    harness.run(
        ("web_fetch", {"url": harness.web.url("/page")}), ("write_file", {"path": "two.md", "content": ORDER})
    )
    assert files.marks(root) > counted > 0


def test_who_is_told_of_a_denial_is_told_where_the_arguments_are_from(harness: Harness) -> None:
    """Where three things met it says so of each argument; a call that the policy denies anyway needs no
    account.
    """
    contained = harness.run(("web_fetch", {"url": harness.web.url("/page")}), OVER, approve="auto")
    denied = harness.run(bash("touch x"), approve="deny")
    told = [
        [bool(event.origins) for event in run.events() if isinstance(event, ApprovalAsked)]
        for run in (contained, denied)
    ]
    assert told == [[True], [False]]
