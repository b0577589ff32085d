"""The other end of a worker: trials of one commit, made in a process of its own."""

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
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.commits.worktrees import Environment
from kestrel_lab.evals.execution.trial import Ask
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.runtime.approvals.scope import rules_as_json
from kestrel_lab.runtime.session import Session

_LINE: Final = 8_000_000
"""Bytes of the longest message."""
_GRACE: Final = 5.0
"""Seconds a worker gets to end by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A process that makes trials on request."""

    title: str
    """The commit, as errors name it."""
    skipped: dict[str, str]
    """Scenarios it cannot try, and why."""
    process: Process
    errors: IO[bytes]

    async def make(self, asks: Sequence[Ask], on_row: Callable[[EvalRow], None]) -> None:
        """Make the trials; `on_row` is told of each. Raises `UsageError` when the worker fails."""
        if not asks:
            return
        order = [[ask.scenario.id, ask.config.name, ask.epoch] for ask in asks]
        await _send(self.process, order)
        while "done" not in (message := await _receive(self.process, self.errors, self.title)):
            on_row(EvalRow(**message["row"]))


@asynccontextmanager
async def worker(session: Session, suite: Suite, suite_file: Path, at: Path, tree: Path, sha: str, environment: Environment, *, home: Path, title: str) -> AsyncIterator[Worker]:  # fmt: skip
    """A worker in `tree` for the suite in `suite_file`, with what it names found beside `at`; ended at the end.

    Raises `UsageError` when the worker cannot start or refuses the suite.
    """
    # A worker that has to be killed cannot remove the folders of its trials: they are made where this process can.
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="kestrel-", ignore_cleanup_errors=True) as scratch:
        process = await asyncio.create_subprocess_exec(
            str(environment.python), "-m", "kestrel_lab.evals.commits.worker",
            cwd=tree, env={**os.environ, **session.env, **environment.env, "TMPDIR": scratch}, stdin=PIPE, stdout=PIPE, stderr=errors, start_new_session=True, limit=_LINE,
        )  # fmt: skip
        try:
            await _send(process, {
                "suite": str(suite_file), "at": str(at), "home": str(home), "sha": sha, "epochs": suite.epochs,
                "configs": [config.name for config in suite.configs], "model": session.options.model if isinstance(session.options.model, str) else None, "provider": session.options.provider,
                "api_base": session.options.api_base, "sandbox": session.sandbox.name, "network": session.sandbox.network, "limits": _unusual(session.limits), "rules": rules_as_json(session.rules),
                "containment": session.options.containment,
            })  # fmt: skip
            message = await _receive(process, errors, title)
            yield Worker(title=title, skipped=message["ready"], process=process, errors=errors)
        except BaseException:
            await asyncio.shield(_end(process, 0))
            raise
        await asyncio.shield(_end(process, _GRACE))


def _unusual(limits: Limits) -> dict[str, Json]:
    """What is not as by default: an older commit need not know every limit that there is now."""
    usual = Limits().as_json()
    return {name: value for name, value in limits.as_json().items() if value != usual[name]}


async def _send(process: Process, message: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    # A worker that is gone is told of by the answer that does not come.
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
        msg = f"the process that runs {title} ended: {said}"
        raise UsageError(msg)
    message: dict[str, Any] = json.loads(line)
    if "refused" in message:
        msg = f"{title}: {message['refused']}"
        raise UsageError(msg)
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
