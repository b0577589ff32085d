"""What operations and stages ask for that is neither a model nor a tool, and what stands there by default."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kestrel_lab.core.notes import Note, NoteQuery
from kestrel_lab.core.protocols import Gatherer, Memory
from kestrel_lab.runtime.supervision.failure_kinds import RetryBudget, Sleep
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.timeparse.session_time import machine_now


class NoMemory:
    """A `Memory` that keeps nothing."""

    async def recall(self, query: NoteQuery) -> tuple[Note, ...]:
        """Nothing."""
        return ()

    async def remember(self, note: Note, *, workspace: str) -> bool:
        """Not kept."""
        return False

    async def notes(self, ids: Collection[str], *, workspace: str) -> tuple[Note, ...]:
        """None."""
        return ()


def _file_gatherer() -> Gatherer:
    from kestrel_lab.runtime.context.gatherers import (
        FileGatherer,
    )  # with it comes the search of files: not to name an option

    return FileGatherer()


Series = dict[tuple[str, str], Any]
"""What runs that begin alike, such as the trials of a suite, have in common: prepared once, see
`runtime.start.once`.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """Each may be replaced, for example `session.ports = replace(session.ports, memory=…)`; runs begun later
    use it.
    """

    memory: Memory = field(default_factory=NoMemory)
    gatherer: Gatherer = field(default_factory=_file_gatherer)
    now: Callable[[], datetime] = machine_now
    """The time, with its zone; asked once per run, at its beginning, the answer is in the log."""
    sleep: Sleep = asyncio.sleep
    """Waits between attempts."""
    budget: RetryBudget = field(default_factory=RetryBudget)
    """How long the steps of stages are tried."""
    sandbox: Sandbox | None = None
    """What the run's commands are held in; the lab's sandbox where it is `None`."""
    look: bool = True
    """Whether an answer is looked at before it is given, for what files, names, numbers and commands it
    names.
    """
    abstain: float | None = None
    """The confidence, from 0 to 1, that an answer has to state where it is looked at; one that states less
    ends its run as not good enough.
    """
    series: Series | None = None
    """The runs that this one begins like."""
    stored_behind: bool = False
    """Whether a result is stored behind the run that cannot be without it: then nobody waits for the disk
    when it ends, and its records are taken from memory, see `SessionStore.kept`.
    """
    early_stopping: Callable[[str], Awaitable[str]] | None = None
    """Asked before each turn and call why the run of that id cannot succeed any more, when all its events are
    in the log; anything but an empty text ends it.
    """
