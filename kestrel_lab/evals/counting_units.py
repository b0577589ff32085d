"""What a value counts with: the group of its scenario, see `evals.scenario_groups`."""

from __future__ import annotations

from collections.abc import Sequence


def counting_units(scenarios: Sequence[str], groups: Sequence[str]) -> Sequence[str]:
    """Return what each value counts with: the group of its scenario, given beside it.

    Where all are of one group nothing can be said of other groups. What is said is then about these scenarios
    alone, and each of them counts by itself.
    """
    return groups if len(set(groups)) > 1 else scenarios
