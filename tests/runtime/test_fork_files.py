"""A fork has the files of its time, in a private copy; the folder of its parent stays as it is."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import FilesKept, ModelCalled, ToolAnswered, ToolCalled
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import start as starting
from kestrel_lab.runtime.context.file_history import FileHistory
from kestrel_lab.runtime.forks.private_copy import remove_copy, runs_with_copies
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn

Files = dict[str, tuple[Any, ...]]
LEFT_OUT = frozenset({".git", ".kestrel", "__pycache__", ".venv", "node_modules"})


def files(folder: Path) -> Files:
    """Everything in a folder, read by means of its own: kind, mode and content by path."""
    found: Files = {}
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in [*folders, *names]:
            path = Path(place, name)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                found[str(path.relative_to(folder))] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[str(path.relative_to(folder))] = ("folder", stat.S_IMODE(status.st_mode))
            elif stat.S_ISREG(status.st_mode):
                found[str(path.relative_to(folder))] = (
                    "file",
                    stat.S_IMODE(status.st_mode),
                    path.read_bytes(),
                )
    return found


def every_byte(folder: Path) -> Files:
    """The same with the git folder and with the times of every file."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.is_file() and path.read_bytes(),
        )
        for path in folder.rglob("*")
    }


def calls(*turns: Any) -> ScriptedModel:
    """A model that makes one call a turn, and then answers with the last result."""

    def turn(request: ModelRequest) -> Turn:
        told = [message.text for message in request.messages if message.role == "tool"]
        return [turns[len(told)]] if len(told) < len(turns) else told[-1] if told else "done"

    return ScriptedModel(turn)


def asks_again(*turns: Any) -> ScriptedModel:
    """A model for a fork: it makes these calls whatever was called before, and answers with the last
    result.
    """
    left = list(turns)

    def turn(request: ModelRequest) -> Turn:
        return [left.pop(0)] if left else next(m.text for m in reversed(request.messages) if m.role == "tool")

    return ScriptedModel(turn)


def git(folder: Path, *args: str) -> str:
    """What git of the user says in a folder."""
    words = [
        "git",
        "-c",
        "user.name=ann",
        "-c",
        "user.email=ann@example.org",
        "-c",
        "commit.gpgsign=false",
        *args,
    ]
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout


TOOLS = ["read_file", "write_file", "edit_file", "delete_file", "restore_file", "bash"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with a few files."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "a.txt").write_text("old\n")
    (place / "b.txt").write_text("b\n")
    return place


def start(session: Lab, folder: Path, model: ScriptedModel) -> Run:
    """Run a model in a folder."""
    return asyncio.run(session.run("go", model=model, tools=TOOLS, workspace=folder, approve="auto:critical"))


def fork(session: Lab, run: Run, at: int, model: ScriptedModel | None = None, **options: Any) -> Run:
    """Fork a run at an event."""
    return asyncio.run(
        session.fork(run.id, at=at, model=model or asks_again(), approve="auto:critical", **options)
    )


def copy_of(run: Run) -> Path:
    """Where a fork has its files."""
    return Path(run._state.folder)


def number(run: Run, kind: type, which: int = 0) -> int:
    """The number of an event of a kind."""
    return [record.seq for record in run.records() if isinstance(record.event, kind)][which]


def test_a_fork_reads_the_old_text_and_the_folder_stays(session: Lab, folder: Path) -> None:
    """A run that read, wrote and read again is forked before the write: the fork reads the old text, and its
    writes are its own.
    """
    run = start(
        session,
        folder,
        calls(
            ("read_file", {"path": "a.txt"}),
            ("write_file", {"path": "a.txt", "content": "new\n"}),
            ("read_file", {"path": "a.txt"}),
        ),
    )
    assert "new" in run.answer
    before = every_byte(folder)

    child = fork(
        session,
        run,
        number(run, ToolAnswered),
        asks_again(
            ("read_file", {"path": "a.txt"}),
            ("write_file", {"path": "a.txt", "content": "fork\n"}),
            ("bash", {"command": "cat a.txt; touch c"}),
        ),
    )

    assert "old" in child.results["answer.2.1"]
    assert "fork" in child.answer
    assert every_byte(folder) == before
    assert (copy_of(child) / "a.txt").read_text() == "fork\n"
    assert copy_of(child).is_relative_to(session.home.resolve() / "forks" / child.id)


def test_in_place_a_fork_works_in_the_folder(session: Lab, folder: Path) -> None:
    """With in_place=True a fork reads the files of now, and changes them."""
    run = start(session, folder, calls(("write_file", {"path": "a.txt", "content": "new\n"})))

    child = fork(
        session,
        run,
        number(run, ToolCalled),
        asks_again(("bash", {"command": "cat a.txt; echo fork > a.txt"})),
        in_place=True,
    )

    assert "new" in child.answer
    assert (folder / "a.txt").read_text() == "fork\n"
    assert not (session.home / "forks").exists()


def _steps(seed: int) -> list[Any]:
    """A random sequence of calls that change files by every means."""
    chance = random.Random(seed)
    names = ["a.txt", "b.txt", "d/c.txt", "d/e/f.txt", "g.txt"]

    def command() -> str:
        one, other = chance.sample(names, 2)
        return chance.choice(
            [
                f"mkdir -p d/e && echo {chance.random()} > {one}",
                f"rm -f {one}",
                f"mv {one} {other} || true",
                f"chmod +x {one} || true",
                f"mkdir -p d/e && ln -sf {other} l{chance.randrange(3)}",
                "rm -rf d",
                f"mkdir -p empty{chance.randrange(3)}/deep",
                f"mkdir -p m && mv m n{chance.randrange(2)} || true",
                f"mkdir -p d/e && cp {one} d/e/copy && truncate -s 0 {one} || true",
                "printf x > $'not\\xffutf8'",
                "ls; cat a.txt || true",
                "git add -A && git commit -qm x || true",
            ]
        )

    def step() -> Any:
        kind = chance.choice(["bash", "bash", "write", "delete", "edit", "read"])
        name = chance.choice(names)
        match kind:
            case "bash":
                return ("bash", {"command": command()})
            case "write":
                return ("write_file", {"path": name, "content": f"{chance.random()}\n"})
            case "delete":
                return ("delete_file", {"path": name})
            case "edit":
                return ("edit_file", {"path": name, "old": "0", "new": "1", "all": True})
        return ("read_file", {"path": name})

    return [step() for _ in range(12)]


def _record_each(session: Lab, folder: Path, run_model: ScriptedModel) -> tuple[Run, dict[str, Files]]:
    """Run a model, and record by means of this test what the folder holds when each call has ended."""
    seen: dict[str, Files] = {"": files(folder)}

    class Watching:
        """Around each call of a tool, outside of what is tested."""

        async def __call__(self, call: Any, proceed: Any) -> Any:
            result = await proceed(call)
            if call.kind == "tool":
                seen[call.id] = files(folder)
            return result

    session.change(middleware=(Watching(),))
    run = start(session, folder, run_model)
    session.change(middleware=())
    return run, seen


async def _begin(session: Lab, run: Run, at: int) -> tuple[Run, Files]:
    """Begin a fork, and return what it has before it does anything."""
    child = starting.fork(session, run.id, at=at, model=ScriptedModel(["done"]))
    held = files(copy_of(child))
    child.cancel()
    with suppress(asyncio.CancelledError):
        await child.wait()
    return child, held


def forks_differ(session: Lab, folder: Path, run: Run, seen: dict[str, Files]) -> list[int]:
    """The events at which a fork has not the files that were recorded then."""
    wrong, now = [], seen[""]
    ended = next(record.seq for record in run.records() if record.event.type == "run_finished")
    for record in run.records()[: ended - 1]:
        if isinstance(record.event, ToolAnswered):
            now = seen.get(record.event.call, now)
        elif isinstance(record.event, FilesKept) and record.event.when == "after":
            now = seen[record.event.call]
        child, held = asyncio.run(_begin(session, run, record.seq))
        if held != now:
            wrong.append(record.seq)
        assert remove_copy(session.home, child.id)
        assert not copy_of(child).exists()
    return wrong


@pytest.mark.parametrize("seed", range(4))
def test_a_fork_at_every_event_has_the_files_of_then(session: Lab, folder: Path, seed: int) -> None:
    """Whatever writes, deletions, moves, links and modes: at each event the fork's files are those recorded
    then, and nothing of the user's changes.
    """
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    (folder / "b.txt").write_text("stashed\n")
    git(folder, "stash")
    run, seen = _record_each(session, folder, calls(*_steps(seed)))
    before = every_byte(folder)

    assert forks_differ(session, folder, run, seen) == []

    assert every_byte(folder) == before
    assert "stash@{0}" in git(folder, "stash", "list")


def test_a_snapshot_that_is_left_out_is_noticed(
    session: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law above fails for a history that forgets what a command changed: the deliberate bug."""
    real: Callable[..., Any] = FileHistory._take

    def forgets(self: FileHistory, call: str, when: str) -> FilesKept | None:
        event: FilesKept | None = real(self, call, when)
        return None if event is not None and when == "after" and "a.txt" in event.changed else event

    monkeypatch.setattr(FileHistory, "_take", forgets)
    run, seen = _record_each(
        session,
        folder,
        calls(
            ("bash", {"command": "echo new > a.txt"}), ("bash", {"command": "echo newer > a.txt; rm b.txt"})
        ),
    )

    assert forks_differ(session, folder, run, seen)


def test_what_a_person_changed_since_is_not_in_the_fork(session: Lab, folder: Path) -> None:
    """Edits by hand after the run, of files that it wrote and of others, are not part of a fork."""
    run = start(
        session,
        folder,
        calls(("bash", {"command": "echo run > a.txt"}), ("bash", {"command": "echo later > c.txt"})),
    )
    (folder / "a.txt").write_text("by hand\n")
    (folder / "b.txt").write_text("by hand\n")
    (folder / "d.txt").write_text("by hand\n")

    child = fork(session, run, number(run, ToolAnswered))

    held = files(copy_of(child))
    assert {path: one[-1] for path, one in held.items()} == {"a.txt": b"run\n", "b.txt": b"b\n"}
    assert child._state.private_copy["exact"] is True


def test_where_nothing_was_kept_the_fork_says_so(session: Lab, folder: Path) -> None:
    """A run that changed nothing has no snapshot: its fork has the files of now and names those that changed
    since.
    """
    run = start(session, folder, calls(("read_file", {"path": "a.txt"})))
    (folder / "b.txt").write_text("by hand\n")

    child = fork(session, run, number(run, ToolAnswered))

    assert (copy_of(child) / "b.txt").read_text() == "by hand\n"
    assert child._state.private_copy["exact"] is False
    assert "b.txt" in str(child._state.private_copy["notes"])


def test_an_old_log_has_its_changes_undone(
    session: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a log without snapshots the later writes of file tools are undone in the copy; what a command did is
    named as unknown.
    """

    async def keeps_nothing(*_: Any) -> None:
        """An earlier version."""

    monkeypatch.setattr(FileHistory, "note", keeps_nothing)
    run = start(
        session,
        folder,
        calls(
            ("write_file", {"path": "a.txt", "content": "1\n"}),
            ("edit_file", {"path": "a.txt", "old": "1", "new": "2"}),
            ("write_file", {"path": "new/c.txt", "content": "c\n"}),
            ("delete_file", {"path": "b.txt"}),
            ("bash", {"command": "echo x > x.txt"}),
        ),
    )
    monkeypatch.undo()

    first = fork(session, run, number(run, ToolCalled))
    second = fork(session, run, number(run, ToolAnswered))

    assert {"a.txt": b"old\n", "b.txt": b"b\n"}.items() <= {
        path: one[-1] for path, one in files(copy_of(first)).items()
    }.items()
    assert "new/c.txt" not in files(copy_of(first))
    assert files(copy_of(second))["a.txt"][-1] == b"1\n"
    assert first._state.private_copy["exact"] is False
    assert "bash" in str(first._state.private_copy["notes"])


def test_a_fork_is_made_after_the_folder_is_gone(session: Lab, folder: Path) -> None:
    """The files of a run whose workspace was removed are made from what was kept; without anything kept that
    is said.
    """
    kept = start(session, folder, calls(("bash", {"command": "echo run > a.txt"})))
    bare = start(session, folder, calls(("read_file", {"path": "a.txt"})))
    shutil.rmtree(folder)

    child = fork(session, kept, number(kept, ToolAnswered))

    assert (copy_of(child) / "a.txt").read_text() == "run\n"
    with pytest.raises(UsageError, match="nothing was kept"):
        fork(session, bare, number(bare, ToolAnswered))


def test_a_fork_of_a_fork_and_its_resume_stay_in_copies(session: Lab, folder: Path) -> None:
    """A fork of a fork has the files of the fork at that event, in a copy of its own; a follow-up works in
    the copy of its fork.
    """
    run = start(session, folder, calls(("write_file", {"path": "a.txt", "content": "run\n"})))
    before = every_byte(folder)
    child = fork(
        session,
        run,
        number(run, ToolAnswered),
        asks_again(("bash", {"command": "echo child > a.txt; echo 1 > c.txt"})),
    )
    grandchild = fork(
        session,
        child,
        number(child, ModelCalled, -1),
        asks_again(("bash", {"command": "cat a.txt; rm c.txt"})),
    )

    followed = asyncio.run(
        grandchild.ask(
            "and now",
            model=asks_again(("bash", {"command": "echo followed > f.txt"})),
            approve="auto:critical",
        )
    )

    assert "child" in grandchild.answer
    assert (copy_of(child) / "c.txt").exists()
    assert not (copy_of(grandchild) / "c.txt").exists()
    assert copy_of(followed) == copy_of(grandchild)
    assert (copy_of(grandchild) / "f.txt").read_text() == "followed\n"
    assert session.store.run(followed.id).workspace == str(folder)
    assert every_byte(folder) == before


@pytest.mark.parametrize("level", ["S1", "S2", "S3"])
def test_commands_of_a_fork_are_held_in_its_copy(tmp_path: Path, folder: Path, level: str) -> None:
    """At each level of the sandbox a fork's commands work in the copy, git included, and cannot write the
    folder of the parent.
    """
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    session = Lab(tmp_path / "home", env={}, sandbox=level)
    try:
        run = start(session, folder, calls(("bash", {"command": "echo new > a.txt"})))
    except UsageError as error:
        pytest.skip(str(error))
    before = every_byte(folder)
    command = (
        f"cat a.txt; git log --format=%s; git status --short; echo x > b.txt; echo x > {folder}/b.txt; "
        f"ls {tmp_path}/home"
    )

    child = fork(session, run, number(run, ModelCalled), asks_again(("bash", {"command": command})))

    assert "old\none\n" in child.answer
    assert "kestrel.db" not in child.answer
    assert (copy_of(child) / "b.txt").read_text() == "x\n"
    assert every_byte(folder) == before
    session.close()


def test_a_repository_that_would_run_programs_runs_none(session: Lab, folder: Path, tmp_path: Path) -> None:
    """Hooks, filters and monitors of the repository do not run when a fork is made, and are not in its
    copy.
    """
    mark = tmp_path / "ran"
    git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("* filter=evil\n")
    for name, value in {
        "filter.evil.clean": f"touch {mark}; cat",
        "filter.evil.smudge": f"touch {mark}; cat",
        "core.fsmonitor": f"touch {mark}",
    }.items():
        git(folder, "config", name, value)
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    run = start(session, folder, calls(("write_file", {"path": "a.txt", "content": "new\n"})))
    mark.unlink(missing_ok=True)

    child = fork(session, run, number(run, ModelCalled))

    assert not mark.exists()
    assert (copy_of(child) / ".git" / "HEAD").exists()
    assert not (copy_of(child) / ".git" / "hooks").exists()
    assert "evil" not in (copy_of(child) / ".git" / "config").read_text()
    assert (copy_of(child) / "a.txt").read_text() == "old\n"


def test_kinds_of_files_are_as_they_were(session: Lab, folder: Path, tmp_path: Path) -> None:
    """Empty folders, modes, links of all kinds, names that are not UTF-8 and closed folders are in the copy;
    pipes and caches are not.
    """
    (folder / "empty").mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "secret").write_text("s")
    (folder / "secret").chmod(0o600)
    (folder / "inner").symlink_to("a.txt")
    (folder / "absolute").symlink_to(folder / "a.txt")
    (folder / "outer").symlink_to("../elsewhere")
    os.mkfifo(folder / "pipe")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe")).write_bytes(b"odd")
    (folder / "closed").mkdir()
    (folder / "closed" / "in").write_text("in")
    (folder / "closed").chmod(0o555)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_bytes(b"c")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "cfg").write_text("v")
    run = start(session, folder, calls(("bash", {"command": "echo new > a.txt"})))

    child = fork(session, run, number(run, ModelCalled))

    place, held = copy_of(child), files(copy_of(child))
    expected = {
        path: one for path, one in files(folder).items() if path not in {"a.txt", "absolute", "outer"}
    }
    assert {path: held.get(path) for path in expected} == expected
    assert (held["absolute"], held["outer"]) == (
        ("link", str(place / "a.txt")),
        ("link", str(tmp_path / "elsewhere")),
    )
    assert not os.path.lexists(place / "pipe")
    assert not (place / "__pycache__").exists()
    assert (place / ".venv" / "cfg").read_text() == "v"
    notes = str(child._state.private_copy["notes"])
    assert "outer" in notes
    assert "copied as they are now: .venv" in notes
    assert remove_copy(session.home, child.id)


def test_a_home_in_the_workspace_is_not_copied(folder: Path) -> None:
    """With the home in the workspace, or equal to it, the copy has the user's files and nothing of the
    home.
    """
    for home in (folder / "state", folder):
        session = Lab(home, env={})
        run = start(session, folder, calls(("bash", {"command": "echo new > a.txt"})))

        child = fork(session, run, number(run, ModelCalled))

        assert {path for path in files(copy_of(child)) if not path.startswith(("state", ".gitignore"))} == {
            "a.txt",
            "b.txt",
        }
        assert not list(copy_of(child).rglob("kestrel.db*"))
        assert (copy_of(child) / "a.txt").read_text() == "old\n"
        session.close()
        (folder / "a.txt").write_text("old\n")


def test_a_linked_worktree_has_its_branch_in_a_fork(session: Lab, folder: Path, tmp_path: Path) -> None:
    """A fork in a worktree of a repository has its HEAD and index, and commits there do not touch the
    repository.
    """
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    tree = tmp_path / "tree"
    git(folder, "worktree", "add", "-q", "-b", "side", str(tree))
    run = start(session, tree, calls(("bash", {"command": "echo new > a.txt"})))
    before = every_byte(folder)
    command = (
        "git status --short; git branch --show-current; git -c user.name=a -c user.email=b commit -qam "
        "two; git log --format=%s"
    )

    child = fork(session, run, number(run, ToolAnswered), asks_again(("bash", {"command": command})))

    assert " M a.txt\nside\ntwo\none" in child.answer
    assert every_byte(folder) == before
    assert git(tree, "log", "--format=%s") == "one\n"


def test_a_folder_with_too_many_files_is_not_copied_in_silence(
    session: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no copy can be made the fork is refused before it begins, and the error names the way in
    place.
    """
    from kestrel_lab.tools.files import workspace_recorder

    run = start(session, folder, calls(("read_file", {"path": "a.txt"})))
    for place in range(30):
        (folder / f"{place}.txt").touch()
    monkeypatch.setattr(workspace_recorder, "MOST_ENTRIES", 20)

    with pytest.raises(UsageError, match="in_place=True"):
        fork(session, run, number(run, ToolAnswered))
    assert fork(session, run, number(run, ToolAnswered), in_place=True).answer


def test_a_large_file_is_copied_where_it_is_the_same(
    session: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beyond what is kept is copied while it is untouched; once it was changed it is absent, and that
    is said.
    """
    from kestrel_lab.tools.files import workspace_recorder

    monkeypatch.setattr(workspace_recorder, "MOST_FILE", 1_000)
    (folder / "big.bin").write_bytes(b"x" * 5_000)
    run = start(session, folder, calls(("bash", {"command": "echo new > a.txt"})))

    same = fork(session, run, number(run, ModelCalled))
    (folder / "big.bin").write_bytes(b"y" * 5_000)
    other = fork(session, run, number(run, ModelCalled))

    assert (copy_of(same) / "big.bin").read_bytes() == b"x" * 5_000
    assert same._state.private_copy["exact"] is True
    assert not (copy_of(other) / "big.bin").exists()
    assert other._state.private_copy["exact"] is False
    assert "big.bin" in str(other._state.private_copy["notes"])


def test_taint_of_files_is_carried_into_the_copy(session: Lab, folder: Path) -> None:
    """A short file that holds words of others, known by its place, holds them in the copy too; another
    process knows that as well.
    """
    files_of = session.files
    from kestrel_lab.core.events.union import FilesTainted
    from kestrel_lab.tools.files.workspace import Workspace

    run = start(session, folder, calls(("read_file", {"path": "b.txt"})))
    told = FilesTainted(
        call="c",
        step="s",
        began=1.0,
        ended=True,
        source="a page",
        files=[files_of.described(Workspace(folder), "a.txt", name=False)],
    )
    files_of.take(run.id, str(folder), told)
    assert files_of.source(str(folder), "a.txt")

    child = fork(session, run, number(run, ToolAnswered))

    assert "a page" in files_of.source(str(copy_of(child)), "a.txt")
    session.store.flush()
    other = Lab(session.home, env={})
    other.files.refresh()
    assert "a page" in other.files.source(str(copy_of(child)), "a.txt")
    other.close()


def test_a_copy_lies_in_the_log_that_names_it(session: Lab, folder: Path) -> None:
    """A resumed fork goes on in its copy, also in another process; memory and macros are the workspace's."""
    run = start(session, folder, calls(("write_file", {"path": "a.txt", "content": "new\n"})))
    child = fork(session, run, number(run, ModelCalled))

    other = SessionStore(session.store.path)
    state = other.state(child.id)
    assert (state.folder, state.started and state.started.workspace) == (str(copy_of(child)), str(folder))
    assert other.damage(child.id) is None
    other.close()


def test_apply_takes_over_what_the_fork_changed(session: Lab, folder: Path) -> None:
    """The difference is shown, and applied: new, changed and deleted files, modes, links and folders; a
    second apply has nothing to do.
    """
    (folder / "run.sh").write_text("#!/bin/sh\n")
    run = start(session, folder, calls(("read_file", {"path": "a.txt"})))
    command = (
        "echo fork > a.txt; rm b.txt; mkdir -p new/deep; echo n > new/n.txt; ln -s a.txt link; chmod "
        "+x run.sh; mkdir .git; touch .git/x"
    )
    child = fork(session, run, number(run, ToolAnswered), asks_again(("bash", {"command": command})))

    shown = child.files.changes
    assert [(one.word, one.path) for one in shown.changes] == [
        ("changed", "a.txt"),
        ("deleted", "b.txt"),
        ("new", "link"),
        ("new", "new"),
        ("new", "new/deep"),
        ("new", "new/n.txt"),
        ("changed", "run.sh"),
    ]
    assert "-old\n+fork" in str(shown)
    assert "<" in shown._repr_html_()
    assert (folder / "a.txt").read_text() == "old\n"

    done = child.apply()

    assert done.applied
    held = {path: one for path, one in files(copy_of(child)).items() if not path.startswith(".git")}
    assert files(folder) == held
    assert not (folder / ".git").exists()
    assert len(child.files.changes) == 0
    assert len(child.apply()) == 0
    (event,) = [event for event in session.get(child.id).events() if event.type == "files_applied"]
    assert event.folder == str(folder)
    assert session.store.damage(child.id) is None


def test_apply_refuses_what_changed_since_by_name(session: Lab, folder: Path) -> None:
    """Where the workspace is not what the fork began with, nothing is written and each path is named; the
    rest can be taken over by name.
    """
    (folder / "c.txt").write_text("c\n")
    run = start(session, folder, calls(("read_file", {"path": "a.txt"})))
    child = fork(
        session,
        run,
        number(run, ToolAnswered),
        asks_again(("bash", {"command": "echo fork | tee a.txt b.txt c.txt new.txt"})),
    )
    (folder / "a.txt").write_text("by hand\n")
    (folder / "b.txt").unlink()
    (folder / "new.txt").write_text("mine\n")
    before = every_byte(folder)

    with pytest.raises(UsageError) as caught:
        child.apply()

    assert every_byte(folder) == before
    assert all(f"{name}: it was" in str(caught.value) for name in ("a.txt", "b.txt", "new.txt"))
    assert len(child.files.changes.conflicts) == 3
    with pytest.raises(UsageError, match=r"did not change nothing\.txt"):
        child.apply("nothing.txt")
    child.apply("c.txt")
    assert (folder / "c.txt").read_text() == "fork\n"
    child.apply("a.txt", "new.txt", force=True)
    assert ((folder / "new.txt").read_text(), (folder / "b.txt").exists()) == ("fork\n", False)
    (folder / "a.txt").write_text("by hand\n")
    assert ((folder / "c.txt").read_text(), (folder / "a.txt").read_text()) == ("fork\n", "by hand\n")


def test_an_apply_that_fails_puts_everything_back(
    session: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one file cannot be written, those before it are what they were."""
    from kestrel_lab.runtime.forks import copy_changes

    run = start(session, folder, calls(("read_file", {"path": "a.txt"})))
    child = fork(
        session,
        run,
        number(run, ToolAnswered),
        asks_again(("bash", {"command": "rm a.txt; echo x > b.txt; echo y > z.txt"})),
    )
    before, real = files(folder), copy_changes._Application._put

    def fails(self: Any, directory: int, name: str, entry: Any, content: bytes) -> None:
        if name == "z.txt":
            raise OSError("no room")
        real(self, directory, name, entry, content)

    monkeypatch.setattr(copy_changes._Application, "_put", fails)
    with pytest.raises(UsageError, match=r"nothing was applied.*z\.txt"):
        child.apply()
    assert files(folder) == before


def test_apply_leaves_protected_files_alone(session: Lab, folder: Path) -> None:
    """What says what an agent may do is not taken over from a fork; nor through a folder that has become a
    link.
    """
    (folder / "sub").mkdir()
    (folder / "sub" / "f").write_text("f\n")
    run = start(session, folder, calls(("read_file", {"path": "a.txt"})))
    child = fork(
        session,
        run,
        number(run, ToolAnswered),
        asks_again(("bash", {"command": "echo 'x = 1' > kestrel.toml; echo x > sub/f"})),
    )
    (folder / "sub").rename(folder.parent / "away")
    (folder / "sub").symlink_to(folder.parent / "away")

    with pytest.raises(UsageError, match="protected"):
        child.apply("kestrel.toml")
    with pytest.raises(UsageError, match="sub/f"):
        child.apply("sub/f")
    assert (folder.parent / "away" / "f").read_text() == "f\n"


def test_a_run_without_a_copy_has_nothing_to_apply(session: Lab, folder: Path) -> None:
    """Apply of a run that works in the workspace, or whose copy is gone, says so."""
    run = start(session, folder, calls(("write_file", {"path": "a.txt", "content": "new\n"})))
    child = fork(session, run, number(run, ToolAnswered))
    remove_copy(session.home, child.id)

    with pytest.raises(UsageError, match="works in the workspace itself"):
        run.apply()
    with pytest.raises(UsageError, match="is gone"):
        child.apply()
    assert (run.files.folder, "private copy" in str(child.files)) == (folder, True)
    with pytest.raises(UsageError, match="fork the run that it was forked from again"):
        fork(session, child, number(child, ModelCalled, -1), in_place=True)
    assert runs_with_copies(session.home) == []
    with pytest.raises(UsageError, match="no id"):
        remove_copy(session.home, "../..")
