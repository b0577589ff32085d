"""Effects that code asks for in a preview: files go to a folder that is thrown away, everything else is noted while the system refuses it.

This only says what was wanted, for the person who is asked. Code can hide a wish from it; the lockdown is what refuses.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

MOST = 20
"""Wishes that are noted."""
_CHANGES = {
    "os.remove": "delete {0}",
    "os.rmdir": "delete the folder {0}",
    "os.rename": "rename {0} to {1}",
    "os.mkdir": "make the folder {0}",
    "os.link": "link {1} to {0}",
    "os.symlink": "link {1} to {0}",
    "os.truncate": "cut {0} short",
    "os.chmod": "change the mode of {0}",
    "os.chown": "change the owner of {0}",
    "os.utime": "change the times of {0}",
    "os.system": "run the command {0}",
    "os.posix_spawn": "run the program {0}",
    "os.exec": "run the program {0}",
    "os.fork": "start a process",
    "os.forkpty": "start a process",
    "os.kill": "send signal {1} to process {0}",
    "os.killpg": "send signal {1} to processes",
    "subprocess.Popen": "run the program {0}",
    "socket.connect": "connect to {1}",
    "socket.bind": "wait for connections at {1}",
    "socket.getaddrinfo": "reach {0}, port {1}",
    "socket.gethostbyname": "reach {0}",
    "shutil.rmtree": "delete the folder {0}",
}
NETWORK = ("connect to", "reach ", "wait for connections", "use the network")
_INTERNET = (2, 10)


class Effects:
    """The wishes of one piece of code; `install` cannot be taken back in this process."""

    def __init__(self, scratch: str, workspace: str) -> None:
        """Files that are written go into `scratch`."""
        self.scratch = os.path.join(scratch, "")
        self.workspace = os.path.join(workspace, "")
        self.refused: list[str] = []
        self.written: dict[str, str] = {}
        """By path, where it was written instead."""
        self.read_files = False
        """Whether files of the workspace were opened."""
        self._open: Callable[..., Any] = io.open
        self._busy = False

    def install(self) -> None:
        """Note from now on what code in this process wants."""
        builtins.open = io.open = self.opened
        sys.addaudithook(self._heard)

    def sizes(self) -> list[list[Any]]:
        """Return path and bytes of each file that was written; one in the working folder by its name there."""
        here = os.path.join(os.getcwd(), "")
        return [[path.removeprefix(here), os.path.getsize(place)] for path, place in self.written.items() if os.path.exists(place)]

    def opened(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        """Open a file as `open` does; one that is written lies in the folder that is thrown away."""
        if not isinstance(file, str | bytes | os.PathLike):
            return self._open(file, mode, *args, **options)
        path = os.path.abspath(os.fsdecode(file))
        if path.startswith(self.scratch) or path == os.devnull:
            return self._open(file, mode, *args, **options)
        if not set(mode) & set("wax+"):
            return self._open(self.written.get(path, file), mode, *args, **options)
        place = self.written.get(path)
        if place is None:
            place = os.path.join(self.scratch, f"{len(self.written)}-{os.path.basename(path)}")
            self.written[path] = place
            if os.path.isfile(path):
                if "x" in mode:
                    raise FileExistsError(17, os.strerror(17), path)
                if "w" not in mode:
                    shutil.copyfile(path, place)
        return self._open(place, mode.replace("x", "w"), *args, **options)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            if event == "open":
                self.read_files |= str(args[0]).startswith(self.workspace) or not str(args[0]).startswith("/")
                if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR) and isinstance(args[0], str) and not self._own(args[0]):
                    self._note(f"write {args[0]}")
            elif event == "socket.__new__" and args[1] in _INTERNET:
                self._note("use the network")
            elif event in _CHANGES and not self._harmless(event, args):
                self._note(_CHANGES[event].format(*(_word(arg) for arg in args), "", ""))
        finally:
            self._busy = False

    def _own(self, path: str) -> bool:
        return os.path.abspath(path).startswith(self.scratch) or path == os.devnull

    def _harmless(self, event: str, args: tuple[Any, ...]) -> bool:
        """Whether it concerns what is thrown away, or makes a folder that is there."""
        path = args[0] if args and isinstance(args[0], str) else None
        return (
            path is not None
            and not event.startswith(("socket", "subprocess"))
            and (self._own(path) or (event == "os.mkdir" and os.path.isdir(path)))
        )

    def _note(self, wish: str) -> None:
        if wish not in self.refused and len(self.refused) < MOST:
            self.refused.append(wish)


def _word(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else os.fsdecode(value) if isinstance(value, bytes) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
