"""A price that nobody knows is told as unknown wherever a cost is told, and never as nothing."""

import asyncio
import json
import re
from dataclasses import replace

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.messages import ModelAnswer, ToolRequest
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.evals.commits.row_differences import compare_rows
from kestrel_lab.evals.execution.progress import EvalProgress
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stored.summary import summarise_stored
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.summaries import streaming_summary as reducer
from kestrel_lab.evals.summaries.metric_values import find_metric
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.views.row_builders import Budget

KNOWN = Usage(tokens_in=1, cost_usd=0.12, model_calls=1)
UNKNOWN = Usage(tokens_in=1, unpriced=1, model_calls=1)


def turns(*usages):
    """A model whose calls are priced like that, one after the other; all but the last look around."""

    def turn(request):
        done = sum(message.role == "tool" for message in request.messages)
        if done + 1 == len(usages):
            return ModelAnswer(text="42", usage=usages[done])
        return ModelAnswer(
            calls=(ToolRequest(id="c", name="list_directory", args={"path": "."}),), usage=usages[done]
        )

    return ScriptedModel(turn)


@pytest.fixture
def result(tmp_path):
    session = Lab(tmp_path / "home", env={})
    suite = Suite(
        name="costs", scenarios=(Scenario(id="s", goal="g", checks=(AnswerContains(texts=("42",)),)),)
    )
    models = {"known": turns(KNOWN), "unknown": turns(UNKNOWN), "part": turns(KNOWN, UNKNOWN)}
    found = asyncio.run(run_suite(session, suite, configs=models))
    yield session, suite, found
    session.close()


def cells(text, config):
    """The line that tells of a configuration."""
    return next(line for line in text.splitlines() if line.strip().startswith(config))


def test_every_text_says_what_is_not_known(result, tmp_path):
    """The summary of stored trials, by configuration and scenario, as text and HTML; what was run; JUnit;
    Markdown; the report.
    """
    session, suite, found = result
    for by in ("config", "scenario"):
        text = repr(summarise_stored(session, suite, by=by))
        assert (cells(text, "known")[-4:], "unknown" in cells(text, "known")) == ("0.12", False)
        assert cells(text, "unknown").endswith("  unknown")
        assert cells(text, "part").endswith("≥ 0.12 + unknown")
    html = summarise_stored(session, suite)._repr_html_()
    assert ">unknown<" in html and "≥ 0.12 + unknown" in html
    assert "unknown" in cells(str(found), "unknown") and "≥ $0.1200 + unknown" in cells(str(found), "part")
    xml = found.junit(tmp_path / "j.xml").read_text()
    assert re.findall(r'name="cost_estimate" value="([^"]*)"', xml) == ["0.12", "unknown", "≥ 0.12 + unknown"]
    page = found.report(tmp_path / "r.html").read_text()
    assert "unknown" in page and "≥ $0.1200 + unknown" in page


def test_frames_have_no_number_where_none_is_known(result):
    """Of a trial, of a group of trials, and of commits: missing, with what is known beside it."""
    session, suite, found = result
    frame = found.frame.set_index("config")
    assert frame.cost_estimate.isna().to_dict() == {"known": False, "unknown": True, "part": False}
    assert frame.loc["part", ["cost_estimate", "unpriced_calls"]].tolist() == [0.12, 1]
    stored = summarise_stored(session, suite).frame.set_index("config")
    assert stored.cost_estimate.isna().to_dict() == {"known": False, "unknown": True, "part": True}
    assert stored.cost_at_least[["unknown", "part"]].tolist() == [0.0, 0.12]
    cost = find_metric("cost_estimate")
    values = {row.config: cost.text(cost.value(row, suite.count_errors)) for row in found.rows}
    assert values == {"known": "0.12", "unknown": "unknown", "part": "unknown"}


def test_commits_are_not_compared_by_costs_that_are_not_known(result):
    """A cost that is known on one side only is not a change, and no saving."""
    _, suite, found = result
    known, unknown = ([row for row in found.rows if row.config == name] for name in ("known", "unknown"))
    unknown = [replace(row, config="known") for row in unknown]
    difference = compare_rows(suite, (known, unknown), margin=0.05)["known", "cost_estimate"]
    assert (difference.scenarios, difference.verdict) == (0, "inconclusive")


def test_progress_and_budget_say_it_while_it_goes_on(result):
    """The line of a suite under way, and how much of a run's limit is used."""
    _, _, found = result
    now = [0.0]
    progress = EvalProgress(None, 9, [], clock=lambda: now[0])
    now[0] = 100.0
    for row, told in zip(
        found.rows, ["$0.12", "cost ≥ $0.12 + unknown", "cost ≥ $0.24 + unknown"], strict=True
    ):
        progress.count(row)
        assert told in progress.note.split(" · ")
    only = EvalProgress(None, 9, [], clock=lambda: now[0])
    now[0] = 200.0
    only.count(found.rows[1])
    assert "cost unknown" in only.note.split(" · ")
    budget = Budget(limits={"cost_usd": 1.0})
    told = [
        json.dumps(budget.shown(UsageMeter(usage=usage))["budget"])
        for usage in (KNOWN, UNKNOWN, KNOWN + UNKNOWN)
    ]
    assert [text.partition('"')[2].partition('"')[0] for text in told] == [
        "$0.1200 of $1",
        "",
        "$0.1200 + unknown cost of $1",
    ]


def test_mutant_that_adds_up_what_is_known_tells_of_nothing_spent(result, monkeypatch):
    """With the mutant, which takes what is known for all, the summary says 0."""
    session, suite, _ = result
    real = reducer._detail

    def mutant(config, by, name, cells, metrics):
        found = real(config, by, name, cells, metrics)
        found["cost_estimate"] = found.pop("cost_at_least", found["cost_estimate"])
        return found

    monkeypatch.setattr(reducer, "_detail", mutant)
    assert cells(repr(summarise_stored(session, suite)), "unknown").endswith("  0")
