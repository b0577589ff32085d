"""Files of a workspace that git runs because a repository's settings name them; for the autorun watch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from kestrel_lab.tools.sandbox.autorun_list import names_in

_POINTS = re.compile(r"^\s*(path|hookspath)\s*=\s*\"?([^\"\n#;]+)", re.IGNORECASE | re.MULTILINE)
"""Lines of a repository's settings that name another file of settings, or a folder of hooks."""


def files_git_runs(gitdir: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield the hooks and settings in the workspace that the settings of a repository name, and why."""
    for settings in ("config", "config.worktree"):
        for is_hook_folder, target in _configured_places(f"{gitdir}/{settings}", gitdir):
            if not target.startswith(f"{os.path.realpath(root)}/"):
                continue
            if is_hook_folder:
                yield from _hooks(target)
            else:
                yield target, "the settings of a repository include it"


def _hooks(folder: str) -> Iterator[tuple[str, str]]:
    return ((f"{folder}/{name}", "git runs it") for name in names_in(folder) if not name.endswith(".sample"))


def _configured_places(settings: str, gitdir: str) -> Iterator[tuple[bool, str]]:
    """Yield the places that a repository's settings name, and whether each is a folder of hooks."""
    try:
        fd = os.open(settings, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            text = file.read(1_000_000)
    except OSError:
        return
    for key, value in _POINTS.findall(text):
        hook_folder = key.lower() != "path"
        base = os.path.dirname(gitdir) if hook_folder else gitdir
        yield hook_folder, os.path.realpath(os.path.join(base, os.path.expanduser(value.strip())))
