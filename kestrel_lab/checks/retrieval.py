"""Retrieval checks: recall@k of what a run was shown by its tools, and of the notes that its memory gave
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import MemoryRecalled, Record, RetrievalStep, StepFinished, ToolAnswered
from kestrel_lab.core.json_types import Json, readable
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import LogCheck, Score
from kestrel_lab.core.text_files import split_lines


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallAt(LogCheck):
    """Of the items that matter, the share that is among the first `k` results which the run was shown.

    Results are those of `tool`, of all tools and operations where it is empty, in the order in which they
    came: of a look-up in an index and of an operation the files that it gave, else elements of a list or
    lines; the same one twice counts once, and calls that failed give none. An item is found by a result that
    names it, letter by letter and not inside a longer name; a file that was looked up by its whole path. The
    value is `recall@k` of the trial, a column of its own in frames; the check passes from `at_least` on, with
    0 it only measures.
    """

    items: tuple[str, ...]
    k: int = 10
    tool: str = ""
    at_least: float = 1.0

    def __post_init__(self) -> None:
        if (
            not self.items
            or not all(item.strip() for item in self.items)
            or len(set(self.items)) < len(self.items)
        ):
            raise UsageError("recall_at needs at least one item, none of them empty and none twice")
        if self.k < 1 or not 0 <= self.at_least <= 1:
            raise UsageError(
                f"recall_at needs k of at least 1, and at_least from 0 to 1, not {self.k} and {self.at_least}"
            )

    @property
    def label(self) -> str:
        """The check in words, which begins with the name of its metric."""
        share = "" if self.at_least in (0, 1) else f" at least {self.at_least:g}"
        return (
            f"recall@{self.k}{f' of {self.tool}' if self.tool else ''}{share}: "
            f"{one_line(', '.join(self.items), 60)}"
        )

    async def __call__(self, trial: Trial) -> Score:
        """Pass when enough of the items are there."""
        shown = list(dict.fromkeys(retrieved_results(trial.records, self.tool)))
        missing = [
            item for item in self.items if not any(self.names(result, item) for result in shown[: self.k])
        ]
        value = 1 - len(missing) / len(self.items)
        # A share such as 2 / 3 is written as .67 in a file only by mistake; rounding errors are forgiven.
        passed = value >= self.at_least - 1e-9
        where = f"the first {self.k} of {len(shown)} results" if shown else "no results"
        reason = "" if passed else f"not in {where}: {one_line(', '.join(missing), 160)}"
        return Score(check=self.label, passed=passed, value=value, reason=reason)

    @staticmethod
    def names(result: str | PurePosixPath, item: str) -> bool:
        """Return whether a result names an item: letter by letter and not inside a longer name, a file of a
        look-up by its whole path.
        """
        if isinstance(result, PurePosixPath):
            return result == PurePosixPath(item)
        return re.search(rf"(?<!\w){re.escape(item)}(?!\w)", result) is not None


def retrieved_results(records: Iterable[Record], tool: str) -> Iterator[str | PurePosixPath]:
    """Yield the results that the run was shown; files of a look-up in an index are paths."""
    looked_up: dict[str, list[PurePosixPath]] = {}
    for event in (record.event for record in records):
        match event:
            case RetrievalStep(call=call, stopped=stopped) if call and stopped:
                looked_up[call] = _files(event.hits)
            case ToolAnswered(error=None, given=False) if tool in ("", event.tool):
                yield from looked_up.get(event.call) or _elements(event)
            case StepFinished(output={"files": list(files)}) if not tool:
                yield from _files(files)


def _files(listed: Iterable[Json]) -> list[PurePosixPath]:
    return [PurePosixPath(str(file["path"])) for file in listed if isinstance(file, dict) and "path" in file]


def _elements(answer: ToolAnswered) -> Iterator[str]:
    if isinstance(answer.value, list):
        yield from (value if isinstance(value, str) else readable(value) for value in answer.value)
    else:
        yield from (line.strip() for line in split_lines(answer.text) if line.strip())


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled(LogCheck):
    """Of the scenario's `notes`, these are among the first `k` that the run was given, and none of `never` is
    among any.

    Notes are known by their names in the scenario, in the order in which the run was given them; what a model
    made of them is not looked at. The value is `recall@k` of the trial where there are `notes`.
    """

    notes: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    k: int = 5

    def __post_init__(self) -> None:
        named = (*self.notes, *self.never)
        if not named or not all(named) or len(set(named)) < len(named) or self.k < 1:
            raise UsageError(
                "recalled needs names of notes, each once and none empty, under notes or never, and k "
                "of at least 1"
            )

    @property
    def label(self) -> str:
        """The check in words, which begins with the name of its metric where it has one."""
        wanted = f"recall@{self.k} of notes: {one_line(', '.join(self.notes), 60)}" if self.notes else ""
        refused = f"never recalled: {one_line(', '.join(self.never), 60)}" if self.never else ""
        return "; ".join(filter(None, (wanted, refused)))

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the right ones are there."""
        events = (record.event for record in trial.records)
        given = list(
            dict.fromkeys(
                str(note["id"])
                for event in events
                if isinstance(event, MemoryRecalled)
                for note in event.notes
            )
        )
        missing = [name for name in self.notes if not any(_is_note(note, name) for note in given[: self.k])]
        wrong = [name for name in self.never if any(_is_note(note, name) for note in given)]
        problems = (
            [f"not among the first {self.k} of {len(given)} notes: {', '.join(missing)}"] if missing else []
        )
        problems += [f"recalled all the same: {', '.join(wrong)}"] if wrong else []
        value = 1 - len(missing) / len(self.notes) if self.notes else float(not wrong)
        return Score(
            check=self.label, passed=not problems, value=value, reason=one_line("; ".join(problems), 200)
        )


def _is_note(note: str, name: str) -> bool:
    return re.fullmatch(rf"{re.escape(name)}[0-9a-f]{{8}}", note) is not None
