"""What git says of a checkout, asked without changing anything in it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.text import one_line

_HASHED: Final = 20_000_000
"""Bytes of an untracked file that are hashed; of a larger one, size and time of change stand for the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeVersion:
    """Which code a checkout holds."""

    sha: str = ""
    """The commit; empty outside git."""
    changes: str = ""
    """Hash of what differs from the commit, tracked and untracked; empty for a clean checkout."""

    def __str__(self) -> str:
        return f"{self.sha}-dirty.{self.changes}" if self.changes else self.sha

    @property
    def short(self) -> str:
        """The same for people."""
        return self.sha[:10] + ("+changes" if self.changes else "")


async def git(folder: Path, *args: str) -> str:
    """The output of a git command in `folder`; raises `UsageError` with git's own words when it fails."""
    # A hook or an outer git command may have set where the repository and its index are.
    env = {key: value for key, value in os.environ.items() if key not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    try:
        process = await asyncio.create_subprocess_exec("git", "-C", str(folder), *args, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env)
    except FileNotFoundError as error:
        msg = "the git command is not there: install git, or run without comparing commits"
        raise UsageError(msg) from error
    output, errors = await process.communicate()
    if process.returncode:
        msg = f"git {' '.join(args[:3])} failed in {folder}: {one_line(errors.decode(errors='replace'), 300)}"
        raise UsageError(msg)
    return output.decode("utf-8", "surrogateescape")


async def commit_of(folder: Path, name: str) -> str:
    """The full hash of the commit that `name` means; raises `UsageError` when there is none."""
    if name.startswith("-"):
        msg = f"{name!r} is no name of a commit"
        raise UsageError(msg)
    try:
        return (await git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")).strip()
    except UsageError as error:
        msg = f"{name!r} is no commit, branch or tag of {folder}"
        raise UsageError(msg) from error


async def code_version(root: Path | None, *, but: Path | None = None) -> CodeVersion:
    """The version of the checkout at `root`; `but` is a folder whose files do not count as changes.

    Empty outside git and before the first commit.
    """
    if root is None:
        return CodeVersion()
    try:
        sha = await commit_of(root, "HEAD")
    except UsageError:
        return CodeVersion()
    skip = [f":(exclude,top){but.relative_to(root)}"] if but is not None and but.is_relative_to(root) and but != root else []
    changed = await git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", ".", *skip)
    untracked = (await git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", ".", *skip)).split("\0")
    names = sorted(name for name in untracked if name)
    if not changed and not names:
        return CodeVersion(sha=sha)
    digest = hashlib.sha256(changed.encode("utf-8", "surrogateescape"))
    for name in names:
        digest.update(f"\0{name}\0".encode("utf-8", "surrogateescape"))
        digest.update(await asyncio.to_thread(_content, root / name))
    return CodeVersion(sha=sha, changes=digest.hexdigest()[:8])


def _content(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        return b""
    facts = path.stat()
    with path.open("rb") as file:
        head = file.read(_HASHED)
    rest = f"{facts.st_size} {facts.st_mtime_ns}".encode() if facts.st_size > _HASHED else b""
    return hashlib.sha256(head).digest() + rest
