"""The text files of a workspace as they are now, read once each and only when asked for."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kestrel_lab.core.text_files import content_version
from kestrel_lab.host.log_files import open_no_log

MOST: Final = 200_000_000
"""Cost limit of a review.

One unit is about the time of a regular expression per character: the limit is a few seconds.
"""
CLAIM: Final = 1_500
"""One claim for one check."""
PARSED: Final = 20
"""Cost of a character of parsed code."""
TOKEN: Final = 4
"""A character that is cut into words or tokens."""
ALIKE: Final = 200
"""A word that another is compared with for likeness."""
SEARCHED: Final = 16
"""Characters that a plain search goes through at the cost of one."""


class WorkSpent(Exception):
    """A look has used up the work or the time that it may take."""


class WorkAllowance:
    """A work limit that is spent only inside `allowed`."""

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds` from now on everything that is allowed stops."""
        self._until = math.inf if seconds is None else time.monotonic() + seconds
        self._left = math.inf
        self.spent = False
        """True if a check stopped for want of work or time."""

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Until the end of the block `spend` raises `WorkSpent` once `MOST` is spent or the time is over."""
        before, self._left = self._left, MOST
        try:
            yield
        finally:
            self._left = before

    def spend(self, cost: float) -> None:
        """Pay for what is about to be done."""
        if self._left == math.inf:
            return
        self._left -= cost
        if self._left < 0 or time.monotonic() > self._until:
            self.spent = True
            raise WorkSpent


MAX_FILES: Final = 50_000
"""Most files and folders listed; in larger workspaces nothing counts as missing."""
MAX_FILE: Final = 4_000_000
"""Bytes of one file that is read."""
_SKIPPED: Final = frozenset(
    (
        ".git .hg .kestrel .ipynb_checkpoints __pycache__ node_modules .venv venv .mypy_cache .ruff_cache "
        ".pytest_cache .tox"
    ).split()
)
"""Folders that are not listed; a file in one is looked up by its path."""


class Files:
    """Files of a folder; nothing outside is read, whatever the links."""

    def __init__(self, root: Path, seconds: float | None = None, *, known: bool = True) -> None:
        """`seconds` limits the search; unless the folder is `known`, nothing counts as missing."""
        self.root = root.resolve()
        self.work = WorkAllowance(seconds)
        self._paths: tuple[str, ...] | None = None
        self._known: frozenset[str] = frozenset()
        self._folders: set[str] = set()
        self._listed = known
        self._texts: dict[str, str | None] = {}
        self._versions: dict[str, str] = {}

    @property
    def whole_listing(self) -> bool:
        """True if every file is known by name: only then absence proves something."""
        self.paths  # the listing decides  # noqa: B018
        return self._listed

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file, relative to the folder."""
        if self._paths is None:
            found: list[str] = []
            for place, folders, names in os.walk(self.root):
                # In place: `os.walk` then does not enter the others. Sorted, so that a limit cuts at the same
                # file each time.
                folders[:] = sorted(name for name in folders if name not in _SKIPPED)
                base = os.path.relpath(place, self.root)
                below = "" if base == "." else f"{base}/"
                self._folders.update(f"{below}{name}" for name in folders)
                found += [f"{below}{name}" for name in sorted(names)]
                if len(found) + len(self._folders) > MAX_FILES:
                    self._listed = False
                    break
            self._paths = tuple(found)
            self._known = frozenset(found)
        return self._paths

    def named(self, name: str) -> tuple[str, ...]:
        """Return the files `name` may mean: the one with that path, else all whose path ends with it."""
        exact = name.removeprefix("./")
        if (
            not Path(exact).is_absolute()
            and ".." not in exact
            and (real := self._real(exact)) is not None
            and real.is_file()
        ):
            # Spares listing a large workspace.
            return (exact,)
        known = self.paths
        name = self._relative(name)
        if name in self._known:
            return (name,)
        self.work.spend(len(known))
        return tuple(path for path in known if path.endswith(f"/{name}"))

    def has_folder(self, name: str, *, any_case: bool = False) -> bool:
        """Return true if a folder has that path, or a path that ends with it."""
        known = self._folders if self.paths else set()
        if any_case:
            name, known = name.lower(), {path.lower() for path in known}
        return name in known or any(path.endswith(f"/{name}") for path in known)

    def exists(self, name: str) -> bool:
        """Return true if a file or folder has that name, or a path that ends with it."""
        if self.named(name):
            return True
        name = self._relative(name)
        self.work.spend(len(self._folders) + 1_000)
        if name.startswith("~") or Path(name).is_absolute():
            return Path(name).expanduser().exists()
        return self.has_folder(name) or self._real(name) is not None

    def read(self, name: str) -> str | None:
        """Return a file's text; `None` if it is missing or not text."""
        found = self.named(name)
        path = found[0] if found else self._relative(name)
        if path not in self._texts:
            self._texts[path] = self._text(path)
        text = self._texts[path]
        # By the caller, to go through it.
        self.work.spend(len(text or "") / SEARCHED)
        return text

    def version(self, name: str) -> str:
        """Return the version of a file as the log names it; empty if it is missing or not read as text."""
        return self._versions.get(self.named(name)[0], "") if self.read(name) is not None else ""

    def _relative(self, name: str) -> str:
        """The path from the root: without `./`, the root's own path, or the root's name."""
        name = name.removeprefix("./").rstrip("/")
        if Path(name).is_absolute():
            inside = os.path.relpath(name, self.root)
            return inside if not inside.startswith("..") else name[1:] if name[1:] in self._known else name
        below = name.removeprefix(f"{self.root.name}/")
        return below if below != name and name not in self._known and below in self._known else name

    def _real(self, path: str) -> Path | None:
        """The file or folder, if it exists and is inside."""
        try:
            real = (self.root / path).resolve()
        except (OSError, ValueError, RuntimeError):
            return None
        return real if real.is_relative_to(self.root) and real.exists() else None

    def _text(self, path: str) -> str | None:
        real = self._real(path)
        try:
            if real is None or not real.is_file() or real.stat().st_size > MAX_FILE:
                return None
            with os.fdopen(open_no_log(real), "rb") as file:
                content = file.read()
        except OSError:
            return None
        self._versions[path] = content_version(content)
        return None if b"\0" in content[:8_000] else content.decode("utf-8", errors="replace")


def whole_word(word: str) -> re.Pattern[str]:
    """Return a pattern for `word` as a whole word."""
    return re.compile(rf"(?<![\w]){re.escape(word)}(?![\w])")
