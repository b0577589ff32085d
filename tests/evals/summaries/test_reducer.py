"""Summaries that keep no trials: the same numbers as from all of them, in whatever parts they come, in little
memory.
"""

import math
import sys
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rows import row, suite

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.gate_decisions import decide_gates
from kestrel_lab.evals.stats.intervals_and_tests import (
    Moments,
    mean_interval,
    mean_of,
    proportion_interval,
    proportion_of,
)
from kestrel_lab.evals.stats.pass_at_k import pass_rates
from kestrel_lab.evals.stored_trials import each_stored_trial, store_trial
from kestrel_lab.evals.summaries.result_table import trial_record
from kestrel_lab.evals.summaries.streaming_summary import Reducer, reduce_rows
from kestrel_lab.eventlog.store import SessionStore

NUMBERS = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


def moments(values):
    """What was seen of them."""
    found = Moments()
    for value in values:
        found.add(value)
    return found


def same(one, other):
    """Two intervals are equal, but for rounding."""
    for name in ("mean", "low", "high", "se", "clusters", "n"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-6, nan_ok=True), (
            name
        )


@given(st.lists(NUMBERS), st.lists(NUMBERS))
def test_parts_put_together_are_the_whole(some, more):
    """Merging moments gives those of all values."""
    merged = moments(some)
    merged.merge(moments(more))
    whole = moments(some + more)
    assert (merged.n, merged.mean) == (whole.n, pytest.approx(whole.mean, abs=1e-6))
    assert merged.squares == pytest.approx(whole.squares, rel=1e-6, abs=1e-3)


@given(
    st.dictionaries(
        st.integers(0, 9),
        st.tuples(st.lists(NUMBERS, min_size=1, max_size=5), st.sampled_from([1.0, 2.5])),
        max_size=6,
    )
)
def test_intervals_from_moments_are_those_of_the_values(clusters):
    """Cluster-robust means, whatever the clusters, sizes and weights."""
    flat = [(x, name, weight) for name, (values, weight) in clusters.items() for x in values]
    known = mean_interval(
        [x for x, _, _ in flat], [name for _, name, _ in flat], [weight for _, _, weight in flat]
    )
    same(
        mean_of([(moments(values), weight) for values, weight in clusters.values()]),
        replace_alone(known, clusters),
    )


def replace_alone(interval, clusters):
    """`mean_interval` takes one cluster alone as independent values, and so counts them."""
    return interval if len(clusters) != 1 else replace(interval, clusters=interval.n)


@given(
    st.dictionaries(
        st.integers(0, 9), st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), max_size=6
    )
)
def test_rates_from_moments_are_those_of_the_trials(clusters):
    """Success rates with Wilson's interval where it is the better one."""
    flat = [(x, name) for name, values in clusters.items() for x in values]
    same(
        proportion_of([(moments(v), 1.0) for v in clusters.values()]),
        proportion_interval([x for x, _ in flat], [name for _, name in flat]),
    )


def trials():
    """Two configurations, six scenarios of two families, three epochs; some broke, some recalled."""
    found = []
    for n in range(36):
        scenario, epoch, config = n % 6, n // 12 + 1, "ab"[n // 6 % 2]
        outcome = "error" if n in (7, 14) else "pass" if (n * 7) % 5 else "fail"
        one = row(
            f"s{scenario}",
            outcome,
            config=config,
            epoch=epoch,
            family="even" if scenario % 2 == 0 else "odd",
            working_time=float(n),
        )
        score = {
            "check": f"recall@10 of search: doc-{scenario}",
            "passed": True,
            "value": (n % 3) / 2,
            "reason": "",
        }
        found.append(replace(one, id=f"t{n}", created_at=float(n), result={**one.result, "scores": [score]}))
    return found


@pytest.mark.parametrize("count_errors", ["fail", "exclude"])
def test_a_summary_is_that_of_all_trials(count_errors):
    """Rate, interval, counts, means and chances of several tries; read once, or in two parts."""
    rows = trials()
    whole = reduce_rows(iter(rows), count_errors).summaries()
    parts = reduce_rows(rows[:17], count_errors)
    for more in rows[17:]:
        parts.add(more)
    assert [
        {k: pytest.approx(v, nan_ok=True) if isinstance(v, float) else v for k, v in s.items()} for s in whole
    ] == parts.summaries()
    for summary in whole:
        records = [trial_record(r, count_errors) for r in rows if r.config == summary["config"]]
        counted = [r for r in records if not math.isnan(r["success"])]
        rate = proportion_interval([r["success"] for r in counted], [r["scenario"] for r in counted])
        assert (summary["success_rate"], summary["low"], summary["high"]) == pytest.approx(
            (rate.mean, rate.low, rate.high)
        )
        assert (summary["trials"], summary["scenarios"], summary["errors"]) == (18, 6, 1)
        assert summary["working_time"] == pytest.approx(sum(r["working_time"] for r in records) / 18)
        several = pass_rates(records, summary["k"])
        assert summary["k"] == (3 if count_errors == "fail" else 2)
        assert {name: summary[name] for name in several if name.startswith("pass")} == pytest.approx(
            {name: value for name, value in several.items() if name.startswith("pass")}
        )


def test_families_have_metrics_with_intervals_and_gates(tmp_path):
    """Every metric by family, recall@10 among them; a gate may ask for recall in one family."""
    rows = trials()
    gate = Gate(metric="recall@10", at_least=0.1, family="even", config="a")
    asked = suite(
        gate,
        Gate(metric="recall@10", at_least=0.99, config="b"),
        Gate(metric="recall@5", at_least=0.1),
        configs=("a", "b"),
    )
    store = SessionStore(tmp_path / "k.db")
    try:
        result = EvalResult(suite=asked, rows=tuple(rows), store=store)
        frame = result.by("family").set_index(["config", "family"])
        assert list(frame.index) == [("a", "even"), ("a", "odd"), ("b", "even"), ("b", "odd")]
        mine = [r for r in rows if r.config == "a" and int(r.scenario[1:]) % 2 == 0]
        recall = mean_interval([r.result["scores"][0]["value"] for r in mine], [r.scenario for r in mine])
        assert tuple(
            frame.loc[("a", "even"), ["recall@10", "recall@10_low", "recall@10_high"]]
        ) == pytest.approx((recall.mean, max(0.0, recall.low), min(1.0, recall.high)))
        assert list(result.by("scenario").columns[:3]) == ["config", "scenario", "model_kind"]
        assert list(result.frame["recall@10"]) == [(n % 3) / 2 for n in range(36)]
        figure = result.plot("recall@10")
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["even", "odd"]
        with pytest.raises(
            UsageError, match="no metric 'recal@10' in these trials; did you mean 'recall@10'"
        ):
            result.plot("recal@10")
        with pytest.raises(UsageError, match="no column 'famly' to group by; did you mean 'family'"):
            result.by("famly")
    finally:
        store.close()
    decided = [(d.config, d.verdict, d.why.partition(";")[0]) for d in decide_gates(asked, rows)]
    assert decided[:2] == [
        ("a (scripted)", "inconclusive", "1 of 9 trials broke"),
        ("b (scripted)", "inconclusive", "1 of 18 trials broke"),
    ]
    assert [(verdict, why) for _, verdict, why in decided[2:]] == [
        ("broken", "no trial says anything of recall@5")
    ] * 2


def test_memory_does_not_grow_with_repeats():
    """Ten times the trials of the same scenarios take no more memory; keeping them, as a list does, takes ten
    times as much.
    """

    def peak(count, consume):
        tracemalloc.start()
        kept = consume(replace(row(f"s{n % 20}", "pass", epoch=n // 20 + 1), id=str(n)) for n in range(count))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size, kept

    few, _ = peak(200, lambda rows: reduce_rows(rows, "fail"))
    many, found = peak(2000, lambda rows: reduce_rows(rows, "fail"))
    assert many < 1.2 * few
    assert peak(2000, list)[0] > 5 * many
    assert found.summaries()[0]["trials"] == 2000


def test_stored_trials_are_read_in_pages(tmp_path):
    """All of them once, oldest first, those of one commit, or the newest of each scenario, configuration and
    epoch.
    """
    store = SessionStore(tmp_path / "k.db")
    try:
        rows = [
            replace(
                row(f"s{n % 700}", "pass", epoch=1),
                id=f"t{n:04}",
                created_at=float(n // 2),
                git_sha="ab"[n % 2],
            )
            for n in range(2100)
        ]
        for one in rows:
            store_trial(store, one)
        store.flush()
        assert [r.id for r in each_stored_trial(store, suite="demo")] == [r.id for r in rows]
        assert [r.id for r in each_stored_trial(store, suite="demo", git_sha="a")] == [
            r.id for r in rows[::2]
        ]
        assert [r.id for r in each_stored_trial(store, suite="demo", latest=True)] == [
            r.id for r in rows[1400:]
        ]
        assert list(each_stored_trial(store, suite="other")) == []
        assert Reducer("fail").summaries() == []
    finally:
        store.close()


def test_a_result_is_reduced_once_however_often_it_is_shown():
    """A notebook shows 12,000 trials at once the second time: summaries are kept, and nobody can change them.

    They are the same as those of a reducer that adds up all metrics.
    """
    rows = tuple(row(f"s{n % 30}", "pass" if n % 3 else "fail", epoch=n, working_time=n) for n in range(600))
    result = EvalResult(suite=suite(), rows=rows, store=None)
    assert result.summaries() == reduce_rows(rows, "fail").summaries()
    result.summaries()[0]["trials"] = 0
    assert result.summaries()[0]["trials"] == 600
    reduced = 0

    def count(frame, what, _function):
        nonlocal reduced
        reduced += what == "call" and frame.f_code is Reducer.add.__code__

    sys.setprofile(count)
    html = result._repr_html_()
    sys.setprofile(None)
    assert "600 trials" in html
    assert reduced == 0
