"""What is drawn together: scenarios of one task, repository, document or conversation are one group.

Two scenarios of a group tell less than two of different groups, so every interval, test, gate and plan counts
groups. A `family` only reports: it is a topic, and its scenarios may well be unrelated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.views.formatting import format_count

# The suite's models load pydantic, and suites compute their groups with this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import Scenario, Suite


def group_scenarios(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Return the group of each scenario, by its id.

    A scenario that names a `group` is in it, and so is one whose id is that name. Of the others those with
    the same task (goal, turns, inputs, files and environment) are one group, called by the first of them. A
    scenario without a goal is never the same as another one.
    """
    groups: dict[str, str] = {}
    first_with: dict[str, str] = {}
    named = {scenario.group for scenario in scenarios if scenario.group}
    for scenario in scenarios:
        if scenario.group:
            groups[scenario.id] = scenario.group
        elif scenario.id in named or not scenario.goal.strip():
            groups[scenario.id] = scenario.id
        else:
            groups[scenario.id] = first_with.setdefault(content_key(_drawn_task(scenario)), scenario.id)
    return groups


def _drawn_task(scenario: Scenario) -> dict[str, Json]:
    """Return what makes two scenarios the same task: all that their runs depend on but how they may work."""
    return {name: value for name, value in scenario.task().items() if name not in _ALLOWANCES}


_ALLOWANCES = frozenset({"tools", "limits", "approve", "containment", "output", "notes"})
"""What a run may do and has to return; the same task with other allowances is still the same task."""


def with_groups(rows: Iterable[EvalRow], suite: Suite) -> Iterator[EvalRow]:
    """Yield the trials with the groups that the present suite gives their scenarios.

    The group is outside of a trial's identity: stored trials count by the groups of today. A scenario that
    the suite does not have keeps the group that is stored with its trial.
    """
    for row in rows:
        group = suite.groups.get(row.scenario, row.group)
        if group == row.group:
            yield row
        else:
            yield replace(row, result={**row.result, "group": group})


def count_groups(scenarios: Iterable[str], groups: Iterable[str]) -> str:
    """Return how many scenarios of how many groups there are: `144 scenarios of 16 tasks`, or just the
    scenarios where each is a group of its own.
    """
    scenario_count, group_count = len(set(scenarios)), len(set(groups))
    text = format_count(scenario_count, "scenario")
    return text if group_count >= scenario_count else f"{text} of {format_count(group_count, 'task')}"
