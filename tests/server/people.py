"""Somebody at the end of each transport: the same acts, by messages, typed keys, lines or requests."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from rich.console import Console
from waits import PATIENCE_S

from kestrel_lab.cli.attach import TerminalClient
from kestrel_lab.cli.terminal import TerminalDisplay
from kestrel_lab.server.client import Link
from kestrel_lab.server.controller import Control
from kestrel_lab.server.serve import serve_control
from kestrel_lab.server.stdio import LineTransport

Message = dict[str, Any]


async def until(found: Callable[[], Any]) -> Any:
    """What `found` returns, once it returns something."""
    async with asyncio.timeout(PATIENCE_S):
        while not (value := found()):
            await asyncio.sleep(0.005)
    return value


class Person:
    """Speaks the protocol's messages; a transport says how they are carried."""

    how = "command"

    def __init__(self, control: Control) -> None:
        self.control = control
        self.heard: list[Message] = []
        self._number = 0

    async def say(self, **message: Any) -> Message:
        """Send a message and wait for the reply to it."""
        self._number += 1
        number = f"{id(self)}-{self._number}"
        await self.send({"id": number, **message})
        return await until(lambda: next((one for one in self.heard if one.get("re") == number), None))

    async def send(self, message: Message) -> None:
        raise NotImplementedError

    async def start(self, goal: str) -> str:
        """Begin a run and follow it."""
        reply = await self.say(type="start", goal=goal)
        assert reply["type"] == "accepted", reply
        await self.follow(reply["run"])
        return str(reply["run"])

    async def follow(self, run: str, after: int = 0) -> None:
        assert (await self.say(type="subscribe", run=run, after=after))["type"] == "accepted"

    async def watch(self) -> None:
        assert (await self.say(type="watch"))["type"] == "accepted"

    async def asked(self, kind: str = "approval", number: int = 1) -> Message:
        """The question of that number."""
        return (await until(lambda: self.of(kind)[number - 1 :]))[0]

    def of(self, kind: str) -> list[Message]:
        """What came of one type."""
        return [one for one in self.heard if one["type"] == kind]

    async def approve(self, asked: Message, **more: Any) -> str:
        return await self._decide("approve", asked, **more)

    async def deny(self, asked: Message, reason: str = "") -> str:
        return await self._decide("deny", asked, reason=reason)

    async def answer(self, asked: Message, text: str | None) -> str:
        return await self._decide("answer", asked, text=text)

    async def _decide(self, kind: str, asked: Message, **more: Any) -> str:
        """What the reply is in a word, and all that it says."""
        reply = await self.say(
            type=kind, run=asked["run"], question=asked["question"], key=asked["key"], **more
        )
        return f"{reply.get('code', reply['type'])}: {reply.get('message', '')} {reply.get('by', '')}"

    async def cancel(self, run: str) -> None:
        assert (await self.say(type="cancel", run=run))["type"] == "accepted"

    async def ended(self) -> None:
        """Wait until the end of the run was told."""
        await until(lambda: self.of("end"))

    async def sees(self, text: str) -> None:
        """Wait until a text was told."""
        await until(lambda: text in json.dumps(self.heard))

    @property
    def numbers(self) -> list[int]:
        """Numbers of the events that were told, in order."""
        return [one["seq"] for one in self.heard if one.get("event")]

    async def leave(self) -> None:
        """Go away."""
        raise NotImplementedError


class InMemory(Person):
    """A program that holds the link itself."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self.link = control.connect()
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        async for message in self.link:
            self.heard.append(json.loads(message.line()))

    async def send(self, message: Message) -> None:
        await self.link.send(message)

    async def leave(self) -> None:
        await self.link.close()
        await self._hearing


class OnLines(Person):
    """Another program, at the other end of two pipes."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        (reading, self.writing), (self.reading, writing) = os.pipe(), os.pipe()
        self._theirs = (reading, writing)
        self.link = control.connect()
        self.transport = LineTransport(self.link, reading, writing)
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        with os.fdopen(self.reading, "rb") as lines:
            while line := await asyncio.to_thread(lines.readline):
                self.heard.append(json.loads(line))

    async def send(self, message: Message) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Write bytes that need be no message."""
        while data:
            data = data[os.write(self.writing, data) :]

    async def leave(self) -> None:
        os.close(self.writing)
        await self.transport.closed.wait()
        await self.link.settled()
        await self.transport.finish()
        os.close(self._theirs[1])
        await self._hearing
        os.close(self._theirs[0])


class OnHttp(Person):
    """A page, or another client of the local server."""

    how = "click"

    def __init__(self, control: Control, url: str, token: str) -> None:
        super().__init__(control)
        self.client = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S
        )
        self._streams: set[asyncio.Task[None]] = set()

    async def send(self, message: Message) -> None:
        self.heard.append((await self.client.post("v1/messages", json=message)).json())

    async def follow(self, run: str, after: int = 0) -> None:
        self._open(f"v1/runs/{run}/events", {"Last-Event-ID": str(after)} if after else {})

    async def watch(self) -> None:
        self._open("v1/events", {})
        await until(lambda: self.of("runs"))

    def _open(self, address: str, headers: dict[str, str]) -> None:
        self._streams.add(asyncio.create_task(self._hear(address, headers)))

    async def _hear(self, address: str, headers: dict[str, str]) -> None:
        async with self.client.stream("GET", address, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            number = None
            async for line in response.aiter_lines():
                name, _, text = line.partition(": ")
                number = int(text) if name == "id" else number
                if name == "data":
                    self.heard.append(json.loads(text))
                    assert self.heard[-1].get("seq") == number or number is None
                    number = None

    async def leave(self) -> None:
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        await self.client.aclose()


class AtTerminal(Person):
    """Somebody who reads a screen and types."""

    how = "prompt"

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self.screen = io.StringIO()
        reading, self.typing = os.pipe()
        self._before, sys.stdin = sys.stdin, os.fdopen(reading)
        self.link: Link = control.connect(how="prompt")
        console = Console(file=self.screen, width=150)
        self.terminal = TerminalClient(
            self.link, console, TerminalDisplay(console), ask=True, user=control.user
        )
        self._following: asyncio.Task[None] | None = None
        self._prompts = 0

    async def start(self, goal: str) -> str:
        run = await InMemory(self.control).start(goal)
        await self.follow(run)
        return run

    async def follow(self, run: str, after: int = 0) -> None:
        self._following = asyncio.create_task(self.terminal.follow(run))

    async def watch(self) -> None:
        """A terminal that follows a run is told of jobs too."""

    async def asked(self, kind: str = "approval", number: int = 1) -> Message:
        words = r"\[y\]es, \[n\]o, \[e\]dit" if kind == "approval" else "answer \\(empty for none\\)"
        await until(lambda: len(re.findall(words, self.screen.getvalue())) >= number)
        return {"kind": kind}

    async def approve(self, asked: Message, **more: Any) -> str:
        if "args" in more:
            before = self.screen.getvalue().count("arguments as JSON")
            self.type("e")
            await until(lambda: self.screen.getvalue().count("arguments as JSON") > before)
            return await self._typed(json.dumps(more["args"]))
        return await self._typed("a" if more.get("scope") == "run" else "y")

    async def deny(self, asked: Message, reason: str = "") -> str:
        self.type("n")
        await until(lambda: "reason for the model (" in self.screen.getvalue())
        return await self._typed(reason)

    async def answer(self, asked: Message, text: str | None) -> str:
        return await self._typed(text or "")

    async def _typed(self, line: str) -> str:
        """Type and give back what is new on the screen a moment later, when the answer has come."""
        seen, sent = len(self.screen.getvalue()), len(self.terminal._sent)
        self.type(line)
        await until(lambda: len(self.terminal._sent) > sent and not self.terminal._refused)
        told = self.screen.getvalue()[seen:]
        return (
            f"already_decided: {told}"
            if "already" in told
            else f"bad_arguments: {told}"
            if "wrong" in told
            else f"accepted: {told}"
        )

    def type(self, line: str) -> None:
        os.write(self.typing, line.encode() + b"\n")

    async def cancel(self, run: str) -> None:
        await self.link.send({"type": "cancel", "run": run})

    async def ended(self) -> None:
        assert self._following is not None
        await asyncio.wait_for(self._following, PATIENCE_S)

    async def sees(self, text: str) -> None:
        await until(lambda: text in self.screen.getvalue())

    async def leave(self) -> None:
        await self.link.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        sys.stdin.close()
        sys.stdin = self._before
        os.close(self.typing)


TRANSPORTS = {"memory": InMemory, "terminal": AtTerminal, "lines": OnLines, "http": OnHttp}


class Place:
    """A control, and who comes to it."""

    def __init__(self, control: Control, stack: AsyncExitStack, transport: str) -> None:
        self.control, self._stack, self._transport = control, stack, transport
        self._opened: tuple[str, str] | None = None

    async def comes(self, transport: str | None = None) -> Any:
        """Somebody new, by the transport of the test unless another is named; leaves at the end."""
        name = transport or self._transport
        if name != "http":
            person: Person = TRANSPORTS[name](self.control)  # type: ignore[abstract,call-arg]
        else:
            if self._opened is None:
                address, _ = await self._stack.enter_async_context(serve_control(self.control))
                self._opened = (address.url, address.token)
            person = OnHttp(self.control, *self._opened)
        self._stack.push_async_callback(_leave, person)
        return person


async def _leave(person: Person) -> None:
    if not getattr(person, "left", False):
        person.left = True  # type: ignore[attr-defined]
        await person.leave()


@asynccontextmanager
async def place(session: Any, transport: str, **options: Any) -> AsyncIterator[Place]:
    """A control over `session` for people who come by `transport`."""
    async with (
        Control(session, user="ann", can_start=True, always=transport == "http", **options) as control,
        AsyncExitStack() as stack,
    ):
        yield Place(control, stack, transport)
