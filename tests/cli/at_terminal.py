"""A program at a terminal, and what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path

from waits import PATIENCE_S, readable


class Terminal:
    """A program at a terminal."""

    def __init__(self, words: list[str], cwd: Path) -> None:
        own, its = pty.openpty()
        self.usual = termios.tcgetattr(own)
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        self.program = subprocess.Popen(
            words,
            stdin=its,
            stdout=its,
            stderr=its,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=_as_from_a_shell,
        )
        os.close(its)
        self.fd, self.text = own, ""
        self.seen = 0  # where the last text that was waited for ends: one read may bring several

    def until(self, wanted: str, seconds: float = 120) -> None:
        """Read until the text came behind what was waited for before."""
        end = time.monotonic() + seconds
        while (found := self.text.find(wanted, self.seen)) < 0:
            assert time.monotonic() < end, self.text[-2_000:]
            if readable(self.fd, 0.2):
                self.text += os.read(self.fd, 65_536).decode(errors="replace")
                if "\x1b[6n" in self.text[-200:]:  # prompt_toolkit asks where the cursor is
                    os.write(self.fd, b"\x1b[1;1R")
        self.seen = found + len(wanted)

    def say(self, text: str) -> None:
        """Type a line."""
        os.write(self.fd, text.encode() + b"\r")

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self.fd, key)

    def end(self) -> int:
        """Wait until the program has ended, reading what it writes; its exit code."""
        end = time.monotonic() + PATIENCE_S
        while self.program.poll() is None:
            assert time.monotonic() < end, self.text[-2_000:]
            if readable(self.fd, 0.05):
                with suppress(OSError):  # the program has closed its end
                    self.text += os.read(self.fd, 65_536).decode(errors="replace")
        return self.program.returncode


def _as_from_a_shell() -> None:
    """Make Ctrl-C and a closed window signals that arrive, also where the tests run below nohup."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
