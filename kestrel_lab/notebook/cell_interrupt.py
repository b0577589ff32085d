"""Waiting in a cell: for a run, with Stop and clicks still working, and with questions on standard input if
no widget is shown.

Normally the cell awaits, so the kernel's loop runs and clicks arrive. If a cell cannot await (inside a
function, under `%%time`), the run works on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kestrel_lab.core.errors import RunCancelled, RunFailed
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.tools.kernel import live_kernel
from kestrel_lab.views import formatting

if TYPE_CHECKING:
    from kestrel_lab.runtime.run import Run


T = TypeVar("T")
Ask = Callable[[str], Awaitable[str]]
"""Asks the person a question and returns the typed answer."""


class PromptApprover:
    """An approver that asks for a typed answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Ask until the answer is clear; anything after `n` is the reason."""
        text = question_text(asked)

        def given(*, granted: bool, **fields: Any) -> ApprovalGiven:
            return ApprovalGiven(call=asked.call, granted=granted, by="prompt", how="prompt", **fields)

        if asked.why == "question":
            said = formatting.chosen_answer(asked, await self._ask(text))
            return given(
                granted=bool(said), answer=said or None, reason="" if said else "no answer was given"
            )
        while True:
            word, _, rest = (await self._ask(text)).strip().partition(" ")
            if (decided := formatting.typed_decision(word.lower(), asked)) is not None:
                reason = "" if decided["granted"] else rest.strip()
                return given(**{**decided, **({"reason": reason} if reason else {})})
            text = f"Please answer y, n (and a reason if you like), or {formatting.always_words(asked)}: "


def question_text(asked: ApprovalAsked) -> str:
    """Return the text that shows the call with its exact arguments and the possible answers."""
    if asked.why == "question":
        options = "".join(
            f"\n  {number}. {option}" for number, option in enumerate(formatting.answer_options(asked), 1)
        )
        who = "the agent" if asked.tool == "ask_user" else sanitize_text(asked.tool)
        return (
            f"{who} asks: {sanitize_text(str(asked.args.get('question', '')))}{options}\nanswer (empty "
            "for none): "
        )
    args = "".join(f"  {name}: {text}\n" for name, text in formatting.args_pairs(asked.args, limit=None))
    args += "".join(f"  ({place}: {words})\n" for place, words in formatting.origin_pairs(asked))
    args += f"{words}\n" if (words := formatting.containment_text(asked)) else ""
    held = f", {words}" if (words := formatting.sandbox_words(asked.sandbox)) else ""
    return (
        f"{sanitize_text(asked.tool)} ({asked.danger}{held}) asks for approval\n{args}[y]es, [n]o and "
        f"why, {formatting.always_words(asked)}: "
    )


async def ask_here(prompt: str) -> str:
    """Ask on the main thread, which waits; Stop cancels the task that asks."""
    try:
        with live_kernel.keyboard_interruptible():
            return input(prompt)  # the front end answers it, and Stop interrupts it  # noqa: ASYNC250
    except KeyboardInterrupt:
        # A KeyboardInterrupt would end the kernel's event loop.
        raise asyncio.CancelledError from None


@dataclass(slots=True, eq=False)
class MainThread:
    """Questions of another thread's event loop, answered on the main thread while it waits."""

    _wanted: queue.Queue[tuple[str, asyncio.Future[str]] | None] = field(default_factory=queue.Queue)

    async def ask(self, prompt: str) -> str:
        """Ask on the main thread; called on the other thread's loop."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._wanted.put((prompt, answer))
        return await answer

    def finish(self) -> None:
        """Let `serve` return; from any thread."""
        self._wanted.put(None)

    def serve(self, interrupted: Callable[[], None]) -> None:
        """Answer questions until `finish`; the first `KeyboardInterrupt` calls `interrupted`."""
        stopped = False
        while True:
            try:
                # With a timeout, because a wait without one cannot be interrupted on every system.
                wanted = self._wanted.get(timeout=0.1)
                if wanted is None:
                    return
                prompt, answer = wanted
                typed = input(prompt)
                resolve_answer(answer, typed)
            except queue.Empty:
                continue
            except KeyboardInterrupt:
                if stopped:
                    raise
                stopped = True
                interrupted()


def resolve_answer(answer: asyncio.Future[T], value: T) -> None:
    """Give `answer` its value from any thread, unless it has one or nobody waits any more."""

    def give() -> None:
        if not answer.done():
            answer.set_result(value)

    answer.get_loop().call_soon_threadsafe(give)


HEARTBEAT_S = 0.1
"""ipykernel's Stop does not wake a sleeping event loop, so a waiting cell wakes by itself this often."""
GRACE_S = 5.0
"""Seconds that a stopped run may take to write its last event."""


async def wait_for_end(run: Run) -> Run:
    """Wait until the run ends.

    Raises `RunFailed` if it failed, `RunCancelled` if it was stopped (Stop in the notebook stops it),
    `ApprovalRequired` if it cannot go on without a person.
    """
    what = f"run {run.id}; what it did so far: %kestrel show {run.id} · go on: %kestrel run --resume {run.id}"
    try:
        await run_interruptible(run.wait(), what)
    except asyncio.CancelledError:
        # The panel's button stops the run itself, and not the cell that waits for it.
        raise RunCancelled(f"stopped {what}") from None
    if run.status is RunStatus.CANCELLED:
        raise RunCancelled(f"run {run.id} was cancelled; {run.report.way_on}")
    if run.status is RunStatus.FAILED:
        way_on = f" · {hint}" if (hint := run.report.way_on) else ""
        raise RunFailed(
            f"run {run.id} failed: {one_line(run.reason, 400) or 'no reason recorded'}. Look: %kestrel "
            f"show {run.id}{way_on}"
        )
    return run


async def run_interruptible(work: Awaitable[T], what: str = "the work; what was finished is stored") -> T:
    """Wait for `work` in a cell.

    Stop cancels it, gives it `GRACE_S` to wind up, and raises `RunCancelled`.
    """
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
    """Run `work` on an event loop of its own while this thread waits, answers its questions and can be
    interrupted.

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
        except BaseException as error:  # handed over whole to the thread that waits  # noqa: BLE001
            outcome.set_exception(error)
        finally:
            main.finish()

    def interrupted() -> None:
        loop, task = begun.result()
        # While code of an agent keeps the loop busy, a cancellation would wait for its end. `press_stop`
        # stops the code, and that ends the run.
        if not live_kernel.press_stop(worker.ident or 0):
            loop.call_soon_threadsafe(task.cancel)

    # IPython keeps in the context to which cell output belongs.
    worker = threading.Thread(target=context.run, args=(thread,), name="kestrel-run", daemon=True)
    worker.start()
    main.serve(interrupted)
    return outcome.result()
