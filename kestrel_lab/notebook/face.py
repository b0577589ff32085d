"""The notebook as a place where commands are typed: runs appear in a panel, long jobs as a bar."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kestrel_lab.cli.face import Begin, Following
from kestrel_lab.core.errors import UsageError
from kestrel_lab.notebook.performing import Work, begin, perform
from kestrel_lab.notebook.progress import NotebookReporter
from kestrel_lab.notebook.prompting import ask_here
from kestrel_lab.notebook.surface import Surface
from kestrel_lab.notebook.waiting import interruptible, run_on_thread

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter
    from kestrel_lab.engine.run import Run
    from kestrel_lab.engine.settings import Settings
    from kestrel_lab.lab import Lab
    from kestrel_lab.notebook.panel import Panel


@dataclass(frozen=True, kw_only=True, slots=True)
class NotebookFace:
    """Where one magic was typed."""

    find_lab: Callable[[], Lab]
    started: Callable[[Run, str], None]
    """Told of each run that starts, and under which name to leave it."""
    shown: Callable[[Panel], None]
    """Told of each panel that appears."""
    surface: Surface
    awaited: bool
    """Whether the cell awaits: then `follow` and `wait` give something to await, else they block."""

    @property
    def user(self) -> str:
        """Who is logged in."""
        return user_name()

    def lab(self) -> Lab:
        """The notebook's lab."""
        return self.find_lab()

    def configure(self, key: str, value: str) -> Settings:
        """Change a setting of the notebook's lab, for this session."""
        return self.lab().configure(key, value)

    def follow(self, begin: Begin, how: Following) -> Any:
        """Start a run and show it; gives the run, or something to await for it."""
        if how.control:
            msg = "--control is for a terminal, where another program reads and writes"
            raise UsageError(msg)
        if how.name and not how.name.isidentifier():
            msg = f"--as needs a variable name, not {how.name!r}"
            raise UsageError(msg)
        lab = self.lab()
        work = Work(
            launch=lambda approver: begin(lab, approver),
            started=lambda run: self.started(run, how.name),
            surface=self.surface,
            shown=self.shown,
            user=self.user,
            # Executed by a program, the kernel ends with its last cell and would take the run along.
            background=how.background and self.surface == "panel",
            timeout=how.approval_timeout,
        )
        if self.awaited:
            return perform(work, ask_here)
        if work.background:
            return _begun(work)
        return run_on_thread(lambda ask: perform(work, ask, on_thread=True))

    def wait(self, work: Callable[[Reporter], Awaitable[Any]]) -> Any:
        """Do something long under a progress bar; gives its result, or something to await for it."""
        job = interruptible(work(NotebookReporter()))
        return job if self.awaited else run_on_thread(lambda _: job)


def user_name() -> str:
    """Who is logged in; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "notebook"


def _begun(work: Work) -> Run:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        msg = "--bg needs a running event loop: use it in a notebook"
        raise UsageError(msg) from None
    return begin(work, ask_here)[0]
