"""Tasks of BFCL with the right calls, and with one of them missing, through our loop; what answers is a
script and labelled so.
"""

import ast
import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.evals.benchmarks.bfcl import MULTI, SINGLE, Instances, load_bfcl
from kestrel_lab.evals.benchmarks.by_name import load_published
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn


def possible(value: Any) -> Any:
    """One of the values that a possible answer allows, in objects and lists of objects one for each key."""
    first = next(one for one in value if one != "")
    if isinstance(first, dict):
        return {key: possible(inner) for key, inner in first.items() if any(one != "" for one in inner)}
    if isinstance(first, list) and first and all(isinstance(one, dict) for one in first):
        return [possible([one]) for one in first]
    return first


def right_turns(scenario: Scenario) -> list[Turn]:
    """What a model says that makes the calls the benchmark calls right, one answer for each call of a
    conversation.
    """
    task: Any = scenario.expected
    if isinstance(scenario.environment, Instances):
        order = {
            function["name"]: list(function["parameters"]["properties"])
            for function in scenario.environment.functions
        }
        turns: list[Turn] = []
        for texts in task["answer"]:
            for text in texts:
                call: Any = ast.parse(text, mode="eval").body
                args = dict(zip(order[call.func.id], map(ast.literal_eval, call.args), strict=False))
                turns.append(
                    [
                        (
                            call.func.id,
                            args | {word.arg: ast.literal_eval(word.value) for word in call.keywords},
                        )
                    ]
                )
            turns.append("done")
        return turns
    needed = {function["name"]: function["parameters"].get("required", []) for function in task["functions"]}
    calls = []
    for answer in task["answer"]:
        ((name, args),) = answer.items()
        given = {
            key: possible(value) for key, value in args.items() if "" not in value or key in needed[name]
        }
        calls.append((name.replace(".", "_"), given))
    return [calls, "done"] if calls else ["none of the functions fits"]


def without_last_call(turns: list[Turn]) -> list[Turn]:
    """The same with the last call left out."""
    place = max(
        place for place, turn in enumerate(turns) if isinstance(turn, Sequence) and not isinstance(turn, str)
    )
    shorter: Any = turns[place][:-1]  # type: ignore[index]
    return [*turns[:place], *([shorter] if shorter else []), *turns[place + 1 :]]


def played(session: Lab, suite: Suite, turns: dict[str, list[Turn]], epochs: int = 1) -> EvalResult:
    """The suite with a model that says the turns of the scenario whose goal it is given."""

    def play(request: ModelRequest) -> Turn:
        goal = next(message.text for message in request.messages if message.role == "user")
        return turns[goal][sum(message.role == "assistant" for message in request.messages)]

    return asyncio.run(run_suite(session, suite, configs={"right": ScriptedModel(play)}, epochs=epochs))


def distinct(suite: Suite) -> Suite:
    """Without scenarios that ask for the same as one before: the script could not tell them apart."""
    first = {scenario.goal: scenario for scenario in reversed(suite.scenarios)}
    return suite.model_copy(
        update={
            "scenarios": tuple(scenario for scenario in suite.scenarios if first[scenario.goal] is scenario)
        }
    )


@pytest.fixture
def session(tmp_path: Path) -> Lab:
    return Lab(home=tmp_path / "home")


@pytest.mark.parametrize(
    ("category", "count"), [*((name, 12) for name in SINGLE), *((name, 12) for name in MULTI)]
)
def test_right_calls_pass_and_one_less_fails(session: Lab, category: str, count: int) -> None:
    """Every task passes with the right calls and fails when one of them is missing; both results say that a
    script answered.
    """
    suite = distinct(load_bfcl(category, limit=count))
    right = {scenario.goal: right_turns(scenario) for scenario in suite.scenarios}
    full = played(session, suite, right).frame
    assert full[full.outcome != "pass"][["scenario", "reason"]].to_numpy().tolist() == []
    less = played(session, suite, {goal: without_last_call(turns) for goal, turns in right.items()}).frame
    assert less[less.outcome != "fail"][["scenario", "reason"]].to_numpy().tolist() == []
    assert set(full.model_kind) == {"scripted"}
    assert len(full) == len(suite.scenarios) >= 10


def test_nothing_fits(session: Lab) -> None:
    """Where no function fits, an answer without calls passes and any call fails."""
    suite = load_bfcl("irrelevance", limit=5)
    none = played(session, suite, {scenario.goal: right_turns(scenario) for scenario in suite.scenarios})
    assert none.frame.outcome.tolist() == ["pass"] * 5
    name = suite.scenarios[0].environment.open().tools[0].name  # type: ignore[union-attr]
    args: Any = dict.fromkeys(suite.scenarios[0].environment.open().tools[0].schema.get("required", []), 1)  # type: ignore[union-attr, arg-type]
    called = played(
        session,
        suite.model_copy(update={"scenarios": suite.scenarios[:1]}),
        {suite.scenarios[0].goal: [[(name, args)], "done"]},
    )
    assert called.frame.reason.tolist() == [f"calls match: called {name}, but no function fits"]


def test_every_trial_begins_anew(session: Lab) -> None:
    """After trials that went wrong two epochs pass: neither the tools nor the checker keep the state of the
    trials before.
    """
    suite = load_bfcl("multi_turn_base", limit=3)
    right = {scenario.goal: right_turns(scenario) for scenario in suite.scenarios}
    idle: dict[str, list[Turn]] = {
        goal: ["done" for turn in turns if turn == "done"] for goal, turns in right.items()
    }
    assert played(session, suite, idle).frame.outcome.tolist() == ["fail"] * 3
    assert played(session, suite, right, epochs=2).frame.outcome.tolist() == ["pass"] * 6
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    assert [name for name in vars(multi_turn_utils) if name.startswith("kestrel")] == []


def test_the_state_is_of_one_trial() -> None:
    """What a tool changes in one trial is not there in another."""
    (scenario,) = load_bfcl("multi_turn_base", limit=1).scenarios
    assert isinstance(scenario.environment, Instances)
    one, two = ({tool.name: tool for tool in scenario.environment.open().tools} for _ in range(2))
    assert one["mkdir"](dir_name="new") == "None"
    assert (one["ls"](), two["ls"]()) == (
        '{"current_directory_content": ["document", "archive", "new"]}',
        '{"current_directory_content": ["document", "archive"]}',
    )


def test_nothing_a_model_writes_is_run(session: Lab, tmp_path: Path) -> None:
    """Names and arguments that would be code where the checker evaluates calls as text stay text."""
    suite = load_bfcl("multi_turn_base", limit=1)
    (scenario,) = suite.scenarios
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    evil: list[Turn] = [
        [("cd", {"folder": f"') or {code} or ('"})],
        [
            ("cd", {f"folder={code}, x": 1}),
            (code, {}),
            ("__import__", {"name": "antigravity"}),
            ("ls", {"a": code}),
        ],
    ]
    result = played(session, suite, {scenario.goal: [*evil, *right_turns(scenario)]})
    assert result.frame.outcome.tolist() in (["pass"], ["fail"])
    assert not mark.exists()
    assert "antigravity" not in sys.modules


def test_a_conversation_that_ends_early_fails(session: Lab) -> None:
    """A limit in the second turn of the user is a failure, not a defect of the checker."""
    suite = load_bfcl("multi_turn_base", limit=1)
    scenario = suite.scenarios[0].model_copy(update={"limits": {"cycles": 5}})
    row = played(
        session, suite.model_copy(update={"scenarios": (scenario,)}), {scenario.goal: right_turns(scenario)}
    ).frame.iloc[0]
    assert row.outcome == "fail"
    assert row.reason == "the limit of 5 model turns is reached"


def test_scenarios_differ_in_what_they_are(tmp_path: Path) -> None:
    """Two tasks, and the same task from another version of the package, are different for reuse; the same
    task twice is equal.
    """
    one, two = load_bfcl("multi_turn_base", limit=2).scenarios
    again = load_bfcl("multi_turn_base", limit=1).scenarios[0]
    assert isinstance(one.environment, Instances)
    newer = one.model_copy(update={"environment": replace(one.environment, version="9")})
    assert one.definition() == again.definition()
    assert len({str(scenario.definition()) for scenario in (one, two, newer)}) == 3


def test_names_and_files(tmp_path: Path) -> None:
    """A name with options, and a suite file that takes scenarios from one, give the scenarios of the
    loader.
    """
    file = tmp_path / "suite.yaml"
    file.write_text(
        "name: mine\nconfigs: [local]\nscenarios_from: ['bfcl:parallel?limit=2', 'bfcl:multiple?limit=1']\n"
    )
    loaded = load_suite(file)
    assert [scenario.id for scenario in loaded.scenarios] == ["parallel_0", "parallel_1", "multiple_0"]
    assert load_suite("bfcl:parallel?limit=2").scenarios == load_bfcl("parallel", limit=2).scenarios
    assert load_published("bfcl:parallel").name == "bfcl:parallel"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "bfcl:multi_turn_bas",
            "bfcl has no category 'multi_turn_bas' that can be run here; did you mean 'multi_turn_base'?",
        ),
        ("bfcl:multiple?limit=many", "bfcl:multiple?limit=many: limit is a whole number, not 'many'"),
        ("bfcl:multiple?limit=0", "bfcl:multiple: a limit is at least 1, not 0"),
        ("bfcl:multiple?epochs=3", "bfcl:multiple?epochs=3: bfcl has no option 'epochs'; known: limit"),
        ("other:x", "there is no benchmark 'other'; known: agentdojo, bfcl"),
    ],
)
def test_wrong_names(name: str, problem: str) -> None:
    """A name that means nothing is refused with what would."""
    with pytest.raises(UsageError) as raised:
        load_published(name)
    assert str(raised.value) == problem


def test_a_package_that_is_missing() -> None:
    """Without the packages everything else works, and loading says what to install."""
    program = """
import sys
for name in ("bfcl_eval", "agentdojo"):
    sys.modules[name] = None
from kestrel_lab.evals.benchmarks.by_name import load_published
for name in ("bfcl:multiple", "agentdojo:slack"):
    try:
        load_published(name)
    except Exception as error:
        print(type(error).__name__, str(error).partition(":")[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "UsageError the package bfcl-eval is not installed",
        "UsageError the package agentdojo is not installed",
    ]


def test_the_package_itself_is_left_as_it_was() -> None:
    """The stand-in for the package's list of models is gone after the checker was loaded: whoever imports the
    package gets its own.
    """
    program = """
import sys
from kestrel_lab.evals.benchmarks.bfcl import _ast_checker
checker = _ast_checker()
print(checker.ast_checker.__name__, [name for name in sys.modules if name.endswith(("model_config", \
"ast_checker"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "ast_checker []\n"
