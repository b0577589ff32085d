"""How far a run is: a text and a percentage, computed from its events."""

from __future__ import annotations

from typing import Final, NamedTuple

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.run_state import RunState

_MOST_AT_WORK: Final = 99.0
"""The percentage that a run at work has at most: only its end is 100."""


class RunProgress(NamedTuple):
    """How far a run is."""

    text: str
    """What it does, and how much of it is done: `2 of 6 steps done, at work on: read`."""
    percentage: float
    """From 0 to 100. Of a plan the share of its steps so far, which may fall as the plan grows; of one agent
    the share of the model turns that it may take, which an early answer cuts short.
    """


def progress_of(state: RunState) -> RunProgress:
    """Return how far the run is, by its events so far."""
    if state.status.terminal:
        return RunProgress(text=str(state.status).lower(), percentage=100.0)
    steps = state.planned.steps
    if len(steps) > 1:
        ended = sum(step.id in state.finished_steps for step in steps)
        at_work = [name for name in state.conversations if name not in state.finished_steps]
        text = f"{ended} of {format_count(len(steps), 'step')} done"
        if at_work:
            text += f", at work on: {one_line(', '.join(at_work), 80)}"
        return RunProgress(text, _percentage(ended, len(steps)))
    turns = state.usage.model_calls
    most = None if state.started is None else state.started.limits.get("cycles")
    if not isinstance(most, int):
        return RunProgress(f"turn {turns}", 0.0)
    return RunProgress(f"turn {turns} of at most {most}", _percentage(turns, most))


def _percentage(done: int, total: int) -> float:
    return min(_MOST_AT_WORK, round(100 * done / total, 1))
