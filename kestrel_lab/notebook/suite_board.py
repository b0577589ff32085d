"""The board of a suite in a cell: a tile per scenario and configuration; and a job's progress bar."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import KestrelError
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.summaries.result_table import format_percent, success_interval, trial_record
from kestrel_lab.notebook.panel import with_static_html
from kestrel_lab.views.html.elements import paragraph_html, safe_markup, template_macros
from kestrel_lab.views.html.run_page import run_html

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.display import DisplayHandle

    from kestrel_lab.evals.stored_trials import EvalRow
    from kestrel_lab.evals.suite import CountErrors
    from kestrel_lab.lab import Lab

INTERVAL_S = 0.2
TILES_S = 1.0
"""Seconds between two pictures of a bar, and of a board of widgets."""
SAVED_CHARS = 400_000
"""Characters of transcripts that are saved with a board, and of one of them:"""
TRANSCRIPT_CHARS = 30_000
_MOST_ROWS = 200
"""Scenarios of the board; the rest is counted."""
_STYLES = {"pass": "success", "fail": "danger", "error": "warning"}
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
        return (
            self.word
            if len(self.runs) == 1
            else f"{sum(outcome == 'pass' for _, outcome in self.runs)} of {len(self.runs)}"
        )


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
        outcome = str(row.result["outcome"])
        tile = self.tiles.setdefault(row.scenario, {}).setdefault(row.config, Tile())
        tile.runs.append((str(row.result.get("run") or row.id), outcome))
        self.configs.setdefault(row.config, Counter())[outcome] += 1
        record = trial_record(row, count_errors)
        self._records.setdefault(row.config, []).append(
            {key: record[key] for key in ("scenario", "success", "weight")}
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
    """A `Reporter` that shows a bar in the running cell, and for a suite its board, whose tiles open
    transcripts.

    While the suite runs the board consists of widgets; at the end a picture takes their place that needs no
    kernel.
    """

    def __init__(self, lab: Callable[[], Lab], *, live: bool = True) -> None:
        """`lab` returns the lab with the trials' runs; without a viewer the board has no widgets."""
        self._handle: DisplayHandle | None = None
        self._shown_at = float("-inf")
        self._board = Board()
        self._tiles: LiveTiles | None = None
        self._lab, self._live = lab, live

    def trial(self, row: EvalRow, count_errors: CountErrors) -> None:
        """Add a trial to the board; it is shown with the next call."""
        self._board.add(row, count_errors)

    def __call__(self, done: int, total: int, note: str) -> None:
        """Show `done` of `total` unless something was shown just now; the end is always shown."""
        now = time.monotonic()
        if done < total and now - self._shown_at < (INTERVAL_S if self._tiles is None else TILES_S):
            return
        self._shown_at = now
        if done >= total:
            self._show(Bar(done, total, note, self._board, self.transcript))
        elif not self._live or not self._board.tiles:
            self._show(Bar(done, total, note, self._board))
        elif self._tiles is None:
            self._tiles = LiveTiles(self._board, self.transcript, Bar(done, total, note, self._board))
            self._show(self._tiles)
        else:
            self._tiles.update(Bar(done, total, note, self._board))

    def transcript(self, run: str) -> str:
        """Return the HTML of a trial's run; how to find it where the notebook's lab does not have it."""
        try:
            return run_html(self._lab().get(run).report.view(), TRANSCRIPT_CHARS)
        except KestrelError as error:
            return paragraph_html(str(error))

    def _show(self, picture: object) -> None:
        from IPython.display import DisplayHandle  # loaded on use

        if self._handle is None:
            self._handle = DisplayHandle()  # type: ignore[no-untyped-call]
            self._handle.display(picture)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(picture)  # type: ignore[no-untyped-call]


class LiveTiles:
    """The board of a running suite as widgets: a tile's button opens its transcripts below."""

    def __init__(self, board: Board, transcript: Callable[[str], str], bar: Bar) -> None:
        import ipywidgets as widgets  # type: ignore[import-untyped]  # loaded on use

        self._widgets, self._board, self._transcript, self._bar = widgets, board, transcript, bar
        self._buttons: dict[tuple[str, str], Any] = {}
        self._lines: dict[str, Any] = {}
        """The row of each scenario."""
        self._head, self._below = widgets.HTML(), widgets.HTML()
        self._rows = widgets.VBox([], layout=widgets.Layout(max_height="420px", overflow="auto"))
        self._only = widgets.Dropdown(options=["all scenarios", "not passed by all"], description="Show")
        self._only.observe(lambda _: self._fill(), "value")
        self.box = widgets.VBox([self._head, self._only, self._rows, self._below])
        self.update(bar)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return with_static_html(self.box._repr_mimebundle_(**options), self._bar._repr_mimebundle_())

    def update(self, bar: Bar) -> None:
        """Show the board as it is now; only widgets whose tile has changed are touched."""
        self._bar = bar
        self._head.value = bar.head
        for scenario, tiles in list(self._board.tiles.items())[:_MOST_ROWS]:
            for config, tile in tiles.items():
                button = self._buttons.get((scenario, config)) or self._button(scenario, config)
                button.description, button.button_style = (
                    sanitize_text(f"{config}: {tile.mark} {tile.text}"),
                    _STYLES.get(tile.word, ""),
                )
        self._fill()

    def _button(self, scenario: str, config: str) -> Any:
        widgets = self._widgets
        button = widgets.Button(
            tooltip=sanitize_text(f"show the transcripts of {scenario}"), layout=widgets.Layout(width="auto")
        )
        button.on_click(lambda _: self._open(scenario, config))
        self._buttons[scenario, config] = button
        if scenario not in self._lines:
            name = widgets.HTML(
                paragraph_html(one_line(scenario, 60)), layout=widgets.Layout(flex="0 1 260px")
            )
            self._lines[scenario] = widgets.HBox(
                [name], layout=widgets.Layout(flex_flow="row wrap", align_items="center")
            )
        self._lines[scenario].children = (*self._lines[scenario].children, button)
        return button

    def _fill(self) -> None:
        tiles, only = self._board.tiles, self._only.index
        rows = tuple(
            line
            for name, line in self._lines.items()
            if not only or any(tile.word != "pass" for tile in tiles[name].values())
        )
        if rows != self._rows.children:
            self._rows.children = rows

    def _open(self, scenario: str, config: str) -> None:
        self._below.value = "".join(
            self._transcript(run) for run, _ in self._board.tiles[scenario][config].runs
        )


class Bar:
    """The state of a job for display; with `transcript`, which returns a run's HTML, tiles unfold."""

    def __init__(
        self,
        done: int,
        total: int,
        note: str,
        board: Board | None = None,
        transcript: Callable[[str], str] | None = None,
    ) -> None:
        board = board or Board()
        progress = f"{done:,} of {total:,}{f' · {one_line(note, 300)}' if note else ''}"
        rates = {config: board.rate(config) for config in board.configs}
        rows = [
            (name, [tiles.get(config, Tile()) for config in rates])
            for name, tiles in list(board.tiles.items())[:_MOST_ROWS]
        ]
        heads = [{"name": config, "rate": rate} for config, rate in rates.items()]
        self.text = "\n".join([progress, *(f"  {config}: {rate}" for config, rate in rates.items())])
        parts = template_macros("board.html")
        self.head = str(parts.head(done, total, progress, heads))
        opened = {} if transcript is None else _transcripts(board, transcript)
        self.html = str(
            parts.board(done, total, progress, heads, rows, max(0, len(board.tiles) - _MOST_ROWS), opened)
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


def _transcripts(board: Board, transcript: Callable[[str], str]) -> dict[str, Any]:
    """Return the HTML of runs saved with the board: failed ones first, as long as there is room."""
    runs = [
        trial
        for tiles in list(board.tiles.values())[:_MOST_ROWS]
        for tile in tiles.values()
        for trial in tile.runs
    ]
    room, found = SAVED_CHARS, {}
    for run, _ in sorted(runs, key=lambda trial: trial[1] == "pass"):
        html = transcript(run)
        room -= len(html)
        if room < 0:
            break
        found[run] = safe_markup(html)
    return found
