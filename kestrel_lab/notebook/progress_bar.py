"""Progress of a long job in a cell: a bar, and for a suite a board with a tile per scenario and configuration."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.stats.intervals_and_tests import proportion_interval
from kestrel_lab.views.html.elements import macros

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

    from kestrel_lab.evals.stored_trials import EvalRow

INTERVAL_S = 0.2
_MOST_ROWS = 200
"""Scenarios of the board; the rest is counted."""
_MARKS = {"pass": "✓", "fail": "✗", "error": "!", "mixed": "◐"}


@dataclass(slots=True)
class Tile:
    """The trials of one scenario under one configuration."""

    runs: list[tuple[str, str]] = field(default_factory=list)
    """Run and outcome of each."""

    @property
    def word(self) -> str:
        """`pass`, `fail`, `error`, or `mixed` where they differ."""
        outcomes = {outcome for _, outcome in self.runs}
        return outcomes.pop() if len(outcomes) == 1 else "mixed"

    @property
    def mark(self) -> str:
        """One character for it."""
        return _MARKS.get(self.word, "·")

    @property
    def text(self) -> str:
        """How many trials passed, or the outcome of a single one."""
        return self.word if len(self.runs) == 1 else f"{sum(outcome == 'pass' for _, outcome in self.runs)} of {len(self.runs)}"


class Board:
    """The trials of a suite so far."""

    def __init__(self) -> None:
        self.tiles: dict[str, dict[str, Tile]] = {}
        """By scenario and configuration."""
        self.configs: dict[str, Counter[str]] = {}
        """By configuration, how many trials had which outcome."""

    def add(self, row: EvalRow) -> None:
        """Count a trial that ended."""
        outcome = str(row.result["outcome"])
        tile = self.tiles.setdefault(row.scenario, {}).setdefault(row.config, Tile())
        tile.runs.append((str(row.result.get("run") or row.id), outcome))
        self.configs.setdefault(row.config, Counter())[outcome] += 1

    def rate(self, config: str) -> str:
        """The share of trials of a configuration that passed, with its 95 % interval by scenarios; trials that broke are left out, and said."""
        counts = self.configs[config]
        broke = f" · {counts['error']} broke" if counts["error"] else ""
        judged = [
            (scenario, outcome == "pass")
            for scenario, tiles in self.tiles.items()
            if config in tiles
            for _, outcome in tiles[config].runs
            if outcome != "error"
        ]
        if not judged:
            return f"no trial yet{broke}"
        found = proportion_interval([float(passed) for _, passed in judged], [scenario for scenario, _ in judged])
        return f"{found.mean:.0%} ({found.low:.0%} to {found.high:.0%}), n = {found.n}{broke}"


class NotebookReporter:
    """A `Reporter` that shows a bar in the running cell, and the board of a suite; the last state stays in the notebook."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._shown_at = float("-inf")
        self._board = Board()

    def trial(self, row: EvalRow) -> None:
        """Add a trial to the board; it is shown with the next call."""
        self._board.add(row)

    def __call__(self, done: int, total: int, note: str) -> None:
        """Show `done` of `total` unless something was shown just now; the end is always shown."""
        from IPython.display import DisplayHandle  # loaded on use

        now = time.monotonic()
        if done < total and now - self._shown_at < INTERVAL_S:
            return
        self._shown_at = now
        picture = Bar(done, total, note, self._board)
        if self._handle is None:
            self._handle = DisplayHandle()  # type: ignore[no-untyped-call]
            self._handle.display(picture)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(picture)  # type: ignore[no-untyped-call]


class Bar:
    """One state of a job, for display."""

    def __init__(self, done: int, total: int, note: str, board: Board | None = None) -> None:
        board = board or Board()
        told = f"{done:,} of {total:,}{f' · {one_line(note, 300)}' if note else ''}"
        rates = {config: board.rate(config) for config in board.configs}
        rows = [(name, [tiles.get(config, Tile()) for config in rates]) for name, tiles in list(board.tiles.items())[:_MOST_ROWS]]
        heads = [{"name": config, "rate": rate} for config, rate in rates.items()]
        self.text = "\n".join([told, *(f"  {config}: {rate}" for config, rate in rates.items())])
        self.html = str(macros("board.html").board(done, total, told, heads, rows, max(0, len(board.tiles) - _MOST_ROWS)))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}
