"""Differences in words: cells of tables, columns of frames, sentences and notes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from kestrel_lab.evals.gate_bounds import is_share
from kestrel_lab.evals.stats.difference import Difference, Verdict
from kestrel_lab.evals.summaries.best_configuration import points_text
from kestrel_lab.views.formatting import format_count


def unit_notes(differences: Iterable[Difference]) -> Iterable[str]:
    """Yield what a comparison speaks of, where that is not scenarios like these, each counted by itself."""
    differences = list(differences)
    if of_groups := {d.test for d in differences if d.test.endswith("of groups")}:
        counts = next((d.scenarios, d.groups) for d in differences if d.test.endswith("of groups"))
        yield (
            f"{format_count(counts[0], 'scenario')} are of {format_count(counts[1], 'task')}. Those of one "
            f"task count together, since they resemble each other ({', '.join(sorted(of_groups))})."
        )
    if few := next((d.scenarios for d in differences if d.scope == "these scenarios" and d.scenarios), None):
        yield (
            f"With {format_count(few, 'scenario')} this speaks of "
            f"{'it' if few == 1 else 'these scenarios'} only; from six on it speaks of scenarios like these."
        )


def difference_record(d: Difference) -> dict[str, Any]:
    """Return a difference as columns of a frame."""
    names = (
        "p",
        "p_holm",
        "verdict",
        "mde",
        "mde_broken",
        "scenarios",
        "groups",
        "lower",
        "higher",
        "scope",
        "test",
        "note",
    )
    return {
        "base": d.base,
        "head": d.head,
        "difference": d.interval.mean,
        "low": d.interval.low,
        "high": d.interval.high,
        **{name: getattr(d, name) for name in names},
    }


VERDICT_TONES: Final[dict[Verdict, str]] = {
    "regression": "bad",
    "improvement": "good",
    "stable": "",
    "inconclusive": "unsure",
}
"""Of verdicts on a page."""


def verdict_sentence(base: str, head: str, d: Difference) -> str:
    """Return which side is better, with both rates; or what could have been found where neither is."""
    if not d.scenarios:
        return f"{base} and {head} have no scenario in common."
    of = f" in these {format_count(d.scenarios, 'scenario')}" if d.scope == "these scenarios" else ""
    rates = f"{100 * d.base:.0f} % → {100 * d.head:.0f} % passed ({points_text(d.interval)})"
    match d.verdict:
        case "regression":
            return f"{head} is worse than {base}{of}: {rates}."
        case "improvement":
            return f"{head} is better than {base}{of}: {rates}."
        case "stable":
            return f"{head} is as good as {base}{of}: {rates}."
    return (
        f"These trials do not tell whether {head} is better or worse than {base}: {rates}."
        f"{detectable_sentence(d)}"
    )


def detectable_sentence(d: Difference) -> str:
    """Return what four of five such comparisons would find, after a space; empty where nothing is known."""
    if not math.isfinite(d.mde) or d.mde > 1:
        return ""
    alike = f"{100 * d.mde:.0f} points"
    if math.isnan(d.mde_broken) or round(100 * d.mde_broken) == round(100 * d.mde):
        return f" Four of five such comparisons find a change of {alike}."
    broken = f"one of {100 * d.mde_broken:.0f} points" if d.mde_broken <= 1 else "no such change"
    return (
        f" Four of five such comparisons find a change of {alike} if all scenarios change alike, "
        f"and {broken} if some break for good."
    )


def difference_cells(metric: str, d: Difference) -> list[str]:
    """Return base, head, change with its interval, p, verdict and smallest detectable change as texts."""

    def text(value: float, sign: str = "") -> str:
        if not math.isfinite(value):
            return "unknown" if metric == "cost_estimate" and not sign else "–"
        return f"{100 * value:{sign}.1f} %" if is_share(metric) else f"{value:{sign}.4g}"

    change = f"{text(d.interval.mean, '+')} ({text(d.interval.low, '+')} to {text(d.interval.high, '+')})"
    return [text(d.base), text(d.head), change, format_p_value(d.p_holm), d.verdict, text(d.mde)]


def format_p_value(p: float) -> str:
    """Return a p value as text; a dash where there is none."""
    return "–" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"
