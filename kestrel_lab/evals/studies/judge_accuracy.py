"""Accuracy of a model judge of claims: sensitivity and specificity against labels, with intervals.

A claim that its evidence does not support is what the judge has to find: it finds one by calling it
contradicted or neither. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.checks.llm_judge import judge_claim
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.json_types import loads
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval, wilson_proportion
from kestrel_lab.evals.summaries.result_table import label_kind
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: Final = (
    "set",
    "claims",
    "unsupported found (sensitivity)",
    "supported passed (specificity)",
    "balanced accuracy",
    "no verdict",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledClaim:
    """A claim with its evidence, and whether people say that it is supported."""

    claim: str
    evidence: tuple[str, ...]
    supported: bool
    set: str = ""


@dataclass(kw_only=True, slots=True)
class Counts:
    """Judged claims of one set."""

    unsupported: int = 0
    found: int = 0
    """Unsupported ones that the judge found."""
    supported: int = 0
    passed: int = 0
    """Supported ones that the judge passed."""
    silent: int = 0
    """Claims on which it came to no verdict; they count in no rate."""

    @property
    def balanced(self) -> float | None:
        """The mean of both rates; `None` where one of them is not known."""
        return (
            (self.found / self.unsupported + self.passed / self.supported) / 2
            if self.unsupported and self.supported
            else None
        )


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class JudgeAccuracy(TableView):
    """How often a judge is right, by set."""

    judge: str
    """The model's name, with its kind where it is not a real one."""
    sets: Mapping[str, Counts]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per set: the counts, and each rate with its interval as shares."""
        rows = [
            {
                "set": name,
                "judge": self.judge,
                **asdict(one),
                **_rate(one.found, one.unsupported).columns("sensitivity"),
                **_rate(one.passed, one.supported).columns("specificity"),
            }
            for name, one in self.sets.items()
        ]
        return unit_frame(rows)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings, and a row of texts per set."""
        rows: list[tuple[str, ...]] = [
            (
                name,
                str(one.unsupported + one.supported),
                _rate_text(one.found, one.unsupported),
                _rate_text(one.passed, one.supported),
                "" if one.balanced is None else f"{one.balanced:.0%}",
                str(one.silent or ""),
            )
            for name, one in self.sets.items()
        ]
        return _COLUMNS, rows

    @property
    def headline(self) -> str:
        """The judge."""
        return f"judge: {self.judge}"


def _rate(count: int, of: int) -> Interval:
    return NOTHING if not of else wilson_proportion(count, of)


def _rate_text(count: int, of: int) -> str:
    return f"{count} of {of}: {_rate(count, of).text('{:.0%}'.format, '–')}" if of else "unknown"


def read_labelled(path: Path) -> list[LabelledClaim]:
    """Return the claims of a JSON Lines file: `claim`, `evidence` (a list of texts), `supported` (true or
    false), and `set` if there are several.

    Raises `UsageError` that names the line for anything else.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r} of labelled claims")
    found: list[LabelledClaim] = []
    for number, line in enumerate(split_lines(path.read_text(encoding="utf-8")), 1):
        try:
            row: Any = loads(line)
            fits = (
                isinstance(row["claim"], str)
                and isinstance(row["evidence"], list)
                and isinstance(row["supported"], bool)
            )
        except (ValueError, KeyError, TypeError):
            fits = False
        if not fits:
            raise UsageError(
                f"{path}, line {number}: a labelled claim is {{claim: text, evidence: [texts], "
                f"supported: true or false}}"
            )
        found.append(
            LabelledClaim(
                claim=row["claim"],
                evidence=tuple(row["evidence"]),
                supported=row["supported"],
                set=str(row.get("set", path.stem)),
            )
        )
    return found


def sample_claims(rows: Iterable[LabelledClaim], limit: int | None) -> list[LabelledClaim]:
    """Return at most `limit` claims of each set, drawn at random."""
    rng, sets = random.Random(1), dict[str, list[LabelledClaim]]()  # a sample, no secret  # noqa: S311
    for row in rows:
        sets.setdefault(row.set, []).append(row)
    return [
        row
        for kept in sets.values()
        for row in (kept if limit is None or len(kept) <= limit else rng.sample(kept, limit))
    ]


async def judge_accuracy(
    model: Model, rows: Sequence[LabelledClaim], reporter: Reporter | None = None
) -> JudgeAccuracy:
    """Ask the judge about each claim, one at a time; raises `UsageError` without claims and `ModelError`
    where it never comes to a verdict.
    """
    if not rows:
        raise UsageError("there are no labelled claims to judge")
    sets: dict[str, Counts] = {}
    problem: ModelError | None = None
    for done, row in enumerate(rows, 1):
        mine = sets.setdefault(row.set, Counts())
        try:
            entailed = (await judge_claim(model, row.claim, row.evidence)).verdict == "entailed"
        except ModelError as error:
            mine.silent += 1
            problem = error
        else:
            mine.supported += row.supported
            mine.unsupported += not row.supported
            mine.passed += row.supported and entailed
            mine.found += not row.supported and not entailed
        if reporter is not None:
            reporter(done, len(rows), row.set)
    # A judge that never answers is broken, which is no accuracy of 0.
    if problem is not None and sum(one.silent for one in sets.values()) == len(rows):
        raise problem
    return JudgeAccuracy(judge=label_kind(model.name, model.kind), sets=sets)
