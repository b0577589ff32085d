"""Patches in an answer: whether they are in order and fit the files they change."""

from __future__ import annotations

from pathlib import Path

from kestrel_lab.host.git import run_git_outside


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
    done = run_git_outside(folder, "apply", "--check", "--recount", *options, "-", stdin=patch.encode())
    if done.returncode == 0:
        return ""
    lines = [line.removeprefix("error: ") for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return "; ".join(lines[:3]) or f"git apply ended with {done.returncode}"
