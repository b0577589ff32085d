"""A run in a cell from its start to its end, on whatever surface the cell has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kestrel_lab.core.protocols import Approver
from kestrel_lab.notebook.panel import Panel, Still
from kestrel_lab.notebook.prompting import Ask, PromptApprover
from kestrel_lab.notebook.surface import Surface
from kestrel_lab.notebook.waiting import settled

if TYPE_CHECKING:
    from kestrel_lab.engine.run import Run

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
        display(Still(run.view()))  # type: ignore[no-untyped-call]
