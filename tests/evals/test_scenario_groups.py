"""What is drawn together counts once: in intervals, tests, looks and gates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab import Scenario, Suite
from kestrel_lab.evals.scenario_groups import count_groups, group_scenarios, with_groups
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.stats.difference import compare_scenarios
from kestrel_lab.evals.stats.groups import counting_units
from kestrel_lab.evals.suite import Config
from kestrel_lab.evals.summaries.streaming_summary import reduce_rows
from tests.evals.made_rows import row


def scenario(name, goal="Count.", **fields):
    return Scenario(id=name, goal=goal, checks=(), **fields)


def test_the_same_task_is_one_group():
    """Equal goal and files make one group, whatever the checks, tools and weights; other files make another."""
    files = InlineFiles(files={"a.txt": "1"})
    groups = group_scenarios(
        [
            scenario("a", place=files),
            scenario("b", place=files, weight=2.0, tools=("read_file",), tags=("hard",)),
            scenario("c"),
            scenario("d", place=files, turns=("And now?",)),
        ]
    )
    assert groups == {"a": "a", "b": "a", "c": "c", "d": "d"}


def test_absent_goals_are_no_group():
    """A table of rows without goals says nothing of what is alike."""
    assert group_scenarios([scenario("a", goal=""), scenario("b", goal=" ")]) == {"a": "a", "b": "b"}


def test_a_named_group_wins():
    """What the suite says counts, and the scenario that the group is called by belongs to it."""
    groups = group_scenarios(
        [
            scenario("task-1", goal="One."),
            scenario("x", goal="One.", group="task-1"),
            scenario("y", goal="One."),
        ]
    )
    assert groups == {"task-1": "task-1", "x": "task-1", "y": "y"}


def test_a_group_is_outside_of_the_identity():
    """Trials that are stored stay those of the scenario when it gets a group or another one."""
    assert scenario("a").definition() == scenario("a", group="g").definition()


def test_stored_trials_count_by_the_groups_of_today():
    """The present suite says the group, not the one that was stored."""
    suite = Suite(name="s", scenarios=(scenario("a", group="new"), scenario("b", goal="Other.")))
    stored = [row("a", "pass", group="old"), row("b", "pass"), row("gone", "pass", group="old")]
    assert [trial.group for trial in with_groups(stored, suite)] == ["new", "b", "old"]


def test_a_selected_suite_has_its_own_groups():
    """Groups follow the scenarios that are left; a copy does not keep those of the whole."""
    suite = Suite(name="s", scenarios=(scenario("a"), scenario("b"), scenario("c", goal="Other.")))
    assert suite.groups == {"a": "a", "b": "a", "c": "c"}
    assert suite.select(scenarios=["b", "c"]).groups == {"b": "b", "c": "c"}
    assert suite.model_copy(update={"configs": (Config(name="x"),)}).groups == suite.groups


def test_the_rate_of_copies_is_as_unsure_as_that_of_their_tasks():
    """Nine copies of each of sixteen tasks leave the interval of sixteen tasks, and not that of 144."""
    rows = [
        row(f"t{task}-{copy}", "pass" if task < 12 else "fail", group=f"t{task}")
        for task in range(16)
        for copy in range(9)
    ]
    (summary,) = reduce_rows(rows, "fail", grouping=False).summaries()
    assert (summary["scenarios"], summary["groups"]) == (144, 16)
    assert summary["high"] - summary["low"] > 0.38
    plain = [row(trial.scenario, trial.outcome) for trial in rows]
    (alone,) = reduce_rows(plain, "fail", grouping=False).summaries()
    assert alone["high"] - alone["low"] < 0.15
    (family,) = reduce_rows(rows, "fail").grouped("config")
    assert (family["success_rate_low"], family["success_rate_high"]) == (summary["low"], summary["high"])


def test_a_coin_for_each_task_is_no_difference():
    """Two sides that differ in whole tasks only, as often for one as for the other, are not told apart. The
    mutant counts scenarios.
    """
    groups = {f"{task}-{copy}": f"t{task}" for task in range(10) for copy in range(10)}
    base = {name: [float(int(name[0]) % 2)] for name in groups}
    head = {name: [float(int(name[0]) < 7)] for name in groups}
    by_group = compare_scenarios(base, head, weights={}, bounded=True, groups=groups)
    by_scenario = compare_scenarios(base, head, weights={}, bounded=True)
    assert by_group.p > 0.2
    assert (by_group.groups, by_group.scenarios, by_group.test) == (10, 100, "sign flips of groups")
    assert by_scenario.p < 0.02


def test_one_group_speaks_of_its_scenarios_alone():
    """Where all scenarios are of one group nothing is said of others."""
    names = [str(number) for number in range(12)]
    found = compare_scenarios(
        {name: [1.0] for name in names},
        {name: [0.0] for name in names},
        weights={},
        bounded=True,
        groups=dict.fromkeys(names, "one"),
    )
    assert (found.scope, found.groups) == ("these scenarios", 1)
    assert found.p < 0.001


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), min_size=1))
def test_units_are_groups_where_there_are_several(pairs):
    """Each value counts with its group, or by its scenario where one group is all there is."""
    scenarios, groups = zip(*pairs, strict=True)
    assert counting_units(scenarios, groups) == (groups if len(set(groups)) > 1 else scenarios)


@pytest.mark.parametrize(
    ("scenarios", "groups", "text"),
    [("ab", "ab", "2 scenarios"), ("abc", "xxy", "3 scenarios of 2 tasks"), ("a", "x", "1 scenario")],
)
def test_scenarios_and_tasks_are_told(scenarios, groups, text):
    """People read how many tasks there are where they are fewer than the scenarios."""
    assert count_groups(scenarios, groups) == text
