"""Comparisons under a budget: trials are made in turns until the difference is decided."""

import asyncio

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.evals.commits.sequential_compare import Design, TrialPlan, draw_order, parse_budget
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import RecordingReporter, ScriptedModel


def scripted(answer):
    """A model that answers everything with one text."""
    return ScriptedModel(lambda request: answer)


def suite(number=20, weights=1.0, **fields):
    """Scenarios that a model passes by saying hello."""
    scenarios = tuple(
        Scenario(
            id=f"s{n}",
            goal=f"Greet {n}",
            checks=(AnswerContains(texts=("hello",)),),
            weight=weights if n else 1.0,
        )
        for n in range(number)
    )
    return Suite(name="greetings", scenarios=scenarios, configs=(Config(name="any"),), **fields)


@pytest.fixture
def lab(tmp_path):
    """A lab of its own."""
    with Lab(tmp_path / "home", env={}) as made:
        yield made


def compare(lab, *, design, base="polite", head="rude", of=None, **options):
    """A comparison of two configurations in turns."""
    models = {"polite": scripted("hello"), "rude": scripted("no"), "kind": scripted("hello")}
    options["configs"] = {name: models[name] for name in (base, head)}
    work = lab.evals.compare_in_turns(of or suite(), base, head, design=design, **options)
    return asyncio.run(work)


def test_a_plain_difference_ends_before_the_budget(lab):
    """Two configurations that differ in every scenario are told apart with a part of the trials."""
    reporter = RecordingReporter()
    found = compare(lab, design=Design(trials=40), reporter=reporter)
    assert found.verdict == "regression"
    assert found.sequence.pairs < 20
    assert len(found.base.rows) == len(found.head.rows) == found.sequence.pairs
    assert "decided at look" in found.sequence.headline
    assert list(found.sequence.frame.verdict)[-1] == "regression"
    assert any("look 1: " in str(call) for call in reporter.reports)
    assert found.sequence.headline in str(found)


def test_other_metrics_get_no_verdict(lab):
    """How many trials there are depends on the success rate, so nothing is said of cost and tokens."""
    frame = compare(lab, design=Design(trials=40)).frame
    assert set(frame[frame.metric != "success_rate"].verdict) == {"inconclusive"}
    assert frame[frame.metric == "success_rate"].test.tolist() == ["sign flips in turns"]


def test_the_same_arm_uses_the_whole_budget(lab):
    """Without a difference nothing is told, and every pair of the budget is made once."""
    found = compare(lab, design=Design(trials=30), head="kind")
    assert (found.verdict, found.sequence.pairs) == ("inconclusive", 15)
    assert found.sequence.ended == "all 15 pairs were made"


def test_a_suite_with_weights_and_one_arm_are_refused(lab):
    """Unequal weights and a configuration against itself are no comparison in turns."""
    with pytest.raises(UsageError, match="have weights"):
        compare(lab, design=Design(trials=20), of=suite(weights=2.0))
    with pytest.raises(UsageError, match="not with itself"):
        compare(lab, design=Design(trials=20), head="polite")


def test_what_broke_could_turn_a_verdict_over(lab):
    """Where every trial of one side broke nothing is shown, whatever the counts say."""

    def breaks(request):
        raise ModelError("the endpoint is gone")

    configs = {"polite": scripted("hello"), "broken": ScriptedModel(breaks)}
    work = lab.evals.compare_in_turns(suite(), "polite", "broken", design=Design(trials=40), configs=configs)
    found = asyncio.run(work)
    assert found.verdict == "inconclusive"
    assert found.sequence.broken == found.sequence.pairs
    assert "could turn it over" in str(found)


def test_money_bounds_nothing_where_nothing_is_paid(lab):
    """Scripted models cost nothing: all pairs of the suite are made, and the budget is not used up."""
    found = compare(lab, design=Design(cost=1.0), of=suite(6))
    assert found.sequence.planned == 6
    assert found.sequence.pairs <= 6


def test_without_a_maximum_rounds_are_added_until_it_is_shown(lab):
    """An open budget bets round by round."""
    found = compare(lab, design=Design(), of=suite(8))
    assert found.verdict == "regression"
    assert found.sequence.pairs % 8 == 0
    assert "of at most" not in found.sequence.headline


def test_scenarios_of_one_group_count_together(lab):
    """The units are groups: five of them show nothing, however many scenarios they have. A family only
    reports.
    """
    plain = suite(30)
    groups = plain.model_copy(
        update={
            "scenarios": tuple(
                one.model_copy(update={"group": f"g{place % 5}"}) for place, one in enumerate(plain.scenarios)
            )
        }
    )
    assert compare(lab, design=Design(trials=60), of=plain).verdict == "regression"
    found = compare(lab, design=Design(trials=60), of=groups)
    assert found.verdict == "inconclusive"
    assert found.sequence.looks[-1].interval.clusters == 5
    assert found.sequence.looks[-1].interval.mean == pytest.approx(-1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("200trials", (200, None)),
        ("1_000 trials", (1000, None)),
        ("3usd", (None, 3.0)),
        ("$2.50 usd", (None, 2.5)),
        ("200trials,3usd", (200, 3.0)),
        ("open", (None, None)),
    ],
)
def test_budgets_are_written_plainly(text, found):
    """Trials, money, both, or no maximum."""
    assert parse_budget(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "0",
            "-1",
            "200",
            "usd",
            "-3usd",
            "3 eur",
            "trials",
            "nan usd",
            "1e9trials",
            "_trials",
            "1__0trials",
        ),
        *("\u0663trials", "200trials,300trials"),
    ],
)
def test_a_budget_of_nothing_is_refused(text):
    """What is no budget is refused with the forms that are."""
    with pytest.raises(UsageError, match="200trials, 3usd or open"):
        parse_budget(text)


def test_a_budget_without_sense_is_refused():
    """One that is open and has a maximum, and more trials than anybody makes, in a plan, too."""
    with pytest.raises(UsageError, match="no maximum beside it"):
        parse_budget("open,3usd")
    with pytest.raises(UsageError, match="add scenarios"):
        str(TrialPlan(suite=suite(), design=Design(trials=10**22)).headline)


@pytest.mark.parametrize(
    "fields",
    [
        {"trials": 0},
        {"trials": 3},
        {"cost": 0.0},
        {"error": 0.0},
        {"error": 0.9},
        {"matters": 1.0},
        {"looks": 0},
    ],
)
def test_a_design_that_decides_nothing_is_refused(fields):
    """Budgets below two pairs and shares out of range are refused before a trial."""
    with pytest.raises(UsageError):
        Design(**fields)


def test_every_scenario_comes_before_any_repeat():
    """The order is a draw, the same each time, with all scenarios in each epoch."""
    order = draw_order(suite(5), 12)
    assert sorted(order[:5]) == [(f"s{n}", 1) for n in range(5)]
    assert [epoch for _, epoch in order] == [1] * 5 + [2] * 5 + [3] * 2
    assert order == draw_order(suite(5), 12)


def test_a_plan_says_what_a_budget_finds():
    """Scenarios before epochs, and a warning where what matters is smaller than what is found."""
    plan = TrialPlan(suite=suite(60), design=Design(trials=360))
    assert "180 pairs of trials" in plan.headline
    assert ["60", "3", "12 points", "as it is"] in plan.table()[1]
    assert "more than the 5 points that matter" in plan.lines()[0]
    assert plan.table()[1][0][:2] == ["180", "1"]
    assert "without a maximum" in TrialPlan(suite=suite(), design=Design()).headline


def test_the_looks_can_be_drawn(lab):
    """A figure has a mark per look."""
    found = compare(lab, design=Design(trials=40))
    [axes] = found.sequence.plot().axes
    assert "regression" in axes.get_title()
