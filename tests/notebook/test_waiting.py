"""Waiting in a cell: interruptible, and off the main thread where a cell cannot await."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest
from waits import FOREVER_S

from kestrel_lab.core.errors import RunCancelled
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven
from kestrel_lab.notebook.cell_interrupt import Ask, PromptApprover, run_interruptible, run_on_thread

ASKED = ApprovalAsked(
    call="c", step="s", tool="ba\x1b[2Ksh", args={"command": "rm -r x\u202e"}, danger="HIGH", key="k"
)


def test_stopping_cancels_the_work_and_says_so() -> None:
    """A cancelled wait cancels what it waits for and raises one readable error."""
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(FOREVER_S)
        finally:
            ended.append("wound up")

    async def cell() -> None:
        waiting = asyncio.ensure_future(run_interruptible(work(), "the job"))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await waiting

    with pytest.raises(RunCancelled, match="stopped the job"):
        asyncio.run(cell())
    assert ended == ["wound up"]


def test_work_on_a_thread_gives_its_result_and_its_errors() -> None:
    """The caller gets what the work returned or raised; the work runs on another thread."""

    async def work(_: Ask) -> str:
        return threading.current_thread().name

    async def fails(_: Ask) -> str:
        raise LookupError("gone")

    assert run_on_thread(work) == "kestrel-run"
    with pytest.raises(LookupError, match="gone"):
        run_on_thread(fails)


def test_stop_reaches_work_on_a_thread() -> None:
    """An interrupt of the waiting thread cancels the work."""

    async def work(_: Ask) -> None:
        threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,)).start()
        await run_interruptible(asyncio.sleep(FOREVER_S))

    with pytest.raises(RunCancelled):
        run_on_thread(work)


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        (["y"], ApprovalGiven(call="c", granted=True, by="prompt", how="prompt")),
        (["what?", "always"], ApprovalGiven(call="c", granted=True, by="prompt", how="prompt", scope="run")),
        (
            ["n too risky"],
            ApprovalGiven(call="c", granted=False, by="prompt", how="prompt", reason="too risky"),
        ),
    ],
)
def test_a_typed_answer_decides(typed: list[str], given: ApprovalGiven) -> None:
    """Yes, no with a reason, and always are understood; anything else is asked again."""
    answers = iter(typed)

    async def ask(_: str) -> str:
        return next(answers)

    assert asyncio.run(PromptApprover(ask)(ASKED)) == given


def test_a_typed_question_shows_exactly_what_would_run() -> None:
    """Escapes and hidden characters in what is asked cannot disguise it."""
    asked = []

    async def ask(prompt: str) -> str:
        asked.append(prompt)
        return "n"

    asyncio.run(PromptApprover(ask)(ASKED))

    assert asked == [
        "bash (HIGH) asks for approval\n  command: rm -r x\\u{202e}\n[y]es, [n]o and why, [s]ame call "
        "always, [a]lways in this run: "
    ]


WORDS = ApprovalAsked(
    call="c",
    step="s",
    tool="ask_user",
    args={"question": "which\u202e?", "options": ["red", "7"]},
    danger="SAFE",
    key="k",
    why="question",
)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("1", "red"), ("7", "7"), ("3", "3"), ("  a dark red ", "a dark red"), ("\u00b2", "\u00b2"), ("", None)],
)
def test_words_answer_a_question(typed: str, answer: str | None) -> None:
    """The question and its options are shown harmless; a number is an option unless it is one itself; nothing
    is not an answer.
    """
    asked: list[str] = []

    async def ask(prompt: str) -> str:
        asked.append(prompt)
        return typed

    given = asyncio.run(PromptApprover(ask)(WORDS))
    assert (given.answer, given.granted) == (answer, answer is not None)
    assert asked == ["the agent asks: which\\u{202e}?\n  1. red\n  2. 7\nanswer (empty for none): "]
