"""A program that needs a terminal has one in each sandbox, and none of the person's."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from waits import PATIENCE_S

from kestrel_lab.mcp.stdio_transport import start_server
from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.command_lines import launch_with_places
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.levels import Level, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")

REFUSES = """
import os, sys
if not sys.stderr.isatty():
    sys.exit("a terminal is needed")
with open("/dev/tty", "w") as screen:
    screen.write("drawn\\n")
print("size", *os.get_terminal_size(2), flush=True)
print("read", sys.stdin.readline().strip(), flush=True)
sys.stderr.write("last words\\n")
"""
OTHERS = """
import os
found = []
for name in sorted(os.listdir("/dev/pts")) if os.path.isdir("/dev/pts") and os.access("/dev/pts", os.R_OK) \
else map(str, range(64)):
    try:
        os.close(os.open(f"/dev/pts/{name}", os.O_RDWR | os.O_NOCTTY))
        found.append(name)
    except OSError:
        pass
print(found, flush=True)
"""


async def ran(level: Level, code: str, folder: Path, *, terminal: bool = True) -> tuple[str, str, int | None]:
    """What a Python program printed, what it wrote to its terminal or errors, and its exit code."""
    launch = launch_with_places(
        level,
        Launch(
            argv=(sys.executable, "-c", code),
            cwd=str(folder),
            env={"PATH": os.environ["PATH"]},
            terminal=terminal,
        ),
        read=[Path(sys.prefix), Path(sys.base_prefix)],
        write=[folder],
        sandbox=Sandbox(),
    )
    program = await start_server(launch)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await program.write(b"hello\n")
            printed, said = await program.stdout.read(10_000), b""
            while piece := await program.stdout.read(10_000):
                printed += piece
            while piece := await program.stderr.read(10_000):
                said += piece
            return printed.decode(), said.decode(), await program.code(PATIENCE_S)
    finally:
        await program.stop()


def level_of(name: str) -> Level:
    """That level, or a skip where it cannot be had."""
    level = Level[name]
    if level is not Level.S0 and (problem := probe_level(level, Sandbox())):
        pytest.skip(problem)
    return level


@pytest.mark.parametrize("name", [level.name for level in Level])
def test_a_program_that_refuses_to_run_without_a_terminal_runs(name: str, work: Path) -> None:
    """Its errors go there, `/dev/tty` is the same one, its input and output stay pipes; without the option it
    ends at once.
    """
    level = level_of(name)
    assert asyncio.run(ran(level, REFUSES, work)) == ("size 120 24\nread hello\n", "drawn\nlast words\n", 0)
    assert asyncio.run(ran(level, REFUSES, work, terminal=False)) == ("", "a terminal is needed\n", 1)


@pytest.mark.parametrize("name", ["S1", "S2", "S3"])
def test_terminals_of_others_stay_closed(name: str, work: Path) -> None:
    """A terminal that is open on this machine cannot be opened in the sandbox: what is typed there can be
    read from it.
    """
    level = level_of(name)
    ours, theirs = os.openpty()
    try:
        printed, _, _ = asyncio.run(ran(level, OTHERS, work))
        number = os.ttyname(theirs).rpartition("/")[2]
        assert number not in printed if level is Level.S1 else printed in ("[]\n", "['ptmx']\n")
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder to work in."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"
