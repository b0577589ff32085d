"""Differences of the trials of two sides, in every metric, with their verdicts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

from kestrel_lab.evals.commits.no_difference import same_conversations, unchanged
from kestrel_lab.evals.commits.round_pairs import Rounds, by_scenario, mean_difference_by_round, side_by_side
from kestrel_lab.evals.commits.success_difference import unless_missing_decide, unless_turned_over
from kestrel_lab.evals.gate_bounds import NAMED_SHARE, SCORE
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
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.corrected_differences import by_labels
from kestrel_lab.evals.summaries.metric_values import ObservedMetric, find_metric
from kestrel_lab.evals.summaries.streaming_summary import score_metrics
from kestrel_lab.views.formatting import format_count

Sides = tuple[Sequence[EvalRow], Sequence[EvalRow]]
"""Trials of the base and of the head."""

PRIMARY: Final = "success_rate"
MARGIN: Final = 0.05
"""How large a change counts as none where nobody says: of shares in points, of other metrics relative."""
_PRIMARY_SHARE: Final = 2 / 3
"""Of the allowance for false alarms; six scenarios that all flip one way still suffice to tell."""
COMPARED: Final = ("working_time", "token_usage", "model_calls", "tool_calls", "cost_estimate")
"""Metrics compared beside the success rate, over trials that did not break; behind them what checks, scanners
and a suite's own metrics say of both sides.
"""


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
    before, after = (_values(rows, suite) for rows in sides)
    weights = {scenario.id: scenario.weight for scenario in suite.scenarios}
    configs = list(dict.fromkeys(row.config for row in chain(*sides)))
    metrics = (*COMPARED, *_checked_metrics(suite, sides), *_scanned_metrics(sides))
    observed = {metric: find_metric(metric, suite.metrics) for metric in (PRIMARY, *metrics)}
    keys = [(config, metric) for config in configs for metric in observed]
    questions = [_question(observed[metric], margin, len(configs), len(metrics)) for _, metric in keys]
    of_config = {
        config: [[row for row in rows if row.config == config] for rows in sides] for config in configs
    }
    rounds = {config: side_by_side(*both) for config, both in of_config.items()}
    groups = {row.scenario: row.group for row in chain(*sides)}
    found = [
        _paired_difference(
            observed[metric],
            before.get(key, {}),
            after.get(key, {}),
            rounds[config],
            partial(compare_scenarios, weights=weights, groups=groups, alpha=ALPHA * question.weight),
        )
        for (config, metric), key, question in zip(keys, keys, questions, strict=True)
    ]
    found = [
        _untested_if_cut(difference, metric, chain(*of_config[config]))
        for difference, (config, metric) in zip(found, keys, strict=True)
    ]
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
) -> dict[tuple[str, str, str], Difference]:
    """Return the difference with its verdict for each configuration, family and metric: the success rate,
    what checks measure and the suite's own metrics, all asked together.
    """
    kinds = dict.fromkeys((row.config, row.family) for row in chain(*sides))
    of_kind = {
        kind: [[row for row in rows if (row.config, row.family) == kind] for rows in sides] for kind in kinds
    }
    names = {
        kind: [PRIMARY, *_checked_metrics(suite, (base, head))] for kind, (base, head) in of_kind.items()
    }
    keys = [(kind, find_metric(name, suite.metrics)) for kind in kinds for name in names[kind]]
    others = (len(keys) - len(kinds)) / len(kinds) if kinds else 0
    questions = [_question(metric, margin, len(kinds), others) for _, metric in keys]
    weights = {scenario.id: scenario.weight for scenario in suite.scenarios}
    groups = {row.scenario: row.group for row in chain(*sides)}
    values = {kind: [_values(rows, suite) for rows in of_kind[kind]] for kind in kinds}
    rounds = {kind: side_by_side(*of_kind[kind]) for kind in kinds}
    differences = []
    for (kind, metric), question in zip(keys, questions, strict=True):
        before, after = (side.get((kind[0], metric.name), {}) for side in values[kind])
        alpha = ALPHA * question.weight
        compared = partial(compare_scenarios, weights=weights, groups=groups, alpha=alpha)
        difference = _paired_difference(metric, before, after, rounds[kind], compared)
        difference = _untested_if_cut(difference, metric.name, chain(*of_kind[kind]))
        if metric.name == PRIMARY:
            difference = by_labels(difference, of_kind[kind], suite.count_errors, alpha=alpha)
        differences.append(difference)
    judged = judge_all(differences, questions)
    again = {kind: same_conversations(*of_kind[kind]) for kind in kinds}
    return {
        (*kind, metric.name): unchanged(one, same_files=same_files, same_trials=again[kind])
        for (kind, metric), one in zip(keys, judged, strict=True)
    }


def _untested_if_cut(difference: Difference, metric: str, rows: Iterable[EvalRow]) -> Difference:
    """Return a difference of amounts without its test where trials ended early: they are not whole."""
    cut = sum(row.ended_early for row in rows)
    if not cut or metric == PRIMARY:
        return difference
    note = f"not tested: {format_count(cut, 'trial')} ended early, so amounts are not whole"
    return replace(difference, note=note, p=math.nan, p_holm=math.nan, mde=math.nan)


def _checked_metrics(suite: Suite, sides: Sides) -> list[str]:
    """Return the metrics that checks give, `recall@K` and `score:NAME`, and the suite's own: those that
    trials of both sides have.
    """
    base, head = ({name for row in rows for name in score_metrics(row.scores)} for rows in sides)
    checked = sorted(name for name in base & head if name != SCORE and NAMED_SHARE.fullmatch(name))
    base, head = ({name for row in rows for name in row.metrics} for rows in sides)
    return [*checked, *(metric.name for metric in suite.metrics if metric.name in base & head)]


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


def _question(metric: ObservedMetric, margin: float, groups: int, others: float) -> Question:
    """Return what is asked of a metric, one of so many `others` beside the success rate of each of so many
    `groups` of trials.
    """
    # Without others there is nobody to share with.
    primary_share = _PRIMARY_SHARE if others else 1.0
    weight = primary_share / groups if metric.name == PRIMARY else (1 - primary_share) / others / groups
    return Question(
        better=metric.better,
        margin=margin,
        relative=not metric.share,
        least=metric.least,
        weight=weight,
    )


_Values = dict[tuple[str, int], float]
"""By scenario and epoch."""


def _paired_difference(
    metric: ObservedMetric, before: _Values, after: _Values, rounds: Rounds, compared: partial[Difference]
) -> Difference:
    """Return the difference of one metric; `compared` is `compare_scenarios` with all that metrics share."""
    if not metric.clock:
        # A metric of a suite's own may call itself a share and be none.
        bounded = metric.share and all(0 <= value <= 1 for value in (*before.values(), *after.values()))
        return compared(by_scenario(before), by_scenario(after), bounded=bounded)
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


def _values(rows: Iterable[EvalRow], suite: Suite) -> dict[tuple[str, str], _Values]:
    """Return values by configuration and metric; other metrics than the success rate are of trials that did
    not break.
    """
    found: dict[tuple[str, str], _Values] = {}
    count_errors, own = suite.count_errors, [metric.name for metric in suite.metrics]
    for row in rows:
        place, broke = (row.scenario, row.epoch), row.outcome == "error"
        if not broke or count_errors == "fail":
            found.setdefault((row.config, PRIMARY), {})[place] = float(row.outcome == "pass")
        checked = score_metrics(row.scores)
        for metric in () if broke else (*COMPARED, *checked, *own, *_scanned(row)):
            value = float(checked.get(metric, row.metrics.get(metric, math.nan)))
            unknown = metric == "cost_estimate" and row.metrics.get("unpriced_calls", 0) > 0
            if not (math.isnan(value) or unknown):
                found.setdefault((row.config, metric), {})[place] = value
    return found
