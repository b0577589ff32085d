"""A model judge is an instrument: measured by labels, version by version, and honest where it is not."""

import asyncio
import json
from random import Random
from statistics import median

import pytest
from greetings import RUBRIC, suite
from made_rows import row

from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.union import TrialJudged, TrialLabelled
from kestrel_lab.evals.labels.judge_measures import (
    difference,
    judge_report,
    measure_judge,
    model_family,
    weighted_mean,
)
from kestrel_lab.evals.labels.stored_labels import TrialLabel, record_label
from kestrel_lab.evals.labels.verdicts import (
    JudgeVersion,
    judge_trials,
    stored_verdicts,
    unsure_of,
    verdicts_of,
)
from kestrel_lab.evals.options import JudgeOptions
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.testing import ScriptedModel


def grader(score=1.0, name="judge"):
    """A judge that gives the same score to everything, or what a function makes of the goal."""

    def turn(request):
        shown = json.loads(request.messages[1].text)
        return json.dumps({"score": score(shown) if callable(score) else score, "why": "w"})

    return ScriptedModel(turn, name=name)


def ask(lab, *judges, rubric=RUBRIC, **more):
    """Ask judges about the twelve trials."""
    return asyncio.run(
        judge_trials(lab.store, "demo", stored_trials(lab.store), judges, JudgeOptions(rubric=rubric, **more))
    )


def label(lab, runs, values):
    """Label the first trials."""
    for run, value in zip(runs, values, strict=False):
        record_label(
            lab.store,
            run,
            TrialLabelled(
                suite="demo", who="ada", rubric=RUBRIC, rubric_hash="", value=value, probability=0.5, drawn=6
            ),
        )


def report(lab):
    """The judges of the suite."""
    return judge_report(lab.store, "demo", stored_trials(lab.store))


def test_a_judge_is_measured_by_labels(lab, runs):
    """Sensitivity and specificity against what people said, with intervals; what it is asked twice is stored
    once, and asked again nothing is asked.
    """
    label(lab, runs, [1, 1, 1, 0, 0, 0])
    lenient = grader(lambda shown: 0.0 if shown["goal"].endswith("5") else 0.9)
    assert ask(lab, lenient, rounds=2, swap=True).asked == 36
    assert ask(lab, lenient, rounds=2, swap=True).there == 36
    (one,) = report(lab).judges
    assert (one.labels, one.missing, one.sensitivity.mean) == (6, 0, 1.0)
    assert one.specificity.mean == pytest.approx(1 / 3)
    assert one.specificity.low < 1 / 3 < one.specificity.high
    assert one.lenient.mean == pytest.approx(1 / 3)
    assert (one.same_again.mean, one.same_swapped.mean) == (1, 1)
    assert one.labels_needed == 24
    assert "counts as measured with 24 more labels" in repr(report(lab))
    assert report(lab).frame["specificity_low"][0] == one.specificity.low


def test_without_a_verdict_it_is_said_how_to_get_one(lab, runs):
    """A table without rows would say nothing to do."""
    label(lab, runs, [1, 0])
    found = judge_report(lab.store, "demo", stored_trials(lab.store))
    assert found.lines() == ["no judge gave a verdict yet: kestrel eval judge demo --model NAME asks one"]


def test_versions_of_a_judge_never_mix(lab, runs):
    """Another rubric is another judge, whose scores are not measured by labels of the first; a judge that has
    not seen the labelled trials says how many it has to be measured on.
    """
    label(lab, runs, [1, 0])
    ask(lab, grader(1.0))
    ask(lab, grader(0.0), rubric="Something else.")
    assert len(stored_verdicts(lab.store, "demo")) == 2
    found = report(lab)
    assert (len(found.judges), len(found.unmeasured)) == (1, 1)
    assert "judges by another rubric than the labels: it has to be measured on 30 labels" in repr(found)
    assert {said.value for said in verdicts_of(lab.store, "demo").values()} == {0}
    rows = stored_trials(lab.store)[:1]
    asyncio.run(judge_trials(lab.store, "demo", rows, [grader(name="new")], JudgeOptions(rubric=RUBRIC)))
    new = next(one for one in report(lab).judges if one.version.judge.startswith("new"))
    assert f"has to be measured on {new.missing} label" in repr(report(lab))


def test_nonsense_is_a_clear_error_and_loses_nothing(lab):
    """The verdicts of a good judge are stored when the other one answers nonsense, and the error names it;
    single ones that cannot be read are told beside the rest.
    """
    with pytest.raises(CheckError, match=r"the judge mad .* gave no verdict on any of 12 trials"):
        ask(lab, grader(), ScriptedModel(lambda _: "as you like it", name="mad"))
    assert [len(given) for given in stored_verdicts(lab.store, "demo").values()] == [12]
    half = grader(lambda shown: 2.0 if shown["goal"].endswith("3") else 1.0, name="half")
    done = ask(lab, half)
    assert (done.asked, len(done.refused)) == (11, 1)
    assert "gave no score in 3 attempts" in next(iter(done.refused.values()))


def test_several_judges_are_compared(lab, runs):
    """Their agreement is told, and trials on which they differ count as unsure."""
    label(lab, runs, [1, 0])
    ask(lab, grader(0.9, "kind"), grader(lambda shown: float(shown["goal"][-1] in "02468"), "picky"))
    found = report(lab)
    assert found.between["raw agreement"].mean == pytest.approx(0.5)
    assert "agreement between judges" in repr(found)
    unsure = unsure_of(stored_verdicts(lab.store, "demo"))
    assert unsure[runs[1]] > unsure[runs[0]]


def test_verdicts_of_graded_checks_count(lab, runs):
    """A `graded` check that says who judged, by which prompt and rubric, is such a judge; one of an earlier
    version, which does not say it, is none.
    """
    score = {"check": "graded by x: r", "passed": False, "value": 0.2, "reason": "no"}
    judge = {"model": "x", "prompt": "p", "rubric": "r"}
    old, new = row("s0", "fail"), row("s1", "fail")
    old.result["scores"], new.result["scores"] = [score], [{**score, "judge": judge}]
    found = stored_verdicts(lab.store, "demo", [old, new])
    assert list(found) == [JudgeVersion("x", "p", "r")]
    assert [said[0].value for said in found[JudgeVersion("x", "p", "r")].values()] == [0]


def made(
    number,
    errors,
    length=lambda n: 5,
    model=lambda n: "gpt-5",
    probability=lambda n: 1.0,
    met=lambda n: True,
):
    """Trials, `met` by people, and a judge that errs where `errors` says so."""
    rows, labels, verdicts = {}, {}, {}
    for n in range(number):
        one = row(f"s{n}", "pass")
        one.result.update(answer="x" * length(n), model=model(n))
        rows[one.run] = one
        labels[one.run] = TrialLabel(
            run=one.run, value=int(met(n)), probability=probability(n), who=("ada",), rubric_hash="r"
        )
        said = {"suite": "demo", "judge": "j", "prompt_hash": "p", "rubric": "r", "rubric_hash": "r"}
        value = met(n) != bool(errors(n))
        verdicts[one.run] = [TrialJudged(**said, value=int(value), score=float(value))]
    return measure_judge(JudgeVersion("j", "p", "r"), verdicts, labels, rows)


def test_a_judge_that_errs_at_random_leans_nowhere():
    """Where right answers are longer and mostly of one model, a judge that errs in 15 % is accused in one suite of
    twenty, whatever people's labels; one that passes long wrong answers is found. Mutant: compared over right and
    wrong answers together, the random one is accused in most.
    """
    random, accused, together = Random(3), {"length": 0, "family": 0}, 0
    for _ in range(60):
        errs = [random.random() < 0.15 for _ in range(200)]
        right = [random.random() < 0.6 for _ in range(200)]
        lengths = [random.randint(60, 120) if one else random.randint(30, 90) for one in right]
        models = ["gpt-5" if random.random() < (0.8 if one else 0.3) else "claude-4" for one in right]
        found = made(200, errs.__getitem__, lengths.__getitem__, models.__getitem__, met=right.__getitem__)
        accused["length"] += found.longer.excludes(0)
        accused["family"] += found.families["gpt"].excludes(0)
        wrong = [
            (0 if met else 1) * err - (1 if met else 0) * err for met, err in zip(right, errs, strict=True)
        ]
        middle = median(lengths)
        longer = [length > middle for length in lengths]
        together += difference(wrong, [1.0] * 200, [*range(200)], longer).excludes(0)
    assert max(accused.values()) <= 7
    assert together >= 30
    long = made(200, lambda n: n % 2 and n > 100, length=lambda n: n + 1, met=lambda n: n % 2 == 0)
    assert long.longer.low > 0


def test_leanings_are_found():
    """A judge that fails short answers, or those of another family, is shown to do so, with an interval that
    excludes nothing.
    """
    found = made(60, lambda n: n < 20, length=lambda n: n)
    assert found.longer.excludes(0)
    assert found.longer.mean == pytest.approx(2 / 3)
    found = made(60, lambda n: n % 2 and n % 3, model=lambda n: ("openai/gpt-5", "claude-opus-4")[n % 2])
    assert found.families["gpt"].excludes(0)
    assert found.families["gpt"].mean == pytest.approx(-found.families["claude"].mean)
    assert not made(60, lambda n: n % 7 == 0, length=lambda n: n).longer.excludes(0)
    assert [model_family(name) for name in ("openai/gpt-5-mini", "claude-3-opus", "llama3:8b")] == [
        "gpt",
        "claude",
        "llama",
    ]


def test_weights_undo_the_draw():
    """Trials that were likelier to be drawn count less: errors in every hard trial, which are half of what is
    labelled and a tenth of the suite, are a tenth.
    """
    found = made(100, lambda n: n < 50, probability=lambda n: 0.9 if n < 50 else 0.1)
    assert found.agreement.mean == pytest.approx(0.9)
    assert found.agreement.low > 0.8


def test_intervals_are_those_of_the_book():
    """The linearised mean of equal weights is the cluster-robust one; a difference of nothing says nothing."""
    found = weighted_mean([1.0, 0.0, 1.0, 1.0], [2.0] * 4, [1, 2, 3, 4])
    assert (found.mean, found.se) == (0.75, pytest.approx(0.25))
    assert difference([1.0], [1.0], [1], [True]).n == 0
    all_met = weighted_mean([1.0] * 9, [1.0] * 5 + [2.0] * 4, range(9), share=True)
    assert 0.6 < all_met.low < 1 == all_met.high


def test_what_cannot_be_asked_is_said(lab):
    """No judge, no trial, no round."""
    for wrong, what in (({"rounds": 0}, "once at least"), ({"rubric": " "}, "no words")):
        with pytest.raises(UsageError, match=what):
            ask(lab, grader(), **wrong)
    with pytest.raises(UsageError, match="name the judge"):
        ask(lab)
    with pytest.raises(UsageError, match="no trial of suite 'demo' can be judged"):
        asyncio.run(judge_trials(lab.store, "demo", [], [grader()], JudgeOptions(rubric=RUBRIC)))


def test_a_suite_has_its_judges_measured_in_a_lab(lab):
    """`suite.judge(…, lab=lab)` is `lab.evals.judge(suite, …)`: a suite knows no log."""
    found = asyncio.run(suite(12).judge(grader(), lab=lab))
    assert found.notes == ("12 verdicts asked for, 0 in the log",)
    assert found.frame.equals(asyncio.run(lab.evals.judge(suite(12))).frame)
