"""Differences of the trials of two sides, in every metric, with their verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

from kestrel_lab.evals.commits.no_difference import same_conversations, unchanged
from kestrel_lab.evals.commits.round_pairs import Rounds, by_scenario, mean_difference_by_round, side_by_side
from kestrel_lab.evals.commits.success_difference import unless_missing_decide, unless_turned_over
from kestrel_lab.evals.gate_bounds import is_share
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.scanners.scanner import PREFIX as FOUND
from kestrel_lab.evals.stats.difference import (
    Difference,
    Question,
    compare_scenarios,
    confirm_by_rounds,
    judge_all,
)
from kestrel_lab.evals.stats.intervals_and_tests import ALPHA
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import CountErrors, Suite
from kestrel_lab.evals.summaries.corrected_differences import by_labels
from kestrel_lab.views.formatting import format_count

Sides = tuple[Sequence[EvalRow], Sequence[EvalRow]]
"""Trials of the base and of the head."""

PRIMARY: Final = "success_rate"
_PRIMARY_SHARE: Final = 2 / 3
"""Of the allowance for false alarms; six scenarios that all flip one way still suffice to tell."""
COMPARED: Final = ("working_time", "token_usage", "model_calls", "tool_calls", "cost_estimate")
"""Metrics compared beside the success rate, over trials that did not break."""


def compare_rows(
    suite: Suite,
    sides: Sides,
    *,
    margin: float,
    same_files: bool = False,
    expected: Collection[str] | None = None,
) -> dict[tuple[str, str], Difference]:
    """Return the difference with its verdict for each configuration and metric, success rates first.

    Where scenarios are `expected` that have no trials on one side, and could turn the verdict over, there is
    none.

    All are questions asked together: over all of them, at most one comparison of twenty reports a difference
    that is not there. Success rates have two thirds of that allowance. Times are compared over trials made
    side by side only. Success rates in which a model judge has a say have a verdict only where labels of
    people correct them. Where nothing can differ, because the files are the same or all trials are the same
    ones made again, the verdict is `stable`.
    """
    before, after = (_values(rows, suite.count_errors) for rows in sides)
    weights = {scenario.id: scenario.weight for scenario in suite.scenarios}
    configs = list(dict.fromkeys(row.config for row in chain(*sides)))
    metrics = (*COMPARED, *_scanned_metrics(sides))
    keys = [(config, metric) for config in configs for metric in (PRIMARY, *metrics)]
    questions = [_question(metric, margin, len(configs), len(metrics)) for _, metric in keys]
    of_config = {
        config: [[row for row in rows if row.config == config] for rows in sides] for config in configs
    }
    rounds = {config: side_by_side(*both) for config, both in of_config.items()}
    groups = {row.scenario: row.group for row in chain(*sides)}
    found = [
        _paired_difference(
            metric,
            before.get(key, {}),
            after.get(key, {}),
            rounds[config],
            partial(compare_scenarios, weights=weights, groups=groups, alpha=ALPHA * question.weight),
        )
        for (config, metric), key, question in zip(keys, keys, questions, strict=True)
    ]
    cut = Counter(row.config for row in chain(*sides) if row.ended_early)
    for place, (config, metric) in enumerate(keys):
        if cut[config] and metric != PRIMARY:
            why = f"not tested: {format_count(cut[config], 'trial')} ended early, so amounts are not whole"
            found[place] = replace(found[place], note=why, p=math.nan, p_holm=math.nan, mde=math.nan)
    again = {config: same_conversations(*both) for config, both in of_config.items()}
    rates = [(place, of_config[config]) for place, (config, metric) in enumerate(keys) if metric == PRIMARY]
    for place, both in rates:
        found[place] = by_labels(
            found[place], both, suite.count_errors, alpha=ALPHA * questions[place].weight
        )
    judged = judge_all(found, questions)
    passes = partial(compare_scenarios, weights=weights, groups=groups, bounded=True)
    all_groups = {**groups, **suite.groups}
    for place, both in rates:
        judged[place] = unless_turned_over(judged[place], found, place, questions, both, passes)
        judged[place] = unless_missing_decide(
            judged[place], found, place, questions, both, partial(passes, groups=all_groups), expected or ()
        )
    return {
        key: unchanged(one, same_files=same_files, same_trials=again[key[0]])
        for key, one in zip(keys, judged, strict=True)
    }


def compare_families(
    suite: Suite, sides: Sides, *, margin: float, same_files: bool = False
) -> dict[tuple[str, str], Difference]:
    """Return the difference of the success rate with its verdict for each configuration and family, all asked
    together.
    """
    kinds = dict.fromkeys((row.config, row.family) for row in chain(*sides))
    weights = {scenario.id: scenario.weight for scenario in suite.scenarios}
    groups = {row.scenario: row.group for row in chain(*sides)}
    found = []
    alpha = ALPHA / max(1, len(kinds))
    for kind in kinds:
        of_kind = [[row for row in rows if (row.config, row.family) == kind] for rows in sides]
        both = [
            by_scenario(_values(rows, suite.count_errors).get((kind[0], PRIMARY), {})) for rows in of_kind
        ]
        compared = compare_scenarios(*both, weights=weights, groups=groups, bounded=True, alpha=alpha)
        found.append(by_labels(compared, of_kind, suite.count_errors, alpha=alpha))
    judged = judge_all(found, [Question(better="higher", margin=margin, relative=False)] * len(kinds))
    again = {
        kind: same_conversations(
            *([row for row in rows if (row.config, row.family) == kind] for rows in sides)
        )
        for kind in kinds
    }
    return {
        kind: unchanged(one, same_files=same_files, same_trials=again[kind])
        for kind, one in zip(kinds, judged, strict=True)
    }


def _scanned_metrics(sides: Sides) -> list[str]:
    """Return the measures of scanners that looked through runs of both sides and found something in any.

    One that found nothing cannot differ. Which these are depends on both sides together, so that leaving
    them out makes the tests of the others no bolder.
    """
    base, head = ({name for row in rows for name in _scanned(row)} for rows in sides)
    hits = {name for row in chain(*sides) for name in _scanned(row) if row.metrics[name]}
    return sorted(base & head & hits)


def _scanned(row: EvalRow) -> Iterable[str]:
    """Return the measures of scanners that looked through the run of a trial."""
    return (name for name in row.metrics if name.startswith(FOUND))


def _question(metric: str, margin: float, configs: int, others: int) -> Question:
    """Return what is asked of a metric, one of so many `others` beside the success rate."""
    if metric == PRIMARY:
        return Question(better="higher", margin=margin, relative=False, weight=_PRIMARY_SHARE / configs)
    share = (1 - _PRIMARY_SHARE) / others / configs
    # What a scanner finds is something bad, and a share of runs.
    if metric.startswith(FOUND):
        return Question(better="lower", margin=margin, relative=False, weight=share)
    return Question(
        better=METRICS[metric].better, margin=margin, relative=True, least=METRICS[metric].least, weight=share
    )


_Values = dict[tuple[str, int], float]
"""By scenario and epoch."""


def _paired_difference(
    metric: str, before: _Values, after: _Values, rounds: Rounds, compared: partial[Difference]
) -> Difference:
    """Return the difference of one metric; `compared` is `compare_scenarios` with all that metrics share."""
    if is_share(metric) or not METRICS[metric].clock:
        return compared(by_scenario(before), by_scenario(after), bounded=is_share(metric))
    if rounds.note:
        apart = compared(by_scenario(before), by_scenario(after), bounded=False)
        return replace(apart, note=rounds.note, p=math.nan, p_holm=math.nan, mde=math.nan)
    before, after = (
        {key: value for key, value in side.items() if key[1] in rounds.epochs} for side in (before, after)
    )
    shared = compared.keywords
    found = compared(by_scenario(before), by_scenario(after), bounded=False)
    return confirm_by_rounds(
        found, mean_difference_by_round(before, after, shared["weights"]), alpha=shared["alpha"]
    )


def _values(rows: Iterable[EvalRow], count_errors: CountErrors) -> dict[tuple[str, str], _Values]:
    """Return values by configuration and metric; other metrics than the success rate are of trials that did
    not break.
    """
    found: dict[tuple[str, str], _Values] = {}
    for row in rows:
        place, broke = (row.scenario, row.epoch), row.outcome == "error"
        if not broke or count_errors == "fail":
            found.setdefault((row.config, PRIMARY), {})[place] = float(row.outcome == "pass")
        for metric in () if broke else (*COMPARED, *_scanned(row)):
            value = float(row.metrics.get(metric, math.nan))
            unknown = metric == "cost_estimate" and row.metrics.get("unpriced_calls", 0) > 0
            if not (math.isnan(value) or unknown):
                found.setdefault((row.config, metric), {})[place] = value
    return found
