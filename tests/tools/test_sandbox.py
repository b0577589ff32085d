"""Sandbox levels: what gets out of each, what is left behind, and that no level is relied on which does not
hold here.
"""

import ast
import asyncio
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import sandbox_probes
from waits import PATIENCE_S, until

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox import launcher_process
from kestrel_lab.tools.sandbox import select as choosing
from kestrel_lab.tools.sandbox.canary import PROBES, find_leaks, probe_level
from kestrel_lab.tools.sandbox.command_lines import bwrap_path, launch_for, launch_with_places
from kestrel_lab.tools.sandbox.landlock import HAS_SCOPES, landlock_version
from kestrel_lab.tools.sandbox.launcher_client import Launch, run_blocking, signal_exit_code
from kestrel_lab.tools.sandbox.launcher_process import MAX_PROCESSES, MemoryBound
from kestrel_lab.tools.sandbox.levels import Level, Sandbox, parse_level
from kestrel_lab.tools.sandbox.mounts import linked_repository
from kestrel_lab.tools.sandbox.seccomp import filter_program
from kestrel_lab.tools.sandbox.select import Choice, choose_level
from kestrel_lab.tools.shell.bash import bash
from kestrel_lab.tools.shell.environment import clean_environment
from kestrel_lab.tools.shell.process import ProcessEnd, run_launched, run_process
from kestrel_lab.tools.tool import ToolContext

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")

LEVELS = [level.name for level in Level]
# What S1 says it does not stop. Signals are ruled from Linux 6.12 on.
KNOWN_OF_S1 = {
    "git commondir",
    "git hook",
    "git moved away",
    "git settings",
    "log of the lab",
    "mode of a file in home",
    "processes of the host",
} | (set() if landlock_version() >= HAS_SCOPES else {"signal to the parent", "abstract Unix socket"})
SURELY_OUT_OF_S0 = KNOWN_OF_S1 | {
    "settings of the kernel",
    *(
        "kernel connection file",
        "ssh key",
        "TCP to the host",
        "UDP to the host",
        "Unix socket",
        "abstract Unix socket",
    ),
    *(
        "Unix datagram from a pair",
        "signal to the parent",
        "write into home",
        "write through a link",
        "key in the parent's environment",
    ),
}


def needs(level: str) -> Level:
    """The level, or a skip where it cannot be had."""
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    return Level[level]


@cache
def matrix(user: str) -> dict[str, list[str]]:
    """What gets out at each level as that user."""
    script = Path(sandbox_probes.__file__).resolve()
    if user == "nobody":
        if os.geteuid() != 0:
            pytest.skip("only root can become somebody else")
        found = sandbox_probes.as_nobody(script)
        if found is None:
            pytest.skip("no Python that an unprivileged user can run")
        return found
    env = {
        "PATH": os.environ["PATH"],
        "OPENAI_API_KEY": "sk-very-secret",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("user", ["whoever runs this", "nobody"])
@pytest.mark.parametrize("level", ["S3", "S2"])
@pytest.mark.once
def test_nothing_gets_out_of_bubblewrap(user: str, level: str) -> None:
    """Of 28 ways out none leads out: keys, network, sockets, processes, writes, mounts, what git runs later;
    as root and as a user.
    """
    found = matrix(user)
    if level not in found:
        pytest.skip(probe_level(Level[level], Sandbox()))
    assert found[level] == []


@pytest.mark.parametrize("user", ["whoever runs this", "nobody"])
@pytest.mark.once
def test_what_gets_out_of_landlock_is_known(user: str) -> None:
    """Without namespaces nothing gets out but what the level says of itself."""
    found = matrix(user)
    if "S1" not in found:
        pytest.skip(probe_level(Level.S1, Sandbox()))
    assert set(found["S1"]) - {"root's number"} == KNOWN_OF_S1


@pytest.mark.parametrize("user", ["whoever runs this", "nobody"])
def test_the_probes_can_get_out(user: str) -> None:
    """The mutants: without a sandbox, with the network, with Unix sockets let through, with Landlock alone,
    probes succeed.
    """
    found = matrix(user)
    assert set(found["S0"]) >= SURELY_OUT_OF_S0
    if "S3" in found:
        assert found["S3, network"] == ["TCP to the host", "UDP to the host"]
        assert found["S3, Unix sockets"] == ["Unix socket"]
    if "S1" in found:
        assert set(found["S1, no filter"]) >= KNOWN_OF_S1 | {
            "UDP to the host",
            "Unix datagram from a pair",
            "Unix socket",
        }


def test_the_canary_can_fail() -> None:
    """Against no sandbox it reports every probe; it is silent about levels that hold."""
    assert find_leaks(Level.S0, Sandbox()) == list(PROBES)
    assert [
        find_leaks(level, Sandbox())
        for level in (Level.S1, Level.S2, Level.S3)
        if not probe_level(level, Sandbox())
    ].count([]) >= 1


def without_words(*words: str) -> Any:
    """A mutant: bubblewrap without some of its words."""

    def start(*args: Any, **options: Any) -> Launch:
        launch = launch_with_places(*args, **options)
        text = "\0".join(launch.argv)
        left = text.replace("\0".join(words) + "\0", "")
        assert left != text
        return replace(launch, argv=tuple(left.split("\0")))

    return start


def with_repository(*args: Any, **options: Any) -> Launch:
    """A mutant: the repository's own folder in the place of the private one."""
    launch = launch_with_places(*args, **options)
    real = {private: gitdir for gitdir, private, _ in launch.repositories}
    return replace(
        launch,
        repositories=launch.repositories[1:],
        sources=tuple(real.get(source, source) for source in launch.sources),
    )


def with_links(*args: Any, **options: Any) -> Launch:
    """A mutant: what the repository of a worktree calls its logs is shown, wherever that leads."""
    launch = launch_with_places(*args, **options)
    elsewhere = str(options["write"][1].parent / "elsewhere")
    if launch.access is not None:
        return replace(launch, access=replace(launch.access, write=(*launch.access.write, elsewhere)))
    place = launch.argv.index("--remount-ro", launch.argv.index("--remount-ro") + 1)
    return replace(launch, argv=(*launch.argv[:place], "--bind", elsewhere, elsewhere, *launch.argv[place:]))


HOLES = [
    ("S3", without_words("--remount-ro", "/proc"), "settings of the kernel"),
    ("S2", without_words("--remount-ro", "/proc"), "settings of the kernel"),
    ("S3", with_repository, "settings of git"),
    ("S2", with_repository, "settings of git"),
    ("S3", with_links, "link of a worktree"),
    ("S2", with_links, "link of a worktree"),
    ("S1", with_links, "link of a worktree"),
]


@pytest.mark.parametrize(("level", "start", "hole"), HOLES)
def test_the_canary_notices_a_hole(level: str, start: Any, hole: str) -> None:
    """The mutants: a recipe that lacks one protection is found out, and by that probe alone."""
    held = needs(level)
    assert (find_leaks(held, Sandbox(), start), find_leaks(held, Sandbox())) == ([hole], [])


@pytest.mark.parametrize("level", ["S3", "S2", "S1"])
@pytest.mark.parametrize("swapped", ["refs", "logs", ".", "worktrees/tree", "the workspace"])
def test_a_source_that_is_swapped_for_a_link_is_not_opened(level: str, swapped: str, tmp_path: Path) -> None:
    """What another command puts in the place of a folder between the check and the start leads nowhere: the
    command is not started.
    """
    held, workspace, target = needs(level), tmp_path / "tree", tmp_path / "secrets"
    made = (
        "git init -q main && cd main && git -c user.name=a -c user.email=a@b.c commit -qm x "
        "--allow-empty && git worktree add -q ../tree"
    )
    subprocess.run(made, shell=True, cwd=tmp_path, check=True)
    target.mkdir()
    (target / "key").write_text("PRIVATE")
    if swapped == "the workspace":
        workspace = tmp_path / "plain"
        workspace.mkdir()
    place = workspace if swapped == "the workspace" else tmp_path / "main/.git" / swapped
    launch = launch_for(
        held, ["cat", str(place / "key")], workspace=workspace, env=clean_environment(), sandbox=Sandbox()
    )
    place.rename(tmp_path / "moved")
    place.symlink_to(target)
    code, output = run_blocking(launch, 20)
    assert (code, "PRIVATE" in output) == (None, False)
    if swapped == "the workspace":
        following = replace(launch, sources=tuple(map(os.path.realpath, launch.sources)))
        if (access := launch.access) is not None:
            real = {name: tuple(map(os.path.realpath, getattr(access, name))) for name in ("read", "write")}
            following = replace(following, access=replace(access, **real))
        assert "PRIVATE" in run_blocking(following, PATIENCE_S)[1], (
            "the mutant, which follows links, reads what they lead to"
        )


@pytest.mark.parametrize("level", LEVELS)
def test_a_command_is_given_nothing_but_its_streams(level: str, tmp_path: Path) -> None:
    """No descriptor of ours is open in it: neither a folder of the host, nor the line on which its end is
    told.
    """
    held = needs(level)
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    argv = [
        sys.executable,
        "-c",
        "import os; print([fd for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' "
        "+ fd)])",
    ]
    try:
        code, output = run_blocking(
            launch_for(held, argv, workspace=tmp_path, env=clean_environment(), sandbox=Sandbox()), PATIENCE_S
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (code, output.strip()) == (0, "['0', '1', '2']")


@pytest.mark.parametrize("level", ["S3", "S2"])
def test_root_is_nobody_and_its_files_are_roots(level: str, tmp_path: Path) -> None:
    """Commands of root do not run as root within; what they write belongs to whom the workspace belongs
    to.
    """
    held = needs(level)
    run_at(held, tmp_path, "id -u > who; mkdir d; tar cf x.tar who; tar xf x.tar -C d")
    assert ((tmp_path / "who").read_text() == "0\n", (tmp_path / "d/who").stat().st_uid) == (
        False,
        tmp_path.stat().st_uid,
    )


GROWING = {
    "one process": "import time; held = bytearray(400 << 20); time.sleep(60)",
    "several": "import os, time; [os.fork() for _ in range(2)]; held = bytearray(100 << 20); time.sleep(60)",
    "a memory file": "import os, time; fd = os.memfd_create('x'); [os.write(fd, bytes(1 << 20)) for _ in "
    "range(400)]; time.sleep(60)",
    "shared memory": "import mmap, time; held = mmap.mmap(-1, 400 << 20); held.write(bytes(400 << 20)); "
    "time.sleep(60)",
}
FILLING = (
    "import os, time; f = open(os.environ.get({0!r}, {0!r}) + '/x', 'wb'); [f.write(bytes(1 << 20)) "
    "for _ in range({1})]; f.close(); time.sleep({2})"
)
IN_MEMORY = {
    "files in /tmp": FILLING.format("/tmp", 400, 60),
    "files in shared memory": FILLING.format("/dev/shm", 400, 60),
    "files and memory": "held = bytearray(200 << 20); " + FILLING.format("/tmp", 150, 60),
    "files in both": FILLING.format("/tmp", 170, 0) + "; " + FILLING.format("/dev/shm", 170, 60),
}
MODEST = {
    "some files in memory": FILLING.format("TMPDIR", 100, 0.5),
    "shared by several": "import os, time; held = bytearray(150 << 20); [os.fork() for _ in range(2)]; time.sleep(0.5)",
    "asked for and unused": "import mmap; held = mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | "
    "0x4000)",
    "a file that is mapped": "import mmap, time; f = open('f', 'r+b'); f.truncate(400 << 20); m = mmap.mmap(f.fileno(), 0, "
    "prot=1); sum(m[::4096]); time.sleep(0.3)",
}


@pytest.mark.parametrize("level", ["S3", "S2", "S1"])
@pytest.mark.parametrize("how", [*GROWING, *MODEST])
def test_memory_is_bounded(level: str, how: str, disk: Path) -> None:
    """More memory than the setting lets a command have ends it, however it is had; what is shared or never
    touched does not.
    """
    held = Sandbox(level=needs(level), memory=300 << 20)
    (disk / "f").touch()
    (disk / "p.py").write_text({**GROWING, **MODEST}[how])
    context = ToolContext(workspace=Workspace(disk), sandbox=held)
    answer: Any = asyncio.run(bash.run(bash.validate({"command": "python p.py", "timeout_s": 120}), context))
    told = "it took more than 0.292969 GiB of memory, the most that the setting sandbox_memory lets it have"
    assert (answer.get("killed"), answer["exit_code"]) == ((told, None) if how in GROWING else (None, 0))


@pytest.mark.parametrize("level", ["S3", "S2"])
@pytest.mark.parametrize("how", IN_MEMORY)
def test_files_in_memory_count_as_memory(level: str, how: str, tmp_path: Path) -> None:
    """What a command writes into the file systems in memory that only it has is its memory: killed, or
    refused by the file system.
    """
    held = Sandbox(level=needs(level), memory=300 << 20)
    (tmp_path / "p.py").write_text(IN_MEMORY[how])
    context = ToolContext(workspace=Workspace(tmp_path), sandbox=held)
    answer: Any = asyncio.run(bash.run(bash.validate({"command": "python p.py", "timeout_s": 120}), context))
    assert "GiB of memory" in str(answer.get("killed")) or "No space left on device" in answer["stderr"]


def test_files_in_memory_are_seen_by_the_bound(tmp_path: Path) -> None:
    """The mutant: a bound that does not look there lets a command have both, its memory and as much again in
    files.
    """
    held = Sandbox(level=needs("S3"), memory=300 << 20)
    launch = launch_for(
        Level.S3,
        ["python3", "-c", IN_MEMORY["files and memory"].replace("60", "0.5")],
        workspace=tmp_path,
        env=clean_environment(),
        sandbox=held,
    )
    run_of = partial(run_launched, stdout=lambda _: True, stderr=lambda _: True, timeout_s=PATIENCE_S)
    assert launch.in_memory
    assert asyncio.run(run_of(launch)).stopped == "memory"
    assert asyncio.run(run_of(replace(launch, in_memory=()))).stopped == ""


OTHERS = """
import ctypes, os, resource, struct, sys
libc, other = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
tried = {
    "prlimit": lambda: libc.syscall(302, other, 7, struct.pack("QQ", 64, 64), None),
    "setpriority": lambda: libc.setpriority(0, other, 19),
    "priority of all of a user": lambda: libc.setpriority(2, 0, 19),
    "ioprio_set": lambda: libc.syscall(251, 1, other, 0x6000),
    "migrate_pages": lambda: libc.syscall(256, other, 64, struct.pack("Q", 1), struct.pack("Q", 1)),
    "shmget": lambda: libc.shmget(0x4B4C, 4096, 0o1600),
    "semget": lambda: libc.semget(0x4B4C, 1, 0o1600),
    "msgget": lambda: libc.msgget(0x4B4C, 0o1600),
    "mq_open": lambda: libc.syscall(240, b"kestrel-test", 0o102, 0o600, None),
}
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
os.nice(1)
print([name for name, attempt in tried.items() if attempt() >= 0])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_a_command_at_s1_rules_no_other_process_and_leaves_no_shared_memory(tmp_path: Path) -> None:
    """Limits and priorities of others stay; shared memory, semaphores and queues cannot be made.

    Its own limits it may lower.
    """
    needs("S1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        before = (
            resource.prlimit(other.pid, resource.RLIMIT_NOFILE),
            os.getpriority(os.PRIO_PROCESS, other.pid),
        )
        argv = [sys.executable, "-c", OTHERS, str(other.pid)]
        launch = launch_for(Level.S1, argv, workspace=tmp_path, env=clean_environment(), sandbox=Sandbox())
        assert run_blocking(launch, PATIENCE_S) == (0, "[]\n")
        assert before == (
            resource.prlimit(other.pid, resource.RLIMIT_NOFILE),
            os.getpriority(os.PRIO_PROCESS, other.pid),
        )
        other.communicate(b"\n")
    assert (
        " 19276 "
        not in Path("/proc/sysvipc/shm").read_text()
        + Path("/proc/sysvipc/sem").read_text()
        + Path("/proc/sysvipc/msg").read_text()
    )


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_a_filter_for_namespaces_alone_lets_that_through_at_s1(tmp_path: Path) -> None:
    """The mutant: the filter of the levels with namespaces of their own; what it makes is taken away
    again.
    """
    needs("S1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        argv = [sys.executable, "-c", OTHERS, str(other.pid)]
        launch = launch_for(Level.S1, argv, workspace=tmp_path, env=clean_environment(), sandbox=Sandbox())
        code, output = run_blocking(replace(launch, program=filter_program((), namespaces=True)), PATIENCE_S)
        other.communicate(b"\n")
    libc = ctypes.CDLL(None)
    for remove, get in ((libc.shmctl, libc.shmget(0x4B4C, 0, 0)), (libc.msgctl, libc.msgget(0x4B4C, 0))):
        remove(get, 0, None)
    libc.semctl(libc.semget(0x4B4C, 0, 0), 0, 0)
    libc.syscall(241, b"kestrel-test")
    assert code == 0 and {"prlimit", "shmget", "semget", "msgget"} <= set(ast.literal_eval(output))


@pytest.mark.parametrize("level", ["S3", "S2"])
def test_shared_memory_that_no_process_has_is_small(level: str, tmp_path: Path) -> None:
    """A segment of System V that nobody attached is in no process's memory: only small ones can be made, and
    they end with the command.
    """
    held = needs(level)
    code = (
        "import ctypes; l = ctypes.CDLL(None); print(l.shmget(0x4B4C, 4096, 0o1600) >= 0, "
        "l.shmget(0x4B4D, 1 << 20, 0o1600) >= 0, l.shmget(0x4B4E, ctypes.c_size_t(1 << 40), 0o1600) >= "
        "0)"
    )
    launch = launch_for(
        held, [sys.executable, "-c", code], workspace=tmp_path, env=clean_environment(), sandbox=Sandbox()
    )
    assert run_blocking(launch, PATIENCE_S) == (0, "True False False\n")
    assert " 19276 " not in Path("/proc/sysvipc/shm").read_text()


def test_memory_counts_though_others_free_theirs() -> None:
    """Memory files are the command's own, whatever the rest of the machine frees meanwhile; a count of the
    machine's growth alone misses them.
    """
    fill = "import os; fd = os.memfd_create('x'); [os.write(fd, bytes(1 << 20)) for _ in range(200)]"
    with subprocess.Popen(
        [sys.executable, "-c", f"{fill}; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        bound = MemoryBound(150 << 20)
        other.communicate(b"\n")
    with subprocess.Popen(
        [sys.executable, "-c", f"{fill}; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None and command.stdout.readline() == b"\n"
        assert bound.exceeded([command.pid])
        command.communicate(b"\n")


def test_memory_without_a_bound(tmp_path: Path) -> None:
    """The mutant: without the bound the same goes on; programs that reserve much more than they use start
    with the default one.
    """
    (tmp_path / "p.py").write_text(GROWING["one process"].replace("60", "0.5"))
    context = ToolContext(workspace=Workspace(tmp_path), sandbox=Sandbox(level=needs("S3"), memory=None))
    answer: Any = asyncio.run(bash.run(bash.validate({"command": "python p.py"}), context))
    assert (answer.get("killed"), answer["exit_code"]) == (None, 0)


def test_landlock_alone_does_not_hold_a_workspace_with_the_log(tmp_path: Path) -> None:
    """S1 cannot keep a command from writing a log that lies in the workspace: it is refused there, and the
    message says what to do. Where the folder around a log is only read, S1 hides the log.
    """
    home = tmp_path / ".kestrel"
    home.mkdir()
    with pytest.raises(
        PermissionError, match="level S1 cannot hide a part of a workspace: set home to a folder outside"
    ):
        launch_for(Level.S1, ["true"], workspace=tmp_path, env={}, sandbox=Sandbox(hidden=(home,)))
    with pytest.raises(UsageError, match="set home to a folder outside"):
        choose_level(Sandbox(level=Level.S1, hidden=(home,)), tmp_path)
    assert choose_level(Sandbox(level=needs("S1"), hidden=(home,)), tmp_path, written=False).level is Level.S1


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is searched for bubblewrap instead of where it is."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(choosing, "_VERDICTS", {})
    bwrap_path.cache_clear()
    yield folder
    monkeypatch.undo()
    bwrap_path.cache_clear()


def put_bwrap(folder: Path, text: str) -> None:
    """A program that is called bubblewrap."""
    (folder / "bwrap").write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    (folder / "bwrap").chmod(0o755)


FAKES = {
    "": "bubblewrap is not installed",
    "echo 'bwrap: No permissions to create new namespace' >&2; exit 1": "No permissions to create new namespace",
    'while [ "$1" != -- ]; do [ "$1" = --chdir ] && cd "$2"; shift; done; shift; exec "$@"': "the canary got out: read outside, write outside, TCP",
    "exit 0": "cannot be run at this level",
}


@pytest.mark.parametrize(
    ("text", "problem"), FAKES.items(), ids=["missing", "forbidden", "holds nothing in", "does nothing"]
)
def test_bubblewrap_that_does_not_hold_is_not_relied_on(
    programs: Path, tmp_path: Path, text: str, problem: str
) -> None:
    """Missing, forbidden, or one that runs commands without holding them in: the next level is chosen, and a
    named one is refused.
    """
    if text:
        put_bwrap(programs, text)
    choice = choose_level(Sandbox(), tmp_path)
    assert (choice.level, choice.wanted) == (
        (Level.S1, True) if not probe_level(Level.S1, Sandbox()) else (Level.S0, False)
    )
    assert [level for level, reason in choice.reasons if problem in reason][:2] == [Level.S3, Level.S2]
    with pytest.raises(UsageError, match=f"sandbox level S3 is not available: .*{problem}"):
        choose_level(Sandbox(level=Level.S3), tmp_path)
    with pytest.raises(UsageError, match=r"no sandbox of level S2 or above is available"):
        choose_level(Sandbox(), tmp_path, minimum=Level.S2)


def test_without_any_sandbox_the_choice_says_so(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace with keys cannot be held by S1, and without bubblewrap nothing else is left; S0 that was
    named is as wanted.
    """
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    choice = choose_level(Sandbox(), tmp_path)
    assert (choice.level, choice.wanted) == (Level.S0, False)
    assert str(choice).startswith(
        "S0: no sandbox; S3 and S2: bubblewrap is not installed (apt install bubblewrap"
    )
    assert f"S1: the workspace contains {tmp_path / 'runtime'}" in str(choice)
    assert choose_level(Sandbox(level=Level.S0), tmp_path) == Choice(level=Level.S0)
    with pytest.raises(UsageError, match="below S1, the least this tool may run at"):
        choose_level(Sandbox(level=Level.S0), tmp_path, minimum=Level.S1)


def test_the_whole_machine_is_no_workspace() -> None:
    """Around a command that works in `/` nothing can be put: it is refused when a level was named."""
    with pytest.raises(UsageError, match="contains system folders"):
        choose_level(Sandbox(level=Level.S3), Path("/"))
    assert choose_level(Sandbox(), Path("/")).level is Level.S0


def test_levels_are_read_in_any_case() -> None:
    """`auto` is the best there is; what is not a level is answered with those there are."""
    assert [parse_level(text) for text in ("auto", "s3", " S0 ", "AUTO")] == [None, Level.S3, Level.S0, None]
    with pytest.raises(UsageError, match=r"unknown sandbox level 'S4': .*\(auto, S0, S1, S2, S3\)"):
        parse_level("S4")


def quiet(_: bytes) -> bool:
    """Wants all output and does nothing with it."""
    return True


def run_at(level: Level, workspace: Path, command: str, timeout_s: float = PATIENCE_S) -> ProcessEnd:
    """A command at a level, to its end."""
    argv = ["bash", "--noprofile", "--norc", "-c", command]
    launch = launch_for(level, argv, workspace=workspace, env=clean_environment(), sandbox=Sandbox())
    return asyncio.run(run_launched(launch, stdout=quiet, stderr=quiet, timeout_s=timeout_s))


def alive(mark: str) -> list[int]:
    """Processes that have the mark as an argument."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, state = (
                (place / "cmdline").read_bytes().split(b"\0"),
                (place / "stat").read_text().rpartition(")")[2].split()[0],
            )
        except OSError:
            continue
        if mark.encode() in words and state != "Z":
            found.append(int(place.name))
    return found


def settles(mark: str, count: int) -> bool:
    """Whether there are soon so many of them, and no more."""
    return until(lambda: len(alive(mark)) == count)


def number() -> str:
    """Seconds to sleep that nobody else sleeps."""
    return str(uuid.uuid4().int % 10**8 + 10**7)


def sleeps(process: int) -> bool:
    """Whether it has become the program that sleeps; a shell that was on its way to that may be gone by
    now.
    """
    try:
        return Path(f"/proc/{process}/comm").read_text() == "sleep\n"
    except OSError:
        return False


DAEMONS = (
    "sleep {0} & setsid sleep {0} & (setsid setsid sleep {0} >/dev/null 2>&1 &) ; nohup setsid bash -c "
    "'trap \"\" TERM HUP; (sleep {0}; true)' >/dev/null 2>&1 & sleep {0}"
)


@pytest.mark.parametrize("level", LEVELS)
def test_a_timeout_leaves_no_daemon(level: str, tmp_path: Path) -> None:
    """Processes that left their group and session, and ignore signals, are gone when the call is back."""
    held, mark = needs(level), number()
    ended = run_at(held, tmp_path, DAEMONS.format(mark), timeout_s=0.5)
    assert (ended.stopped, alive(mark)) == ("timeout", [])


@pytest.mark.parametrize("level", LEVELS)
def test_the_end_of_a_command_leaves_no_daemon(level: str, tmp_path: Path) -> None:
    """A command that ends by itself takes along what it started."""
    held, mark = needs(level), number()
    ended = run_at(
        held, tmp_path, f"setsid sleep {mark} & (setsid setsid sleep {mark} >/dev/null 2>&1 &); exit 3"
    )
    assert ((ended.exit_code, ended.stopped), alive(mark)) == ((3, ""), [])


def test_a_process_group_alone_leaves_daemons(tmp_path: Path) -> None:
    """The mutant: killing the group, as other systems must, leaves what moved to another session."""
    mark = number()
    argv = [
        "bash",
        "-c",
        f"setsid sh -c 'touch left; exec sleep {mark}' >/dev/null 2>&1 & until test -e left; do sleep "
        "0.01; done",
    ]
    asyncio.run(
        run_process(
            argv, cwd=str(tmp_path), env=clean_environment(), stdout=quiet, stderr=quiet, timeout_s=PATIENCE_S
        )
    )
    left = until(lambda: alive(mark), "the daemon")
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert len(left) == 1


KILLED = """
import sys
from pathlib import Path
from kestrel_lab.tools.sandbox.launcher_client import run_blocking
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.command_lines import launch_for
argv = ["bash", "-c", sys.argv[3]]
run_blocking(launch_for(Level[sys.argv[1]], argv, workspace=Path(sys.argv[2]), env={"PATH": \
"/usr/bin:/bin"}, sandbox=Sandbox()), 60)
"""


@pytest.mark.parametrize("level", ["S0", "S3"])
def test_nothing_outlives_a_killed_session(level: str, tmp_path: Path) -> None:
    """SIGKILL of the process that asked, which can clean up nothing itself, ends everything that came of its
    command.
    """
    needs(level)
    mark = number()
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    asking = subprocess.Popen(
        [sys.executable, "-c", KILLED, level, str(tmp_path), DAEMONS.format(mark)], env=env
    )
    try:
        until(lambda: sum(map(sleeps, alive(mark))) >= 5)
    finally:
        asking.kill()
        asking.wait()
    assert settles(mark, 0)


@pytest.mark.parametrize("level", ["S3"])
def test_a_command_that_forks_without_end_is_stopped(level: str, tmp_path: Path) -> None:
    """More than some hundred processes are too many; all are gone, long before the time is up."""
    held, mark = needs(level), number()
    ended = run_at(
        held,
        tmp_path,
        f"for i in {{1..{2 * MAX_PROCESSES}}}; do sleep {mark} & done; wait",
        timeout_s=PATIENCE_S,
    )
    assert (ended.stopped, alive(mark)) == ("processes", [])


@pytest.mark.parametrize("level", LEVELS)
def test_a_command_works_as_without_a_sandbox(level: str, tmp_path: Path) -> None:
    """It writes the workspace, runs Python and pipes, keeps stderr apart, has its own temporary folder, and
    its exit code is told.
    """
    sandbox = Sandbox(level=needs(level))
    (tmp_path / "in.txt").write_text("b\na\n", encoding="utf-8")
    command = (
        "sort in.txt | tee out.txt; python -c 'import sys; print(sys.prefix)' 2>&1; mktemp >/dev/null "
        "&& echo temp; cat <(echo sub); echo no >&2; exit 129"
    )
    context = ToolContext(workspace=Workspace(tmp_path), sandbox=sandbox)
    answer: Any = asyncio.run(bash.run(bash.validate({"command": command}), context))
    assert (answer["exit_code"], answer["stderr"]) == (129, "no\n")
    assert answer["stdout"] == f"a\nb\n{sys.prefix}\ntemp\nsub\n"
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "a\nb\n"


@pytest.mark.parametrize("level", ["S3", "S2"])
def test_settings_cannot_be_changed_from_within(level: str, tmp_path: Path) -> None:
    """A command can neither write, replace nor remove the files that say what an agent may do unasked;
    another file it can.
    """
    held = needs(level)
    ours, other = '[tool.kestrel]\napprove = "ask"\n', "[project]\n"
    for name, text in (("kestrel.toml", ours), (".mcp.json", "{}"), ("pyproject.toml", ours)):
        (tmp_path / name).write_text(text)
    change = (
        "for f in kestrel.toml .mcp.json pyproject.toml; do echo x > $f; mv $f y; rm -f $f; echo x > "
        "z; mv z $f; done"
    )
    run_at(held, tmp_path, change)
    assert [(tmp_path / name).read_text() for name in ("kestrel.toml", ".mcp.json", "pyproject.toml")] == [
        ours,
        "{}",
        ours,
    ]
    (tmp_path / "pyproject.toml").write_text(other)
    run_at(held, tmp_path, "echo changed > pyproject.toml")
    assert (tmp_path / "pyproject.toml").read_text() == "changed\n"


@pytest.mark.parametrize("level", LEVELS)
def test_git_can_commit(level: str, tmp_path: Path) -> None:
    """Hooks and settings of a repository are guarded, committing works."""
    held = needs(level)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    name = "-c user.name=a -c user.email=a@example.org -c safe.directory=*"
    ended = run_at(
        held,
        tmp_path,
        f"echo x > f && git {name} add f && git {name} commit -qm one && git {name} status --porcelain",
    )
    assert ended.exit_code == 0


@pytest.mark.parametrize("level", ["S3", "S2", "S1"])
def test_a_worktree_works_and_what_git_obeys_is_guarded(level: str, tmp_path: Path) -> None:
    """Status and commit work in a worktree; hooks, settings and other worktrees of its repository, and its
    pointer to it, stay as they are.
    """
    held, tree, git = needs(level), tmp_path / "tree", tmp_path / "main/.git"
    name = "-c user.name=a -c user.email=a@example.org"
    made = (
        f"git init -q main && cd main && echo x > f && git add f && git {name} commit -qm one && git "
        "worktree add -q ../tree && git worktree add -q ../other"
    )
    subprocess.run(made, shell=True, cwd=tmp_path, check=True)
    before = {
        place: place.read_text()
        for place in (
            git / "config",
            git / "worktrees/tree/commondir",
            git / "worktrees/other/gitdir",
            tree / ".git",
        )
    }
    attacks = (
        f"echo x > {git}/hooks/post-commit; echo x >> {git}/config; echo x > {git}/worktrees/other/gitdir; "
    )
    if held > Level.S1:  # which cannot guard a part of what it lets be written
        attacks += f"echo x > {git}/worktrees/tree/commondir; echo x > .git; mv .git g; "
    ended = run_at(
        held,
        tree,
        f"{attacks} echo y > f && git {name} commit -qam two && git status --porcelain > s && git log "
        "--oneline | wc -l >> s",
    )
    assert (ended.exit_code, (tree / "s").read_text()) == (0, "?? s\n2\n")
    assert ((git / "hooks/post-commit").exists(), {place: place.read_text() for place in before}) == (
        False,
        before,
    )


@pytest.mark.parametrize(
    "lie", ["elsewhere", "not a repository", "a link", "no word back", "in the workspace"]
)
def test_a_workspace_that_says_where_its_repository_is_is_not_believed(lie: str, tmp_path: Path) -> None:
    """Whoever wrote the workspace may have written its `.git` file: a repository has to name the worktree, or
    nothing of it is shown.
    """
    subprocess.run(
        "git init -q main && cd main && git -c user.name=a -c user.email=a@b.c commit -qm x "
        "--allow-empty && git worktree add -q ../tree",
        shell=True,
        cwd=tmp_path,
        check=True,
    )
    workspace, git = tmp_path / "tree", tmp_path / "main/.git"
    assert linked_repository(workspace) is not None
    match lie:
        case "elsewhere":
            workspace = tmp_path / "false"
            workspace.mkdir()
            (workspace / ".git").write_text(f"gitdir: {git}/worktrees/tree\n")
        case "not a repository":
            (tmp_path / "home/worktrees/x").mkdir(parents=True)
            (workspace / ".git").write_text(f"gitdir: {tmp_path}/home/worktrees/x\n")
        case "a link":
            (workspace / ".git").rename(tmp_path / "moved")
            (workspace / ".git").symlink_to(tmp_path / "moved")
        case "in the workspace":
            own = workspace / "made/worktrees/x"
            for place in (own, workspace / "made/objects", workspace / "made/refs"):
                place.mkdir(parents=True)
            (own / "commondir").write_text("../..\n")
            (own / "gitdir").write_text(f"{workspace}/.git\n")
            (workspace / ".git").write_text(f"gitdir: {own}\n")
        case _:
            (git / "worktrees/tree/gitdir").unlink()
    assert linked_repository(workspace) is None


def test_a_program_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    """Told as `OSError` with the reason, not as an exit code."""
    launch = launch_for(Level.S0, ["/no/such/program"], workspace=tmp_path, env={}, sandbox=Sandbox())
    with pytest.raises(OSError, match=r"could not be started: FileNotFoundError"):
        asyncio.run(run_launched(launch, stdout=quiet, stderr=quiet, timeout_s=5))


def test_a_launcher_that_was_killed_is_replaced(tmp_path: Path) -> None:
    """The next command has a new one."""
    run_at(Level.S0, tmp_path, "true")
    own = [child.pid for child in psutil.Process().children()]
    launchers = [child for child in own if b"sandbox.launcher" in Path(f"/proc/{child}/cmdline").read_bytes()]
    assert len(launchers) == 1
    os.kill(launchers[0], signal.SIGKILL)
    os.waitpid(launchers[0], 0)
    assert run_at(Level.S0, tmp_path, "exit 4").exit_code == 4


@pytest.mark.parametrize("before", range(4))
def test_an_exit_code_is_told_whenever_the_command_ends(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """Also where it ends between two looks for processes that have ended: its status is given out once."""
    child = 77_777
    asked = iter([*[(0, 0)] * before, (child, 3 << 8)])

    def ended(_pid: int, _how: int) -> tuple[int, int]:
        if (found := next(asked, None)) is None:
            raise ChildProcessError
        return found

    monkeypatch.setattr(launcher_process.os, "waitpid", ended)
    ours, theirs = socket.socketpair()
    wake, woken = os.pipe()
    os.write(woken, b"x" * 5)
    with ours, theirs:
        monkeypatch.setattr(
            launcher_process.os, "read", lambda fd, _: b"x"
        )  # the pipe stays full: one look after the other
        launcher_process._wait(child, theirs, wake, [], None)
        theirs.close()
        assert ours.recv(100) == b'{"exit": 3}\n'
    os.close(wake)
    os.close(woken)


def test_codes_of_signals_are_told_from_codes() -> None:
    """Only what ends programs is a signal: 129 is git's own."""
    assert [signal_exit_code(code) for code in (0, 1, 128, 129, 130, 137, 139, 143)] == [
        0,
        1,
        128,
        129,
        130,
        -9,
        -11,
        -15,
    ]
