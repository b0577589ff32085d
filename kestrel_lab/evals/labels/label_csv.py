"""Labels as CSV, out and in: what goes out comes in again exactly, and a file that is not in order changes
nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import TrialLabelled
from kestrel_lab.core.json_types import dumps
from kestrel_lab.evals.labels.stored_labels import Label, check_label, record_label, stored_labels
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.csv_cells import LINE_END, original_text, spreadsheet_cell

COLUMNS: Final = (
    *("run", "who", "value", "note", "rubric", "rubric_hash"),
    *("probability", "drawn", "seed", "frame", "repeat", "at"),
)
_SKIP: Final = "skip"
_NAMED: Final = 8
"""Rows that an error names."""
_Row = tuple[str, TrialLabelled, float | None]
"""Run, label, and when it was given; `None` for a row that does not say."""


def labels_csv(store: SessionStore, suite: str) -> str:
    """Return the labels of a suite, of all persons and rubrics, oldest first; raises `UsageError` where there
    are none.
    """
    labels = stored_labels(store, suite)
    if not labels:
        raise UsageError(no_labels(store, suite))
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator=LINE_END)
    table.writerow(COLUMNS)
    table.writerows([spreadsheet_cell(cell) for cell in _cells(label)] for label in labels)
    return text.getvalue()


def no_labels(store: SessionStore, suite: str) -> str:
    """Return a sentence for a suite without labels, with those that have some."""
    known = labelled_suites(store)
    return f"no trials of suite {suite!r} are labelled; " + (
        f"there are labels of {known}" if known else f"label some: kestrel eval label {suite}"
    )


def labelled_suites(store: SessionStore) -> str:
    """Return the suites that have labels, each with their number, in words; empty for none."""
    sql = (
        "SELECT body ->> '$.suite', count(*) FROM events WHERE type IN ('trial_labelled', 'label_undone', "
        "'rubric_edited', 'trial_judged') AND type = 'trial_labelled' GROUP BY 1 ORDER BY 1"
    )
    return ", ".join(f"{name} ({count})" for name, count in store.query(sql))


def import_labels(store: SessionStore, suite: str, path: Path, runs: Iterable[str]) -> tuple[int, int]:
    """Record the labels of a CSV file for trials of a suite whose runs are given; returns how many were new,
    and how many are stored already.

    Raises `UsageError` that names the rows, and writes nothing, where a row cannot be read, names an unknown
    trial, is there twice, or contradicts another row or a stored label of the same person and rubric.
    """
    rows = _read(path, suite)
    known = set(runs)
    problems = [
        f"row {number}: there is no trial of suite {suite} with run {run!r}"
        for number, (run, _, _) in rows.items()
        if run not in known
    ]
    seen: dict[tuple[object, ...], int] = {}
    for number, (run, said, _) in rows.items():
        if (first := seen.setdefault(_key(run, said), number)) != number:
            same = rows[first][1] == said
            problems.append(
                f"row {number} {'is the same as' if same else 'contradicts'} row {first}: one label of a "
                "trial by one person and rubric"
            )
    stored = {_key(label.run, label.said): label.said for label in stored_labels(store, suite)}
    new: list[_Row] = []
    for number, (run, said, at) in rows.items():
        before = stored.get(_key(run, said))
        if before is None:
            new.append((run, said, at))
        elif (before.value, before.note) != (said.value, said.note):
            problems.append(
                f"row {number} contradicts a label that is stored: {said.who} said {_value(before)} of run "
                f"{run}, not {_value(said)}"
            )
    _refuse(path, problems)
    for run, said, at in new:
        record_label(store, run, said, at=at)
    return len(new), len(rows) - len(new)


def _cells(label: Label) -> list[object]:
    said = label.said
    return [
        *(label.run, said.who, _value(said), said.note, said.rubric, said.rubric_hash),
        *(said.probability, said.drawn, said.seed, said.frame),
        *(dumps(said.repeat), label.at),
    ]


def _value(said: TrialLabelled) -> str:
    return _SKIP if said.value is None else str(said.value)


def _key(run: str, said: TrialLabelled) -> tuple[object, ...]:
    return run, said.who, said.rubric_hash, said.repeat


def _read(path: Path, suite: str) -> dict[int, _Row]:
    """Return the rows by their number, the headings being row 1."""
    try:
        # A note may have a line break of another system in it, which is not to be changed.
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = [*csv.DictReader(file, strict=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as CSV of labels: {error}") from error
    if not table:
        raise UsageError(f"{path} has no labels: a row of headings and a row per label, {', '.join(COLUMNS)}")
    if lacking := [name for name in ("run", "who", "value", "rubric") if name not in table[0]]:
        raise UsageError(f"{path} lacks the columns {', '.join(lacking)}; it has {', '.join(table[0])}")
    found: dict[int, _Row] = {}
    problems = []
    for number, cells in enumerate(table, 2):
        try:
            found[number] = _parsed(cells, suite)
        except (ValueError, UsageError, TypeError, AttributeError) as error:
            problems.append(f"row {number}: {error}")
    _refuse(path, problems)
    return found


def _parsed(read: Mapping[str, str], suite: str) -> _Row:
    if None in read or None in read.values():
        raise ValueError("it has more or fewer cells than there are headings")
    cells = {name: original_text(cell) for name, cell in read.items()}
    values = {"1": 1, "0": 0, _SKIP: None}
    if cells["value"].strip() not in values:
        raise ValueError(f"value is 1, 0 or {_SKIP}, not {cells['value']!r}")
    said = check_label(
        TrialLabelled(
            suite=suite,
            who=cells["who"],
            rubric=cells["rubric"],
            rubric_hash="",
            value=values[cells["value"].strip()],
            note=cells.get("note") or "",
            # A row that names no draw is of a trial that somebody chose.
            probability=float(cells.get("probability") or 1),
            drawn=int(cells.get("drawn") or 0),
            seed=int(cells.get("seed") or 0),
            frame=cells.get("frame") or "",
            repeat={"": False, "false": False, "true": True}[(cells.get("repeat") or "").strip().lower()],
        )
    )
    if (given := cells.get("rubric_hash")) and given != said.rubric_hash:
        raise ValueError(f"the hash {given} is not that of the rubric beside it, {said.rubric_hash}")
    at = float(cells["at"]) if cells.get("at") else None
    # Python has no dates after the year 9999.
    if at is not None and not 0 <= at < 253402300800.0:
        raise ValueError(f"at is a time in seconds since 1970, not {cells['at']!r}")
    return cells["run"], said, at


def _refuse(path: Path, problems: list[str]) -> None:
    if not problems:
        return
    more = [f"and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
    raise UsageError(
        "\n".join([f"{path} is not in order, and nothing of it was written:", *problems[:_NAMED], *more])
    )
