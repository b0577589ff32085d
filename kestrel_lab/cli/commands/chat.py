"""`kestrel chat`: a conversation in the terminal; each line is a run that follows the one before."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from kestrel_lab.cli.frontend import (
    ApprovalTimeout,
    ShowOptions,
    frontend_of,
    limits_of,
    run_options,
    takes_flags,
)
from kestrel_lab.cli.slash_commands import ORCHESTRATE, ORCHESTRATED, carry_out, slash_command
from kestrel_lab.core.errors import ApprovalRequired, KestrelError, RunCancelled, UsageError
from kestrel_lab.runtime.options import LimitOptions, RunOptions

if TYPE_CHECKING:
    from kestrel_lab.cli.frontend import Frontend
    from kestrel_lab.runtime.run import Run

chatting = typer.Typer()
_LEAVE = ("/exit", "/quit")

Ask = Callable[[], Awaitable[str]]
"""Gives the next thing that the person says; raises `EOFError` when they have left."""


@chatting.command(
    epilog='Example: kestrel chat --follow RUN. "/exit", Ctrl-D, or Ctrl-C on an empty line leaves; "/help" '
    "lists the other commands."
)
@takes_flags(RunOptions, LimitOptions, without=("plan", "inputs"))
def chat(
    ctx: typer.Context,
    *,
    approval_timeout: ApprovalTimeout = None,
) -> Any:
    """Talk with an agent: what you type goes on where the last answer ended; Ctrl-C cancels the turn, a
    second one leaves.
    """
    return _converse(frontend_of(ctx), ctx.find_root().command, ctx.params)


async def _converse(frontend: Frontend, root: Any, words: dict[str, Any]) -> Run | None:
    from kestrel_lab.models.resolve import prepare_in_background

    lab = frontend.lab()
    options = run_options(words)
    if "follow" in options:
        lab.get(options["follow"])  # a wrong id is refused before anything is typed
    prepare_in_background(os.environ)
    ask = _terminal_lines(str(lab.home / "chat_history")) if sys.stdin.isatty() else _read_line
    run: Run | None = None
    while True:
        try:
            goal = (await ask()).strip()
        except (EOFError, KeyboardInterrupt):
            # Ctrl-D or Ctrl-C at the prompt end the chat; nothing is at work then.
            return run
        if goal in _LEAVE:
            return run
        try:
            command = slash_command(goal)
            if command is not None and command.name != ORCHESTRATE:
                frontend.show_result(carry_out(command, root, frontend))
                continue
        except KestrelError as error:
            frontend.say(str(error))
            continue
        if goal:
            staged = {} if command is None else ORCHESTRATED
            goal = goal if command is None else command.text
            begun, left = await _turn(frontend, goal, words, {**options, **staged})
            if left:
                return run
            if begun is not None:
                run, options = begun, {**options, "follow": begun}


async def _turn(
    frontend: Frontend, goal: str, words: dict[str, Any], options: dict[str, Any]
) -> tuple[Run | None, bool]:
    """Carry out one turn; Ctrl-C cancels it.

    Returns the run, if one began, and whether a second Ctrl-C came before it was over.
    """
    screen, begun = frontend.screen(ShowOptions(approval_timeout=words["approval_timeout"])), list["Run"]()

    async def work() -> None:
        async with screen:
            run = frontend.lab().start(
                goal,
                **{
                    **options,
                    "approver": screen.approver,
                    "limits": limits_of(words, frontend.lab().limits),
                },
            )
            begun.append(run)
            await screen.show(run)

    task = asyncio.ensure_future(work())
    with _interrupts(task) as pressed:
        try:
            await task
        except (RunCancelled, ApprovalRequired) as error:
            # A turn that was stopped or waits for a person does not end the chat.
            frontend.say(str(error))
        except asyncio.CancelledError:
            if not pressed:
                raise
        except UsageError as error:
            if begun:
                raise
            frontend.say(str(error))
    return (begun[0] if begun else None), len(pressed) > 1


@contextmanager
def _interrupts(task: asyncio.Task[None]) -> Iterator[list[int]]:
    """While the block runs, Ctrl-C cancels `task`; gives a list that grows with each Ctrl-C."""
    pressed: list[int] = []

    def press() -> None:
        pressed.append(signal.SIGINT)
        task.cancel()

    loop = asyncio.get_running_loop()
    # Windows; a thread other than the main one.
    with suppress(NotImplementedError, ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.remove_signal_handler(signal.SIGINT)


def _terminal_lines(history: str) -> Ask:
    from prompt_toolkit import PromptSession  # loaded on use
    from prompt_toolkit.history import FileHistory

    session: PromptSession[str] = PromptSession("› ", history=FileHistory(history))
    return session.prompt_async


async def _read_line() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        raise EOFError
    return line
