"""Rates that people's labels correct: beside the plain ones in summaries and gates, and decisive where a model
judges.
"""

from dataclasses import replace

import pytest
from made_rows import row, suite

from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.commits.history import CommitRows, History
from kestrel_lab.evals.commits.row_differences import compare_families, compare_rows
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.reports.gate_decisions import decide_gates
from kestrel_lab.evals.stats.label_correction import corrected_rate
from kestrel_lab.evals.studies.ablation_result import Ablation, PairOfTrials
from kestrel_lab.evals.studies.guidance_parts import split_guidance
from kestrel_lab.evals.summaries.best_configuration import best_configuration
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
    assert shown.startswith("60 % (")
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
    difference stands in a note. Without labels there is no verdict, whichever side is judged.
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
    assert plain.verdict == "inconclusive"
    assert "30 labels of people on each side correct it, and there are 0 and 10 (kestrel eval label" in str(
        plain
    )
    unjudged = [replace(one, result={**one.result, "scores": []}) for one in judged(300, 0, passed=0.4)]
    assert compared(judged(300, 0), unjudged).verdict == "inconclusive"
    assert compared(
        [replace(one, result={**one.result, "scores": []}) for one in base], unjudged
    ).verdict == ("regression")


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
    assert cells[4].startswith("60 % (")
    assert found.summary()["labels"].tolist() == [50]
    assert "corrected by labels (95 %)" not in history(judged(200, 0)).table()[0]
    assert "corrected by labels (95 %)" not in history(judged(200, 50), "token_usage").table()[0]


def of_config(rows, config):
    """The same trials with another configuration and runs of their own."""
    return [replace(one, config=config, result={**one.result, "run": f"{config}{one.run}"}) for one in rows]


def history_steps(base, head):
    """What a history of eight commits, the head's trials at the last four, says of steps."""
    commits = tuple(
        CommitRows(
            commit=Commit(sha=str(place) * 40, subject="s", at=float(place)),
            rows=tuple(
                replace(one, epoch=epoch, config="c") for epoch in (1, 2) for one in (base, head)[place > 3]
            ),
        )
        for place in range(8)
    )
    return "\n".join(History(suite=suite(), metric="success_rate", commits=commits).lines())


def compared_verdicts(base, head):
    """What a comparison and its families conclude."""
    sides = [[replace(one, config="c") for one in rows] for rows in (base, head)]
    found = [compare_rows(suite(), sides, margin=0.05)["c", "success_rate"]]
    found += compare_families(suite(), sides, margin=0.05).values()
    return "; ".join(f"{one.verdict} {one.note}" for one in found)


def first_sentence(base, head):
    """What the page of a result says first."""
    rows = [*base, *head]
    return best_configuration(rows, summarise_configurations(rows, "fail"), "fail", {})


def effects_of_parts(base, head):
    """What an ablation says of two parts of which the second breaks half of the trials."""
    pairs = []
    for number, (good, bad) in enumerate(zip(base, head, strict=True)):
        second = number % 2 == 0
        parts = (number % 4 < 2, second)
        pairs.append(PairOfTrials(parts=parts, first=bad if second else good, second=good if second else bad))
    study = Ablation(
        suite=suite(),
        file="AGENTS.md",
        unit="heading",
        divided=split_guidance("# a\nx\n\n# b\ny\n", "section"),
        pairs=tuple(pairs),
        margin=0.05,
        reused=0,
        ended="",
        store=None,
    )
    return f"{study.headline} {' '.join(study.lines())}"


CONCLUSIONS = {
    history_steps: "step at",
    compared_verdicts: "regression",
    first_sentence: "It is better than",
    effects_of_parts: "1 harms",
}


@pytest.mark.parametrize("door", CONCLUSIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    "label",
    ["graded by judge: good", "any of: says x; graded by judge: good", "named: graded by judge: good", "own"],
)
def test_no_door_concludes_from_an_uncorrected_judge(door, label):
    """A comparison, its families, the first sentence of a page, a history and an ablation conclude from checks,
    and conclude nothing where a model judge is one of them, alone or as a part; they name the labels it takes.
    A judge that is only measured, with weight 0, takes no verdict away.
    """
    score = {"check": label, "passed": True, "value": 1.0, "reason": ""}
    # A judge inside of a check with a label of its own is known by what it used.
    score |= {"usage": {"unpriced": 0, "cost_usd": 0.01}} if label == "own" else {}

    def sides(more):
        base, head = judged(80, 0, passed=0.9), judged(80, 0, passed=0.2)
        return [
            of_config([replace(one, result={**one.result, "scores": [more]}) for one in rows], name)
            for rows, name in ((base, "a"), (head, "b"))
        ]

    assert CONCLUSIONS[door] in door(*sides(score | {"weight": 0}))
    said = door(*sides(score))
    assert CONCLUSIONS[door] not in said
    assert "30 labels of people on each side" in said
    assert "kestrel eval label" in said


def test_labels_decide_which_configuration_is_best():
    """Of two that a judge likes alike, people's labels show one to be better: in the first sentence, too."""
    rows = [
        *of_config(judged(200, 100, right=0.9), "a"),
        *of_config(judged(200, 100, right=0.3), "b"),
    ]
    said = best_configuration(rows, summarise_configurations(rows, "fail"), "fail", {})
    assert "It is better than b" in said
