"""Suites that are built in Python: checks and metrics are functions, in this process, in others, and over
stored runs.
"""

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab import Lab, Scenario, Suite, check, metric
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.protocols import Trial
from kestrel_lab.evals import suite as suite_module
from kestrel_lab.evals.execution.remote_trials import bench_order, make_trial
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.suite import Config
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.options import ConfigOptions, table
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.argument_schema import SchemaArguments
from kestrel_lab.tools.tool import Tool

FILE = '''
"""A suite in a Python file."""
from kestrel_lab import Scenario, Suite, check, metric
from kestrel_lab.core.events.union import ModelAnswered
from kestrel_lab.evals.suite import Config


@check(needs="")
def short(trial):
    return len(trial.answer) < 20, f"{len(trial.answer)} characters"


@metric(unit="letters", better="lower")
def letters(records):
    return sum(len(one.event.text) for one in records if isinstance(one.event, ModelAnswered))


add = Scenario(id="add", goal="2 + 2?", checks=(short, check(answer_contains="4")))
suite = Suite(name="sums", scenarios=(add,), configs=(Config(name="four", \
model="scripted:four.py:answer"),), metrics=(letters,))
'''


@check
def four(trial: Trial) -> bool:
    """Whether the answer has a four in it."""
    return "4" in trial.answer


@check
async def half(trial: Trial) -> tuple[float, str]:
    """Half right, with a reason."""
    return 0.5, "half of it"


@metric(unit="letters")
def letters(records: Any) -> float:
    """Letters of all answers."""
    return sum(len(one.event.text) for one in records if isinstance(one.event, ModelAnswered))


def suite_of(*checks: Any, metrics: Any = ()) -> Suite:
    """A suite with one scenario."""
    return Suite(name="sums", scenarios=(Scenario(id="add", goal="2 + 2?", checks=checks),), metrics=metrics)


def test_functions_judge_and_measure(tmp_path: Path) -> None:
    """Scores, frame, groups and stored summaries have what the functions say; a metric is a column."""
    lab = Lab(home=tmp_path, model=ScriptedModel(["It is 4."]))
    suite = suite_of(four, half, check(answer_contains="4"), metrics=(letters,))
    found = lab.eval_sync(suite)
    assert found.scores[["check", "passed", "value", "reason"]].to_numpy().tolist() == [
        ["four", True, 1.0, ""],
        ["half", False, 0.5, "half of it"],
        ["answer contains '4'", True, 1.0, ""],
    ]
    assert found.frame.letters.tolist() == [8.0] == found.by("scenario").letters.tolist()
    assert "8" in repr(lab.evals.stored(suite, metrics=["letters"]))
    again = lab.evals.rescore_sync(suite_of(check(needs="")(four.function), metrics=(letters,)))
    assert [row.result["outcome"] for row in again.result.rows] == ["pass"]


def test_what_a_function_raises_breaks_its_trial(tmp_path: Path) -> None:
    """A check or metric that raises is named in the reason of the trial; the suite goes on."""

    @check
    def wrong(trial: Trial) -> Any:
        return "yes"

    @metric
    def broken(records: Any) -> float:
        raise ValueError("no")

    lab = Lab(home=tmp_path, model=ScriptedModel(["It is 4."]))
    for suite, said in (
        (suite_of(wrong), "wrong returned 'yes'; a check returns True"),
        (suite_of(four, metrics=(broken,)), "the metric 'broken' failed"),
    ):
        (row,) = lab.eval_sync(suite).rows
        assert row.result["outcome"] == "error" and said in str(row.result["reason"])


def test_other_processes_run_a_python_file(tmp_path: Path) -> None:
    """A worker reads the same file and gives the same key, scores and metrics; `compare` and clusters work by
    that.
    """
    (tmp_path / "sums.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "four.py").write_text("def answer(request):\n    return 'It is 4.'\n", encoding="utf-8")
    suite = load_suite(tmp_path / "sums.py")
    lab = Lab(home=tmp_path / "home")
    (ask,) = plan_trials(suite, code="", git_sha="")
    order = {
        **bench_order(lab, suite, tmp_path / "sums.py", ""),
        "cassette": None,
        "cassettes": None,
        "run": "1",
    }
    asked = {"bench": order, "scenario": "add", "config": "four", "epoch": 1, "key": ask.identity.key}
    row = json.loads(make_trial(dumps(asked)))["row"]
    assert row["result"]["outcome"] == "pass" and row["metrics"]["letters"] == 8
    assert [score["check"] for score in row["result"]["scores"]] == ["short", "answer contains '4'"]
    again = load_suite(tmp_path / "sums.py")
    assert plan_trials(again, code="", git_sha="")[0].identity.key == ask.identity.key
    (tmp_path / "sums.py").write_text(FILE.replace("< 20", "< 2"), encoding="utf-8")
    assert (
        plan_trials(load_suite(tmp_path / "sums.py"), code="", git_sha="")[0].identity.key != ask.identity.key
    )


def test_mistakes_are_told() -> None:
    """A metric with a shipped name, a check that does not exist, several at once, and a file without a
    suite.
    """
    with pytest.raises(UsageError, match="there is a metric 'score' already"):

        @metric
        def score(records: Any) -> float:
            return 1.0

    with pytest.raises(UsageError, match="did you mean 'answer_contains'"):
        check(answer_contain="4")
    with pytest.raises(UsageError, match="names one check"):
        check(answer_contains="4", answer_equals="5")
    with pytest.raises(UsageError, match="metric names used twice: letters"):
        suite_of(four, metrics=(letters, letters))


def test_a_file_defines_one_suite(tmp_path: Path) -> None:
    """A Python file without a suite, or with two, is refused by name."""
    (tmp_path / "none.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "two.py").write_text(
        FILE + "\nother = Suite(name='b', scenarios=suite.scenarios)\n", encoding="utf-8"
    )
    for name, said in (
        ("none", "defines no objects of type Suite"),
        ("two", "defines 2 objects"),
        ("gone", "there is no file"),
    ):
        with pytest.raises(UsageError, match=said):
            load_suite(tmp_path / f"{name}.py")


class Counter:
    """The environment of a scenario: a number that a tool adds to."""

    instructions = ""

    def definition(self) -> dict[str, Any]:
        """Always the same."""
        return {"counter": 0}

    def open(self) -> "Opened":
        """A new number."""
        return Opened()


class Opened:
    """The number of one trial."""

    approver = None

    def __init__(self) -> None:
        self.value = 0

    @property
    def tools(self) -> list[Tool]:
        """One that adds."""

        def add(n: int) -> int:
            if n < 0:
                raise ValueError(n)
            self.value += n
            return self.value

        schema: Any = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return [
            Tool(
                name="add",
                description="Adds.",
                function=add,
                arguments=SchemaArguments(tool="add", schema=schema),
            )
        ]


def test_stored_runs_are_judged_by_their_environment(tmp_path: Path) -> None:
    """The calls of a stored run are made again in a new environment, failed ones too, and no model is
    asked.
    """

    @check(needs="")
    def five(trial: Trial) -> tuple[bool, str]:
        return trial.environment.value == 5, str(trial.environment.value)

    def counted(judge: Any) -> Suite:
        return Suite(
            name="count",
            scenarios=(Scenario(id="a", goal="Count to 5.", checks=(judge,), environment=Counter()),),
        )

    lab = Lab(
        home=tmp_path,
        model=ScriptedModel([[("add", {"n": 2})], [("add", {"n": -1})], [("add", {"n": 3})], "done"]),
        approve="auto",
    )
    assert lab.eval_sync(counted(four)).rows[0].result["outcome"] == "fail"
    lab.change(model=ScriptedModel([]))
    (change,) = lab.evals.rescore_sync(counted(five)).changes
    assert (change["before"], change["after"]) == ("fail", "pass")


def test_type_checkers_know_the_options_of_a_configuration() -> None:
    """`Config` is made from the table of options; what is written for type checkers has the same names."""
    source = ast.parse(inspect.getsource(suite_module))
    (stub,) = [
        node for node in ast.walk(source) if isinstance(node, ast.ClassDef) and node.name == "_FromOptions"
    ]
    named = {one.target.id for one in stub.body if isinstance(one, ast.AnnAssign)}
    assert named == set(table(ConfigOptions)) <= set(Config.model_fields)
