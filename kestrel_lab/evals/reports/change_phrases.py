"""A change of the success rate in the fewest words, for a terminal and the first line of a comment."""

from __future__ import annotations

import math
from typing import Final

from kestrel_lab.evals.stats.difference import Difference, Verdict
from kestrel_lab.evals.summaries.best_configuration import format_points
from kestrel_lab.evals.summaries.result_table import format_percent

WORDS: Final[dict[Verdict, str]] = {
    "regression": "worse",
    "improvement": "better",
    "stable": "no difference",
    "inconclusive": "cannot tell",
}
"""What a verdict is called."""
VERDICT_HEADINGS: Final = {
    "regression": "❌ Worse",
    "improvement": "✅ Better",
    "stable": "➖ No difference",
    "inconclusive": "❔ Cannot tell",
    "no base": "❔ Nothing to compare with",
    "broken": "⚠️ Broken",
    "unrecorded": "⚠️ Not recorded",
}
"""What the heading of a comment says, by verdict."""


def change_phrase(d: Difference, base: str) -> str:
    """Return what became of a success rate since `base`: `worse than a83c0bb4 by 12 points, interval 4 to 20
    (95 % → 83 %)`.

    `base` is as it is to be shown.
    """
    if not d.scenarios:
        return f"cannot tell: no scenario in common with {base}"
    rates = f"{format_percent(d.base)} → {format_percent(d.head)}"
    if d.verdict in ("regression", "improvement"):
        # The size of a change is said without its sign, which the word before it has.
        low, high = sorted(abs(end) for end in _ends(d)) if d.interval.excludes(0.0) else _ends(d)
        size = f"{abs(100 * d.interval.mean):.0f} points, interval {100 * low:.0f} to {100 * high:.0f}"
        return f"{WORDS[d.verdict]} than {base} by {size} ({rates})"
    change = "" if math.isnan(d.interval.low) else f", interval {_signed(d)} points"
    if d.verdict == "stable":
        return f"no difference from {base} ({rates}{change})"
    return f"cannot tell whether it is better or worse than {base} ({rates}{change})"


def _ends(d: Difference) -> tuple[float, float]:
    return max(-1.0, d.interval.low), min(1.0, d.interval.high)


def _signed(d: Difference) -> str:
    low, high = map(format_points, _ends(d))
    return f"{low} to {high}"
