"""Run diff: what two runs share, where they differ first, and what each did from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING

from kestrel_lab.core.events import union as e
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.tools.timeparse.session_time import from_json
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import args_line, format_count, usage_line
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    import pandas as pd

    from kestrel_lab.runtime.run import Run

_TIMES = frozenset({"seconds", "queued", "waited", "time"})
_COLUMNS = ("a_seq", "b_seq", "type", "same", "a", "b")
_SHOWN = 40
"""Rows behind the parting that are shown; the frame has all."""

Pair = tuple[e.Record | None, e.Record | None]


@dataclass(frozen=True, repr=False)
class RunDiff(PartsView):
    """Where two runs part.

    Two events are the same when their type and fields are; times and ids of runs and records do not count,
    nor what the system message says of the time at which the run began. The order counts. Left out is what
    only says how a run came to go on: changes of its state, `run_resumed`, `run_forked`, `files_kept`, and
    that a step was begun, or a model or a person asked, once more; and what was said of a run afterwards.
    """

    a: Run
    b: Run
    rows: tuple[Pair, ...]
    """The events side by side: equal ones first; after the difference, paired by type."""
    shared: int
    """How many events are the same before the runs part."""

    @property
    def first_a(self) -> e.Record | None:
        """The first event of `a` that is not in `b` at its place; `None` when `a` has nothing more."""
        return next((a for a, _ in self.rows[self.shared :] if a is not None), None)

    @property
    def first_b(self) -> e.Record | None:
        """The first event of `b` that is not in `a` at its place; `None` when `b` has nothing more."""
        return next((b for _, b in self.rows[self.shared :] if b is not None), None)

    @property
    def same(self) -> bool:
        """Whether the runs did the same from beginning to end."""
        return self.shared == len(self.rows)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per step: `a_seq`, `b_seq` (or missing), `type`, `same`, and what happened in each."""
        frame = unit_frame(
            [_row(pair, same=place < self.shared) for place, pair in enumerate(self.rows)],
            columns=list(_COLUMNS),
        )
        return frame.astype({"a_seq": "Int64", "b_seq": "Int64", "same": bool})

    def parts(self) -> Iterable[Part]:
        """Return both runs side by side, and the events that differ from where they part."""
        yield from ("", Table(("", "a", "b"), self._summary))
        if not self.same:
            yield from ("", Table(("a_seq", "b_seq", "type", "a", "b"), self._parted))

    @property
    def headline(self) -> str:
        """How far the runs are the same, in one line."""
        if self.same:
            return f"the runs did the same: {self.shared} events"
        left = len(self._differing) - _SHOWN
        more = f"; {left} more rows are in .frame" if left > 0 else ""
        after, differ = len(self.rows) - self.shared, len(self._differing)
        few = f"; {differ} of {format_count(after, 'event')} from there differ" if differ < after else ""
        return f"the runs share {format_count(self.shared, 'event')}, then part{few}{more}"

    @property
    def _summary(self) -> list[tuple[str, str, str]]:
        a, b = self.a, self.b
        return [
            ("run", a.id, b.id),
            ("status", str(a.status), str(b.status)),
            ("model", a.report.model, b.report.model),
            ("answer", one_line(a.answer, 200), one_line(b.answer, 200)),
            ("used", usage_line(a.usage), usage_line(b.usage)),
        ]

    @cached_property
    def _differing(self) -> list[tuple[int | None, int | None, str, bool, str, str]]:
        rows = (_row(pair, same=False) for pair in self.rows[self.shared :])
        return [row for row in rows if not row[3]]

    @property
    def _parted(self) -> list[tuple[object, ...]]:
        shown = self._differing[:_SHOWN]
        return [(a_seq or "", b_seq or "", kind, a, b) for a_seq, b_seq, kind, _, a, b in shown]


def diff_runs(a: Run, b: Run) -> RunDiff:
    """Compare two runs event by event; they need not be forks of each other."""
    left, right = _actions(a.records()), _actions(b.records())
    shared = next(
        (place for place, (x, y) in enumerate(zip(left, right, strict=False)) if _events_differ(x, y)),
        min(len(left), len(right)),
    )
    rows = [*zip(left[:shared], right[:shared], strict=True), *_pair_records(left[shared:], right[shared:])]
    return RunDiff(a=a, b=b, rows=tuple(rows), shared=shared)


_PASSED_OVER = (
    e.RunInterrupted,
    e.RunResumed,
    e.RunForked,
    e.StateTransition,
    e.CheckpointSaved,
    e.FilesKept,
    e.Annotation,
)


def _actions(records: Sequence[e.Record]) -> list[e.Record]:
    """The records without those that only say how the run came to go on."""
    last = {key: record.seq for record in records if (key := _repeatable(record.event))}
    first = {key: record.seq for record in reversed(records) if (key := _repeatable(record.event))}
    kept = []
    for record in records:
        key = _repeatable(record.event)
        stays = first if isinstance(record.event, e.StepStarted) else last
        if not isinstance(record.event, _PASSED_OVER) and (key is None or stays[key] == record.seq):
            kept.append(record)
    return kept


def _repeatable(event: e.Event) -> tuple[str, str] | None:
    """What a run that goes on may begin or ask once more."""
    match event:
        case e.StepStarted(step=name) | e.ModelCalled(call=name):
            return event.type, name
        case e.ApprovalAsked():
            return event.type, event.question or event.call
        case _:
            return None


def _events_differ(a: e.Record, b: e.Record) -> bool:
    return a.event.type != b.event.type or (
        a.eid != b.eid and _without_times(a.event) != _without_times(b.event)
    )


def _without_times(event: e.Event) -> dict[str, object]:
    content: dict[str, object] = {
        name: value for name, value in e.to_json(event).items() if name not in _TIMES
    }
    if isinstance(event, e.RunStarted) and (began := from_json(event.time)) is not None:
        content["system"] = event.system.replace(began.line, "")
        content["guidance"] = [
            {name: value for name, value in one.items() if name != "at"} for one in event.guidance
        ]
    return content


def _pair_records(left: Sequence[e.Record], right: Sequence[e.Record]) -> list[Pair]:
    rows: list[Pair] = []
    # Where they part belongs on one row.
    if left and right and left[0].event.type == right[0].event.type:
        rows, left, right = [(left[0], right[0])], left[1:], right[1:]
    kinds = SequenceMatcher(None, [r.event.type for r in left], [r.event.type for r in right], autojunk=False)
    for tag, i1, i2, j1, j2 in kinds.get_opcodes():
        if tag == "equal":
            rows += zip(left[i1:i2], right[j1:j2], strict=True)
        else:
            rows += [(record, None) for record in left[i1:i2]]
            rows += [(None, record) for record in right[j1:j2]]
    return rows


def _row(pair: Pair, *, same: bool) -> tuple[int | None, int | None, str, bool, str, str]:
    a, b = pair
    kind = next(record.event.type for record in pair if record is not None)
    same = same or (a is not None and b is not None and not _events_differ(a, b))
    return (
        None if a is None else a.seq,
        None if b is None else b.seq,
        kind,
        same,
        _record_text(a, b),
        _record_text(b, a),
    )


def _record_text(record: e.Record | None, other: e.Record | None) -> str:
    """Return what happened, in a line; of an event without a form of its own, the fields that differ."""
    if record is None:
        return ""
    match record.event:
        case e.ModelCalled(model=model):
            return model
        case e.ModelAnswered() as event:
            asked = ", ".join(
                # The engine wrote the arguments, so they are a mapping.
                f"{call.get('name')} {args_line(call.get('args') or {})}"  # type: ignore[arg-type]
                for call in event.calls
            )
            return one_line(
                str((event.error or {}).get("message", "")) or " → ".join(filter(None, (event.text, asked))),
                200,
            )
        case e.ToolCalled() as event:
            return one_line(f"{event.tool} {args_line(event.args)}", 200)
        case e.ToolAnswered() as event:
            return one_line(f"{event.tool}: {event.text[:1_000]}", 200)
        case e.ApprovalGiven() as event:
            word = "denied" if not event.granted else "approved" if event.answer is None else "answered"
            return one_line(
                f"{word} by {event.by} {event.reason if event.answer is None else event.answer}", 200
            )
        case e.RunFinished() as event:
            return one_line(f"{event.outcome}: {event.answer[:1_000] or event.reason}", 200)
        case event:
            same = {} if other is None or other.event.type != event.type else _without_times(other.event)
            fields = {
                name: value
                for name, value in _without_times(event).items()
                if value not in ("", None, [], {}) and (name not in same or same[name] != value)
            }
            return one_line(", ".join(f"{name}={value}" for name, value in fields.items()), 200)
