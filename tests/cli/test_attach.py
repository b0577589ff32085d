"""The attached terminal as a client of the control protocol: what it shows of each message, and what it sends
back of what is typed.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from rich.console import Console
from waits import becomes

from kestrel_lab.cli.attach import TerminalClient
from kestrel_lab.cli.terminal import TerminalDisplay
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelCalled,
    Progress,
    Record,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.server.client import Link
from kestrel_lab.server.protocol import Accepted, Delta, Ended, JobProgress, Refused, ServerMessage
from kestrel_lab.server.run_stream import message_of

Step = ServerMessage | Callable[["Server"], Any]


class Server:
    """The other end of a link: sends each message of a script, and waits at a function in it until that
    returns something to send.
    """

    def __init__(self, *script: Step) -> None:
        self._script = script
        self.screen = io.StringIO()
        self.sent: list[dict[str, Any]] = []

    async def send(self, message: dict[str, Any]) -> None:
        """Keep what the client sends."""
        self.sent.append(message)

    async def quiet(self) -> None:
        """Nothing is under way."""

    async def __aiter__(self) -> AsyncIterator[ServerMessage]:
        for step in self._script:
            if callable(step):
                found = await becomes(lambda step=step: step(self))
                if found is not True:
                    yield found
            else:
                yield step

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What was decided, after `watch` and `subscribe`."""
        return self.sent[2:]


def told(event: Event) -> ServerMessage:
    """The message of an event."""
    return message_of(Record(run_id="r", seq=1, eid="1", at=1.0, event=event))


def shown(*script: Step, ask: bool = True) -> Server:
    """A server whose script was followed at a terminal."""
    server = Server(*script)
    console = Console(file=server.screen, width=200)
    client = TerminalClient(cast("Link", server), console, TerminalDisplay(console), ask=ask, user="ann")
    asyncio.run(client.follow("r"))
    return server


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Types lines at a terminal that is the standard input, which gives a line at a time."""
    keyboard, line = os.openpty()
    with open(line) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda *lines: os.write(keyboard, "".join(f"{one}\n" for one in lines).encode())
    os.close(keyboard)


END = Ended(run="r", seq=9)
CALL = ApprovalAsked(
    call="c",
    step="s",
    tool="bash",
    args={"command": "ls"},
    danger="HIGH",
    key="k",
    why="danger",
    question="q",
)
QUESTION = replace(
    CALL, tool="ask_user", args={"question": "Which colour?", "options": ["red", "blue"]}, why="question"
)
GIVEN = ApprovalGiven(call="c", granted=True, by="bob", how="click", question="q")
MODEL = told(ModelCalled(call="m", step="s", model="gpt", cycle=1, messages=1))


def decided(server: Server) -> Any:
    """The reply to the newest decision, once there is one."""
    return Accepted(re=server.decisions[-1]["id"]) if server.decisions else None


def prompted(server: Server) -> bool:
    """Whether the person is asked."""
    return "[e]dit" in server.screen.getvalue() or "answer (empty for none)" in server.screen.getvalue()


def test_a_terminal_asks_for_the_run_and_the_progress_of_jobs() -> None:
    """It shows what comes until the run has ended, and nothing behind that."""
    server = shown(
        told(ToolCalled(call="t", step="s", tool="grep", args={})),
        END,
        told(ToolAnswered(call="t", step="s", tool="grep", text="x")),
    )
    assert server.sent == [{"type": "watch", "limit": 1}, {"type": "subscribe", "run": "r"}]
    assert server.screen.getvalue() == ""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (told(ToolAnswered(call="t", step="s", tool="grep", text="found it")), "grep"),
        (JobProgress(job="suite", at=1.0, text="case 3", done=3, total=9), "3/9 suite: case 3\n"),
        (JobProgress(job="suite", at=1.0, text="begins", done=0), "0/0 suite: begins\n"),
        (
            Refused(code="refused", message="the log is locked", todo="try again."),
            "the log is locked. try again\n",
        ),
        (Refused(code="refused", message="no such run."), "no such run\n"),
    ],
)
def test_each_message_is_shown(message: ServerMessage, line: str) -> None:
    """Events as the display of a run shows them, the progress of jobs, and what the server refused with what
    to do.
    """
    assert (
        line
        in shown(
            MODEL, told(ToolCalled(call="t", step="s", tool="grep", args={})), message, END
        ).screen.getvalue()
    )


@pytest.mark.parametrize(
    "message",
    [Accepted(re="of nobody"), JobProgress(job="suite", at=1.0, text="idle"), told(Progress(text="half"))],
)
def test_what_is_nothing_to_read_is_not_printed(message: ServerMessage) -> None:
    """Replies, and progress that has no number."""
    assert shown(message, END).screen.getvalue() == ""


@pytest.mark.parametrize("thinking", [True, False])
def test_a_streamed_piece_is_part_of_the_text_or_of_the_reasoning(thinking: bool) -> None:
    """As the server marks it."""
    server = Server(MODEL, Delta(run="r", call="m", text="so far", thinking=thinking), END)
    display = TerminalDisplay(console := Console(file=server.screen))
    asyncio.run(TerminalClient(cast("Link", server), console, display, ask=False, user="ann").follow("r"))
    row = next(iter(display.view.rows.values()))
    assert (row.thinking if thinking else row.text) == "so far"
    assert (row.text if thinking else row.thinking) == ""


APPROVED = {"type": "approve", "args": None, "scope": "once"}


@pytest.mark.parametrize(
    ("asked", "lines", "sent"),
    [
        (CALL, ["y"], APPROVED),
        (CALL, ["a"], {**APPROVED, "scope": "run"}),
        (CALL, ["e", '{"command": "pwd"}'], {**APPROVED, "args": {"command": "pwd"}}),
        (CALL, ["n", "too risky"], {"type": "deny", "reason": "too risky", "scope": "once"}),
        (QUESTION, ["2"], {"type": "answer", "text": "blue"}),
        (QUESTION, [""], {"type": "answer", "text": None}),
    ],
)
def test_a_decision_is_sent_with_the_key_of_the_call(
    typed: Callable[..., None], asked: ApprovalAsked, lines: list[str], sent: dict[str, Any]
) -> None:
    """It names the run, the question and exactly the call; that it was made here is not announced."""
    typed(*lines)
    server = shown(told(asked), decided, told(replace(GIVEN, by="ann")), END)
    assert server.decisions == [{"id": "q:0", "run": "r", "question": "q", "key": "k", **sent}]
    assert "by ann" not in server.screen.getvalue()


def test_arguments_that_do_not_fit_are_asked_for_again(typed: Callable[..., None]) -> None:
    """The person sees what is wrong with what they typed, and decides on that."""

    def refused(server: Server) -> Any:
        return (
            Refused(re="q:0", code="bad_arguments", message="comand is no argument")
            if server.decisions
            else None
        )

    def again(server: Server) -> Any:
        return Accepted(re="q:1") if len(server.decisions) > 1 else None

    typed("e", '{"comand": "pwd"}', "e", '{"command": "pwd"}')
    server = shown(told(CALL), refused, again, told(GIVEN), END)
    assert [one["args"] for one in server.decisions] == [{"comand": "pwd"}, {"command": "pwd"}]
    assert "comand is no argument" in server.screen.getvalue().split("arguments as JSON")[1]


def test_a_decision_that_came_too_late_is_not_asked_for_again(typed: Callable[..., None]) -> None:
    """The refusal is shown, and the question is over."""

    def late(server: Server) -> Any:
        return (
            Refused(re="q:0", code="already_decided", message="bob was faster") if server.decisions else None
        )

    typed("y")
    server = shown(told(CALL), late, END)
    assert server.screen.getvalue().count("[y]es") == 1
    assert "bob was faster" in server.screen.getvalue()


@pytest.mark.parametrize(
    ("asked", "given", "line"),
    [
        (CALL, GIVEN, "approved by bob"),
        (CALL, replace(GIVEN, granted=False), "denied by bob"),
        (QUESTION, replace(GIVEN, answer="red"), "answered by bob"),
    ],
)
def test_somebody_else_was_faster(
    typed: Callable[..., None], asked: ApprovalAsked, given: ApprovalGiven, line: str
) -> None:
    """The prompt is over, and the terminal says who decided and how; nothing is sent."""
    server = shown(told(asked), prompted, told(given), END)
    assert line in server.screen.getvalue()
    assert server.decisions == []


def test_who_only_watches_is_not_asked() -> None:
    """Where nobody can type, questions and decisions of others are events like any other."""
    server = shown(
        told(CALL), told(GIVEN), told(ModelAnswered(call="m", step="s", model="gpt")), END, ask=False
    )
    assert "wants to run" not in server.screen.getvalue()
    assert "by bob" not in server.screen.getvalue()
    assert server.decisions == []
