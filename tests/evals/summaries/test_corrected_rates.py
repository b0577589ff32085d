"""Rates that people's labels correct: beside the plain ones in summaries and gates, and decisive where a model
judges.
"""

from dataclasses import replace

from made_rows import row, suite

from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.commits.history import CommitRows, History
from kestrel_lab.evals.commits.row_differences import compare_rows
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.reports.gate_decisions import decide_gates
from kestrel_lab.evals.stats.label_correction import corrected_rate
from kestrel_lab.evals.summaries.corrected_rates import corrected_text, sample_of_records
from kestrel_lab.evals.summaries.result_table import (
    summarise_configurations,
    summary_table,
    trial_record,
)

GRADED = {"check": "graded by judge: it helps", "passed": True, "value": 1.0, "reason": ""}


def judged(count, labelled, *, right=0.6, passed=0.9):
    """Trials of a lenient judge: nine of ten pass, six of ten are right; the first `labelled` have a label."""
    found = []
    for number in range(count):
        one = row(f"s{number}", "pass" if number % 10 < 10 * passed else "fail")
        result = {**one.result, "scores": [GRADED], "run": f"r{number}"}
        if number < labelled:
            result |= {"label": float(number % 10 < 10 * right), "label_probability": 0.2}
        found.append(replace(one, result=result))
    return found


def test_a_summary_shows_the_corrected_rate_beside_the_plain_one():
    """With its interval, its labels and what they are worth; nothing where nobody labelled, and how many
    labels there are where they are too few.
    """
    (summary,) = summarise_configurations(judged(200, 50), "fail")
    found = corrected_rate(sample_of_records(trial_record(one, "fail") for one in judged(200, 50)))
    assert (summary["labels"], summary["success_rate"]) == (50, 0.9)
    assert abs(summary["corrected_rate"] - found.interval.mean) < 1e-9
    assert summary["corrected_rate_high"] < 0.8
    headings, (cells,) = summary_table([summary])
    shown = cells[headings.index("corrected by labels (95 %)")]
    assert shown == corrected_text(summary)
    assert shown.startswith("61 % (")
    assert ", 50 labels worth " in shown
    headings, _ = summary_table(summarise_configurations(judged(200, 0), "fail"))
    assert not any("corrected" in one for one in headings)
    (few,) = summarise_configurations(judged(200, 12), "fail")
    assert corrected_text(few) == "12 of 30 labels"


def test_a_gate_on_a_judge_takes_labels():
    """Without enough of them it does not pass, whatever the judge says, and says how many are missing; with
    them it is decided by the corrected rate. A gate without a judge needs none.
    """
    gate = Gate(metric="success_rate", at_least=0.8)

    def decided(rows):
        (decision,) = decide_gates(suite(gate), rows)
        return decision.verdict, decision.why

    verdict, why = decided(judged(200, 12))
    assert verdict == "inconclusive"
    assert why.endswith(
        "takes 30 labels of people to be decided about, and there are 12: kestrel eval label SUITE"
    )
    verdict, why = decided(judged(200, 60))
    assert verdict == "regression"
    assert why.startswith(
        "corrected by 60 labels; by verdicts alone 90 % (85.1 % to 93.4 %); 200 verdicts make 60"
    )
    assert decided(judged(200, 150, right=0.9))[0] == "ok"
    broken = [replace(one, result={**one.result, "outcome": "error"}) for one in judged(200, 60)[:1]]
    assert decided([*broken, *judged(200, 60)[1:]])[1].startswith(
        "1 of 200 trials broke (the rate is 89.5 % if they failed, 90 % if they passed); corrected by 60 labels"
    )
    assert decided([replace(one, result={**one.result, "scores": []}) for one in judged(200, 0)]) == (
        "ok",
        "",
    )


def test_a_lenient_judge_is_overruled_by_labels():
    """By verdicts alone the worse side is better; with labels on both sides it is a regression, and the plain
    difference stands in a note. Without labels the note says that nothing is corrected.
    """
    base, head = judged(300, 150, right=0.9, passed=0.8), judged(300, 150, right=0.6, passed=1.0)

    def compared(*sides):
        base, head = (
            tuple(replace(one, result={**one.result, "run": f"{name}{one.run}"}) for one in rows)
            for name, rows in zip("ab", sides, strict=True)
        )
        return Comparison(
            suite=suite(), base=Side(name="a", sha="", rows=base), head=Side(name="b", sha="", rows=head)
        )

    found = compared(base, head)
    difference = compare_rows(suite(), (base, head), margin=0.05)["c", "success_rate"]
    assert (found.verdict, difference.test) == ("regression", "labels")
    assert difference.interval.high < -0.1
    assert "corrected by 150 and 150 labels; by verdicts alone 80 % → 100 %, +20.0 points" in str(found)
    assert "Before the correction by labels: 60 trials changed sides, 0 to fail" in found.sentence
    plain = compared(judged(300, 0, right=0.9, passed=0.8), judged(300, 10, right=0.6, passed=1.0))
    assert plain.verdict == "improvement"
    assert "not corrected: that takes 30 labels of people on each side, and there are 0 and 10" in str(plain)


def test_a_history_has_the_corrected_rate_of_each_commit():
    """Of the success rate only: a column behind the plain value where trials are labelled, and none where
    nobody labelled.
    """
    commit = Commit(sha="a" * 40, subject="s", at=0.0)

    def history(rows, metric="success_rate"):
        return History(suite=suite(), metric=metric, commits=(CommitRows(commit=commit, rows=tuple(rows)),))

    found = history(judged(200, 50))
    headings, (cells,) = found.table()
    assert headings[4] == "corrected by labels (95 %)"
    assert cells[4].startswith("61 % (")
    assert found.summary()["labels"].tolist() == [50]
    assert "corrected by labels (95 %)" not in history(judged(200, 0)).table()[0]
    assert "corrected by labels (95 %)" not in history(judged(200, 50), "token_usage").table()[0]
