"""Calls of functions in threads, and Ctrl-C on the main thread."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of; it has no stub
import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


async def call_in_thread(function: Callable[..., Any], values: dict[str, Any], *, alone: bool) -> Any:
    """Call a function in a thread with the context variables of this task; its errors are raised here.

    With `alone` it gets a thread of its own, which is abandoned if the call is cancelled: then a function
    that hangs blocks neither the threads of the event loop nor the end of the process.
    """

    def call() -> tuple[Any, BaseException | None]:
        # Returned and not raised: a future refuses StopIteration, and a KeyboardInterrupt of the function is
        # not a Ctrl-C of the person.
        try:
            return function(**values), None
        except BaseException as error:  # raised again where the result is awaited  # noqa: BLE001
            return None, error

    answer, error = await (_in_own_thread(call) if alone else asyncio.to_thread(call))
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError | GeneratorExit):
        raise RuntimeError(f"the function raised {type(error).__name__}") from error
    if error is not None:
        raise error
    return answer


async def _in_own_thread(call: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(value: Any) -> None:
        if not answer.done():
            answer.set_result(value)

    def work() -> None:
        value = context.run(call)
        # The call was cancelled, and its loop is closed: nobody waits for the value.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value)

    threading.Thread(target=work, name="kestrel tool", daemon=True).start()
    return await answer


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt at once: an event loop's own handler would wait until its next turn.

    Main thread only.
    """
    # The functions of `signal` try to convert asyncio's handler to an enum at each call; the failing
    # conversion formats an error with the whole task.
    before = _signal.getsignal(_signal.SIGINT)
    # None: installed by C code, which could not be restored.
    if before is None or before is _signal.default_int_handler:
        yield
        return
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    try:
        yield
    finally:
        _signal.signal(_signal.SIGINT, before)
