"""A repository in a sandbox: a command can commit, cannot change what git runs or obeys, and what it plants
elsewhere is told.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from git_commands import git, launched, make_repository, needs, run
from waits import PATIENCE_S

from kestrel_lab.tools.sandbox.autorun_watch import AutorunWatch
from kestrel_lab.tools.sandbox.gitdir.private_gitdir import PREFIX, PrivateGit, mounted_names, remove_tree
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.shell.process import run_launched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, and beside it a file that a planted program would make."""
    return make_repository(tmp_path / "work")


WORK = (
    "echo two > f && git add f && git commit -qm two && git tag v1 && git branch side && git checkout "
    "-q side",
    "echo three > f && git commit -qam three && git checkout -q main && echo four > f && git commit "
    "-qam four",
    "git rebase side; test -d .git/rebase-merge",
    "echo five > f && git add f && GIT_EDITOR=true git rebase --continue && ! test -d .git/rebase-merge",
    "echo six > f && git stash -q && git stash pop -q && git reset -q --hard && git merge -q side && "
    "git revert --no-edit HEAD && git reset -q --hard HEAD^",
    "git branch -D side && git gc -q 2>/dev/null; git rev-parse v1 && git log --oneline | wc -l",
)


@pytest.mark.parametrize("level", ["S3", "S2"])
def test_work_with_git_goes_on_from_command_to_command(level: str, repository: Path) -> None:
    """Commits, tags, branches, a rebase that stops in one command and goes on in another, stash, merge, gc:
    outside the same is seen.
    """
    held = needs(level)
    for command in WORK:
        ended, _ = run(launched(held, repository, command))
        assert (ended.exit_code, ended.notes, command) == (0, (), command)
        assert [name for name in os.listdir(repository / ".git") if name.startswith(PREFIX)] == []
    assert git(repository, "log", "--format=%s").split() == ["four", "three", "two", "one"]
    assert (git(repository, "status", "--porcelain"), git(repository, "branch").split()) == (
        "",
        ["*", "main"],
    )
    git(repository, "fsck", "--strict")


PROGRAM = (
    'printf "[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = touch $PWD/../ran; false\\n" > {0}'
)
PLANTS = {
    "settings": PROGRAM.format(".git/config"),
    "settings replaced": PROGRAM.format("new") + "; mv -f new .git/config",
    "other settings": "cp -r .git alt; echo ../alt > .git/commondir; " + PROGRAM.format("alt/config"),
    "inside of it": "mkdir .git/alt; cp -r .git/refs .git/objects .git/alt; echo alt > .git/commondir; "
    + PROGRAM.format(".git/alt/config"),
    "of a worktree": PROGRAM.format(".git/config.worktree") + "; git config extensions.worktreeConfig true",
    "moved away": "mv .git old; mkdir .git; cp -r old/* .git; " + PROGRAM.format(".git/config"),
    "a hook": "mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch ../ran\\n' > .git/hooks/post-index-change; "
    "chmod +x .git/hooks/*",
    "a linked index": "ln -sf ../../kept .git/index; ln -s ../../kept .git/MERGE_HEAD; ln -s ../alt/config "
    ".git/packed-refs",
}


@pytest.mark.parametrize("level", ["S3", "S2"])
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("hooks", [True, False])
def test_nothing_planted_runs_outside(level: str, plant: str, hooks: bool, repository: Path) -> None:
    """Whatever a command makes in `.git`, with a folder of hooks or without, git runs nothing of it outside
    afterwards.
    """
    held = needs(level)
    if not hooks:
        subprocess.run(["rm", "-r", str(repository / ".git/hooks")], check=True)
    before = (repository / ".git/config").read_text()
    run(launched(held, repository, f"{PLANTS[plant]}; true"))
    git(repository, "status", check=plant != "a linked index")
    git(repository, "commit", "-qam", "x", "--allow-empty", check=plant != "a linked index")
    assert not (repository.parent / "ran").exists()
    # That a worktree may have settings of its own is a setting of git's plain work.
    assert (repository / ".git/config").read_text().partition("[extensions]")[0] == before
    assert [
        entry.name
        for entry in os.scandir(repository / ".git")
        if entry.is_symlink() or entry.name in ("commondir", "alt")
    ] == []


def without_private_folder(launch: Launch) -> Launch:
    """A mutant: the repository's own folder is mounted, within it settings and hooks are read-only, and nobody
    looks afterwards.
    """
    ((real, private, _),) = launch.repositories
    return replace(
        launch,
        repositories=(),
        watched="",
        sources=tuple(real if source == private else source for source in launch.sources),
    )


def test_plants_run_without_the_private_folder(repository: Path) -> None:
    """The mutant: with settings and hooks alone read-only, a `commondir` runs a program outside."""
    run(without_private_folder(launched(needs("S3"), repository, PLANTS["other settings"])))
    git(repository, "status")
    assert (repository.parent / "ran").exists()


def test_what_was_not_kept_is_told(repository: Path) -> None:
    """The result names what the command made in the repository that is gone with it."""
    ended, _ = run(
        launched(needs("S3"), repository, "mkdir .git/alt; echo alt > .git/commondir; touch .git/x.lock")
    )
    assert ended.notes == (
        f"a command cannot change what git obeys: alt, commondir of {repository}/.git was not kept",
    )


def test_both_sides_see_each_other_while_a_command_works(repository: Path) -> None:
    """A server that lives long commits, and a person sees that at once; what the person stages, the server
    sees.
    """
    held = needs("S3")

    async def both() -> None:
        waits = (
            "until test -e go; do sleep 0.01; done; until git diff --cached --name-only | grep -q g; "
            "do sleep 0.01; done"
        )
        command = f"echo two > f && git commit -qam two && {waits}"
        running = asyncio.ensure_future(
            run_launched(
                launched(held, repository, command),
                stdout=lambda _: True,
                stderr=lambda _: True,
                timeout_s=PATIENCE_S,
            )
        )
        while not running.done() and (
            git(repository, "log", "--format=%s").split()[0] != "two"
            or git(repository, "status", "--porcelain")
        ):
            await asyncio.sleep(0.01)
        (repository / "g").write_text("new\n")
        git(repository, "add", "g")
        (repository / "go").touch()
        assert (await running).exit_code == 0

    asyncio.run(both())
    assert git(repository, "status", "--porcelain").splitlines() == ["A  g", "?? go"]


def test_a_file_that_both_changed_stays_as_the_person_left_it(repository: Path) -> None:
    """What was changed on both sides is told, and the real file stands."""
    (repository / ".git/ORIG_HEAD").write_text(f"{0:040}\n")
    one = PrivateGit(
        str(repository / ".git"),
        str(repository / f".git/{PREFIX}x"),
        frozenset(mounted_names(str(repository / ".git"))),
    )
    one.make()
    for place, text in ((Path(one.private), f"{1:040}\n"), (repository / ".git", f"{2:040}\n")):
        (place / "new").write_text(text)
        (place / "new").rename(place / "ORIG_HEAD")
    (told,) = one.end()
    assert told.startswith("ORIG_HEAD of ")
    assert "at once" in told
    assert (repository / ".git/ORIG_HEAD").read_text() == f"{2:040}\n"
    assert [name for name in os.listdir(repository / ".git") if name.startswith(PREFIX)] == []
    remove_tree(one.rest)


def test_removing_the_private_folder_keeps_nobody_waiting(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`end` only renames it, out of the repository; on another disk it removes it.

    A mutant that leaves it there is caught.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(repository.parent))
    gitdir = repository / ".git"
    for other_disk in (False, True):
        one = PrivateGit(str(gitdir), str(gitdir / f"{PREFIX}x"), frozenset())
        one.make()
        if other_disk:
            monkeypatch.setattr(tempfile, "tempdir", "/proc/self")
        assert one.end() == []
        assert [name for name in os.listdir(gitdir) if name.startswith(PREFIX)] == []
        assert os.path.exists(one.rest) is not other_disk
        remove_tree(one.rest)
        assert not os.path.exists(one.rest)


def test_what_a_killed_keeper_left_is_carried_over(repository: Path) -> None:
    """Refs that were packed when the machine went down are not lost: the next command finds the folder and
    carries them over.
    """
    gitdir = repository / ".git"
    if os.fork() == 0:
        one = PrivateGit(str(gitdir), str(gitdir / f"{PREFIX}left"), frozenset())
        one.make()
        (gitdir / f"{PREFIX}left/packed-refs").write_text("# packed\n")
        os._exit(0)
    os.wait()
    assert not (gitdir / "packed-refs").exists()
    two = PrivateGit(str(gitdir), str(gitdir / f"{PREFIX}next"), frozenset())
    two.make()
    assert two.end() == []
    remove_tree(two.rest)
    assert (gitdir / "packed-refs").read_text() == "# packed\n"
    assert [name for name in os.listdir(gitdir) if name.startswith(PREFIX)] == []


NEW = {
    "attributes": ("mkdir -p sub/x; echo '* filter=evil' > sub/x/.gitattributes", "sub/x/.gitattributes"),
    "modules": ("echo x > .gitmodules", ".gitmodules"),
    "a hook that the settings name": ("echo x > hooks/pre-commit", "hooks/pre-commit"),
    "settings that the settings name": ("echo '[alias]' > more", "more"),
}


@pytest.mark.parametrize("level", ["S3", "S1", "S0"])
@pytest.mark.parametrize("how", NEW)
def test_new_files_that_git_obeys_are_told(level: str, how: str, repository: Path) -> None:
    """What git will run or obey outside of its folders, new or changed in the workspace, is in the notes of the
    command that did it, and of no other.
    """
    held, (command, path) = needs(level), NEW[how]
    git(repository, "config", "core.hooksPath", "hooks")
    git(repository, "config", "include.path", "../more")
    (repository / "hooks").mkdir()
    quiet, _ = run(launched(held, repository, "echo x > y; mkdir z; git status --porcelain >/dev/null"))
    loud, _ = run(launched(held, repository, command))
    after, _ = run(launched(held, repository, "rm y"))
    assert (quiet.notes, after.notes) == ((), ())
    assert [
        path in note and note.startswith("files that run by themselves are new or changed")
        for note in loud.notes
    ] == [True]


def test_a_look_that_trusts_times_of_writing_sees_nothing(repository: Path) -> None:
    """The mutant: by the time of writing, which anybody can set, a folder that got a file looks as before."""

    class ByWriting(AutorunWatch):
        def _folder(self, place: str, folders: Any, read: Any) -> Any:
            known, now = folders.get(place), os.lstat(place)
            return (
                known
                if known is not None and known.changed == (now.st_ino, now.st_mtime_ns)
                else read(place, self.root, (now.st_ino, now.st_mtime_ns))
            )

    os.utime(repository, ns=(0, 0))
    watches = [AutorunWatch(str(repository)), ByWriting(str(repository))]
    before = [watch.look() for watch in watches]
    (repository / "conftest.py").write_text("")
    os.utime(repository, ns=(0, 0))
    honest, mutant = (watch.changes(one, watch.look()) for watch, one in zip(watches, before, strict=True))
    assert ("conftest.py" in honest[0], mutant) == (True, [])


def test_a_note_says_what_runs_a_file_also_while_another_command_is_at_work(repository: Path) -> None:
    """The workspace has one watch for all commands: what a second one looks at changes nothing of the note on
    the first.
    """
    watch = AutorunWatch(str(repository))
    before = watch.look()
    (repository / "conftest.py").write_text("")
    after = watch.look()
    (repository / "conftest.py").unlink()
    watch.look()
    assert "conftest.py (pytest runs it" in watch.changes(before, after)[0]


def test_a_large_workspace_says_that_it_is_not_looked_through(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of looking is bounded, and where it stops is told."""
    monkeypatch.setattr("kestrel_lab.tools.sandbox.autorun_watch.MOST_FOLDERS", 3)
    for name in "abcd":
        (repository / name).mkdir()
    watch = AutorunWatch(str(repository))
    assert watch.changes({}, watch.look())[-1].startswith("the workspace has more than 3 folders")
