"""A verdict speaks for the scenarios that were compared, and is withheld where the others could turn it over."""

from __future__ import annotations

import pytest

from kestrel_lab.evals.commits.compare import compare_configs
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.git import base_branches
from kestrel_lab.evals.reports.gate_decisions import fails
from kestrel_lab.evals.suite import Suite
from tests.evals.made_rows import row, suite


def comparison(base: dict[str, str], head: dict[str, str], *, fail_on: str = "worse") -> Comparison:
    """Two sides with the outcomes of their scenarios, of all scenarios that either has."""
    sides = [
        Side(name=name, sha="", rows=tuple(row(one, outcome) for one, outcome in side.items()))
        for name, side in (("before", base), ("after", head))
    ]
    return Comparison(
        suite=suite(),
        base=sides[0],
        head=sides[1],
        margin=0.2,
        expected=frozenset(base) | frozenset(head),
        fail_on=fail_on,
    )


def outcomes(passed: int, failed: int = 0, start: int = 0) -> dict[str, str]:
    """So many scenarios that passed, then failed ones."""
    names = [f"s{number}" for number in range(start, start + passed + failed)]
    return {name: "pass" if place < passed else "fail" for place, name in enumerate(names)}


def test_one_of_six_does_not_speak_for_six():
    """A suite that falls from 100 to 17 % is not called equal since five of its six scenarios have no base.
    The mutant compares what is left.
    """
    found = comparison(outcomes(1), outcomes(1, 5))
    assert found.coverage == "1 of 6 scenarios compared"
    assert "1 of 6 scenarios compared" in found.headline
    assert "1 of 6 scenarios compared" in found.markdown()
    assert found.verdict == "inconclusive"
    assert found.gates().verdict == "uncertain"


def test_a_verdict_is_withheld_where_the_missing_could_turn_it_over():
    """Thirty equal scenarios are no difference; with ten that have no base they are not."""
    whole = comparison(outcomes(60), outcomes(60))
    assert (whole.verdict, whole.coverage) == ("stable", "")
    part = comparison(outcomes(60), outcomes(60, 30))
    assert part.verdict == "inconclusive"
    (difference,) = part.changes.values()
    assert "30 of 90 scenarios have no trials on one side, and could turn it over" in difference.note


def test_a_verdict_stays_where_the_missing_cannot_turn_it_over():
    """Two scenarios without a base do not hide that sixty fell."""
    found = comparison(outcomes(60), outcomes(0, 62))
    assert (found.verdict, found.coverage) == ("regression", "60 of 62 scenarios compared")


@pytest.mark.parametrize(
    ("head", "fail_on", "code", "outcome"),
    [
        (outcomes(9, 1), "worse", 0, "skipped"),
        (outcomes(9, 1), "uncertain", 2, "failure"),
        (outcomes(9, 1), "any", 2, "failure"),
        (outcomes(10), "worse", 0, "skipped"),
        (outcomes(10), "uncertain", 2, "failure"),
        (outcomes(0, 10), "worse", 1, "failure"),
        (outcomes(0, 10), "uncertain", 1, "failure"),
    ],
)
def test_what_is_not_shown_is_not_red(head, fail_on, code, outcome):
    """A comparison that does not tell ends with 0 and a skipped case, unless it is asked for; what is worse
    ends with 1.
    """
    gates = comparison(outcomes(10), head, fail_on=fail_on).gates()
    assert gates.exit_code == code
    assert [case.outcome for case in gates.group().cases] == [outcome]


def test_any_change_of_a_rate_is_red_where_that_is_asked_for():
    """Also an improvement that is shown, and not where both rates are the same."""
    better = comparison(outcomes(0, 20), outcomes(20), fail_on="any")
    assert (better.verdict, better.gates().exit_code) == ("improvement", 2)
    same = comparison(outcomes(80), outcomes(80), fail_on="any")
    assert (same.verdict, same.gates().exit_code) == ("stable", 0)
    assert not any(fails(decision, "any") for decision in same.gates().decisions)


def test_a_bound_that_is_not_shown_is_red_unless_the_suite_lets_it_pass():
    """Exit code 2, or 0 with the verdict `uncertain`; a violated bound is 1 either way."""
    from kestrel_lab.evals.gate_bounds import Gate
    from kestrel_lab.evals.reports.gate_decisions import GateReport, decide_gates

    def report(undecided: str, *trials: str) -> GateReport:
        gated = suite(Gate(metric="success_rate", at_least=0.8, undecided=undecided))
        rows = [row(f"s{number}", outcome) for number, outcome in enumerate(trials)]
        return GateReport(suite="s", decisions=decide_gates(gated, rows))

    assert (report("fail", "pass", "pass").verdict, report("fail", "pass", "pass").exit_code) == (
        "inconclusive",
        2,
    )
    assert (report("pass", "pass", "pass").verdict, report("pass", "pass", "pass").exit_code) == (
        "uncertain",
        0,
    )
    assert report("pass", *["fail"] * 9).exit_code == 1


def test_the_build_names_the_base(tmp_path):
    """The target of a pull or merge request, else the default branch that the server names."""
    event = tmp_path / "event.json"
    event.write_text('{"repository": {"default_branch": "develop"}}')
    assert base_branches({"GITHUB_BASE_REF": "release", "GITHUB_EVENT_PATH": str(event)}) == (
        "origin/release",
        "release",
    )
    assert base_branches({"GITHUB_EVENT_PATH": str(event)}) == ("origin/develop", "develop")
    assert base_branches({"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "next", "CI_DEFAULT_BRANCH": "main"}) == (
        "origin/next",
        "next",
    )
    assert base_branches({"CI_DEFAULT_BRANCH": "trunk"}) == ("origin/trunk", "trunk")
    assert base_branches({}) == ()


def test_arms_of_one_result_are_expected_to_have_all_scenarios():
    """A configuration that lacks half of the scenarios is not compared by the other half alone."""
    from kestrel_lab.evals.execution.result import EvalResult

    rows = [
        row(f"s{number}", "pass", config=config)
        for config in "ab"
        for number in range(40 if config == "a" else 12)
    ]
    result = EvalResult(suite=Suite(**suite(configs=("a", "b")).__dict__), rows=tuple(rows), store=None)
    found = compare_configs(result, "a", "b", margin=0.3)
    assert (found.coverage, found.verdict) == ("12 of 40 scenarios compared", "inconclusive")
