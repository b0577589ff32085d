"""Prompts: questions on the standard input channel, for front ends that show no widget."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven
from kestrel_lab.core.sanitize import plain
from kestrel_lab.tools.kernel.live_kernel import interruptible
from kestrel_lab.views import formatting

T = TypeVar("T")
Ask = Callable[[str], Awaitable[str]]
"""Asks the person a question and returns the typed answer."""


class PromptApprover:
    """An approver that asks for a typed answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Ask until the answer is clear; anything after `n` is the reason."""
        text = question(asked)
        if asked.why == "question":
            said = formatting.chosen(asked, await self._ask(text))
            reason = "" if said else "no answer was given"
            return ApprovalGiven(call=asked.call, granted=bool(said), by="prompt", how="prompt", answer=said or None, reason=reason)
        while True:
            word, _, rest = (await self._ask(text)).strip().partition(" ")
            match word.lower():
                case "y" | "yes":
                    return ApprovalGiven(call=asked.call, granted=True, by="prompt", how="prompt")
                case given if scope := formatting.scope_of(given, asked):
                    return ApprovalGiven(call=asked.call, granted=True, by="prompt", how="prompt", scope=scope)
                case refusal if formatting.refuses_rest(refusal, asked):
                    return ApprovalGiven(
                        call=asked.call, granted=False, by="prompt", how="prompt", reason=rest.strip() or "none from here on", scope="run"
                    )
                case "n" | "no":
                    return ApprovalGiven(call=asked.call, granted=False, by="prompt", how="prompt", reason=rest.strip())
            text = f"Please answer y, n (and a reason if you like), or {formatting.always_words(asked)}: "


def question(asked: ApprovalAsked) -> str:
    """Return the text that shows the call with its exact arguments and the possible answers."""
    if asked.why == "question":
        options = "".join(f"\n  {number}. {option}" for number, option in enumerate(formatting.options_of(asked), 1))
        who = "the agent" if asked.tool == "ask_user" else plain(asked.tool)
        return f"{who} asks: {plain(str(asked.args.get('question', '')))}{options}\nanswer (empty for none): "
    args = "".join(f"  {name}: {text}\n" for name, text in formatting.args_pairs(asked.args, limit=None))
    args += "".join(f"  ({place}: {words})\n" for place, words in formatting.origin_pairs(asked))
    args += f"{words}\n" if (words := formatting.contained_words(asked)) else ""
    held = f", {words}" if (words := formatting.sandbox_words(asked.sandbox)) else ""
    return f"{plain(asked.tool)} ({asked.danger}{held}) asks for approval\n{args}[y]es, [n]o and why, {formatting.always_words(asked)}: "


async def ask_here(prompt: str) -> str:
    """Ask on the main thread, which waits; Stop cancels the task that asks."""
    try:
        with interruptible():
            return input(prompt)  # noqa: ASYNC250  # the front end answers it, and Stop interrupts it
    except KeyboardInterrupt:
        # Let through, it would end the kernel's event loop.
        raise asyncio.CancelledError from None


class MainThread:
    """Questions that another thread's event loop asks on the main thread, which answers them while it waits."""

    def __init__(self) -> None:
        self._wanted: queue.Queue[tuple[str, asyncio.Future[str]] | None] = queue.Queue()

    async def ask(self, prompt: str) -> str:
        """Ask on the main thread; called on the other thread's loop."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._wanted.put((prompt, answer))
        return await answer

    def finish(self) -> None:
        """Let `serve` return; from any thread."""
        self._wanted.put(None)

    def serve(self, interrupted: Callable[[], None]) -> None:
        """Ask what is wanted until `finish`; the first `KeyboardInterrupt` calls `interrupted`, a second one escapes."""
        stopped = False
        while True:
            try:
                wanted = self._wanted.get(timeout=0.1)
                if wanted is None:
                    return
                prompt, answer = wanted
                typed = input(prompt)
                settle(answer, typed)
            except queue.Empty:
                continue
            except KeyboardInterrupt:
                if stopped:
                    raise
                stopped = True
                interrupted()


def settle(answer: asyncio.Future[T], value: T) -> None:
    """Give `answer` its value from any thread, unless it has one or nobody waits any more."""

    def give() -> None:
        if not answer.done():
            answer.set_result(value)

    answer.get_loop().call_soon_threadsafe(give)
