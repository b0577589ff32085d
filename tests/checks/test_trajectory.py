"""Order and arguments of tool calls: each mode against definitions spelt out, and laws."""

import asyncio
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.checks.behaviour import ToolAtMost
from kestrel_lab.checks.trajectory import ToolsInOrder, TrajectoryMatch, made_calls
from kestrel_lab.core.events.union import ApprovalGiven, ModelAnswered, Record, ToolAnswered, ToolCalled
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score

FAILED = {"kind": "failed", "message": "no", "transient": False}


def trial(tmp_path, *events):
    """A finished run of these events."""
    records = tuple(
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1)
    )
    return Trial(goal="g", answer="", records=records, workspace=tmp_path)


def asks(*calls):
    """A turn that asks for `(id, tool, args)`."""
    return ModelAnswered(
        call="m",
        step="s",
        model="m",
        calls=[{"id": i, "name": name, "args": args} for i, name, args in calls],
    )


def answers(call, tool, **more):
    """The answer of a tool."""
    return ToolAnswered(call=call, step="s", tool=tool, text="", **more)


def called(tmp_path, tools):
    """A run that called these tools one after the other."""
    pairs = [(asks((str(n), tool, {})), answers(str(n), tool)) for n, tool in enumerate(tools)]
    return trial(tmp_path, *(event for pair in pairs for event in pair))


def judge(check, run):
    """The score of a check."""
    return asyncio.run(check(run))


def test_calls_are_in_the_order_asked_for(tmp_path):
    """Which parallel call ends first does not matter; edited arguments count; given answers and unanswered
    calls do not.
    """
    run = trial(
        tmp_path,
        asks(
            ("a", "tree", {"depth": 1}), ("b", "grep", {"pattern": "x"}), ("c", "bash", {}), ("d", "glob", {})
        ),
        ToolCalled(call="b", step="s", tool="grep", args={"pattern": "x"}),
        ApprovalGiven(call="b", granted=True, by="me", how="click", args={"pattern": "y"}),
        answers("b", "grep", error=FAILED),
        answers("a", "tree", cached=True),
        answers("d", "glob", given=True),
        ToolCalled(call="e", step="t", tool="count", args={"n": 2}),
        answers("e", "count"),
    )
    assert [(call.tool, call.args, call.ok) for call in made_calls(run.records)] == [
        ("tree", {"depth": 1}, True),
        ("grep", {"pattern": "y"}, False),
        ("count", {"n": 2}, True),
    ]


def test_tools_in_order(tmp_path):
    """Others may be between, none may be missing or too early, and a failed call is none."""
    run = called(tmp_path, ["tree", "glob", "grep", "tree"])
    assert judge(ToolsInOrder(names=("tree", "grep")), run) == Score(
        check="tree, then grep", passed=True, value=1.0
    )
    assert judge(ToolsInOrder(names=("tree", "tree")), run).passed
    assert judge(ToolsInOrder(names=("grep", "glob")), run) == Score(
        check="grep, then glob",
        passed=False,
        value=0.5,
        reason="no glob after grep; called: tree, glob, grep, tree",
    )
    failed = trial(tmp_path, asks(("a", "tree", {})), answers("a", "tree", error=FAILED))
    assert (
        judge(ToolsInOrder(names=("tree",)), failed).reason
        == "no tree after the beginning; no tool was called"
    )


def test_at_most_n_times(tmp_path):
    """Every call counts, also one that failed."""
    run = trial(tmp_path, answers("a", "grep"), answers("b", "grep", error=FAILED), answers("c", "tree"))
    assert judge(ToolAtMost(name="grep", n=2), run).passed
    assert judge(ToolAtMost(name="grep", n=1), run) == Score(
        check="grep used at most 1 times", passed=False, value=0.5, reason="grep was called 2 times"
    )


@pytest.mark.parametrize(
    ("mode", "made", "value"),
    [
        ("exact", "abc", 1.0),
        ("exact", "abcd", 0.75),
        ("exact", "acb", 2 / 3),
        ("exact", "", 0.0),
        ("in_order", "xaybzc", 1.0),
        ("in_order", "cab", 2 / 3),
        ("any_order", "cxba", 1.0),
        ("any_order", "ccc", 1 / 3),
        ("recall", "cb", 2 / 3),
        ("precision", "cb", 1.0),
        ("precision", "abxx", 0.5),
        ("precision", "aa", 0.5),
        ("precision", "", 0.0),
    ],
)
def test_each_mode_by_hand(tmp_path, mode, made, value):
    """Expected are a, b, c; a check passes where the value reaches its bound."""
    run = called(tmp_path, made)
    strict = judge(TrajectoryMatch(calls=("a", "b", "c"), mode=mode), run)
    assert (strict.value, strict.passed) == (pytest.approx(value), value == 1.0)
    if value:
        assert judge(TrajectoryMatch(calls=("a", "b", "c"), mode=mode, at_least=value), run).passed


def test_arguments_must_agree_where_given(tmp_path):
    """A call fits that has the arguments given; a wide expectation does not take the only call that fits a
    narrow one.
    """
    run = trial(
        tmp_path,
        asks(("1", "grep", {"pattern": "x", "path": "a"}), ("2", "grep", {"pattern": "y"})),
        answers("1", "grep"),
        answers("2", "grep"),
    )
    x, none = {"tool": "grep", "args": {"pattern": "x"}}, {"tool": "grep", "args": {"pattern": None}}
    assert judge(TrajectoryMatch(calls=("grep", x), mode="any_order"), run).passed
    assert judge(TrajectoryMatch(calls=(x, x), mode="any_order"), run).value == 0.5
    assert (
        judge(TrajectoryMatch(calls=({"tool": "grep", "args": {"path": None}},), mode="recall"), run).value
        == 0.0
    )
    assert judge(TrajectoryMatch(calls=(none,)), run) == Score(
        check="calls in order: grep", passed=False, value=0.0, reason="called: grep, grep"
    )


def test_a_thousand_equal_calls_are_matched(tmp_path):
    """As many calls as expected match, however many equal ones there are to exchange for each other."""
    check = TrajectoryMatch(calls=("tree",) * 1_000, mode="recall")
    assert judge(check, called(tmp_path, ["tree"] * 1_000)).passed


@given(st.text("abc", min_size=1, max_size=4), st.text("abcx", max_size=5))
def test_modes_against_brute_force(tmp_path_factory, expected, made):
    """Orders and matchings equal what trying every choice gives."""
    run = called(tmp_path_factory.getbasetemp(), made)
    values = {
        mode: judge(TrajectoryMatch(calls=tuple(expected), mode=mode), run).value
        for mode in ("in_order", "recall", "precision", "exact")
    }
    common = max(
        n
        for n in range(len(expected) + 1)
        for part in combinations(expected, n)
        if part in set(combinations(made, n))
    )
    pairs = max(
        sum(a == b for a, b in zip(order, made, strict=False))
        for padded in [expected + "-" * max(0, len(made) - len(expected))]
        for order in permutations(padded)
    )
    assert values == pytest.approx(
        {
            "in_order": common / len(expected),
            "recall": pairs / len(expected),
            "precision": pairs / len(made) if made else 0.0,
            "exact": common / max(len(made), len(expected)),
        }
    )
