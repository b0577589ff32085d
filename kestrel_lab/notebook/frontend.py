"""The notebook as a place where commands are typed: runs appear in a panel, long jobs as a bar."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from kestrel_lab.cli.frontend import Begin, Following
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Approver
from kestrel_lab.host.user import user_name
from kestrel_lab.notebook.cell_interrupt import interruptible, run_on_thread, settled
from kestrel_lab.notebook.panel import Panel, Still
from kestrel_lab.notebook.progress_bar import NotebookReporter
from kestrel_lab.notebook.prompt import Ask, PromptApprover, ask_here

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter
    from kestrel_lab.lab import Lab
    from kestrel_lab.notebook.panel import Panel
    from kestrel_lab.runtime.run import Run
    from kestrel_lab.runtime.settings import Settings


# Where output goes and who could answer: found out per cell, never guessed from versions.

Surface = Literal["panel", "headless", "terminal"]
"""A notebook somebody looks at; a notebook that a program executes; a shell in a terminal."""

HEADLESS = "KESTREL_HEADLESS"
"""Set to 1 where a program executes notebooks but pretends that somebody could type."""


def surface(shell: Any) -> Surface:
    """Where the code that runs now came from."""
    kernel = getattr(shell, "kernel", None)
    if os.environ.get(HEADLESS) == "1":
        return "headless"
    if kernel is None:
        return "terminal" if sys.stdin is not None and sys.stdin.isatty() else "headless"
    # nbclient, papermill and nbconvert send False with each cell: no one is there to type.
    request = kernel.get_parent("shell") or {}
    return "panel" if request.get("content", {}).get("allow_stdin") else "headless"


# A run in a cell from its start to its end, on whatever surface the cell has.

Launch = Callable[[Approver | None], "Run"]
"""Starts the run on the running event loop, with this approver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Something to run and how to go about it."""

    launch: Launch
    started: Callable[[Run], None]
    """Told of the run as soon as there is one."""
    surface: Surface
    shown: Callable[[Panel], None]
    """Told of the panel that shows it, where there is one."""
    user: str = ""
    """Who would click."""
    background: bool = False
    timeout: float | None = None


async def perform(work: Work, ask: Ask, *, on_thread: bool = False) -> Run:
    """Start the run, show it and wait for its end, unless it is to go on in the background.

    Raises what `settled` raises. Where nobody is, nobody is asked, and one picture is shown at the end.
    """
    run, done = begin(work, ask, on_thread=on_thread)
    if work.background:
        return run
    try:
        return await settled(run)
    finally:
        done()


def begin(work: Work, ask: Ask, *, on_thread: bool = False) -> tuple[Run, Callable[[], None]]:
    """Start the run on the running event loop and show it; gives it and what to call when nobody waits any more."""
    if work.surface != "panel":
        run = work.launch(PromptApprover(ask) if work.surface == "terminal" else None)
        work.started(run)
        return run, partial(_show_end, run, work.surface)
    # A background run outlives its cell, and only a cell may use standard input.
    panel = Panel(user=work.user, fallback=None if work.background else PromptApprover(ask), timeout=work.timeout)
    if on_thread:
        panel.keep_clicks_coming()
    try:
        run = work.launch(panel)
    except BaseException:
        panel.close()
        raise
    work.started(run)
    panel.follow(run)
    work.shown(panel)
    return run, panel.close


def _show_end(run: Run, where: Surface) -> None:
    from IPython.display import display  # loaded on use

    if where == "headless":
        display(Still(run.report.view()))  # type: ignore[no-untyped-call]


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


def _begun(work: Work) -> Run:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        msg = "--bg needs a running event loop: use it in a notebook"
        raise UsageError(msg) from None
    return begin(work, ask_here)[0]
