"""Laws of what is said of trials: differences and verdicts, pass@k, evidence that grows, steps in a
history.
"""

import itertools
import math
from statistics import fmean, variance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stats.change_points import find_steps
from kestrel_lab.evals.stats.difference import (
    Difference,
    Question,
    compare_scenarios,
    confirm_by_rounds,
    detectable_drop,
    detectable_mean,
    judge_all,
    overall_verdict,
)
from kestrel_lab.evals.stats.intervals_and_tests import (
    Interval,
    mean_interval,
    newcombe_interval,
    t_quantile,
    t_test,
)
from kestrel_lab.evals.stats.noisy_bisect import Evidence
from kestrel_lab.evals.stats.pass_at_k import (
    ScenarioCounts,
    pass_at_k,
    pass_hat_k,
    pass_rates,
    pass_rates_of_counts,
)


def told(**changes):
    """A difference of .2 with an interval without zero."""
    given = {
        "base": 0.5,
        "head": 0.7,
        "interval": Interval(mean=0.2, low=0.1, high=0.3),
        "p": 0.01,
        "p_holm": 0.01,
        "mde": 0.1,
    }
    return Difference(**{**given, "scenarios": 9, "scope": "scenarios like these", **changes})


def verdict_of(better="higher", margin=0.05, relative=False, least=0.0, **changes):
    """What is said of it."""
    (found,) = judge_all(
        [told(**changes)], [Question(better=better, margin=margin, relative=relative, least=least)]
    )
    return found.verdict


def test_a_verdict_needs_all_of_its_reasons():
    """An adjusted p below 5 % and an interval without zero and, of a relative question, a change beyond its
    tolerance.
    """
    assert (verdict_of(), verdict_of("lower")) == ("improvement", "regression")
    down = {"head": 0.3, "interval": Interval(mean=-0.2, low=-0.3, high=-0.1)}
    assert (verdict_of(**down), verdict_of("lower", **down)) == ("regression", "improvement")
    assert verdict_of(p=0.05) == verdict_of(interval=Interval(mean=0.2, low=0.0, high=0.4)) == "inconclusive"
    assert verdict_of(relative=True, margin=0.39) == "improvement"
    assert (
        verdict_of(relative=True, margin=0.41)
        == verdict_of(relative=True, margin=0.1, least=0.21)
        == "inconclusive"
    )
    assert verdict_of(relative=True, margin=0.0, least=0.19) == "improvement"
    assert verdict_of(relative=True, margin=0.41, base=-0.5, head=-0.3) == "inconclusive"
    assert (
        verdict_of(margin=0.5) == "improvement"
    )  # what counts as none is only for doubt, unless it is relative


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.05, 0.05, "stable"),
        (-0.06, 0.05, "inconclusive"),
        (-0.05, 0.06, "inconclusive"),
        (math.nan, math.nan, "inconclusive"),
    ],
)
def test_stable_is_an_interval_within_the_tolerance(low, high, said):
    """Both of its bounds; one that says nothing is no evidence of that."""
    assert verdict_of(p=0.9, interval=Interval(mean=0.0, low=low, high=high)) == said


def test_what_has_a_note_is_no_question():
    """It has no verdict and takes nothing from the allowance of the others; weights share that."""
    ask = Question(better="higher", margin=0.05, relative=False)
    one, noted, two = judge_all([told(p=0.02), told(note="why not", p=0.001), told(p=0.03)], [ask] * 3)
    assert (one.p_holm, one.verdict) == (pytest.approx(0.04), "improvement")
    assert (two.p_holm, two.verdict) == (pytest.approx(0.04), "improvement")
    assert (noted.p_holm, noted.verdict) == (0.01, "inconclusive")
    heavy = Question(better="higher", margin=0.05, relative=False, weight=3.0)
    assert [found.p_holm for found in judge_all([told(p=0.03), told(p=0.03)], [heavy, ask])] == pytest.approx(
        [0.04, 0.04]
    )
    assert [
        overall_verdict(words)
        for words in (
            [],
            ["stable"],
            ["stable", "improvement"],
            ["improvement", "inconclusive"],
            ["inconclusive", "regression"],
        )
    ] == [
        "inconclusive",
        "stable",
        "improvement",
        "inconclusive",
        "regression",
    ]


def test_rounds_can_only_take_certainty_away():
    """The larger p, the wider interval, the larger detectable difference; one round says nothing."""
    alone = confirm_by_rounds(told(), [0.2])
    assert alone.note and alone.interval == told().interval
    calm = confirm_by_rounds(told(test="sign flips"), [0.2] * 4)
    assert (calm.interval, calm.p, calm.mde, calm.test) == (
        told().interval,
        0.01,
        0.1,
        "sign flips and rounds",
    )
    rough = confirm_by_rounds(told(), [-0.6, 1.0, -0.4, 0.8])
    rounds = mean_interval([-0.6, 1.0, -0.4, 0.8])
    assert (rough.interval.mean, rough.interval.se) == (0.2, rounds.se)
    assert (rough.interval.high - 0.2, 0.2 - rough.interval.low) == pytest.approx(
        [(rounds.high - rounds.low) / 2] * 2
    )
    assert (rough.p, rough.mde) == (t_test(rounds), detectable_mean(rounds.se, 3))
    wider = confirm_by_rounds(told(), [0.1, 0.3, 0.1, 0.3])  # by less than a half
    assert (
        wider.interval.high - 0.2 == pytest.approx(0.2 - wider.interval.low)
        and 0.1 < wider.interval.high - 0.2 < 0.2
    )
    unknown = confirm_by_rounds(told(interval=Interval(mean=0.2, low=math.nan, high=math.nan)), [0.1, 0.3])
    assert not math.isnan(unknown.interval.low)


trials = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3),
    min_size=1,
    max_size=8,
)


@settings(max_examples=30)
@given(trials, trials, st.booleans())
def test_exchanging_the_sides_turns_a_difference_round(base, head, bounded):
    """Means, interval and counts are mirrored; p and what it speaks of stay. The smallest detectable drop is
    one from the base, so of shares it is another one from the other side.
    """
    found, mirror = (
        compare_scenarios(one, two, weights={"a": 2.0}, bounded=bounded)
        for one, two in ((base, head), (head, base))
    )
    both = [name for name in base if name in head]
    assert found.scenarios == mirror.scenarios == len(both)
    if not both:
        assert (found.p, found.p_holm, found.scope, math.isnan(found.base)) == (
            1.0,
            1.0,
            "these scenarios",
            True,
        )
        return
    assert (found.base, found.head, found.lower, found.higher) == pytest.approx(
        (mirror.head, mirror.base, mirror.higher, mirror.lower)
    )
    assert (found.interval.low, found.interval.high) == pytest.approx(
        (-mirror.interval.high, -mirror.interval.low), nan_ok=True, abs=1e-9
    )
    assert found.p == pytest.approx(mirror.p, nan_ok=True, abs=0.03)
    if not bounded:
        assert found.mde == pytest.approx(mirror.mde, nan_ok=True, abs=0.03)
    assert (
        (found.scope, found.test)
        == (mirror.scope, mirror.test)
        == (("scenarios like these", found.test) if len(both) >= 6 else ("these scenarios", "permutation"))
    )
    weight = [2.0 if name == "a" else 1.0 for name in both]
    assert found.base == pytest.approx(
        math.fsum(w * fmean(base[name]) for w, name in zip(weight, both, strict=True)) / math.fsum(weight)
    )
    once = bounded and len({*weight}) == 1 and all(len(base[name]) == len(head[name]) == 1 for name in both)
    assert len(both) < 6 or found.test == ("McNemar" if once else "sign flips")


def test_what_many_scenarios_can_detect():
    """By the spread of their differences; passes and fails never less than the test needs to tell at all; no
    spread of times says nothing.
    """
    base = {name: [1.0, 2.0, 3.0] for name in "abcdefgh"}
    head = {name: [1.0 + 0.1 * number, 2.0, 3.0 + number] for number, name in enumerate(base)}
    times = compare_scenarios(base, head, weights={}, bounded=False, alpha=0.01)
    assert times.mde == pytest.approx(detectable_mean(times.interval.se, 7, alpha=0.01))
    assert math.isnan(compare_scenarios(base, base, weights={}, bounded=False).mde)
    passes = {name: [1.0, 1.0, 1.0] for name in base}
    # No spread is seen, but a change that can be found has one.
    assert compare_scenarios(passes, passes, weights={}, bounded=True).mde == pytest.approx(0.425, abs=1e-3)
    assert compare_scenarios(passes, passes, weights={}, bounded=True, alpha=0.01).mde > 0.5
    fewer = {**passes, "a": [0.0, 0.0, 0.0], "b": [0.0, 1.0, 1.0], "c": [0.0, 0.0, 1.0]}
    spread = compare_scenarios(passes, fewer, weights={}, bounded=True)
    assert spread.mde > detectable_mean(spread.interval.se, 7, noise=1 / 14) > 0.25
    once = {name: values[:1] for name, values in passes.items()}
    assert compare_scenarios(once, once, weights={}, bounded=True).mde == detectable_drop(8, 0.0)
    mixed = {f"s{n}": [float(n % 2)] for n in range(40)}
    turned = {f"s{n}": [1.0 - n % 2] if n < 32 else [float(n % 2)] for n in range(40)}
    assert (
        compare_scenarios(mixed, turned, weights={}, bounded=True).mde
        == detectable_drop(40, 0.8)
        > detectable_drop(40, 0.0)
    )


def test_few_scenarios_have_the_interval_of_their_trials():
    """Welch's over the trials within each scenario, or Newcombe's over rates in which each scenario weighs
    the same.
    """
    base, head = {"a": [1.0, 2.0, 4.0], "b": [2.0, 2.5]}, {"a": [3.0, 3.5], "b": [4.0, 6.0, 6.5]}
    found = compare_scenarios(base, head, weights={}, bounded=False)
    parts = [*base.values(), *head.values()]
    se = math.sqrt(sum(variance(values) / len(values) for values in parts)) / 2
    assert (found.interval.se, found.interval.clusters, found.interval.n) == (pytest.approx(se), 2, 10)
    assert found.interval.high - found.interval.mean == pytest.approx(t_quantile(0.975, 6) * se)
    assert found.mde == pytest.approx(detectable_mean(se, 6))
    wanted = newcombe_interval((4.5, 6), (1.5, 6))
    rates = compare_scenarios(
        {"a": [1.0] * 4, "b": [0.0, 1.0]}, {"a": [0.0, 1.0], "b": [0.0] * 4}, weights={}, bounded=True
    )
    assert (rates.interval.low, rates.interval.high) == pytest.approx((wanted.low, wanted.high))
    once = compare_scenarios(
        {"a": [1.0], "b": [1.0, 2.0]}, {"a": [2.0], "b": [1.0]}, weights={}, bounded=False
    )
    assert (
        math.isnan(once.interval.low) and once.interval.mean == pytest.approx(0.25) and once.interval.n == 5
    )


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices(counts):
    """Of all choices of k of the trials: those with a pass, and those that are all passes."""
    n, c, k = counts
    chosen = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


def test_chances_count_trials_that_ended_and_refuse_too_few():
    """A trial without a verdict is none; impossible numbers and too few trials are named."""
    for n, c, k in ((3, 1, 0), (3, 1, 4), (3, -1, 1), (3, 4, 1)):
        for of in (pass_at_k, pass_hat_k):
            with pytest.raises(UsageError, match=f"not k={k}, {c} of {n} passed"):
                of(n, c, k)
    rows = [
        {"scenario": name, "group": name, "success": value, "weight": weight}
        for name, value, weight in (
            ("a", 1.0, 1.0),
            ("a", 0.0, 1.0),
            ("a", math.nan, 1.0),
            ("b", 1.0, 3.0),
            ("b", 1.0, 3.0),
        )
    ]
    found = pass_rates(rows, 1)
    assert (found["trials"], found["scenarios"], found["pass_at"], found["pass_hat"]) == (
        4,
        2,
        pytest.approx(0.875),
        pytest.approx(0.875),
    )
    assert found["pass_at_low"] <= 0.875 <= found["pass_at_high"]
    assert pass_rates(rows, 2)["pass_hat"] == pytest.approx(0.75)
    with pytest.raises(
        UsageError,
        match="3 trials of each scenario are needed, and a has 2, b has 2: run the suite with --epochs 3",
    ):
        pass_rates(rows, 3)
    assert math.isnan(
        pass_rates_of_counts([ScenarioCounts(scenario="a", group="a", trials=2, passes=1, weight=1.0)], 0)[
            "pass_at"
        ]
    )


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, -0.3, 0.0, 0.4, 1.0]), st.sampled_from([0.5, 1.0])), max_size=12
    ),
    st.sampled_from([0.0, 0.2]),
)
def test_evidence_is_the_mean_capital_of_all_stakes(values, margin):
    """However values are told apart into rounds, the capital is that of 24 gamblers who each stake a share of
    what cannot lose all.
    """
    whole, parts = Evidence(margin), Evidence(margin)
    whole.add(values)
    for value in values:
        parts.add([value])
    assert whole.log_capital == pytest.approx(parts.log_capital, abs=1e-9)
    stakes = [(k - 0.5) / 24 / (1 + margin) for k in range(1, 25)]
    capital = fmean(
        math.prod(1 + stake * weight * (value - margin) for value, weight in values) for stake in stakes
    )
    assert whole.log_capital == pytest.approx(math.log(capital), abs=1e-9)


@pytest.mark.parametrize("at", [3, 6, 9])
def test_a_clear_step_is_found_where_it_is(at):
    """With the means on both sides of it, whatever the unit and the zero of the metric; none where nothing
    changes.
    """
    history = [[0.1 * (n % 3), 0.1 * ((n + 1) % 3)] for n in range(12)]
    stepped = [[value + 2.0 * (n >= at) for value in commit] for n, commit in enumerate(history)]
    (step,) = find_steps(stepped)
    before, after = ([value for commit in part for value in commit] for part in (stepped[:at], stepped[at:]))
    assert (step.at, step.before, step.after) == (
        at,
        pytest.approx(fmean(before)),
        pytest.approx(fmean(after)),
    )
    assert step.p <= 0.05
    (moved,) = find_steps([[10 - 3 * value for value in commit] for commit in stepped])
    assert (moved.at, moved.p) == (at, pytest.approx(step.p, abs=0.01))
    assert find_steps([[1.0, 1.0]] * 8) == find_steps([]) == find_steps([[1.0]]) == []
    (one,) = find_steps([[0.0, 0.1, 0.2, 0.1, 0.0, 0.2], [3.0, 3.1, 3.2, 3.1, 3.0, 3.2]])
    assert (one.at, one.before, one.after) == (1, pytest.approx(0.1), pytest.approx(3.1))


def test_a_fall_that_was_fixed_is_two_steps():
    """A stretch that differs from both sides of it begins and ends where it does."""
    history = [[0.1 * (n % 3), 0.1 * ((n + 1) % 3), 0.05] for n in range(16)]
    steps = find_steps(
        [[value + 3.0 * (6 <= n < 10) for value in commit] for n, commit in enumerate(history)]
    )
    assert [step.at for step in steps] == [6, 10]
    assert steps[0].after == steps[1].before == pytest.approx(3.075, abs=0.05)
