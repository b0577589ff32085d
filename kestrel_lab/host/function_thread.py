"""Plain functions in threads, for code that waits for them on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


async def call_in_thread(function: Callable[..., Any], values: dict[str, Any], *, alone: bool) -> Any:
    """Call a function in a thread with the context variables of this task; whatever it raises escapes.

    With `alone` the thread is its own, and is abandoned where the call is cancelled: a function that hangs then keeps
    neither the threads of the event loop nor the end of the process.
    """

    def call() -> tuple[Any, BaseException | None]:
        # Returned, as a future takes no StopIteration, and a KeyboardInterrupt in a thread is nobody's Ctrl-C.
        try:
            return function(**values), None
        except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
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
        with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
            loop.call_soon_threadsafe(deliver, value)

    threading.Thread(target=work, name="kestrel tool", daemon=True).start()
    return await answer
