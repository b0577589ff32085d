"""Run coroutines from synchronous code, and make the `…_sync` twins of methods."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code, whether or not an event loop runs in this thread.

    Ctrl-C cancels the work, waits until it has ended, and raises `KeyboardInterrupt`; a second one does not
    wait.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # asyncio has no other way to ask whether a loop runs here.
        loop_runs = False
    else:
        loop_runs = True
    # Outside of the `except`: what the work raises does not come with an error about a missing loop.
    if not loop_runs:
        return asyncio.run(work)
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
    outcome: Future[T] = Future()

    async def body() -> T:
        task = asyncio.ensure_future(work)
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    def thread() -> None:
        try:
            outcome.set_result(asyncio.run(body()))
        except BaseException as error:  # handed over whole to the thread that waits  # noqa: BLE001
            outcome.set_exception(error)

    threading.Thread(target=thread, name="kestrel-sync", daemon=True).start()
    try:
        return outcome.result()
    except KeyboardInterrupt:
        loop, task = begun.result()
        # It has ended just now, and its loop is closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        wait([outcome])
        raise


def blocking_twin(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a method's `…_sync` twin: it runs to the end, blocking a running event loop (a notebook)."""

    @functools.wraps(method)
    def twin(*args: P.args, **options: P.kwargs) -> T:
        return run_blocking(method(*args, **options))

    twin.__name__, twin.__qualname__ = f"{method.__name__}_sync", f"{method.__qualname__}_sync"
    twin.__doc__ = f"`{method.__name__}` for scripts; takes the same options."
    twin.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]  # `inspect` reads it
    return twin
