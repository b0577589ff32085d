"""Interruptible waits: a cell waits for a run, can be stopped, and lets the clicks through that the run waits for.

A cell that awaits lets the kernel's loop run, so clicks arrive; that is the normal way. Where a cell
cannot await (inside a function, under `%%time`), the run works on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from kestrel_lab.core.errors import RunCancelled, RunFailed
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.notebook.prompt import Ask, MainThread

if TYPE_CHECKING:
    from kestrel_lab.runtime.run import Run

HEARTBEAT_S = 0.1
"""ipykernel's Stop does not wake a sleeping event loop: a cell that waits must turn over now and then."""
GRACE_S = 5.0
"""Seconds that a stopped run may take to write its last event."""

T = TypeVar("T")


async def settled(run: Run) -> Run:
    """Wait until the run ends.

    Raises `RunFailed` if it failed, `RunCancelled` if it was stopped (Stop in the notebook stops it),
    `ApprovalRequired` if it cannot go on without a person.
    """
    try:
        await interruptible(run.wait(), f"run {run.id}; what it did so far: %kestrel show {run.id} · go on: %kestrel run --resume {run.id}")
    except asyncio.CancelledError:
        raise RunCancelled(f"run {run.id} was stopped; {run.report.way_on}") from None
    if run.status is RunStatus.CANCELLED:
        raise RunCancelled(f"run {run.id} was cancelled; {run.report.way_on}")
    if run.status is RunStatus.FAILED:
        raise RunFailed(f"run {run.id} failed: {one_line(run.reason, 400) or 'no reason recorded'}. Look: %kestrel show {run.id}")
    return run


async def interruptible(work: Awaitable[T], what: str = "the work; what was finished is stored") -> T:
    """Wait for `work` in a cell. Stop cancels it, gives it `GRACE_S` to wind up, and raises `RunCancelled`."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=HEARTBEAT_S)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_S)
        raise RunCancelled(f"stopped {what}") from None
    return task.result()


def run_on_thread(work: Callable[[Ask], Coroutine[object, object, T]]) -> T:
    """Run `work` on an event loop of its own while this thread waits, answers its questions and can be interrupted.

    Interrupting cancels `work`; what it raises then is raised here.
    """
    main = MainThread()
    context = contextvars.copy_context()
    outcome: Future[T] = Future()
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def body() -> T:
        task = asyncio.ensure_future(work(main.ask))
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    def thread() -> None:
        try:
            outcome.set_result(asyncio.run(body()))
        except BaseException as error:  # noqa: BLE001  # handed over whole to the thread that waits
            outcome.set_exception(error)
        finally:
            main.finish()

    def interrupted() -> None:
        loop, task = begun.result()
        loop.call_soon_threadsafe(task.cancel)

    # The context carries which cell output belongs to.
    threading.Thread(target=context.run, args=(thread,), name="kestrel-run", daemon=True).start()
    main.serve(interrupted)
    return outcome.result()
