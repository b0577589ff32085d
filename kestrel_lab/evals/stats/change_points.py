"""Change points: the commits from which on a metric is another, with false alarms at a stated rate.

Binary segmentation with a permutation test: of all places, the one where the means before and after differ
most is taken for a step if so large a difference is rare when the order is shuffled; where there is none, the
stretch whose mean differs most from the rest on both sides (a fall that was fixed later) is looked for in
the same way. Then the parts are searched. Half of the level goes to each of the two questions, and the parts
share the level of the whole. Sources: L. Ju. Vostrikova, Soviet Mathematics Doklady 24 (1981) 55-59; for
stretches and shuffling, A. B. Olshen, E. S. Venkatraman, R. Lucito and M. Wigler, Circular binary
segmentation, Biostatistics 5 (2004) 557-572.

What is shuffled are rounds: one pass over all scenarios at one commit, as one number. Trials of one round
share what a provider or a machine is like in that hour; shuffled one by one, noise of that kind would pass
for a step. So a history without change shows any step with probability `alpha` at most, whatever the noise is
like, as long as rounds are independent of each other; and so does what surrounds one true step. With one
round at each commit a step at the very last one can hardly be distinguished from chance; with three it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[Any]

ALPHA: Final = 0.05
"""How often a history without change shows a step."""
_SHUFFLES: Final = 999
_SAME: Final = 1e-9
"""Differences below it are rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """From the commit `at`, an index into the history, the metric is another."""

    at: int
    before: float
    """The mean of the stretch that ends before `at`, every round weighing the same."""
    after: float
    p: float
    """How often shuffled rounds show a stretch that differs so much."""


def find_steps(history: Sequence[Sequence[float]], *, alpha: float = ALPHA) -> list[Step]:
    """Return the steps in `history`, which has the rounds of each commit in order, oldest first; each commit
    has at least one.

    The same history always has the same steps.
    """
    # 20 MB that a run without a history does not need.
    import numpy as np

    rounds = np.array([value for commit in history for value in commit], dtype=float)
    borders = np.cumsum([0, *map(len, history)])
    found: dict[int, float] = {}
    todo = [(0, len(history), alpha)]
    while todo:
        first, last, level = todo.pop()
        inside = borders[first : last + 1] - borders[first]
        cuts = _split_stretch(rounds[borders[first] : borders[last]], inside, level)
        found |= {first + place: p for place, p in cuts.items()}
        edges = [first, *(first + place for place in sorted(cuts)), last]
        todo += [(*part, level / (len(edges) - 1)) for part in pairwise(edges)] if cuts else []
    edges = [0, *sorted(found), len(history)]
    means = (
        [float(rounds[borders[start] : borders[end]].mean()) for start, end in pairwise(edges)]
        if len(history)
        else []
    )
    return [
        Step(at=at, before=before, after=after, p=found[at])
        for at, (before, after) in zip(edges[1:-1], pairwise(means), strict=True)
    ]


def _split_stretch(rounds: Numbers, borders: Numbers, level: float) -> dict[int, float]:
    """Return the one or two commits at which a stretch of history is cut, with their p values; empty where it
    has no step.
    """
    import numpy as np

    commits = len(borders) - 1
    if commits < 2 or float(np.ptp(rounds)) < _SAME:
        return {}
    step = _most_different(rounds, np.zeros(commits - 1, dtype=int), borders[1:-1], level / 2)
    if step is not None:
        return {step[0] + 1: step[1]}
    starts, ends = np.triu_indices(commits - 1, k=1)
    # In a very long history only the shorter stretches are tested: all of them would take minutes.
    short = ends - starts <= max(1, 40_000 // commits)
    starts, ends = starts[short] + 1, ends[short] + 1
    bump = _most_different(rounds, borders[starts], borders[ends], level / 2)
    if bump is None:
        return {}
    start, end = int(starts[bump[0]]), int(ends[bump[0]])
    # A stretch may reach up to the true end by chance less a commit: each of its ends has to be seen by
    # itself.
    seen = {
        place: bump[1]
        for place, part, cut in (
            (start, rounds[: borders[end]], borders[start]),
            (end, rounds[borders[start] :], borders[end] - borders[start]),
        )
        if _most_different(part, np.array([0]), np.array([cut]), ALPHA) is not None
    }
    return seen or {start: bump[1], end: bump[1]}


def _most_different(
    rounds: Numbers, starts: Numbers, ends: Numbers, level: float
) -> tuple[int, float] | None:
    """Return the stretch from one of `starts` to the end beside it that differs most from the rest, and its p
    value if at most `level`.
    """
    import numpy as np

    if not len(starts):
        return None
    size, inside = len(rounds), ends - starts
    room = np.sqrt(inside * (size - inside) / size)

    def differences(rows: Numbers) -> Numbers:
        sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
        found: Numbers = np.abs(sums[:, ends] - sums[:, starts]) / room
        return found

    centred = rounds - rounds.mean()
    seen = differences(centred[None, :])[0]
    random = np.random.default_rng(0)
    # Shuffles are made in batches that take some 32 MB.
    beaten, batch = 0, max(1, min(_SHUFFLES, 4_000_000 // max(size, len(starts))))
    for done in range(0, _SHUFFLES, batch):
        shuffled = random.permuted(np.tile(centred, (min(batch, _SHUFFLES - done), 1)), axis=1)
        beaten += int(np.sum(differences(shuffled).max(axis=1) >= seen.max() - _SAME))
        if (beaten + 1) / (_SHUFFLES + 1) > level:
            return None
    return int(np.argmax(seen)), (beaten + 1) / (_SHUFFLES + 1)
