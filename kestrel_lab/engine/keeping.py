"""Answers that are too long to show: what a tool, and whoever looks at a run later, can have of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.events import Record, ToolAnswered
from kestrel_lab.engine.context import RunContext
from kestrel_lab.log.results import ResultStore, Spool
from kestrel_lab.tools.registry import Kept
from kestrel_lab.views.html import table_html
from kestrel_lab.views.text import table_text

_GONE = "is no longer kept whole: there was no room for it"


def kept(ctx: RunContext, name: str) -> Kept:
    """The answer of this run, or of the one it was forked from, that is kept under that name.

    Raises `ValueError` when there is none, so that no run can read in another's answers, and `FileNotFoundError` when it had to go.
    """
    whole = ctx.state.wholes.get(name)
    if whole is None:
        msg = f"no answer of this run is kept as {name!r}; {nearest(name, ctx.state.wholes)}"
        raise ValueError(msg)
    path = ctx.store.results.path(name)
    if path is None:
        msg = f"the answer of {whole.tool} {_GONE}; make the call again, for a smaller part of it"
        raise FileNotFoundError(msg)
    untrusted = whole.tool not in ctx.tools or ctx.tools.get(whole.tool).untrusted
    return Kept(path=path, chars=whole.chars, tool=whole.tool, untrusted=untrusted)


def begin_spool(ctx: RunContext, spools: list[Spool]) -> Spool:
    """A text that a call begins to keep; one for each call."""
    if spools:
        msg = "a call keeps one text only"
        raise UsageError(msg)
    spools.append(ctx.store.results.spool())
    return spools[0]


def end_spools(spools: list[Spool]) -> tuple[str, int]:
    """Name and length of what a call has kept, if anything."""
    return spools[0].close() if spools and spools[0].total else ("", 0)


class Answers(Mapping[str, str]):
    """What the tool calls of a run were answered, whole, by call: `run.results["c1"]`."""

    def __init__(self, records: list[Record], store: ResultStore) -> None:
        self._store = store
        self._answers = {record.event.call: record.event for record in records if isinstance(record.event, ToolAnswered)}

    def __getitem__(self, call: str) -> str:
        """The whole text; raises `UsageError` for a call that does not exist, and for a text that had to go."""
        found = self._answers.get(call)
        if found is None:
            msg = f"no call {call!r} of the run was answered; {nearest(call, self._answers)}"
            raise UsageError(msg)
        if not found.whole:
            return found.text
        path = self.path(call)
        if path is None:
            msg = f"the answer to call {call!r} {_GONE}; its beginning and end are in run.events()"
            raise UsageError(msg)
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
        return "no longer" if self._store.path(answer.whole) is None else "whole"

    def __repr__(self) -> str:
        return table_text(*self._table())

    def _repr_html_(self) -> str:
        return table_html(*self._table())
