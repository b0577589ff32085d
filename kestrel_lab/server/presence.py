"""The presence of clients: a run waits for decisions as long as a client is there to make them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kestrel_lab.core.errors import ApprovalRequired
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven


class Attendance:
    """The number of clients that can decide now."""

    def __init__(self, *, always: bool = False) -> None:
        """`always`: somebody may come at any time, as to a page that is served."""
        self._always = always
        self._count = 0
        self._nobody = asyncio.Event()
        if not always:
            self._nobody.set()

    def came(self) -> None:
        """Somebody is there."""
        self._count += 1
        self._nobody.clear()

    def left(self) -> None:
        """One of them is there no longer."""
        self._count -= 1
        if not self._count and not self._always:
            self._nobody.set()

    def end(self) -> None:
        """Stop waiting for clients: none will come any more."""
        self._always = False
        self._nobody.set()

    async def over(self) -> None:
        """Return once nobody is there."""
        await self._nobody.wait()


@dataclass
class Attended:
    """The approver of a run that clients decide on: their decisions come through the log, this one only waits for them."""

    attendance: Attendance
    patience_s: float | None = None
    """After so many seconds without an answer the answer is no; `None` waits."""
    run: str = ""
    """Its id, once it has one."""

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Wait; raises `ApprovalRequired`, which leaves the run waiting in the log, when nobody is there."""
        try:
            async with asyncio.timeout(self.patience_s):
                await self.attendance.over()
        except TimeoutError:
            reason = f"nobody answered within {self.patience_s:g} s"
            return ApprovalGiven(call=asked.call, granted=False, by="timeout", how="policy", reason=reason)
        raise ApprovalRequired(self.run, asked.tool, asked.args, question=asked.why == "question")
