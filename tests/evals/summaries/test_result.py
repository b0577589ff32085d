"""Results as people see them: summary, Pareto front, report, notebook and terminal."""

import asyncio
import re
from time import process_time

import pytest
from made_rows import row, suite
from result_pages import page_details, page_index

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.calls import Usage
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.summaries.result_table import summarise_configurations
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

EVIL = "<script>alert(1)</script>"


def knows(share, name, cost):
    """A model that answers the first `share` of ten questions right, at a price."""

    def turn(request):
        goal = next(message.text for message in request.messages if message.role == "user")
        return "42" if int(goal.split()[0]) < share * 10 else f"no idea {EVIL}"

    unpriced = int(cost is None)
    return ScriptedModel(
        turn, name=name, usage=Usage(tokens_in=10, tokens_out=1, cost_usd=cost or 0.0, unpriced=unpriced)
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Ten scenarios, three configurations: good and dear, poor and cheap, poor and dear."""
    lab = Lab(tmp_path_factory.mktemp("lab") / "home", env={})
    checks = (AnswerContains(texts=("42",)),)
    suite = Suite(
        name=f"demo {EVIL}",
        scenarios=tuple(
            Scenario(id=f"s{n}", goal=f"{n} {EVIL}", checks=checks, family="f") for n in range(10)
        ),
    )
    configs = {
        "good $1": knows(1.0, "m1", 0.5),
        "cheap": knows(0.6, "m2", 0.1),
        "bad": knows(0.5, "m3", 0.6),
        "free": knows(0.9, "m4", None),
    }
    yield asyncio.run(run_suite(lab, suite, configs=configs))
    lab.close()


def test_summary_has_intervals_and_the_front(result):
    """One row per configuration with rate, interval, means, and who is beaten by nobody."""
    summary = result.summary()
    assert list(summary.index) == ["good $1", "cheap", "bad", "free"]
    assert list(summary["success_rate"]) == [1.0, 0.6, 0.5, 0.9]
    assert all(summary["low"] < summary["success_rate"])
    assert all(summary["success_rate"] <= summary["high"])
    assert list(summary["cost_estimate"]) == pytest.approx([0.5, 0.1, 0.6, 0.0])
    assert list(summary["cost_known"]) == [True, True, True, False]
    assert list(summary["model_kind"]) == ["scripted"] * 4


def test_the_front_by_hand(result):
    """Success, cost and time: who is worse in all is not on it; an unknown price is worse than a known
    one.
    """
    records = summarise_configurations(result.rows, "fail")
    for record, time in zip(records, (2.0, 1.0, 3.0, 2.5), strict=True):
        record["working_time"] = time
    from kestrel_lab.evals.summaries.streaming_summary import dominates

    assert [not any(dominates(other, one) for other in records) for one in records] == [
        True,
        True,
        False,
        False,
    ]


def test_text_says_it_is_scripted(result):
    """Terminal and notebook label every configuration that no real model answered for."""
    lines = str(result).splitlines()
    assert lines[0].endswith(": 40 trials of 10 scenarios")
    assert re.fullmatch(
        r"  cheap \(scripted\): 60 % \(31–83\) of 10 trials, 0\.\d\d s, 11 tokens, \$0\.1000", lines[2]
    )
    assert "unknown" in lines[4]
    assert repr(result).endswith("30 passed, 10 failed, 0 broke>")
    html = result._repr_html_()
    assert html.count("(scripted)") >= 8
    assert EVIL not in html


def test_the_report_is_one_safe_file(result, tmp_path):
    """A verdict, a plot and all trials in one page; what is foreign in it is packed or text, and nothing is
    loaded.
    """
    path = result.report(tmp_path / "out" / "report.html")
    text = path.read_text(encoding="utf-8")
    index = page_index(path)
    assert len(index["trials"]) == len(page_details(path)) == 40
    assert [one["label"] for one in index["plots"][0]["rows"]] == [
        *("good $1 (scripted)", "cheap (scripted)", "bad (scripted)", "free (scripted)")
    ]
    assert index["why"] == [["answer contains …", 10]]
    assert any(told.startswith("No real model answered for") for told in index["warnings"])
    assert EVIL not in text
    assert not re.findall(r'(?:src|href)="', text)
    assert {check[0] for one in page_details(path) for check in one["checks"]} == {"answer contains '42'"}


def test_the_plot_names_every_configuration(result):
    """Three axes; dollar signs in names are not formulas."""
    figure = result.plot()
    assert len(figure.axes) == 3
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [r"good \$1 (scripted)", "cheap (scripted)", "bad (scripted)", "free (scripted)"]
    assert "(1 without known price)" in figure.axes[1].get_xlabel()


def test_the_frame_begins_with_the_verdict_and_why(result):
    """What is read first stands first, and `why` says what was expected and what was found."""
    frame = result.frame
    assert list(frame.columns[:7]) == [
        *("passed", "why", "scenario", "config", "epoch", "cost_estimate", "wall_time")
    ]
    assert (frame["passed"].sum(), frame["passed"].mean()) == (30, 0.75)
    assert set(frame.loc[frame["passed"], "why"]) == {""}
    failed = frame.loc[~frame["passed"], "why"].iloc[0]
    assert failed == f"expected: answer contains '42'; found: missing '42'; answered 'no idea {EVIL}'"


def test_a_failure_at_a_limit_says_both():
    """How the run ended comes first, then the checks that failed; a trial that broke has its reason."""
    failed = {"check": "a used", "passed": False, "value": 0.0, "reason": "no tool was"}
    ended = row("s", "fail", reason="cut off; a used: no tool was")
    ended.result["scores"] = [failed, {**failed, "check": "b", "passed": True}]
    assert ended.why == "cut off; expected: a used; found: no tool was"
    limit = row("s", "fail", reason="the limit of 3 model turns is reached")
    assert limit.why == "the limit of 3 model turns is reached"
    assert (row("s", "error", reason="gone").why, row("s", "pass", reason="cut off").why) == ("gone", "")


def test_a_result_of_12_000_trials_is_shown_at_once():
    """Its first display takes a tenth of a second on the machine of the figures; on a busy one, less than three."""
    trials = [row(f"s{n}", "pass", config=config) for n in range(4_000) for config in ("a", "b", "c")]

    def took():
        made = EvalResult(suite=suite(), rows=tuple(trials), store=None)
        began = process_time()
        made._repr_html_()
        return process_time() - began

    assert min(took() for _ in range(3)) < 0.3


def test_the_table_leaves_out_what_says_nothing(result):
    """Columns in which every configuration has nothing are not shown; those of the summary are all there."""
    assert result.table()[0] == [
        *(
            "configuration",
            "model",
            "success (95 %)",
            "trials",
            "wall s",
            "tokens",
            "cost per trial",
            "Pareto front",
        )
    ]
    assert {"errors", "tool_calls", "cache_hits"} <= set(result.summary().columns)
