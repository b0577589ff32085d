"""Git as a person runs it, and as a command in a sandbox does."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from waits import PATIENCE_S

from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.command_lines import launch_for
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.environment import clean_environment
from kestrel_lab.tools.shell.process import ProcessEnd, run_launched

ME = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def needs(level: str) -> Level:
    """The level, or a skip where it cannot be had."""
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    return Level[level]


def git(root: Path, *words: str, check: bool = True) -> str:
    """Git as a person runs it, with all that it obeys."""
    done = subprocess.run(
        ["git", *words], cwd=root, env=os.environ | ME, capture_output=True, text=True, check=check
    )
    return done.stdout


def make_repository(root: Path) -> Path:
    """Make a repository with one commit."""
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "f").write_text("one\n")
    git(root, "add", "f")
    git(root, "commit", "-qm", "one")
    return root


def launched(level: Level, root: Path, command: str) -> Launch:
    """How a command is started at a level."""
    return launch_for(
        level, ["bash", "-c", command], workspace=root, env=clean_environment() | ME, sandbox=Sandbox()
    )


def run(launch: Launch) -> tuple[ProcessEnd, str]:
    """It, to its end, and what it wrote."""
    pieces: list[bytes] = []
    ended = asyncio.run(
        run_launched(
            launch, stdout=lambda piece: not pieces.append(piece), stderr=lambda _: True, timeout_s=PATIENCE_S
        )
    )
    return ended, b"".join(pieces).decode()
