"""A check of how much of what matters was found: recall among the first k of what a run lists or reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal

from kestrel_lab.checks.citation import named_in
from kestrel_lab.checks.trajectory import made_calls
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json, values_in
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text import one_line

_BULLET: Final = re.compile(r"^\s*(?:[-*+•]|\d{1,4}[.)]|\|)\s+(.*)$")
_READING: Final = {"read_file": "path", "batch_read": "paths"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallAtK:
    """Enough of what is relevant is among the first `k` things that the run found.

    These are the items of the answer: of a JSON list in it, else its lines with bullets or numbers, else all of its
    lines, or what stands between commas on a single one. With `of: files` they are the files that the run read, in
    order. A thing counts where its name stands in the item as a whole; each item counts once, in the first place it
    has.
    """

    relevant: tuple[str, ...]
    k: int
    at_least: float = 1.0
    of: Literal["answer", "files"] = "answer"

    def __post_init__(self) -> None:
        if not self.relevant or not all(name.strip() for name in self.relevant) or len(set(self.relevant)) < len(self.relevant):
            msg = "recall_at_k needs relevant names, none of them empty or there twice"
            raise UsageError(msg)
        if self.k < 1 or not 0 < self.at_least <= 1:
            msg = f"recall_at_k needs k of at least 1 and at_least above 0 up to 1, not {self.k} and {self.at_least}"
            raise UsageError(msg)

    @property
    def label(self) -> str:
        """The check in words."""
        where = "files read" if self.of == "files" else "answer"
        return f"recall@{self.k} of {len(self.relevant)} in {where}" + ("" if self.at_least == 1 else f" at least {self.at_least:g}")

    async def __call__(self, trial: Trial) -> Score:
        """Pass from `at_least` on; `value` is the recall: the share of what is relevant that is among the first `k`."""
        items = _read(trial) if self.of == "files" else listed(trial.answer)
        first = items[: self.k]
        missing = [name for name in self.relevant if not any(self._fits(name, item) for item in first)]
        value = 1 - len(missing) / len(self.relevant)
        passed = value >= self.at_least - 1e-9  # a share such as 2 / 3 is written as 0.6667 only by mistake
        what = f"not among the first {self.k} of {len(items)}: {', '.join(missing)}" if items else "nothing was listed or read"
        return Score(check=self.label, passed=passed, value=value, reason="" if passed else one_line(what, 200))

    def _fits(self, name: str, item: str) -> bool:
        return PurePosixPath(name) == PurePosixPath(item) if self.of == "files" else named_in(item, name)


def listed(answer: str) -> list[str]:
    """The things that an answer lists, in order and without repeats."""
    for value in values_in(answer, "["):
        if isinstance(value, list) and value and all(isinstance(item, str | dict) for item in value):
            return list(dict.fromkeys(map(_item, value)))
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    bullets = [match[1].strip() for line in lines if (match := _BULLET.match(line))]
    if bullets:
        return list(dict.fromkeys(bullets))
    if len(lines) == 1:
        return list(dict.fromkeys(part.strip() for part in lines[0].split(",") if part.strip()))
    return list(dict.fromkeys(lines))


def _item(value: Json) -> str:
    return value if isinstance(value, str) else " ".join(str(part) for part in value.values()) if isinstance(value, dict) else str(value)


def _read(trial: Trial) -> list[str]:
    """The files that were read with success, relative to the workspace."""
    found: list[str] = []
    for call in made_calls(trial.records):
        given = call.args.get(_READING[call.tool]) if call.ok and call.tool in _READING else None
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, str) and path:
                place = PurePosixPath(path)
                found.append((place.relative_to(trial.workspace) if place.is_relative_to(trial.workspace) else place).as_posix())
    return list(dict.fromkeys(found))
