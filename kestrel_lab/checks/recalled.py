"""A check of what a run was told of earlier ones: which notes its memory gave it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import MemoryRecalled
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """Of the scenario's `notes`, these are among the first `k` that the run was given, and none of `never` is among any.

    Notes are known by their names in the scenario, in the order in which the run was given them; what a model made of
    them is not looked at. The value is `recall@k` of the trial where there are `notes`.
    """

    needs: ClassVar[str] = ""

    notes: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    k: int = 5

    def __post_init__(self) -> None:
        named = (*self.notes, *self.never)
        if not named or not all(named) or len(set(named)) < len(named) or self.k < 1:
            msg = "recalled needs names of notes, each once and none empty, under notes or never, and k of at least 1"
            raise UsageError(msg)

    @property
    def label(self) -> str:
        """The check in words, which begins with the name of its metric where it has one."""
        wanted = f"recall@{self.k} of notes: {one_line(', '.join(self.notes), 60)}" if self.notes else ""
        refused = f"never recalled: {one_line(', '.join(self.never), 60)}" if self.never else ""
        return "; ".join(filter(None, (wanted, refused)))

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the right ones are there."""
        events = (record.event for record in trial.records)
        given = list(dict.fromkeys(str(note["id"]) for event in events if isinstance(event, MemoryRecalled) for note in event.notes))
        missing = [name for name in self.notes if not any(_is(note, name) for note in given[: self.k])]
        wrong = [name for name in self.never if any(_is(note, name) for note in given)]
        told = [f"not among the first {self.k} of {len(given)} notes: {', '.join(missing)}"] if missing else []
        told += [f"recalled all the same: {', '.join(wrong)}"] if wrong else []
        value = 1 - len(missing) / len(self.notes) if self.notes else float(not wrong)
        return Score(check=self.label, passed=not told, value=value, reason=one_line("; ".join(told), 200))


def _is(note: str, name: str) -> bool:
    return re.fullmatch(rf"{re.escape(name)}[0-9a-f]{{8}}", note) is not None
