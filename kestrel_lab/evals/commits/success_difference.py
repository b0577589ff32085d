"""Verdicts on success rates, withheld where trials that broke or are missing could turn them over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from kestrel_lab.evals.gate_bounds import SUCCESS, format_metric
from kestrel_lab.evals.stats.difference import Difference, Question, judge_all
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.corrected_differences import BY_LABELS, Sides, by_labels
from kestrel_lab.views.formatting import format_count


def unless_turned_over(
    mine: Difference,
    found: Sequence[Difference],
    place: int,
    questions: Sequence[Question],
    sides: Sides,
    compared: Callable[..., Difference],
) -> Difference:
    """Return `mine`, the judged difference at `place` of those `found`, without its verdict where trials that
    broke would give another one, had they ended otherwise.

    `questions` are those that were asked together, `compared` is `compare_scenarios` for success rates.
    """
    if mine.verdict == "inconclusive" or all(row.outcome != "error" for rows in sides for row in rows):
        return mine
    # At worst all that broke failed at one side and passed at the other.
    bounds = [
        by_labels(
            compared(*(_passes(rows, fill) for rows, fill in zip(sides, fills, strict=True))),
            sides,
            "fail",
            broken=fills,
        )
        for fills in ((0.0, 1.0), (1.0, 0.0))
    ]
    others = [judge_all([*found[:place], one, *found[place + 1 :]], questions)[place] for one in bounds]
    if all(one.verdict == mine.verdict for one in others):
        return mine
    low, high = sorted(100 * one.interval.mean for one in bounds)
    note = (
        f"no verdict ({mine.verdict}): what broke could turn it over, the difference is {low:+.1f} to "
        f"{high:+.1f} points as those trials failed or passed; run them again (--resume)"
    )
    return replace(mine, verdict="inconclusive", note=note)


def unless_missing_decide(
    mine: Difference,
    found: Sequence[Difference],
    place: int,
    questions: Sequence[Question],
    sides: Sides,
    compared: Callable[..., Difference],
    expected: Collection[str],
) -> Difference:
    """Return `mine` without its verdict where scenarios that have no trials on one side would give another
    one: at worst the base passed them all and the head none, at best the other way round.
    """
    known = [_passes(rows, 0.0) for rows in sides]
    missing = [name for name in expected if any(name not in side for side in known)]
    if mine.verdict == "inconclusive" or not missing:
        return mine
    verdicts = set()
    for fills in ((1.0, 0.0), (0.0, 1.0)):
        filled = [
            side | {name: [fill] for name in missing if name not in side}
            for side, fill in zip(known, fills, strict=True)
        ]
        imagined = [*found[:place], compared(*filled), *found[place + 1 :]]
        verdicts.add(judge_all(imagined, questions)[place].verdict)
    if verdicts == {mine.verdict}:
        return mine
    count = len(expected)
    note = (
        f"no verdict ({mine.verdict}): {len(missing)} of {format_count(count, 'scenario')} have no trials on "
        "one side, and could turn it over"
    )
    return replace(mine, verdict="inconclusive", note=note)


def _passes(rows: Iterable[EvalRow], broken: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        value = broken if row.outcome == "error" else float(row.outcome == "pass")
        found.setdefault(row.scenario, []).append(value)
    return found


def label_note(found: Difference, sides: Sides, compared: Callable[..., Difference]) -> str:
    """Return the difference by verdicts alone, to be said beside a corrected one; empty for any other."""
    if found.test != BY_LABELS:
        return ""
    labels = [sum("label" in row.result for row in rows) for rows in sides]
    alone = compared(*(_passes(rows, 0.0) for rows in sides))
    base, head = (format_metric(SUCCESS, rate) for rate in (alone.base, alone.head))
    ends = f"{100 * alone.interval.low:+.1f} to {100 * alone.interval.high:+.1f}"
    return (
        f"corrected by {labels[0]} and {format_count(labels[1], 'label')}; by verdicts alone "
        f"{base} → {head}, "
        f"{100 * alone.interval.mean:+.1f} points ({ends})"
    )
