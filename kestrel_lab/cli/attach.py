"""Attached terminal: a protocol client that shows a run of any process and asks its questions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Self, cast

from rich.console import Console
from rich.text import Text

from kestrel_lab.cli.terminal import PlainReporter, TerminalApprover, TerminalDisplay
from kestrel_lab.core.errors import RunCancelled
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, ModelDelta, from_json
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.runtime.run_report import RESUME

if TYPE_CHECKING:
    from types import TracebackType

    from kestrel_lab.cli.frontend import ShowOptions
    from kestrel_lab.core.protocols import Approver
    from kestrel_lab.runtime.run import Run
    from kestrel_lab.runtime.services import Services
    from kestrel_lab.server.client import Link
    from kestrel_lab.server.protocol import (
        Accepted,
        ApprovalWanted,
        Decided,
        Delta,
        JobProgress,
        Question,
        Refused,
        ServerMessage,
    )


class TerminalClient:
    """Shows one run on a console and sends back what is typed there."""

    def __init__(
        self, link: Link, console: Console, display: TerminalDisplay, *, ask: bool, user: str
    ) -> None:
        """With `ask` a person at the terminal may decide."""
        self._link, self._console, self._display = link, console, display
        self._ask_person = TerminalApprover(console, display, user, None) if ask else None
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._reporters: dict[str, PlainReporter] = {}
        self._sent: dict[str, str] = {}
        """Decisions under way: question by the id of the message."""
        self._refused: dict[str, asyncio.Future[str]] = {}
        """Return what is wrong with the arguments that were typed, to be shown before they are asked for
        again.
        """

    async def follow(self, run: str) -> None:
        """Show the run and ask its questions until it has ended."""
        # For the progress of long jobs.
        await self._link.send({"type": "watch", "limit": 1})
        await self._link.send({"type": "subscribe", "run": run})
        try:
            async for message in self._link:
                if message.type == "end":
                    return
                self._take(message)
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _take(self, message: ServerMessage) -> None:
        kind: str = message.type
        if kind == "delta":
            delta = cast("Delta", message)
            self._display.tell(ModelDelta(call=delta.call, text=delta.text, thinking=delta.thinking))
        elif kind == "error":
            self._error(cast("Refused", message))
        elif kind == "accepted":
            self._settle(cast("Accepted", message).re, "")
        elif kind == "progress" and cast("JobProgress", message).done is not None:
            progress = cast("JobProgress", message)
            reporter = self._reporters.setdefault(progress.job, PlainReporter(self._console))
            reporter(progress.done or 0, progress.total or 0, f"{progress.job}: {progress.text}")
        elif (event := getattr(message, "event", None)) is not None:
            if kind == "decided":
                self._decided(cast("Decided", message))
            self._display.tell(from_json(event["type"], event), getattr(message, "at", None))
            if kind in {"question", "approval"} and self._ask_person is not None:
                asked = cast("Question | ApprovalWanted", message)
                self._asking[asked.question] = asyncio.create_task(self._ask(self._ask_person, asked))

    async def _ask(self, approver: TerminalApprover, message: Question | ApprovalWanted) -> None:
        """Ask until the answer can be used, unless somebody else decides."""
        # It may be a question of yesterday, decided long ago.
        await self._link.quiet()
        asked = cast("ApprovalAsked", from_json(ApprovalAsked.type, message.event))
        problem = "?"
        while problem:
            given = await approver(asked)
            number = f"{message.question}:{len(self._sent)}"
            self._sent[number] = message.question
            reply = self._refused[number] = asyncio.get_running_loop().create_future()
            await self._link.send(_decision_fields(message, given, number))
            problem = await reply
            asked = replace(asked, args=given.args or asked.args, why=problem or asked.why, preview="")

    def _error(self, message: Refused) -> None:
        if message.code == "bad_arguments":
            self._settle(message.re, message.message)
            return
        self._console.print(
            Text(sanitize_text(f"{message.message}. {message.todo}".rstrip(". ")), style="yellow")
        )
        self._settle(message.re, "")

    def _settle(self, number: str, problem: str) -> None:
        reply = self._refused.pop(number, None)
        if reply is not None and not reply.done():
            reply.set_result(problem)

    def _decided(self, message: Decided) -> None:
        """Ask no longer; say who was faster, where the prompt is still there."""
        task = self._asking.pop(message.question, None)
        # What was typed here is on its way: the decision that comes back is our own.
        if task is None or message.question in self._sent.values():
            return
        task.cancel()
        word = ("approved" if message.answer is None else "answered") if message.granted else "denied"
        self._console.print(Text(sanitize_text(f"{word} by {message.by}"), style="yellow"))


def _decision_fields(
    message: Question | ApprovalWanted, given: ApprovalGiven, number: str
) -> dict[str, object]:
    said: dict[str, object] = {
        "id": number,
        "run": message.run,
        "question": message.question,
        "key": message.key,
    }
    if message.type == "question":
        return {**said, "type": "answer", "text": given.answer if given.granted else None}
    if not given.granted:
        return {**said, "type": "deny", "reason": given.reason, "scope": given.scope}
    return {**said, "type": "approve", "args": given.args, "scope": given.scope}


class AttachedTerminal:
    """The screen of a run in a terminal where somebody can answer; a client like any other."""

    approver: Approver | None = None

    def __init__(self, lab: Services, how: ShowOptions, console: Console, user: str) -> None:
        self._lab, self._how, self._console, self._user = lab, how, console, user

    async def __aenter__(self) -> Self:
        from kestrel_lab.server.controller import Control  # loads pydantic

        self._control = Control(self._lab, user=self._user, patience_s=self._how.approval_timeout)
        await self._control.__aenter__()
        self.approver = self._attended = self._control.approver()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._control.__aexit__(kind, error, trace)

    async def show(self, run: Run) -> Run:
        """Show the run and ask its questions until it ends; raises `RunCancelled` when Ctrl-C stops it."""
        display, console = TerminalDisplay(self._console), self._console
        self._attended.run = run.id
        console.print(Text.assemble(("run ", "dim"), run.id, (f" · {run.report.model}", "dim")))
        client = TerminalClient(
            self._control.connect(how="prompt"), console, display, ask=True, user=self._user
        )
        following = asyncio.create_task(client.follow(run.id))
        try:
            with display.shown():
                await run.wait()
                if run.status.terminal:
                    await following
        except asyncio.CancelledError:
            # `from None`: a stopped run is no error, its trace would only hide the notice.
            raise stopped_notice(run) from None
        finally:
            following.cancel()
            # Waited for, so that no question is printed below the end of the run.
            await asyncio.gather(following, return_exceptions=True)
            console.print(display.ending())
        tell_way_on(run, console)
        return run


def tell_way_on(run: Run, console: Console) -> None:
    """Print how a run that failed can go on, where it can."""
    if run.status is RunStatus.FAILED and (hint := run.report.way_on):
        console.print(hint, style="dim", markup=False)


def stopped_notice(run: Run) -> RunCancelled:
    """What is said when Ctrl-C has stopped the work on a run."""
    hint = run.report.way_on or (RESUME.format(run=run.id) if not run.status.terminal else "")
    return RunCancelled(
        f"run {run.id} was stopped; what it did so far: kestrel show {run.id}{hint and f' · {hint}'}"
    )
