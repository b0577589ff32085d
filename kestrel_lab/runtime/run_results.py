"""Results of a run: the typed value of its answer, and the whole text of each tool call, also of those that were too long to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from kestrel_lab.answers.output_types import OutputType, T
from kestrel_lab.core.errors import RunFailed, StoreError, UsageError, nearest
from kestrel_lab.core.events.union import Record, ToolAnswered
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.large_results import ResultStore
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.runtime.execution.artifacts import answer_makers, answer_value
from kestrel_lab.views.html.elements import table_html
from kestrel_lab.views.text import table_text

_GONE = "is no longer kept whole: there was no room for it"


class Answers(Mapping[str, str]):
    """The whole result of each tool call of a run, by call: `run.results["c1"]`."""

    def __init__(self, records: list[Record], store: ResultStore) -> None:
        self._store = store
        self._answers = {record.event.call: record.event for record in records if isinstance(record.event, ToolAnswered)}

    def __getitem__(self, call: str) -> str:
        """The whole text; raises `UsageError` for a call that does not exist, and for a text that had to go."""
        found = self._answers.get(call)
        if found is None:
            raise UsageError(f"no call {call!r} of the run was answered; {nearest(call, self._answers)}")
        if not found.whole:
            return found.text
        path = self.path(call)
        if path is None:
            raise UsageError(f"the answer to call {call!r} {_GONE}; its beginning and end are in run.events()")
        return path.read_text(encoding="utf-8", errors="replace")

    def path(self, call: str) -> Path | None:
        """The file of a text that is kept whole, for those too long to hold; `None` for any other."""
        found = self._answers.get(call)
        return None if found is None else self._store.path(found.whole)

    def __contains__(self, call: object) -> bool:
        return call in self._answers

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        rows: list[tuple[str, ...]] = [
            (call, one.tool, f"{one.chars or len(one.text):,}", self._kept(one)) for call, one in self._answers.items()
        ]
        return ("call", "tool", "characters", "kept"), rows

    def _kept(self, answer: ToolAnswered) -> str:
        if not answer.whole:
            return "beginning and end" if answer.truncated else "in the log"
        try:
            return "no longer" if self._store.path(answer.whole) is None else "whole"
        except StoreError:
            return "changed since"

    def __repr__(self) -> str:
        return table_text(*self._table())

    def _repr_html_(self) -> str:
        return table_html(*self._table())


def value_of(run_id: str, state: RunState, kind: OutputType[T] | None) -> T:
    """Return the typed answer of a run; `kind` is its type, where that is known. Raises as `Run.value` says."""
    asked = (state.started.output if state.started else {}) or next((one.schema for one in answer_makers(state.planned) if one.schema), {})
    if kind is None and not asked:
        raise UsageError(f"run {run_id} was not asked for a value: begin it with output=…, or read run.answer")
    if not state.status.terminal:
        raise UsageError(f"run {run_id} has no value yet: it is {state.status}")
    if state.finished is None or state.finished.outcome != "complete":
        reason = "" if state.finished is None else f": {one_line(state.finished.reason, 500)}"
        raise RunFailed(f"run {run_id} has no value, it ended {state.status}{reason}")
    if kind is not None and asked and kind.schema != asked:
        raise UsageError(f"run {run_id} was begun with another output: the schema of the type given now is not the one in the log")
    return (kind or OutputType(asked)).value(answer_value(state))
