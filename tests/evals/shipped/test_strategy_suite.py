"""Suites that choose a plan, and the shipped suite that compares strategies."""

import asyncio
import importlib.util
import itertools
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Step
from kestrel_lab.evals.execution.runner import plan_trials, run_suite
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.suite import Config, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import conversation

ROOT = Path(__file__).parents[3]
STRATEGIES = ROOT / "evals" / "strategies.yaml"

SUITE = """\
configs:
  - {name: plain, model: "scripted:model.py:says"}
  - {name: planned, model: "scripted:model.py:says", plan: mine.yaml, inputs: {word: two}}
scenarios:
  - {id: a, goal: say it, checks: [{answer_equals: "answered say it"}]}
"""
PLAN = """\
kind: plan
inputs: {word: which word}
steps:
  - {id: first, goal: "{{word}} things", produces: [x]}
  - {id: second, goal: "{{goal}}", consumes: [x]}
"""
MODEL = """\
def says(request):
    goal = next(message.text for message in request.messages if message.role == "user")
    return "answered " + goal.split("\\n")[0]
"""


def written(tmp_path: Path) -> Path:
    """The suite with its files."""
    for name, text in (("suite.yaml", SUITE), ("mine.yaml", PLAN), ("model.py", MODEL)):
        (tmp_path / name).write_text(text)
    return tmp_path / "suite.yaml"


def test_a_configuration_may_name_a_plan(tmp_path: Path, session: Lab) -> None:
    """The plan of a file with the configuration's inputs is what its trials follow; the other ones are one
    agent.
    """
    result = asyncio.run(run_suite(session, written(tmp_path)))
    rows = result.frame.set_index("config")
    assert rows["outcome"].to_dict() == {"plain": "pass", "planned": "pass"}
    assert rows["model_kind"].to_dict() == {"plain": "scripted", "planned": "scripted"}
    plans = {name: session.get(run).plan.steps for name, run in rows["run"].items()}
    assert plans == {
        "plain": (Step(id="answer", goal="say it"),),
        "planned": (
            Step(id="first", goal="two things", produces=("x",)),
            Step(id="second", goal="say it", consumes=("x",)),
        ),
    }


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("mine.yaml", "none.yaml", "names 'none.yaml', which does not exist"),
        ("mine.yaml", "peb", "there is no shipped workflow 'peb'; did you mean 'pev'?"),
        ("inputs: {word: two}", "inputs: {wrod: two}", "has no input 'wrod'; did you mean 'word'?"),
        ("plan: mine.yaml, ", "", r"inputs (word) are for workflows"),
        ("model.py:says", "model.py:said", "model.py has no function 'said'; did you mean 'says'?"),
    ],
)
def test_what_cannot_be_is_told_before_the_first_trial(
    tmp_path: Path, session: Lab, old: str, new: str, problem: str
) -> None:
    """A plan, an input or a function that is not there stops the suite before anything runs."""
    suite = written(tmp_path)
    suite.write_text(SUITE.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(problem)):
        asyncio.run(run_suite(session, suite))
    assert session.store.runs(trials=True) == []


def test_keys_of_trials_without_a_plan_stay() -> None:
    """A configuration that names no plan is defined as before there were plans; plan and inputs make another
    one.
    """
    plain = Config(name="a", model="m", seed=1)
    assert plain.definition() == {"model": "m", "temperature": None, "seed": 1, "limits": {}}
    planned = Config(name="a", model="m", seed=1, plan="pev", inputs={"rounds": 1})
    assert planned.definition() == {**plain.definition(), "plan": "pev", "inputs": {"rounds": 1}}
    loaded = load_suite(STRATEGIES)
    asks = plan_trials(loaded.select(epochs=1), code="c", git_sha="c")
    assert len({ask.identity.key for ask in asks}) == len(asks) == 3 * len(loaded.scenarios)


def makes_24(left: Sequence[Fraction]) -> bool:
    """Whether 24 can be made, by trying everything."""
    if len(left) == 1:
        return left[0] == 24
    for one, two in itertools.permutations(range(len(left)), 2):
        a, b = left[one], left[two]
        rest = [number for place, number in enumerate(left) if place not in (one, two)]
        if any(makes_24([*rest, made]) for made in (a + b, a - b, a * b, *([a / b] if b else []))):
            return True
    return False


def strategies() -> Suite:
    """The shipped suite."""
    return load_suite(STRATEGIES)


def test_every_game_can_be_won() -> None:
    """Each set of numbers makes 24, and each maze has a way out."""
    games = {scenario.id: scenario.place for scenario in strategies().scenarios}
    for name, place in games.items():
        assert isinstance(place, InlineFiles)
        if "numbers.txt" in place.files:
            assert (name, makes_24([Fraction(number) for number in place.files["numbers.txt"].split()])) == (
                name,
                True,
            )
            continue
        maze = module("tools").Maze.of(place.files["maze.json"])
        reached, todo = {maze.start}, [maze.start]
        while todo:
            here = todo.pop()
            for way in maze.open(here):
                end = maze.corridor(here, way)[-1]
                if end not in reached:
                    reached.add(end)
                    todo.append(end)
        assert (name, maze.end in reached) == (name, True)
    assert not makes_24([Fraction(1)] * 4)


def module(name: str) -> ModuleType:
    """A Python file of the suite."""
    spec = importlib.util.spec_from_file_location(
        f"strategies_{name}", STRATEGIES.parent / "strategies" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_reasoner_repeats_itself_for_a_seed() -> None:
    """Equal requests with equal seeds get equal answers, other seeds other ones; what it says depends on
    nothing else.
    """
    reasoner = module("reasoner").reasoner
    messages = conversation(("user", "Make 24 from the numbers 1 2 3 9 by three moves."))
    said = [reasoner(ModelRequest(messages=messages, seed=seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert said[0] == said[1]
    assert len({json.dumps(answer.calls[0].args) for answer in said}) > 2


def test_strategies_differ_in_what_they_do(session: Lab) -> None:
    """On a game and a maze every strategy ends on its own control flow, and a search wins where one line of
    thought does not.
    """
    suite = strategies().select(scenarios=["make-24-from-1-2-3-9", "maze-2"], epochs=2)
    frame = asyncio.run(run_suite(session, suite)).frame
    solved = frame[frame["outcome"] == "pass"].groupby("config").size().to_dict()
    assert solved["tree_of_thoughts"] > solved.get("react", 0)
    operations = {
        config: {
            step.operation for run in part["run"] for step in session.get(run).plan.steps if step.operation
        }
        for config, part in frame.groupby("config")
    }
    assert operations == {
        "react": set(),
        "pev": {"plan", "verify"},
        "tree_of_thoughts": {"thoughts", "thoughts_expand"},
    }
