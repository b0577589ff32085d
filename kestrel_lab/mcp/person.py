"""The person who may be asked while a request to an MCP server is under way; the request's time limit stands still meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Ask = Callable[[str, tuple[str, ...]], Awaitable[str | None]]
"""Puts a question with its options to a person; returns the answer, `None` where nobody is here or who is here refuses."""
DONE, DECLINE = "done", "decline"


@dataclass(eq=False, slots=True)
class Person:
    """Whoever one request works for."""

    ask_person: Ask | None
    clock: asyncio.Timeout
    seconds: float
    """The time limit of the request."""
    unanswered: list[str] = field(default_factory=list)
    """What nobody was here to answer."""

    async def ask(self, text: str, options: tuple[str, ...]) -> str | None:
        """Ask, and wait without counting the time; `None` where nobody is here or who is here refuses."""
        if self.ask_person is None:
            self.unanswered.append(text)
            return None
        with self.waiting():
            return await self.ask_person(text, options)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the clock of the request in the block; the server has its whole time again afterwards."""
        if not self.clock.expired():
            self.clock.reschedule(None)
        try:
            yield
        finally:
            if not self.clock.expired():
                self.clock.reschedule(asyncio.get_running_loop().time() + self.seconds)
