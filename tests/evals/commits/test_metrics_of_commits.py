"""Comparisons and histories have the metrics that summaries and gates have, and agree on the same trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from made_rows import row

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.commits.history import CommitRows, History
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.metrics import Metric
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.summaries.streaming_summary import reduce_rows

SCENARIOS = 12
FAMILIES = ("code", "docs")
OWN = Metric(name="pages_read", unit="pages", better="lower", function=lambda _records: 0.0)
SUITE = Suite(
    name="demo",
    scenarios=tuple(
        Scenario(
            id=f"s{number}",
            goal=f"goal {number}",
            family=FAMILIES[number % 2],
            checks=(AnswerContains(texts=("x",)),),
        )
        for number in range(SCENARIOS)
    ),
    configs=(Config(name="c"),),
    metrics=(OWN,),
    gates=(Gate(metric="recall@10", at_least=0.1),),
)
NAMES = ("recall@10", "score:tone", "pages_read")
"""What checks measure and the suite's own: all doors have them."""


def trials(recall: float, pages: float, *, epochs: int = 2, passed: int = SCENARIOS) -> list[EvalRow]:
    """Trials whose checks found this share of what they want; `passed` scenarios pass."""
    made = []
    for number in range(SCENARIOS):
        for epoch in range(1, epochs + 1):
            trial = row(
                f"s{number}",
                "pass" if number < passed else "fail",
                epoch=epoch,
                family=FAMILIES[number % 2],
                pages_read=pages + number / 100,
            )
            scores = [
                {"check": "recall@10", "value": recall, "passed": True, "weight": 1.0},
                {"check": "judge", "name": "tone", "value": 1.0, "passed": True, "weight": 1.0},
            ]
            made.append(replace(trial, result={**trial.result, "scores": scores}))
    return made


def compare(base: Sequence[EvalRow], head: Sequence[EvalRow], suite: Suite = SUITE) -> Comparison:
    """The two sides as a comparison."""
    sides = [Side(name=name, sha=name * 40, rows=tuple(rows)) for name, rows in (("a", base), ("b", head))]
    expected = frozenset(scenario.id for scenario in suite.scenarios)
    return Comparison(suite=suite, base=sides[0], head=sides[1], expected=expected)


def history(base: Sequence[EvalRow], head: Sequence[EvalRow], metric: str, suite: Suite = SUITE) -> History:
    """The same two sides along two commits."""
    commits = [
        CommitRows(commit=Commit(sha=name * 40, subject=name, at=float(at)), rows=tuple(rows))
        for at, (name, rows) in enumerate((("a", base), ("b", head)))
    ]
    return History(suite=suite, metric=metric, commits=tuple(commits))


BASE, HEAD = trials(0.9, 3.0), trials(0.4, 5.0)


@pytest.mark.parametrize("metric", NAMES)
def test_what_a_summary_has_is_in_comparisons_and_histories(metric: str) -> None:
    """For all scenarios and for each family, with the values of the summary."""
    (summary,) = reduce_rows(BASE, "exclude").grouped("config")
    differences = compare(BASE, HEAD).frame.set_index("metric")
    assert differences.loc[metric, "base"] == pytest.approx(summary[metric])
    (first, _) = history(BASE, HEAD, metric).summary().to_dict("records")
    assert first["value"] == pytest.approx(summary[metric])
    families = compare(BASE, HEAD).families.set_index(["family", "metric"])
    for record in reduce_rows(BASE, "exclude").grouped("family"):
        assert families.loc[(record["family"], metric), "base"] == pytest.approx(record[metric])


def test_which_way_is_better_is_known() -> None:
    """Less found and more pages read are both worse, whoever shows them; a gate's metric is decided, too."""
    found = compare(BASE, HEAD)
    verdicts = found.frame.set_index("metric")["verdict"]
    assert (verdicts["recall@10"], verdicts["pages_read"]) == ("regression", "regression")
    for metric in ("recall@10", "pages_read"):
        assert list(history(BASE, HEAD, metric).steps["change"]) == ["worse"]
    decisions = {decision.metric: decision.verdict for decision in found.gates().decisions}
    assert decisions["recall@10"] == "regression"


def test_a_metric_that_one_side_lacks_is_not_compared() -> None:
    """Where a check is newer than one commit, there is nothing to compare, and no place in the allowance."""
    without = [replace(trial, result={**trial.result, "scores": []}) for trial in BASE]
    assert "recall@10" not in set(compare(without, HEAD).frame["metric"])


def test_more_metrics_make_no_test_bolder() -> None:
    """The success rate has the same p value however many metrics stand beside it; the others share a third."""
    drop = trials(0.9, 3.0, passed=SCENARIOS - 8)
    bare = SUITE.model_copy(update={"metrics": ()})

    def p_of_rate(suite: Suite, base: Sequence[EvalRow], head: Sequence[EvalRow]) -> float:
        return float(compare(base, head, suite).frame.set_index("metric").loc["success_rate", "p_holm"])

    plain = [[replace(t, result={**t.result, "scores": []}) for t in side] for side in (BASE, drop)]
    assert p_of_rate(SUITE, BASE, drop) >= p_of_rate(bare, *plain)


def test_a_share_in_between_is_not_tested_as_passes() -> None:
    """Recall of trials that were made once is no flip: its test is not McNemar's."""
    tests = compare(trials(0.9, 3.0, epochs=1), trials(0.4, 3.0, epochs=1)).frame.set_index("metric")["test"]
    assert (tests["success_rate"], tests["recall@10"]) == ("McNemar", "sign flips")


def test_an_unknown_metric_names_its_kin() -> None:
    """A typing error is answered with the suite's own name."""
    with pytest.raises(UsageError, match="did you mean 'pages_read'"):
        history(BASE, HEAD, "success_rate").of("page_read")
    with pytest.raises(UsageError, match=r"did you mean 'recall@10'"):
        history(BASE, HEAD, "success_rate").of("recal@10")


def test_a_metric_that_no_trial_has_is_said_to_be_missing() -> None:
    """`recall@99` is a metric, and no check of these trials measures it."""
    assert "no trial says anything of recall@99" in history(BASE, HEAD, "recall@99").lines()


@pytest.mark.parametrize("passed", [SCENARIOS, 8, 5, 2, 0])
@pytest.mark.parametrize("epochs", [1, 2, 4])
@pytest.mark.parametrize("metric", ["success_rate", "token_usage", *NAMES])
def test_history_and_compare_agree(metric: str, epochs: int, passed: int) -> None:
    """On the same stored trials of two commits: the same rates, the interval of the summary, one verdict."""
    base, head = trials(0.9, 3.0, epochs=epochs), trials(0.8, 4.0, epochs=epochs, passed=passed)
    base = [replace(trial, metrics={**trial.metrics, "token_usage": 100.0}) for trial in base]
    difference = compare(base, head).frame.set_index("metric").loc[metric]
    along = history(base, head, metric)
    first, last = along.summary().to_dict("records")
    assert (first["value"], last["value"]) == pytest.approx((difference["base"], difference["head"]))
    for record, rows in ((first, base), (last, head)):
        (summary,) = reduce_rows(rows, "exclude").grouped("config")
        ends = (summary[f"{metric}_low"], summary[f"{metric}_high"])
        assert (record["low"], record["high"]) == pytest.approx(ends, nan_ok=True)
    change = {"regression": ["worse"], "improvement": ["better"]}.get(difference["verdict"], [])
    assert list(along.steps["change"]) == change
