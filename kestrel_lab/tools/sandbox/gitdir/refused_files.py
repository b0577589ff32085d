"""Files of a git folder that a command may not make: moved to where a person can take them."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from typing import Final

from kestrel_lab.tools.sandbox.gitdir.git_grammar import MOST_BYTES

REFUSED: Final = ".kestrel/refused"
"""One folder per command, in it the old paths. Commands in bubblewrap do not see it."""


class RefusedFiles:
    """What one command may not make; the folder is made when the first file is moved there."""

    def __init__(self, root: str) -> None:
        """`root` is the workspace."""
        self._root, self._folder = root, ""

    def move(self, path: str, name: str) -> None:
        """Move what is at `path` away, to be found by `name`; remove it where it cannot be moved."""
        if not os.path.lexists(path):
            return
        try:
            target = os.path.join(self._make_folder(), name.replace("..", "_"))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(path, target)
        except OSError:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(path)

    def note(self) -> str:
        """Return where a person finds the files, as the end of a sentence; empty if none was moved."""
        if not self._folder:
            return ""
        shown = os.path.relpath(self._folder, self._root)
        return f"; what the command had written is in {shown}, from where a person can move it back"

    def _make_folder(self) -> str:
        if self._folder:
            return self._folder
        above = os.path.join(self._root, REFUSED)
        os.makedirs(above, mode=0o700, exist_ok=True)
        if not is_below(above, self._root):
            raise NotADirectoryError(f"{above} leads elsewhere")
        with suppress(FileExistsError), open(f"{above}/.gitignore", "x", encoding="ascii") as ignored:
            ignored.write("*\n")
        number = len(os.listdir(above))
        while not self._folder:
            with suppress(FileExistsError):
                os.mkdir(f"{above}/{number:04}", 0o700)
                self._folder = f"{above}/{number:04}"
            number += 1
        return self._folder


def read_bounded(path: str, most: int = MOST_BYTES) -> bytes | None:
    """Return the content of a regular file; `None` for a longer one, another type, or no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            content = file.read(most + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    return None if content is None or len(content) > most else content


def is_below(path: str, root: str) -> bool:
    """Return whether a path, with its links followed, lies in `root`."""
    return os.path.realpath(path).startswith(f"{os.path.realpath(root)}/")
