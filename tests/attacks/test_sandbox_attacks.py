"""Attacks on the sandbox that nobody listed: each is a command that does its best, and what the host finds
afterwards.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waits import PATIENCE_S

from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.command_lines import launch_for, launch_with_places
from kestrel_lab.tools.sandbox.gitdir.private_gitdir import PREFIX
from kestrel_lab.tools.sandbox.launcher_client import Launch, run_blocking
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.environment import clean_environment
from kestrel_lab.tools.shell.process import ProcessEnd, run_launched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")

HELD = ["S3", "S2", "S1"]
ME = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def attack(
    level: str, root: Path, *argv: str, memory: int | None = None, timeout_s: float = 60
) -> tuple[ProcessEnd, str]:
    """Run it at a level, to its end; also what it wrote."""
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    pieces: list[bytes] = []
    launch = launch_for(
        Level[level], argv, workspace=root, env=clean_environment() | ME, sandbox=Sandbox(memory=memory)
    )
    ended = asyncio.run(
        run_launched(
            launch, stdout=lambda piece: not pieces.append(piece), stderr=lambda _: True, timeout_s=timeout_s
        )
    )
    return ended, b"".join(pieces).decode("utf-8", "replace")


def python(code: str) -> tuple[str, ...]:
    """A program in Python."""
    return sys.executable, "-I", "-S", "-c", code


def git(root: Path, *words: str) -> str:
    """Git as a person runs it."""
    return subprocess.run(
        ["git", *words], cwd=root, env=os.environ | ME, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    root = tmp_path / "work"
    root.mkdir()
    (root / "f").write_text("one\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "f")
    git(root, "commit", "-qm", "one")
    return root


FORGED = """
import json, os, socket
for fd in range(3, 400):
    for line in ({"exit": 0}, {"stopped": "processes"}, {"notes": ["all is well"]}):
        try:
            os.write(fd, json.dumps(line).encode() + b"\\n")
        except OSError:
            pass
os._exit(3)
"""


@pytest.mark.parametrize("level", [*HELD, "S0"])
def test_a_command_cannot_tell_its_own_end(level: str, tmp_path: Path) -> None:
    """It writes what the keeper would tell to every descriptor it may have been left: its real code is
    told.
    """
    ended, _ = attack(level, tmp_path, *python(FORGED))
    assert (ended.exit_code, ended.stopped, ended.notes) == (3, "", ())


STORM = """
import os, time
held = []
os.set_blocking(0, False)
for number in range(100000):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
    if number == 50:
        held = bytearray(300 << 20)
"""


@pytest.mark.parametrize("level", HELD)
def test_children_that_end_do_not_keep_the_keeper_busy(level: str, tmp_path: Path) -> None:
    """A storm of orphans that end at once, of which the keeper is told each time, does not keep it from
    looking at the memory.
    """
    ended, _ = attack(level, tmp_path, *python(STORM), memory=200 << 20)
    assert ended.stopped == "memory"


PATHS = (
    "/proc",
    "/proc/self/root/proc",
    "/proc/1/root/proc",
    "/proc/thread-self/root/proc",
    "/proc/self/cwd/../../../../../../proc",
)
SETTINGS = (
    "sys/kernel/core_pattern",
    "sys/kernel/modprobe",
    "sys/vm/drop_caches",
    "sysrq-trigger",
    "self/oom_score_adj",
    "irq/default_smp_affinity",
)
OPENED = f"""
import json, os
found = []
for root in {PATHS!r}:
    for name in {SETTINGS!r}:
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
            try:
                os.close(os.open(f"{{root}}/{{name}}", flags))
                found.append(f"{{root}}/{{name}}")
            except OSError:
                pass
print(json.dumps(found))
"""


@pytest.mark.parametrize("level", HELD)
def test_no_way_leads_to_settings_of_the_kernel(level: str, tmp_path: Path) -> None:
    """By whatever path `/proc` is reached, nothing in it can be opened for writing."""
    ended, told = attack(level, tmp_path, *python(OPENED))
    assert (ended.exit_code, json.loads(told)) == (0, [])


DEEP = """
import os
os.chdir(".git")
for _ in range(1200):
    os.mkdir("d")
    os.chdir("d")
os.chmod(".", 0)
"""
ODD = """
import os
os.mkfifo(".git/MERGE_HEAD")
os.mkdir(".git/ORIG_HEAD")
os.symlink("/etc/passwd", ".git/MERGE_MSG")
os.mkdir(".git/rebase-merge")
os.mkfifo(".git/rebase-merge/done")
os.symlink("/etc", ".git/rebase-merge/etc")
os.mkdir(".git/rebase-apply")
"""


@pytest.mark.parametrize("level", ["S3", "S2"])
@pytest.mark.parametrize("code", [DEEP, ODD], ids=["deep", "odd"])
def test_what_is_odd_in_a_repository_ends_with_the_command(level: str, code: str, repository: Path) -> None:
    """Folders nested without end, pipes and links under names that git uses: nothing hangs, nothing is left,
    the repository works.
    """
    before = sorted(os.listdir(repository / ".git"))
    ended, _ = attack(level, repository, *python(code))
    assert ended.exit_code == 0
    while any(name.startswith(PREFIX) for name in os.listdir(repository / ".git")):
        time.sleep(
            0.01
        )  # a busy machine takes its time for folders so deep, and nobody is kept waiting for that
    after = [entry for entry in os.scandir(repository / ".git") if entry.name not in before]
    assert [
        entry.name
        for entry in after
        if not entry.is_dir() or entry.name not in ("rebase-merge", "rebase-apply")
    ] == []
    assert all(
        place.is_file() and not place.is_symlink() for entry in after for place in Path(entry.path).rglob("*")
    )
    assert git(repository, "log", "--format=%s") == "one\n"


WAYS = {
    "a link": "mv .git .g && ln -s .g .git",
    "a file": "mv .git .g && echo 'gitdir: .g' > .git",
    "a deep link": "mkdir -p a/b && mv .git a/b/g && ln -s a/b/g .git",
}


@pytest.mark.parametrize("level", ["S3", "S2"])
@pytest.mark.parametrize("way", WAYS)
def test_a_repository_that_lies_elsewhere_in_the_workspace_is_guarded(
    level: str, way: str, repository: Path
) -> None:
    """A person's `.git` that is a link or a file: what it leads to is guarded as the folder itself would be,
    and commits are made.
    """
    subprocess.run(WAYS[way], shell=True, cwd=repository, check=True)
    settings = Path(git(repository, "rev-parse", "--absolute-git-dir").strip()) / "config"
    before = settings.read_text()
    plants = (
        f"cd {settings.parent}; echo '[alias]' >> config; echo alt > commondir; mkdir -p hooks alt; "
        "echo x > hooks/post-commit"
    )
    attack(level, repository, "bash", "-c", f"echo two > f; git commit -qam two; {plants}")
    assert (settings.read_text(), git(repository, "log", "--format=%s")) == (before, "two\none\n")
    assert not any((settings.parent / name).exists() for name in ("commondir", "hooks/post-commit", "alt"))


@pytest.mark.parametrize("level", ["S3", "S2"])
def test_a_workspace_that_is_named_through_a_link_is_guarded_under_that_name(
    level: str, repository: Path
) -> None:
    """Where the path of the workspace leads through a link, settings, hooks and the log are as safe as by its
    real path.
    """
    (repository.parent / "link").symlink_to(repository)
    (repository / "kestrel.toml").write_text("approve = 'ask'\n")
    (repository / ".kestrel").mkdir()
    (repository / ".kestrel/kestrel.db").write_text("PRIVATE")
    before = (repository / ".git/config").read_text()
    plants = (
        "echo '[alias]' >> .git/config; echo alt > .git/commondir; echo x > kestrel.toml; cat "
        ".kestrel/kestrel.db; echo x > .kestrel/kestrel.db"
    )
    _, told = attack(
        level, repository.parent / "link", "bash", "-c", f"echo two > f; git commit -qam two; {plants}"
    )
    assert ("PRIVATE" in told, (repository / ".kestrel/kestrel.db").read_text()) == (False, "PRIVATE")
    assert ((repository / ".git/config").read_text(), (repository / "kestrel.toml").read_text()) == (
        before,
        "approve = 'ask'\n",
    )
    assert ((repository / ".git/commondir").exists(), git(repository, "log", "--format=%s")) == (
        False,
        "two\none\n",
    )


@pytest.mark.parametrize("level", ["S3", "S2"])
def test_the_folder_of_a_worktree_is_guarded(level: str, repository: Path) -> None:
    """In a worktree the settings of its own folder cannot be made, nor where it says that its repository is
    changed.
    """
    git(repository, "worktree", "add", "-q", "../tree")
    tree, own = repository.parent / "tree", repository / ".git/worktrees/tree"
    before = {name: (own / name).read_text() for name in ("commondir", "gitdir")}
    plants = (
        f"cd {own}; echo alt > new; mv new commondir; rm -f gitdir; echo '[core]' > config.worktree; "
        "mkdir hooks"
    )
    attack(level, tree, "bash", "-c", f"echo two > f; git commit -qam two; {plants}")
    assert {name: (own / name).read_text() for name in before} == before
    assert not any((own / name).exists() for name in ("config.worktree", "hooks", "new"))
    assert (git(tree, "log", "--format=%s"), git(tree, "status", "--porcelain")) == ("two\none\n", "")


def test_a_lock_that_was_left_behind_loses_no_commit(repository: Path) -> None:
    """A lock of a git that crashed outside does not keep a command's commit from being seen whole."""
    (repository / ".git/index.lock").touch()
    attack("S3", repository, "bash", "-c", "echo two > f; git commit -qam two")
    (repository / ".git/index.lock").unlink()
    assert (git(repository, "log", "--format=%s"), git(repository, "status", "--porcelain")) == (
        "two\none\n",
        "",
    )


@pytest.mark.parametrize("level", ["S3", "S1"])
def test_swapping_without_end_opens_nothing(level: str, repository: Path) -> None:
    """While the logs of a worktree's repository are a folder and a link by turns, no command ever sees what
    the link leads to.
    """
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    git(repository, "worktree", "add", "-q", "../tree")
    secrets, logs, done = repository.parent / "secrets", repository / ".git/logs", threading.Event()
    secrets.mkdir()
    (secrets / "key").write_text("PRIVATE")

    def swap() -> None:
        while not done.is_set():
            os.rename(logs, repository.parent / "real")
            os.symlink(secrets, logs)
            os.unlink(logs)
            os.rename(repository.parent / "real", logs)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = 0
    try:
        for _ in range(40):
            launch = launch_for(
                Level[level],
                ["cat", str(logs / "key"), str(secrets / "key")],
                workspace=repository.parent / "tree",
                env=clean_environment(),
                sandbox=Sandbox(),
            )
            seen += "PRIVATE" in run_blocking(launch, PATIENCE_S)[1]
    finally:
        done.set()
        swapping.join()
    assert seen == 0


@pytest.mark.parametrize("place", ["/dev/shm", "/tmp", "/dev"])
def test_no_place_in_memory_is_without_a_bound(place: str, tmp_path: Path) -> None:
    """What a command may fill lies in memory with a bound of its own, or cannot be written."""
    code = (
        f"import os; s = os.statvfs({place!r}); w = os.access({place!r}, os.W_OK); print(int(w) * "
        "s.f_blocks * s.f_frsize)"
    )
    ended, told = attack("S3", tmp_path, *python(code))
    assert (ended.exit_code, int(told) <= 2 << 30) == (0, True)


_READ_ALL = """
import os, pathlib, sys
def read(path):
    try:
        print(path, pathlib.Path(path).read_text().strip())
    except OSError as error:
        print(path, type(error).__name__)
for path in sys.argv[1:]:
    read(path)
for change in (os.rename, os.link, os.symlink):
    for source, target in (("project/home", "project/code/moved"), ("project/home/kestrel.db", "work/taken")):
        try:
            change(os.path.abspath(source), target)
        except OSError:
            continue
for name in ("work/taken", "project/code/moved/kestrel.db"):
    read(name)
"""


@pytest.mark.parametrize("level", HELD)
def test_a_log_in_a_folder_that_is_only_read_stays_hidden(level: str, tmp_path: Path) -> None:
    """A program that may read the folder around a home reads what lies beside it, and nothing of the home: not
    by its name, through links, by a new name, nor what is added to it meanwhile.
    """
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    project, work, home = tmp_path / "project", tmp_path / "work", tmp_path / "project" / "home"
    for folder in (project / "code" / "inner", work, home / "deep"):
        folder.mkdir(parents=True)
    seen = {project / "README": "beside", project / "code" / "inner" / "a.py": "deep beside"}
    kept = [home / "kestrel.db", home / "deep" / "blob"]
    for place in (*seen, *kept):
        place.write_text(seen.get(place, "SECRET"))
    (project / "link").symlink_to(home / "kestrel.db")
    (project / "code" / "folder").symlink_to(home)
    ways = [
        *kept,
        project / "link",
        project / "code" / "folder" / "deep" / "blob",
        work / ".." / "project/home/kestrel.db",
    ]
    launch = launch_with_places(
        Level[level],
        Launch(
            argv=python(f"import os; os.chdir({str(tmp_path)!r})\n" + _READ_ALL)
            + (*map(str, (*seen, *ways)),),
            cwd=str(work),
            env=clean_environment(),
        ),
        read=[project],
        write=[work],
        sandbox=Sandbox(hidden=(home,)),
    )
    code, text = run_blocking(launch, PATIENCE_S)
    said = dict(line.split(" ", 1) for line in text.splitlines())
    assert code == 0 and "SECRET" not in text
    assert {said.pop(str(place)) for place in seen} == set(seen.values())
    assert len(said) == len(ways) + 2 and all(error.endswith("Error") for error in said.values())


def test_the_test_of_a_hidden_log_sees_one_that_is_not(tmp_path: Path) -> None:
    """The mutant: where nothing is hidden, the same program reads it."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "kestrel.txt").write_text("SECRET")
    (tmp_path / "work").mkdir()
    launch = launch_with_places(
        Level.S1 if not probe_level(Level.S1, Sandbox()) else Level.S0,
        Launch(
            argv=python(_READ_ALL) + (str(tmp_path / "project" / "kestrel.txt"),),
            cwd=str(tmp_path / "work"),
            env=clean_environment(),
        ),
        read=[tmp_path / "project"],
        write=[tmp_path / "work"],
        sandbox=Sandbox(hidden=(tmp_path / "elsewhere",)),
    )
    assert "SECRET" in run_blocking(launch, PATIENCE_S)[1]
