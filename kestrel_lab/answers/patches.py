"""Patches in an answer: whether they are in order and fit the files they change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

_SECONDS: Final = 20


def patch_problem(patch: str, folder: Path) -> str:
    """Why `patch`, a unified diff, does not fit the files of `folder`; empty if it does, or is applied there already.

    `git apply --check` decides, in a folder that need not be a repository; nothing is changed. Context lines have to be
    as they are in the files, line numbers may be off.
    """
    text = patch if patch.endswith("\n") else f"{patch}\n"
    said = _check(text, folder)
    if not said or not _check(text, folder, "--reverse"):
        return ""
    return said


def _check(patch: str, folder: Path, *options: str) -> str:
    # Outside of a repository, or git would leave out files that the repository around `folder` does not have.
    command = ["git", "apply", "--check", "--recount", *options, "-"]
    env = {
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        "GIT_DIR": "/dev/null",
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(command, cwd=folder, env=env, input=patch.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return f"it could not be checked: {type(error).__name__} of git apply"
    if done.returncode == 0:
        return ""
    lines = [line.removeprefix("error: ") for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return "; ".join(lines[:3]) or f"git apply ended with {done.returncode}"
