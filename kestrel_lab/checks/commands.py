"""A check that runs a command in the workspace a run left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text import one_line

MAX_OUTPUT: Final = 100_000
"""Bytes of a command's output that are kept; the rest is read and dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandSucceeds:
    """A command, run without a shell in the workspace, ends with exit code 0 in time.

    `python` as the command is the Python that runs this. The command gets no input and leaves no process
    of its group behind.
    """

    argv: tuple[str, ...]
    timeout: float = 60.0
    """Seconds."""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            msg = "command_succeeds needs a command: a list of words such as [python, -m, pytest]"
            raise UsageError(msg)
        if self.timeout <= 0:
            msg = f"the timeout of command_succeeds must be positive, not {self.timeout}"
            raise UsageError(msg)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{one_line(shlex.join(self.argv), 60)} succeeds"

    async def __call__(self, trial: Trial) -> Score:
        """Pass on exit code 0; a timeout is no pass; raises `CheckError` when the command cannot be started."""
        command = sys.executable if self.argv[0] == "python" else self.argv[0]
        try:
            process = await asyncio.create_subprocess_exec(
                command, *self.argv[1:], cwd=trial.workspace, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True
            )
        except OSError as error:
            msg = f"command_succeeds cannot start {self.argv[0]!r}: {error.strerror or error}"
            raise CheckError(msg) from error
        try:
            async with asyncio.timeout(self.timeout):
                output = await _output(process)
        except TimeoutError:
            return self._score(f"not finished after {self.timeout:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode == 0:
            return self._score("")
        tail = one_line(output.decode("utf-8", "replace")[-400:], 200)
        return self._score(f"exit code {process.returncode}" + (f": {tail}" if tail else ""))

    def _score(self, reason: str) -> Score:
        return Score(check=self.label, passed=not reason, value=float(not reason), reason=reason)


async def _output(process: Process) -> bytes:
    """The last `MAX_OUTPUT` bytes that the process writes until it ends."""
    kept = b""
    while process.stdout and (piece := await process.stdout.read(65_536)):
        kept = (kept + piece)[-MAX_OUTPUT:]
    await process.wait()
    return kept
