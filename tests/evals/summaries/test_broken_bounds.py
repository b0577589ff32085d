"""What broke: counted apart, with the rates that trials would have if it had failed or passed, and no verdict
that it could turn over.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from made_rows import row, rows, suite

from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.commits.row_differences import compare_rows
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.gate_decisions import decide_gates
from kestrel_lab.evals.summaries.result_table import broke_in, summarise_configurations, summary_table

outcomes = st.lists(st.sampled_from(["pass", "fail", "error"]), min_size=1, max_size=20)


@given(outcomes, st.sampled_from(["fail", "exclude"]), st.sampled_from(["pass", "fail"]))
def test_whatever_broken_trials_had_been_the_rate_is_within_the_bounds(found, counted, instead):
    """The bounds do not depend on how errors are counted, and are reached where all had failed or all passed."""
    (summary,) = summarise_configurations(rows(*found), counted)
    ended = [instead if one == "error" else one for one in found]
    (whole,) = summarise_configurations(rows(*ended), counted)
    bound = summary["if_broken_passed" if instead == "pass" else "if_broken_failed"]
    assert abs(whole["success_rate"] - bound) < 1e-12
    assert summary["if_broken_failed"] <= summary["if_broken_passed"]
    assert whole["if_broken_failed"] == whole["if_broken_passed"]


def test_a_summary_shows_what_broke_with_its_bounds():
    """In the column of what broke; nothing beside a zero."""
    headings, (cells,) = summary_table(
        summarise_configurations(rows("pass", "pass", "error", "fail"), "exclude")
    )
    assert cells[headings.index("broke")] == "1 (rate 50–75 %)"
    assert broke_in(rows("pass", "fail")) == "0"


def sides(broken_at_base: int, passed: int = 30):
    """Thirty scenarios that passed at base, some of which broke there, and of which twelve fail at head."""
    base = rows(*["error"] * broken_at_base, *["pass"] * (passed - broken_at_base))
    head = [row(f"s{number}", "fail" if number < 12 else "pass") for number in range(passed)]
    return base, head


def test_a_verdict_that_broken_trials_could_turn_over_is_refused():
    """Twelve of 30 fail at head. With two of these broken at base it is a regression either way; where the
    twelve broke at head and are counted as failed, they alone are the regression.
    """
    found = compare_rows(suite(), sides(2), margin=0.05)["c", "success_rate"]
    assert (found.verdict, found.note) == ("regression", "")
    base, head = sides(0)
    worse = [
        replace(one, result={**one.result, "outcome": "error"}) if one.outcome == "fail" else one
        for one in head
    ]
    found = compare_rows(suite(), (base, worse), margin=0.05)["c", "success_rate"]
    assert found.verdict == "inconclusive"
    assert found.note.startswith(
        "no verdict (regression): what broke could turn it over, the difference is -40.0 to +0.0"
    )
    compared = Comparison(
        suite=suite(),
        base=Side(name="a", sha="", rows=tuple(base)),
        head=Side(name="b", sha="", rows=tuple(worse)),
    )
    assert compared.verdict == "inconclusive"
    assert "broke: 12 (rate 60–100 %), counted as failed" in str(compared)
    assert "what broke could turn it over" in str(compared)


def test_a_gate_says_what_broke_with_its_bounds():
    """In the reason of its decision."""
    gate = Gate(metric="success_rate", at_least=0.5)
    (decision,) = decide_gates(suite(gate), rows(*["pass"] * 18, "error", "error"))
    assert decision.why.startswith(
        "2 of 20 trials broke (the rate is 90 % if they failed, 100 % if they passed)"
    )
