"""Alignment of transcripts: which steps of two and more runs correspond, and where the runs part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import zip_longest
from typing import Final, Literal

from kestrel_lab.core.json_types import readable
from kestrel_lab.evals.transcripts.transcript import Transcript, TranscriptStep
from kestrel_lab.language.words import normal_form

_CELLS: Final = 1_000_000
"""Pairs of steps that are weighed one by one; longer runs are aligned by equal steps alone."""
_GAP: Final = -0.4
"""A step without a partner costs so much: less than a partner that has only its kind in common gives."""

Slot = TranscriptStep | None
Same = Literal["same", "other answer", "other arguments", "differs", "not in all"]


@dataclass(frozen=True, slots=True)
class AlignedRow:
    """Steps of several runs that correspond, one per run; `None` where a run has none."""

    steps: tuple[Slot, ...]

    @property
    def same(self) -> Same:
        """How far the steps are the same."""
        there = [step for step in self.steps if step is not None]
        if len(there) < len(self.steps):
            return "not in all"
        if len({step_key(step) for step in there}) == 1:
            return "same"
        if len({step.tool for step in there}) > 1 or any(step.kind != "call" for step in there):
            return "differs"
        return "other answer" if len({_arguments(step) for step in there}) == 1 else "other arguments"


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Rows of corresponding steps, in the order of each run."""

    rows: tuple[AlignedRow, ...]
    shared_events: int = 0
    """Events that all runs have in common because they are forks of each other: these rows are exact."""

    def following(self, run: int, place: int) -> Slot:
        """Return the step of a run at a row, or its next one behind it; `None` where it has no more."""
        steps = (row.steps[run] for row in self.rows[place:])
        return next((step for step in steps if step is not None), None)

    @cached_property
    def first(self) -> int | None:
        """The place of the first row that is not the same in all runs; `None` where all are."""
        return next((place for place, row in enumerate(self.rows) if row.same != "same"), None)


def step_key(step: TranscriptStep) -> tuple[str, str, str, str]:
    """Return what makes a step the same as one of another run: kind, tool, arguments and text."""
    return step.kind, step.tool, _arguments(step), normal_form(step.text)


def align_transcripts(runs: Sequence[Transcript]) -> Alignment:
    """Align the steps of runs: exactly as far as their events are the same ones, by calls and texts behind.

    Each run is aligned with the first one so that the sum over pairs of steps is largest, where equal steps
    count most, then calls of one tool with the same arguments (Needleman and Wunsch 1970).
    """
    first = runs[0].steps
    pairs = [_pairs(first, run.steps) for run in runs[1:]]
    rows = list[AlignedRow]()
    ahead = [0] * len(pairs)
    for place in range(len(first) + 1):
        # Steps that only the others have are before the next one of the first run, side by side.
        extra: list[list[TranscriptStep]] = []
        for number, found in enumerate(pairs):
            start = ahead[number]
            while ahead[number] < len(found) and found[ahead[number]][0] is None:
                ahead[number] += 1
            extra.append([step for _, step in found[start : ahead[number]] if step is not None])
        rows += [AlignedRow((None, *steps)) for steps in zip_longest(*extra)]
        if place < len(first):
            others = [found[ahead[number]][1] for number, found in enumerate(pairs)]
            ahead = [at + 1 for at in ahead]
            rows.append(AlignedRow((first[place], *others)))
    return Alignment(rows=tuple(rows), shared_events=_shared_events(runs))


def _shared_events(runs: Sequence[Transcript]) -> int:
    """Return how many events all runs begin with that are the same ones, not merely equal."""
    count = 0
    for records in zip(*(run.records for run in runs), strict=False):
        if len({record.eid for record in records}) > 1:
            break
        count += 1
    return count


Pairs = list[tuple[Slot, Slot]]


def _pairs(one: Sequence[TranscriptStep], other: Sequence[TranscriptStep]) -> Pairs:
    """Return corresponding steps of two runs, in order, and those without a partner."""
    keys = [[step_key(step) for step in steps] for steps in (one, other)]
    start = next(
        (at for at, (a, b) in enumerate(zip(*keys, strict=False)) if a != b), min(map(len, keys))
    )  # what they begin with needs no weighing
    found: Pairs = list(zip(one[:start], other[:start], strict=True))
    one, other = one[start:], other[start:]
    if len(one) * len(other) > _CELLS:
        return found + _by_equal_steps(one, other, keys[0][start:], keys[1][start:])
    return found + _best_pairs(one, other)


def _by_equal_steps(
    one: Sequence[TranscriptStep],
    other: Sequence[TranscriptStep],
    keys: Sequence[object],
    other_keys: Sequence[object],
) -> Pairs:
    found: Pairs = []
    blocks = SequenceMatcher(None, keys, other_keys, autojunk=False).get_opcodes()
    for tag, a, b, c, d in blocks:
        if tag == "equal":
            found += zip(one[a:b], other[c:d], strict=True)
        else:
            found += [(step, None) for step in one[a:b]]
            found += [(None, step) for step in other[c:d]]
    return found


def _best_pairs(one: Sequence[TranscriptStep], other: Sequence[TranscriptStep]) -> Pairs:
    """Return the pairs with the largest sum of likeness, by dynamic programming from the end."""
    wide = len(other) + 1
    best = [[_GAP * (len(other) - at) for at in range(wide)]]
    for step in reversed(one):
        below, row = best[-1], [0.0] * wide
        row[-1] = below[-1] + _GAP
        for at in range(len(other) - 1, -1, -1):
            row[at] = max(below[at + 1] + _likeness(step, other[at]), below[at] + _GAP, row[at + 1] + _GAP)
        best.append(row)
    best.reverse()
    found: Pairs = []
    a = b = 0
    while a < len(one) or b < len(other):
        here = best[a][b]
        if a < len(one) and b < len(other) and here == best[a + 1][b + 1] + _likeness(one[a], other[b]):
            found.append((one[a], other[b]))
            a, b = a + 1, b + 1
        elif a < len(one) and here == best[a + 1][b] + _GAP:
            found.append((one[a], None))
            a += 1
        else:
            found.append((None, other[b]))
            b += 1
    return found


def _likeness(one: TranscriptStep, other: TranscriptStep) -> float:
    """Return how much two steps correspond: 3 for the same, below twice the cost of a gap for none."""
    if one.kind != other.kind:
        # An answer may be beside a text that another run goes on behind.
        return 0.1 if {one.kind, other.kind} == {"text", "answer"} else -2.0
    if one.kind != "call":
        return 3.0 if normal_form(one.text) == normal_form(other.text) else 0.5
    if one.tool != other.tool:
        return -1.0
    if _arguments(one) != _arguments(other):
        shared = sum(one.args.get(name) == value for name, value in other.args.items())
        return 0.6 + 0.9 * shared / max(1, len(one.args), len(other.args))
    return 3.0 if normal_form(one.text) == normal_form(other.text) else 2.0


def _arguments(step: TranscriptStep) -> str:
    return readable(dict(sorted(step.args.items())))
