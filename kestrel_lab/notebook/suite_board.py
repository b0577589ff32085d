"""The board of a suite in a cell: a tile per scenario and configuration; and a job's progress bar."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import KestrelError, MissingPackage
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.summaries.result_table import format_percent, success_interval, trial_record
from kestrel_lab.notebook.panel import with_static_html
from kestrel_lab.views.html.elements import paragraph_html, safe_markup, template_macros
from kestrel_lab.views.html.run_page import run_html

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.display import DisplayHandle
    from matplotlib.figure import Figure

    from kestrel_lab.evals.stored_trials import EvalRow
    from kestrel_lab.evals.suite import CountErrors
    from kestrel_lab.lab import Lab

INTERVAL_S = 0.2
BOARD_S = 1.0
"""Seconds between two pictures of a bar, and of a board of widgets."""
SAVED_CHARS = 400_000
"""Characters of transcripts that are saved with a board, and of one of them:"""
TRANSCRIPT_CHARS = 30_000
_MOST_ROWS = 200
"""Scenarios of the board; the rest is counted."""
_WHY = 110
"""Characters of the reason in a tile; its whole text is in what the tile unfolds to."""
_MARKS = {"pass": "✓", "fail": "✗", "error": "!", "mixed": "◐"}
_WORDS = {"pass": "passed", "fail": "did not pass", "error": "broke"}


@dataclass(slots=True)
class Tile:
    """The trials of one scenario under one configuration."""

    trials: list[EvalRow] = field(default_factory=list)

    @property
    def word(self) -> str:
        """`pass`, `fail`, `error`, or `mixed` where they differ."""
        outcomes = {trial.outcome for trial in self.trials}
        return outcomes.pop() if len(outcomes) == 1 else "mixed"

    @property
    def text(self) -> str:
        """A mark, and how many trials passed, or the outcome of a single one."""
        passed = sum(trial.outcome == "pass" for trial in self.trials)
        one = len(self.trials) == 1
        return f"{_MARKS[self.word]} {_WORDS[self.word] if one else f'{passed} of {len(self.trials)}'}"

    @property
    def why(self) -> str:
        """Why the first trial that did not pass did not."""
        failed = next((trial for trial in self.trials if trial.outcome != "pass"), None)
        return "" if failed is None else one_line(failed.why or "no reason given", _WHY)

    @property
    def unfolded(self) -> list[dict[str, Any]]:
        """Of each trial its run, the verdict in a line, and what each check said where it did not pass."""
        return [
            {
                "run": trial.run,
                "verdict": f"{_MARKS[trial.outcome]} epoch {trial.epoch} {_WORDS[trial.outcome]}",
                "why": "" if trial.outcome == "pass" else one_line(trial.why, 1_000),
                "passed": [score["check"] for score in trial.scores if score["passed"]],
            }
            for trial in self.trials
        ]


class Board:
    """The trials of a suite so far."""

    def __init__(self) -> None:
        self.tiles: dict[str, dict[str, Tile]] = {}
        """By scenario and configuration."""
        self.configs: dict[str, Counter[str]] = {}
        """By configuration, how many trials had which outcome."""
        self._records: dict[str, list[dict[str, Any]]] = {}

    def add(self, row: EvalRow, count_errors: CountErrors) -> None:
        """Count a trial that ended."""
        self.tiles.setdefault(row.scenario, {}).setdefault(row.config, Tile()).trials.append(row)
        self.configs.setdefault(row.config, Counter())[row.outcome] += 1
        record = trial_record(row, count_errors)
        self._records.setdefault(row.config, []).append(
            {key: record[key] for key in ("scenario", "group", "success", "weight")}
        )

    def rate(self, config: str) -> str:
        """A configuration's success rate with its 95 % interval, and how many trials broke."""
        counts = self.configs[config]
        broke = f" · {counts['error']} broke" if counts["error"] else ""
        found = success_interval(self._records[config])
        return (
            f"{format_percent(found.mean, found.low, found.high)}, n = {found.n}{broke}"
            if found.n
            else f"no trial yet{broke}"
        )


class NotebookReporter:
    """A `Reporter` that shows a bar in the running cell, and for a suite its board, whose tiles say why and
    unfold to transcripts.

    While the suite runs each row of the board is a widget, so that what is unfolded stays so; at the end one
    picture of the same rows takes their place, which needs no kernel.
    """

    def __init__(self, lab: Callable[[], Lab], *, live: bool = True) -> None:
        """`lab` returns the lab with the trials' runs; without a viewer the board has no widgets."""
        self._handle: DisplayHandle | None = None
        self._plot: DisplayHandle | None = None
        self._shown_at = float("-inf")
        self._board = Board()
        self._rows: LiveBoard | None = None
        self._lab, self._live = lab, live
        self._transcripts: dict[str, str] = {}
        self._room = SAVED_CHARS

    def trial(self, row: EvalRow, count_errors: CountErrors) -> None:
        """Add a trial to the board; it is shown with the next call."""
        self._board.add(row, count_errors)

    def look(self, plot: Callable[[], Figure]) -> None:
        """Draw the looks so far at trials that are made in turns, in the place of the plot before."""
        try:
            figure = plot()
        except MissingPackage:  # the bar says the same in words
            return
        self._plot = show_in_place(self._plot, figure)

    def __call__(self, done: int, total: int, note: str) -> None:
        """Show `done` of `total` unless something was shown just now; the end is always shown."""
        now = time.monotonic()
        if done < total and now - self._shown_at < (INTERVAL_S if self._rows is None else BOARD_S):
            return
        self._shown_at = now
        # Failed trials first: while the suite runs the others wait for the room that is left.
        self._tell(lambda trial: trial.outcome != "pass")
        if done >= total:
            self._tell(lambda trial: trial.outcome == "pass")
        bar = Bar(done, total, note, self._board, self._transcripts)
        if done >= total or not self._live or not self._board.tiles:
            self._show(bar)
        elif self._rows is None:
            self._rows = LiveBoard(bar)
            self._show(self._rows)
        else:
            self._rows.update(bar)

    def close(self) -> None:
        """Take the bar away, since the work has ended; the board of a suite stays, which is a result."""
        if self._handle is not None and not self._board.tiles:
            self._show(_Nothing())

    def _tell(self, wanted: Callable[[EvalRow], bool]) -> None:
        """Keep the transcripts of trials, as long as there is room."""
        for tiles in list(self._board.tiles.values())[:_MOST_ROWS]:
            for tile in tiles.values():
                for trial in tile.trials:
                    if self._room > 0 and trial.run not in self._transcripts and wanted(trial):
                        html = self._transcript(trial)
                        self._room -= len(html)
                        if self._room >= 0:
                            self._transcripts[trial.run] = html

    def _transcript(self, trial: EvalRow) -> str:
        """Return the HTML of a trial's run; how to find it where the notebook's lab does not have it.

        Its head has the verdict in place of the run's status: a run that came to its end well is no success
        where a check failed.
        """
        try:
            view = self._lab().get(trial.run).report.view()
        except KestrelError as error:
            return paragraph_html(str(error))
        if trial.outcome != "pass":
            view.head.change(status=_WORDS[trial.outcome])
        return run_html(view, TRANSCRIPT_CHARS)

    def _show(self, picture: object) -> None:
        self._handle = show_in_place(self._handle, picture)


def show_in_place(handle: DisplayHandle | None, picture: object) -> DisplayHandle:
    """Show a picture in the place of the one before, or below where there is none; returns its place."""
    from IPython.display import DisplayHandle  # loaded on use

    if handle is None:
        handle = DisplayHandle()  # type: ignore[no-untyped-call]
        handle.display(picture)  # type: ignore[no-untyped-call]
    else:
        handle.update(picture)  # type: ignore[no-untyped-call]
    return handle


class _Nothing:
    """What is displayed in the place of a bar whose work has ended."""

    def _repr_mimebundle_(self, **_kwargs: object) -> dict[str, str]:
        return {"text/html": "", "text/plain": ""}


class LiveBoard:
    """The board of a running suite: each part of its picture is a widget, and only what changed is sent."""

    def __init__(self, bar: Bar) -> None:
        import ipywidgets as widgets  # type: ignore[import-untyped]  # loaded on use

        self._html = widgets.HTML
        self._head, self._rows = widgets.HTML(), widgets.VBox([])
        self.box = widgets.VBox([self._head, self._rows])
        self.box.add_class("kst-board")
        self._rows.add_class("kst-board-rows")
        self.update(bar)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return with_static_html(self.box._repr_mimebundle_(**options), self._bar._repr_mimebundle_())

    def update(self, bar: Bar) -> None:
        """Show the board as it is now."""
        self._bar = bar
        self._head.value = bar.head
        for widget, row in zip(self._rows.children, bar.rows, strict=False):
            if widget.value != row:
                widget.value = row
        more = [self._html(row) for row in bar.rows[len(self._rows.children) :]]
        if more:
            self._rows.children = (*self._rows.children, *more)


class Bar:
    """The state of a job for display, and of a suite its board; `transcripts` are the HTML of runs."""

    def __init__(
        self,
        done: int,
        total: int,
        note: str,
        board: Board | None = None,
        transcripts: Mapping[str, str] = {},
    ) -> None:
        board = board or Board()
        progress = f"{done:,} of {total:,}{f' · {one_line(note, 300)}' if note else ''}"
        rates = {config: board.rate(config) for config in board.configs}
        shown = list(board.tiles.items())[:_MOST_ROWS]
        opened = {run: safe_markup(html) for run, html in transcripts.items()}
        parts = template_macros("board.html")
        self.text = "\n".join([progress, *(f"  {config}: {rate}" for config, rate in rates.items())])
        self.head = str(parts.head(done, total, progress, rates, bool(shown)))
        """HTML above the rows: progress and rates."""
        self.rows = [
            str(parts.row(name, {config: tiles.get(config, Tile()) for config in rates}, opened))
            for name, tiles in shown
        ]
        if left_out := len(board.tiles) - len(shown):
            self.rows.append(str(parts.left_out(left_out)))
        self.html = str(parts.board(safe_markup(self.head), [*map(safe_markup, self.rows)]))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}
