"""Aligned runs side by side, in a terminal, a notebook and a page: what they share, and where they part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.evals.reports.result_view import write_text
from kestrel_lab.evals.stored_trials import EvalRow, trials_of_run
from kestrel_lab.evals.transcripts.alignment import AlignedRow, Alignment, Slot, align_transcripts
from kestrel_lab.evals.transcripts.transcript import Transcript, transcript_of
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import args_line, format_count
from kestrel_lab.views.html.elements import headline_html, html_page, template_macros
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    import pandas as pd

_TEMPLATES: Final = Path(__file__).parent / "templates"
_SHOWN: Final = 60
"""Rows from the first difference on that a terminal shows."""
_BEFORE: Final = 2
"""Rows before it that are shown."""
_TEXT: Final = 20_000
"""Characters of one text of a page."""


@dataclass(frozen=True, kw_only=True, repr=False)
class AlignedRuns(PartsView):
    """Two and more runs with their steps side by side."""

    runs: tuple[Transcript, ...]
    trials: tuple[EvalRow | None, ...]
    """The newest trial of each run; `None` for a run that is none."""
    alignment: Alignment

    @property
    def first(self) -> AlignedRow | None:
        """The first row that is not the same in all runs: its steps, one per run; `None` where all are."""
        place = self.alignment.first
        return None if place is None else self.alignment.rows[place]

    @property
    def headline(self) -> str:
        """How many steps the runs share before they part, and what each does there."""
        runs, place = format_count(len(self.runs), "run"), self.alignment.first
        if place is None:
            return f"{runs} did the same: {format_count(len(self.alignment.rows), 'step')}"
        exact = self.alignment.shared_events
        shared = f" ({format_count(exact, 'event')} of one log)" if exact else ""
        did = "; ".join(
            f"{run.run} {_words(self.alignment.following(number, place))}"
            for number, run in enumerate(self.runs)
        )
        return f"{runs} share {format_count(place, 'step')}{shared}, then part: {did}"

    @property
    def frame(self) -> pd.DataFrame:
        """One row per aligned step: `same` (or `other answer`, `other arguments`, `differs`, `not in all`),
        `first` (whether it is the first difference), and a column per run with its step in a line.
        """
        first = self.alignment.first
        return unit_frame(
            [
                {"same": row.same, "first": place == first}
                | {run.run: line for run, line in zip(self.runs, _lines(row), strict=True)}
                for place, row in enumerate(self.alignment.rows)
            ]
        )

    def parts(self) -> Iterable[Part]:
        """Return the runs with how they ended, and their steps from shortly before the first difference."""
        yield Table(("", *(run.run for run in self.runs)), [("ended", *map(_ended, self.runs, self.trials))])
        rows, first = self.alignment.rows, self.alignment.first
        start = max(0, (len(rows) if first is None else first) - _BEFORE)
        if start:
            yield f"… {format_count(start, 'step')} before, the same in all"
        cells = [
            ("▸ first difference" if place == first else _mark(row), *_lines(row))
            for place, row in enumerate(rows[start : start + _BEFORE + _SHOWN], start)
        ]
        if cells:
            yield Table(("", *(run.run for run in self.runs)), cells)
        if (left := len(rows) - start - len(cells)) > 0:
            yield f"… and {format_count(left, 'row')} more: .frame, or --report FILE.html"

    def _repr_html_(self) -> str:
        return headline_html(self.headline) + self._columns()

    def _columns(self) -> str:
        first = self.alignment.first
        split = len(self.alignment.rows) if first is None else first
        heads = [
            {"run": run.run, "ended": _ended(run, trial)}
            for run, trial in zip(self.runs, self.trials, strict=True)
        ]
        macros = template_macros(
            "alignment.html",
            _TEMPLATES,
            args_line=args_line,
            one_line=one_line,
            cut=lambda text: head_tail(text, _TEXT)[0],
        )
        rows = self.alignment.rows
        return str(macros.aligned(heads, rows[:split], rows[split:], first is not None))

    def report(self, path: str | Path) -> Path:
        """Write a page of the runs side by side, which needs neither network nor server; returns its path."""
        title = f"{format_count(len(self.runs), 'run')} aligned"
        return write_text(path, html_page(title, f"<h1>{title}</h1>{self._repr_html_()}"))


def align_runs(store: SessionStore, runs: Sequence[str]) -> AlignedRuns:
    """Align runs of the log by their ids; raises `UsageError` for fewer than two, one that is named twice,
    and one that is not there.
    """
    if len(runs) < 2:
        raise UsageError(f"two runs or more are aligned, not {len(runs)}: kestrel align RUN RUN")
    if len(set(runs)) < len(runs):
        raise UsageError(f"a run is aligned with others, not with itself: {', '.join(runs)}")
    for run in runs:
        # It raises with the nearest id, or when the run was removed.
        store.run(run)
    read = tuple(transcript_of(run, store.records(run)) for run in runs)
    trials = tuple(next(reversed(trials_of_run(store, run)), None) for run in runs)
    return AlignedRuns(runs=read, trials=trials, alignment=align_transcripts(read))


def _ended(run: Transcript, trial: EvalRow | None) -> str:
    """Return how a run ended, with its trial where it is one."""
    if trial is None:
        return "has not ended" if run.end is None else run.end.outcome
    why = f": {one_line(trial.why, 120)}" if trial.why else ""
    return f"{trial.scenario} [{trial.config}] {trial.outcome}{why}"


def _mark(row: AlignedRow) -> str:
    return "" if row.same == "same" else row.same


def _words(step: Slot) -> str:
    if step is None:
        return "does nothing more"
    return f"calls {one_line(step.title, 80)}" if step.kind == "call" else f"says “{one_line(step.text, 60)}”"


def _lines(row: AlignedRow) -> list[str]:
    """Return the steps of a row, a line each; arguments that differ are not cut where they are the same."""
    title = 40 if row.same == "same" else 160
    return [
        "–"
        if step is None
        else f"{one_line(step.title, title)} → {'✗ ' if step.error else ''}{one_line(step.text, 24)}"
        if step.kind == "call"
        else step.title
        for step in row.steps
    ]
