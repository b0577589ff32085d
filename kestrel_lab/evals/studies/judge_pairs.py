"""Judges of pairs by recorded verdicts: how often each picks the better output, and what else moves it.

The verdicts are in the file, in both orders, so that no model is asked. Intervals are of 95 %; both orders of
a pair are one cluster.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import loads
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.evals.labels.agreement import cohen_kappa
from kestrel_lab.evals.labels.judge_measures import difference
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval, proportion_interval
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd

_LINE: Final = (
    "a labelled pair is {id, output_1, output_2: texts, label: 1 or 2, judges: {name: [verdict in the given "
    "order, verdict in the other one]}}, each verdict 1, 2 or null"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedPair:
    """Two outputs, which of them is better, and the verdicts of judges in both orders."""

    id: str
    label: int
    """1 or 2: the output that is better."""
    longer: int
    """1 or 2: the output that is longer; 0 where they are equally long."""
    judges: Mapping[str, tuple[int | None, int | None]]
    """By judge, the output it picked when shown 1 first, and when shown 2 first; `None` for no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairMeasures:
    """One judge; shares from 0 to 1."""

    judge: str
    pairs: int
    silent: int
    """Verdicts that it did not give, of two for each pair; they count in nothing."""
    right: Interval
    """How often it picks the better output, over both orders."""
    given: Interval
    """The same in the given order alone."""
    picks_1: Interval
    """How often it picks 1 where 1 is better: its sensitivity."""
    picks_2: Interval
    """How often it picks 2 where 2 is better: its specificity."""
    kappa: Interval
    same_swapped: Interval
    """How often it picks the same output in both orders."""
    first: Interval
    """By how much more often than every second time it picks the output that it is shown first."""
    longer: Interval
    """By how much more often it is right where the longer output is better than where the shorter is."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class JudgedPairs(TableView):
    """Judges of pairs, the one that is right most often first."""

    file: str
    judges: tuple[PairMeasures, ...]

    @property
    def headline(self) -> str:
        """How many judges, and pairs."""
        pairs = max((one.pairs for one in self.judges), default=0)
        return (
            f"{self.file}: {format_count(len(self.judges), 'judge')} on "
            f"{format_count(pairs, 'labelled pair')}, in both orders"
        )

    @property
    def frame(self) -> pd.DataFrame:
        """One row per judge: `pairs`, `silent`, and each measure with `…_low` and `…_high`."""
        rows = []
        for one in self.judges:
            record: dict[str, Any] = {"judge": one.judge, "pairs": one.pairs, "silent": one.silent}
            for name in ("right", "given", "picks_1", "picks_2", "kappa", "same_swapped", "first", "longer"):
                record |= getattr(one, name).columns(name)
            rows.append(record)
        return unit_frame(rows)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return headings, and a row of texts per judge."""
        rows = [
            (
                one.judge,
                _share(one.right),
                _share(one.picks_1),
                _share(one.picks_2),
                _share(one.same_swapped),
                _points(one.first),
                _points(one.longer),
                str(one.silent or ""),
            )
            for one in self.judges
        ]
        return _COLUMNS, rows


_COLUMNS: Final = (
    "judge",
    "right (95 %)",
    "1 found (sensitivity)",
    "2 found (specificity)",
    "same in both orders",
    "prefers the first (points)",
    "prefers the longer (points)",
    "no verdict",
)


def read_pairs(path: Path) -> list[JudgedPair]:
    """Return the pairs of a JSON Lines file; raises `UsageError` that names the line for anything else."""
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r} of labelled pairs")
    found = []
    for number, line in enumerate(split_lines(path.read_text(encoding="utf-8")), 1):
        try:
            row: Any = loads(line)
            pair = _pair(row, number)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}, line {number}: {_LINE}") from error
        found.append(pair)
    return found


def are_pairs(path: Path) -> bool:
    """Return whether the first line of a file is a pair."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return '"output_1"' in file.readline()


def measure_pairs(pairs: Sequence[JudgedPair], file: str = "pairs") -> JudgedPairs:
    """Measure every judge of the pairs; raises `UsageError` where there is none."""
    names = dict.fromkeys(name for pair in pairs for name in pair.judges)
    if not names:
        raise UsageError(f"{file} has no verdicts of judges: {_LINE}")
    found = [_measures(name, pairs) for name in names]
    return JudgedPairs(file=file, judges=tuple(sorted(found, key=lambda one: -one.right.mean)))


def _measures(name: str, pairs: Sequence[JudgedPair]) -> PairMeasures:
    given = [pair for pair in pairs if name in pair.judges]
    # Each verdict with its pair, and the output that was shown first.
    said = [
        (pair, verdict, first)
        for pair in given
        for first, verdict in enumerate(pair.judges[name], 1)
        if verdict is not None
    ]

    def share(values: Iterable[tuple[JudgedPair, bool]]) -> Interval:
        of = [*values]
        return proportion_interval([float(v) for _, v in of], [p.id for p, _ in of]) if of else NOTHING

    unequal = [(pair, verdict) for pair, verdict, _ in said if pair.longer]
    first = share((pair, verdict == shown) for pair, verdict, shown in said)
    by_order: dict[str, dict[str, Hashable]] = {
        f"{pair.id}/{shown}": {"judge": verdict, "label": pair.label} for pair, verdict, shown in said
    }
    both = [(pair, pair.judges[name]) for pair in given if None not in pair.judges[name]]
    return PairMeasures(
        judge=name,
        pairs=len(given),
        silent=2 * len(given) - len(said),
        right=share((pair, verdict == pair.label) for pair, verdict, _ in said),
        given=share((pair, verdict == pair.label) for pair, verdict, shown in said if shown == 1),
        picks_1=share((pair, verdict == 1) for pair, verdict, _ in said if pair.label == 1),
        picks_2=share((pair, verdict == 2) for pair, verdict, _ in said if pair.label == 2),
        kappa=cohen_kappa(by_order, {key: key.rpartition("/")[0] for key in by_order}),
        same_swapped=share((pair, one == other) for pair, (one, other) in both),
        first=_less_half(first),
        longer=difference(
            [float(verdict == pair.label) for pair, verdict in unequal],
            [1.0] * len(unequal),
            [pair.id for pair, _ in unequal],
            [pair.longer == pair.label for pair, _ in unequal],
        ),
    )


def _less_half(found: Interval) -> Interval:
    return Interval(
        mean=found.mean - 0.5,
        low=found.low - 0.5,
        high=found.high - 0.5,
        se=found.se,
        clusters=found.clusters,
        n=found.n,
    )


def _pair(row: Any, number: int) -> JudgedPair:
    sizes = len(row["output_1"]), len(row["output_2"])
    judges = {str(name): tuple(verdicts) for name, verdicts in row["judges"].items()}
    allowed = all(
        len(verdicts) == 2 and all(verdict in (1, 2, None) for verdict in verdicts)
        for verdicts in judges.values()
    )
    if row["label"] not in (1, 2) or not allowed or not isinstance(row["output_1"], str):
        raise ValueError(number)
    return JudgedPair(
        id=str(row.get("id", number)),
        label=row["label"],
        longer=0 if sizes[0] == sizes[1] else 1 + (sizes[1] > sizes[0]),
        judges=judges,
    )


def _share(found: Interval) -> str:
    return found.text("{:.0%}".format, "–") if found.n else "unknown"


def _points(found: Interval) -> str:
    return found.times(100).text("{:+.0f}".format) if found.n else "unknown"
