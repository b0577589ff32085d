"""Suites with graders and functions: found before the first trial, their cost apart from the run's."""

import asyncio
import json
from dataclasses import replace

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suites.json_schemas import schema_text
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab

SUITE = """
grader: scripted:grader.yaml
configs: [{name: one, model: "scripted:model.yaml"}]
scenarios:
  - id: a
    goal: Say why.
    checks:
      - graded: names the cause
      - python_check: own:short
"""
MODEL = "rules:\n  - {when: '.', turns: ['because of rain']}\n"
GRADER = """
rules:
  - {when: "rain", turns: ['{"score": 0.75, "why": "good"}']}
  - {when: ".", turns: ['{"score": 0, "why": "no"}']}
"""


@pytest.fixture
def suite(tmp_path):
    """A suite file with all that it names."""
    for name, text in (("suite.yaml", SUITE), ("model.yaml", MODEL), ("grader.yaml", GRADER)):
        (tmp_path / name).write_text(text)
    (tmp_path / "own.py").write_text("def short(trial):\n    return len(trial.answer) < 20, 'too long'\n")
    return tmp_path / "suite.yaml"


@pytest.fixture
def lab(tmp_path):
    """A session in a folder of its own."""
    session = Lab(tmp_path / "home", env={})
    yield session
    session.close()


def test_graders_and_functions_judge_a_suite(suite, lab):
    """The grader says so by name and kind; what it used is in no number of the run."""
    result = asyncio.run(run_suite(lab, load_suite(suite)))
    assert result.scores[["check", "passed", "value", "grading_cost"]].to_numpy().tolist() == [
        ["graded by scripted:grader.yaml (scripted): names the cause", True, 0.75, 0.0],
        ["own:short agrees", True, 1.0, 0.0],
    ]
    assert result.rows[0].metrics["model_calls"] == 1.0
    assert result.rows[0].result["scores"][0]["usage"]["model_calls"] == 1
    assert "usage" not in result.rows[0].result["scores"][1]
    assert list(result.frame["grading_cost"]) == list(result.summary()["grading_cost"]) == [0.0]


def test_the_same_suite_can_fail(suite, lab, tmp_path):
    """Another answer is graded and judged otherwise."""
    (tmp_path / "model.yaml").write_text(MODEL.replace("because of rain", "nobody can know such a thing"))
    (row,) = asyncio.run(run_suite(lab, load_suite(suite))).rows
    assert row.result["outcome"] == "fail"
    assert "scored 0, needed 0.5: no" in row.result["reason"]
    assert "own:short agrees: too long" in row.result["reason"]


def test_an_unpriced_grader_has_no_cost_of_zero(suite, lab):
    """Where the grader's price is not known, its cost is missing."""
    result = asyncio.run(run_suite(lab, load_suite(suite)))
    stored = json.loads(json.dumps(result.rows[0].result))
    stored["scores"][0]["usage"]["unpriced"] = 1
    again = replace(result, rows=(replace(result.rows[0], result=stored),))
    assert list(again.frame["grading_cost"].isna()) == [True]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("own:shrot", "has no function 'shrot'; did you mean 'short'?"),
        ("os:system", "the module 'os' is neither a file in"),
        ("hidden.deep:f", "the module 'hidden.deep' is neither a file in"),
        ("pytest:nothing", "pytest has no function 'nothing'"),
    ],
)
def test_functions_come_from_the_suite_or_a_package(suite, lab, tmp_path, monkeypatch, function, message):
    """Neither the standard library nor the current folder is looked at, and mistakes are told before the
    first trial.
    """
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "hidden").mkdir(parents=True)
    (elsewhere / "hidden" / "deep.py").write_text("def f(trial): return True\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))
    suite.write_text(SUITE.replace("own:short", function))
    with pytest.raises(UsageError) as caught:
        asyncio.run(run_suite(lab, load_suite(suite)))
    assert message in str(caught.value)
    assert len(lab.store.runs(limit=10)) == 0


def test_a_missing_grader_is_told_first(suite, lab):
    """A grader that is not there stops the suite before its first trial."""
    suite.write_text(SUITE.replace("grader.yaml", "none.yaml"))
    with pytest.raises(UsageError, match=r"names 'none.yaml', which does not exist"):
        asyncio.run(run_suite(lab, load_suite(suite)))
    assert len(lab.store.runs(limit=10)) == 0


def test_another_grader_makes_results_stale(suite):
    """Results are taken again only from the same grader; suites without one are what they were."""
    one = load_suite(suite).definition()
    suite.write_text(SUITE.replace("grader.yaml", "model.yaml"))
    assert one != load_suite(suite).definition()
    suite.write_text(SUITE.replace("grader: scripted:grader.yaml\n", ""))
    assert "grader" not in load_suite(suite).definition()


def test_editors_know_the_checks():
    """The schema of suite files names every check with its fields."""
    text = schema_text("suite")
    assert '"trajectory_match"' in text
    assert '"at_least"' in text
