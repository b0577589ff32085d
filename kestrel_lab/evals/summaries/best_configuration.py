"""Which configuration of a suite is the best, how sure that is, and why trials did not pass: in sentences."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.stats.difference import Difference, Question, compare_scenarios, judge_all
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.corrected_differences import by_labels
from kestrel_lab.evals.summaries.result_table import format_percent, label_kind
from kestrel_lab.views.formatting import format_count

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import CountErrors

MARGIN: Final = 0.05
"""A difference of success rates that counts as none."""
FEWEST: Final = 3
"""Trials from which on a rate is shown with an interval: of fewer it says nothing."""
_NAMED: Final = 3
"""Configurations that a sentence names one by one."""
_REASON: Final = 90


def best_configuration(
    rows: Sequence[EvalRow],
    summaries: Sequence[Mapping[str, Any]],
    count_errors: CountErrors,
    weights: Mapping[str, float],
) -> str:
    """Return which configuration passes most often, and which of the others it is shown to be better than.

    `summaries` are those of `Reducer.summaries`. The best one is chosen by the same trials that it is judged
    by, so p values allow for all pairs of configurations, not only for those with the best.
    """
    rated = sorted(
        (one for one in summaries if not math.isnan(one["success_rate"])),
        key=lambda one: -one["success_rate"],
    )
    if not rated:
        return "No trial counts yet, so nothing can be said of the configurations."
    best, *others = rated
    name, rate = _label(best), _rate(best)
    if not others:
        return f"{name} passes {rate} of its trials."
    # Any pair could have become one with the best.
    pairs = len(rated) * len(others) // 2
    found = _against_best(
        rows, best["config"], [one["config"] for one in others], count_errors, weights, pairs
    )
    known = [d for d in found if d.scenarios]
    compared = list(zip(map(_label, others), found, strict=True))
    better = [_change(label, d) for label, d in compared if d.verdict == "improvement"]
    alike = [_change(label, d) for label, d in compared if d.verdict == "stable"]
    open_ones = [_change(label, d) for label, d in compared if d.verdict in ("inconclusive", "regression")]
    said = [
        f"{name} is the best: it passes {rate} of its trials."
        if len(better) == len(others)
        else f"{name} passes most often, {rate} of its trials, but it is not shown to be the best."
    ]
    if better:
        said.append(f"It is better than {_named(better)}.")
    if alike:
        said.append(f"It is as good as {_named(alike)}, within {100 * MARGIN:.0f} points.")
    if open_ones:
        said.append(f"These trials do not tell whether it is better than {_named(open_ones)}.")
    if any(map(_surprises, known)):
        said.append(
            f"p allows for all {format_count(pairs, 'pair')} of configurations, the interval does not."
            if pairs > 1
            else "Where p, from a test of signs, and the interval disagree, p decides."
        )
    said += [f"{note[0].upper()}{note[1:]}." for note in dict.fromkeys(d.note for d in known if d.note)]
    if known and all(d.scope == "these scenarios" for d in known):
        said.append("This speaks of these scenarios only; from six on it speaks of scenarios like these.")
    return " ".join(said)


def _against_best(
    rows: Sequence[EvalRow],
    best: str,
    others: Sequence[str],
    count_errors: CountErrors,
    weights: Mapping[str, float],
    pairs: int,
) -> list[Difference]:
    """Return how much better the best one is than each other one, with verdicts that allow for `pairs`."""
    values = _by_scenario(rows, count_errors)
    groups = {row.scenario: row.group for row in rows}
    rows_of = group_values((row.config, row) for row in rows)
    question = Question(better="higher", margin=MARGIN, relative=False)
    judged = []
    for other in others:
        sides = [rows_of[other], rows_of[best]]
        base, head = values.get(other, {}), values.get(best, {})
        plain = compare_scenarios(base, head, weights=weights, groups=groups, bounded=True)
        difference = by_labels(plain, sides, count_errors) if plain.scenarios else plain
        # Each p is multiplied and then judged as one question: Holm's steps would allow for the shown ones
        # again.
        shown = replace(difference, p=min(1.0, pairs * difference.p))
        judged += judge_all([shown], [question])
    return judged


def _by_scenario(rows: Iterable[EvalRow], count_errors: CountErrors) -> dict[str, dict[str, list[float]]]:
    """Return 1 for each trial that passed and 0 for one that did not, by configuration and scenario."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.outcome != "error" or count_errors == "fail":
            found.setdefault(row.config, {}).setdefault(row.scenario, []).append(float(row.outcome == "pass"))
    return found


def _label(summary: Mapping[str, Any]) -> str:
    return label_kind(summary["config"], summary["model_kind"])


def _rate(summary: Mapping[str, Any]) -> str:
    rate = format_percent(summary["success_rate"])
    if math.isnan(summary["low"]) or summary["trials"] < FEWEST:
        return rate
    return f"{rate} (95 % interval {100 * summary['low']:.0f}–{100 * summary['high']:.0f})"


def _change(label: str, d: Difference) -> str:
    if not d.scenarios:
        return f"{label} (no scenario in common)"
    p = f", p = {d.p:.2g}" if _surprises(d) else ""
    return f"{label} ({points_text(d.interval)}{p})"


def _surprises(d: Difference) -> bool:
    """Return whether an interval without zero is shown beside a verdict that allows for all pairs."""
    return d.verdict == "inconclusive" and not d.note and d.interval.excludes(0.0)


def points_text(found: Interval) -> str:
    """Return a difference of success rates with its interval, which ends where such differences do."""
    low, high = max(-1.0, found.low), min(1.0, found.high)
    interval = f", 95 % interval {format_points(low)} to {format_points(high)}"
    return f"{format_points(found.mean)} points{'' if math.isnan(found.low) else interval}"


def format_points(difference: float) -> str:
    """Return a difference of shares in points, with its sign."""
    # Rounding leaves −0, which reads as a loss.
    return f"{100 * difference:+.0f}".replace("-", "−").replace("+0", "0").replace("−0", "0")


def _named(texts: Sequence[str]) -> str:
    if len(texts) <= _NAMED + 1:
        return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))
    return f"{', '.join(texts[:_NAMED])} and {len(texts) - _NAMED} others"


# Why trials did not pass. Scenarios have checks with texts of their own, so causes are counted by the kind of
# check.


def check_kind(label: str) -> str:
    """Return what checks of one kind have in common: their label up to its first quotation, pattern or
    number.
    """
    common = re.sub(r"\s*(?:['\"/`:({\[]|\d).*", "", label, flags=re.DOTALL)
    return f"{common} …" if common and common != label else label


def causes(row: EvalRow) -> list[str]:
    """Return why a trial did not pass, each cause once: the kinds of the checks that failed, an answer that
    was cut off, what broke. Empty for one that passed.
    """
    if row.outcome == "pass":
        return []
    if row.outcome == "error":
        return [f"broke: {one_line(row.reason, _REASON) or 'no reason given'}"]
    failed = [check_kind(score["check"]) for score in row.scores if not score["passed"]]
    cut_off = row.result.get("finish") or not failed
    first = one_line(row.reason.partition(";")[0], _REASON) or "no reason given"
    return list(dict.fromkeys([*([first] if cut_off else []), *failed]))


def cause_counts(rows: Iterable[EvalRow]) -> list[tuple[str, int]]:
    """Return causes with the number of trials that each is one of, the most frequent first."""
    return Counter(cause for row in rows for cause in causes(row)).most_common()
