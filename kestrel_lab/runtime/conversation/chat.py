"""Chat: a conversation of several runs, each of which follows the one before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Unpack

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.runtime.context.run_options import RunChanges, RunOptions
from kestrel_lab.runtime.run import Run

Start = Callable[[str, RunOptions], Run]
"""Begins a run on the running event loop."""


class Chat:
    """A conversation. Its turns are runs, so each can be shown, forked and measured like any other.

    `await chat.ask("…")` is the next turn; a notebook shows it in a panel.
    """

    def __init__(self, start: Start, run: Callable[[str, RunOptions], Awaitable[Run]], options: RunOptions) -> None:
        """Turns begin with `options`; `start` begins one, `run` waits for its end and shows it where somebody looks. `options.follow` is the run whose conversation the first one goes on with."""
        self.runs: list[Run] = []
        """The turns so far."""
        self._start, self._run, self._options = start, run, options

    def begin(self, goal: str, **changes: Unpack[RunChanges]) -> Run:
        """Begin the next turn on the running event loop and return at once; takes the options of `Session.start`."""
        run = self._start(goal, self._next(changes))
        self.runs.append(run)
        return run

    async def ask(self, goal: str, **changes: Unpack[RunChanges]) -> Run:
        """Carry out the next turn and wait for its end; raises what `Session.run` raises, and `UsageError` while a turn is at work."""
        run = await self._run(goal, self._next(changes))
        self.runs.append(run)
        return run

    def _next(self, changes: RunChanges) -> RunOptions:
        options = replace(self._options, **changes)
        return replace(options, follow=self.runs[-1]) if self.runs else options

    def __repr__(self) -> str:
        last = f", last answer {one_line(self.runs[-1].answer, 60)!r}" if self.runs else ""
        return f"Chat({len(self.runs)} turns{last})"

    def _repr_html_(self) -> str:
        return "".join(run.report._repr_html_() for run in self.runs)
