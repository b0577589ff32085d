"""Guidance files of agents (AGENTS.md, CLAUDE.md, SKILL.md …): read at a commit, and put into the workspace
of a trial in place of others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.host.git import Repository, git_output, partial_clone_advice, run_git

NAMES: Final = frozenset(
    {
        *("agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md", "skill.md"),
        *(".cursorrules", ".windsurfrules", ".clinerules", "copilot-instructions.md", ".goosehints"),
    }
)
"""Files that agents read without being asked, by the pages of AGENTS.md, Claude Code, Codex, Gemini CLI,
Cursor, Windsurf, Cline, Copilot and goose.
"""
FOLDERS: Final = frozenset({".cursor/rules", ".claude/rules", ".github/instructions", ".windsurf/rules"})
"""Folders of such files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guidance:
    """Files that tell an agent how to work: AGENTS.md, CLAUDE.md, skills, prompts.

    A trial's workspace gets these files and no other guidance: files that are known as such, and what another
    configuration of the suite names, are removed from it. Made in Python, or read from a commit by
    `read_guidance`.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    """Text by path in the workspace."""

    @property
    def digest(self) -> str:
        """A hash of paths and texts: equal for guidance that says the same, whatever commit it is from;
        `none` without files.
        """
        return content_key("guidance/1", dict(self.files))[:12] if self.files else "none"


def read_guidance(
    folder: Path, files: Mapping[str, str], ref: str = "", text: Mapping[str, str] | None = None
) -> Guidance:
    """Return the guidance that consists of `files`, by path in the workspace, and of `text`.

    Each file is a path below `folder`: as it is now, or as it is at the commit `ref` of the repository of
    which `folder` is the top. Raises `UsageError` for a commit or file that does not exist, a file that is
    empty or no UTF-8 text, and a path that leads out of the workspace.
    """
    found = {name: _read(folder, place, ref) for name, place in files.items()}
    if twice := sorted(found.keys() & (text or {}).keys()):
        raise UsageError(f"{', '.join(twice)}: named under files and under text: leave one out")
    found |= text or {}
    for name, content in found.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or ".git" in path.parts or "\0" in name or not path.name:
            raise UsageError(
                f"the guidance file {name!r} must be a relative path without '..', outside of .git"
            )
        if not content.strip():
            raise UsageError(
                f"the guidance file {name!r} is empty: leave it out, a workspace without it is what "
                "`none` means"
            )
    return Guidance(files=found)


def _read(folder: Path, name: str, ref: str) -> str:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise UsageError(f"the guidance file {name!r} must be a path from {folder}, without '..'")
    if ref:
        data = _committed_file(folder, name, ref)
    else:
        path = folder / name
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"there is no guidance file {name!r} in {folder}")
        data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the guidance file {name!r} is no UTF-8 text") from error


def _committed_file(folder: Path, name: str, ref: str) -> bytes:
    if Repository.around(folder) is None:
        raise UsageError(
            f"{folder} is in no git repository, so there is no commit {ref!r}: leave ref out for the "
            "files as they are"
        )
    done = run_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if done.returncode:
        why = one_line(done.stderr.decode(errors="replace"), 200)
        raise UsageError(f"{ref!r} is not a commit, branch or tag of {folder}" + (f": {why}" if why else ""))
    sha = done.stdout.decode().strip()
    shown = run_git(folder, "show", "--end-of-options", f"{sha}:{name}")
    if shown.returncode:
        missing = f"there is no guidance file {name!r} at {ref} ({sha[:10]}) of {folder}"
        raise UsageError(partial_clone_advice(folder, shown.stderr.decode(errors="replace")) or missing)
    return shown.stdout


def is_guidance(path: PurePosixPath, named: Collection[str] = ()) -> bool:
    """Return whether a path in a workspace is a guidance file: by its name, its folder, or because it is one
    of `named`.
    """
    inside = any(str(path.parent).endswith(folder) for folder in FOLDERS)
    return path.name.lower() in NAMES or inside or str(path) in named


def install_guidance(folder: Path, guidance: Guidance, named: frozenset[str]) -> bool:
    """Remove the guidance files of a workspace, write those of `guidance`, and return whether anything is
    there that was not, or the other way round.

    `named` are paths that count as guidance beside those known by name. Raises `UsageError` for a file that
    would lie outside.
    """
    before: dict[str, bytes | None] = {}
    for place, folders, files in os.walk(folder):
        # Changed in place: `os.walk` goes on into what is left in the list.
        folders[:] = [name for name in folders if name != ".git"]
        # `os.walk` lists a link to a folder among the folders.
        for name in (*files, *(one for one in folders if (Path(place) / one).is_symlink())):
            path = Path(place) / name
            inside = PurePosixPath(path.relative_to(folder).as_posix())
            if is_guidance(inside, named):
                before[str(inside)] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
                path.unlink()
    for name, text in guidance.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"the guidance file {name!r} would lie outside of the workspace: a folder on its way "
                "is a link"
            )
        # Line ends are not translated: guidance is compared byte by byte.
        path.write_text(text, encoding="utf-8", newline="")
    return before != {name: text.encode() for name, text in guidance.files.items()}


async def commit_guidance(folder: Path) -> None:
    """Make the one commit of a workspace's repository have the guidance that the workspace has; its author,
    dates and message stay.

    So `git status`, `git diff` and `git show` tell an agent of no other guidance, and a patch that it makes
    has none.
    """
    await git_output(folder, "add", "--all", "--force", "--", ".")
    tree = (await git_output(folder, "write-tree")).strip()
    head, _, message = (await git_output(folder, "cat-file", "commit", "HEAD")).partition("\n\n")
    others = re.sub(r"^gpgsig.*(?:\n .*)*\n?", "", head.partition("\n")[2], flags=re.MULTILINE)
    store = folder / ".git"
    draft = store / "kestrel-commit"
    draft.write_text(
        f"tree {tree}\n{others.rstrip()}\n\n{message}", encoding="utf-8", errors="surrogateescape", newline=""
    )
    made = await git_output(folder, "hash-object", "-t", "commit", "-w", "--no-filters", "--", str(draft))
    draft.unlink()
    for name in ("HEAD", "shallow"):
        if (store / name).exists():
            (store / name).write_text(made, encoding="ascii")
    # It would lead an agent to the commit with the other guidance.
    (store / "ORIG_HEAD").unlink(missing_ok=True)
