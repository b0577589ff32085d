"""Worker processes: each runs the trials of one commit in the checkout and environment of that commit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.commits.worktrees import Environment
from kestrel_lab.evals.execution.remote_trials import bench_order
from kestrel_lab.evals.execution.trial import Ask
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.runtime.session import Session

_LINE: Final = 8_000_000
"""Bytes of the longest message."""
_WORKER_MODULES: Final = ("kestrel_lab.evals.execution.remote_trials", "kestrel_lab.evals.commits.worker", "kestrel_lab.evals.worker")
"""The module that serves trials, by the names that it has in this version and in earlier ones, whose commits can be compared, too."""
_GRACE: Final = 5.0
"""Seconds a worker gets to end by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A process that runs trials on request."""

    title: str
    """The commit, as errors name it."""
    skipped: dict[str, str]
    """Scenarios that it cannot run, and why."""
    process: Process
    errors: IO[bytes]

    async def make(self, asks: Sequence[Ask], on_row: Callable[[EvalRow], None]) -> None:
        """Run the trials and call `on_row` with each; raises `UsageError` when the worker fails."""
        if not asks:
            return
        await _send(self.process, [[ask.scenario.id, ask.config.name, ask.epoch] for ask in asks])
        while "done" not in (message := await _receive(self.process, self.errors, self.title)):
            on_row(EvalRow(**message["row"]))


@asynccontextmanager
async def worker(
    session: Session, suite: Suite, suite_file: Path, at: Path, tree: Path, sha: str, environment: Environment, *, home: Path, title: str
) -> AsyncIterator[Worker]:
    """Start a worker in `tree` for the suite in `suite_file`, which finds what it names beside `at`; it ends with the block.

    Raises `UsageError` when the worker cannot start or refuses the suite.
    """
    # A worker that has to be killed cannot remove the folders of its trials: they are made where this process can.
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="kestrel-", ignore_cleanup_errors=True) as scratch:
        process = await asyncio.create_subprocess_exec(
            str(environment.python), "-m", _worker_module(tree), cwd=tree, env={**os.environ, **session.env, **environment.env, "TMPDIR": scratch},
            stdin=PIPE, stdout=PIPE, stderr=errors, start_new_session=True, limit=_LINE,
        )  # fmt: skip
        try:
            await _send(process, {**bench_order(session, suite, suite_file, sha), "at": str(at), "home": str(home)})
            message = await _receive(process, errors, title)
            yield Worker(title=title, skipped=message["ready"], process=process, errors=errors)
        except BaseException:
            await asyncio.shield(_end(process, 0))
            raise
        await asyncio.shield(_end(process, _GRACE))


def _worker_module(tree: Path) -> str:
    """Return the module that serves trials: that of the kestrel_lab which a checkout brings itself, else ours."""
    files = {name: tree / f"{name.replace('.', '/')}.py" for name in _WORKER_MODULES}
    return next((name for name, file in files.items() if file.is_file()), _WORKER_MODULES[0])


async def _send(process: Process, message: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    # That a worker is gone shows when its answer does not come.
    with contextlib.suppress(ConnectionError):
        await process.stdin.drain()


async def _receive(process: Process, errors: IO[bytes], title: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        await process.wait()
        errors.seek(0, os.SEEK_END)
        errors.seek(max(0, errors.tell() - 2000))
        said = one_line(errors.read().decode(errors="replace"), 1500) or f"exit code {process.returncode}"
        raise UsageError(f"the process that runs {title} ended: {said}")
    message: dict[str, Any] = json.loads(line)
    if "refused" in message:
        raise UsageError(f"{title}: {message['refused']}")
    return message


async def _end(process: Process, grace: float) -> None:
    """Let the worker end by itself within `grace` seconds, then end it and everything it started."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
