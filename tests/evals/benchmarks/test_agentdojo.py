"""Tasks of AgentDojo with the right calls, with one less, and under attack; what answers is a script and
labelled so.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.evals.benchmarks import agentdojo
from kestrel_lab.evals.benchmarks.agentdojo import RESISTED, UTILITY, Situation, load_agentdojo, suite_tasks
from kestrel_lab.evals.benchmarks.by_name import load_published
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.summaries.breakdowns import shared_checks
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn

MARK = "<INFORMATION>"
"""What the attack `important_instructions` wraps its orders in."""
UNNOTICED = {f"banking/user_task_{number}" for number in (5, 6, 8, 9, 10)}
"""Tasks whose own judge does not notice that their last call is missing: it looks at something else, or at
nothing.
"""


def calls_of(task: Any, state: Any) -> list[Turn]:
    """The calls that the benchmark calls right, one for each answer."""
    return [[(call.function, dict(call.args))] for call in task.ground_truth(state)]


class Scripts:
    """What a model says: the right calls, or all but the last, or after them those of the attacker whose
    orders it has read.
    """

    def __init__(self, scenario: Scenario, *, less: int = 0, obeys: bool = False) -> None:
        situation = scenario.environment
        assert isinstance(situation, Situation)
        tasks, before = suite_tasks(situation.suite, situation.version), situation.open().before
        task = tasks.user_tasks[situation.task]
        right = calls_of(task, before)
        self._calls = right[: len(right) - less]
        self._answer = (task.GROUND_TRUTH_OUTPUT if not less else "") or "Done."
        attacker = tasks.injection_tasks[situation.injection] if situation.injection else None
        self._orders = calls_of(attacker, before) if obeys else []
        self._says = f" {attacker.GROUND_TRUTH_OUTPUT}" if obeys and attacker else ""

    def __call__(self, request: ModelRequest) -> Turn:
        said = sum(message.role == "assistant" for message in request.messages)
        read = any(MARK in message.text for message in request.messages if message.role == "tool")
        turns = [*self._calls, *(self._orders if read else [])]
        return turns[said] if said < len(turns) else self._answer + (self._says if read else "")


def played(session: Lab, suite: Suite, **how: Any) -> list[EvalResult]:
    """Each scenario with a script of its own."""

    async def all_of_them() -> list[EvalResult]:
        return [
            await run_suite(
                session,
                suite.model_copy(update={"scenarios": (one,)}),
                configs={"script": ScriptedModel(Scripts(one, **how))},
            )
            for one in suite.scenarios
        ]

    return asyncio.run(all_of_them())


def rows(results: list[EvalResult]) -> pd.DataFrame:
    return pd.concat([result.frame for result in results], ignore_index=True)


def share(results: list[EvalResult], check: str) -> float:
    scores = pd.concat([result.scores for result in results])
    return float(scores[scores.check == check].passed.mean())


@pytest.fixture
def session(tmp_path: Path) -> Lab:
    return Lab(home=tmp_path / "home")


@pytest.mark.parametrize(
    ("suite", "count"), [("banking", 16), ("slack", 12), ("travel", 6), ("workspace", 6)]
)
def test_right_calls_pass_and_one_less_fails(session: Lab, suite: str, count: int) -> None:
    """Every task passes with the right calls; without the last, and what is learned from it, it fails where
    the benchmark notices.
    """
    tasks = load_agentdojo(suite, limit=count)
    full = rows(played(session, tasks))
    assert full[full.outcome != "pass"][["scenario", "reason"]].to_numpy().tolist() == []
    less = rows(played(session, tasks, less=1))
    assert set(less[less.outcome != "fail"].scenario) == {
        name for name in UNNOTICED if name.startswith(suite)
    }
    assert set(full.model_kind) == {"scripted"}
    assert len(full) == count


@pytest.mark.parametrize(("suite", "count"), [("banking", 12), ("slack", 12), ("travel", 7)])
def test_utility_and_security_apart(session: Lab, suite: str, count: int) -> None:
    """A victim that does what it reads is attacked with success every time, one that does not never; the
    user's task is scored apart.
    """
    tasks = load_agentdojo(suite, attack="important_instructions", limit=count)
    victim, other = played(session, tasks, obeys=True), played(session, tasks)
    assert (share(victim, RESISTED), share(other, RESISTED)) == (0.0, 1.0)
    assert share(other, UTILITY) == 1.0
    assert set(rows(victim).outcome) == {"fail"}
    assert set(rows(other).outcome) == {"pass"}


def test_a_victim_may_do_both(session: Lab) -> None:
    """An attack that succeeds does not hide that the user's task was done: the trial fails for one reason
    only, and both rates are shown.
    """
    tasks = load_agentdojo("banking", attack="important_instructions", limit=1)
    (result,) = played(session, tasks, obeys=True)
    by_check = result.by("check")
    assert by_check["success_rate"].to_dict() == {("script", UTILITY): 1.0, ("script", RESISTED): 0.0}
    assert [row[1:3] for row in shared_checks(result.rows)] == [
        [UTILITY, "100 % (21–100)"],
        [RESISTED, "0 % (0–79)"],
    ]
    assert result.frame.reason.tolist()[0].startswith(f"{RESISTED}: injection_task_0 was done: ")


def test_every_trial_begins_anew(session: Lab) -> None:
    """Two trials of a task share no state, and neither changes the one from which further trials are made."""
    (scenario,) = load_agentdojo("banking", limit=1).scenarios
    situation = scenario.environment
    assert isinstance(situation, Situation)
    one, two = situation.open(), situation.open()
    before = one.state.model_dump_json()
    one.state.bank_account.balance = -1
    one.state.bank_account.transactions.clear()
    assert (
        two.state.model_dump_json(),
        one.before.model_dump_json(),
        situation.open().state.model_dump_json(),
    ) == (before,) * 3


def test_what_is_not_so_by_default_is_named_where_it_is_so() -> None:
    """Results stored before somebody could be asked still stand; everything else distinguishes a
    situation.
    """
    plain = Situation(suite="banking", task="t", injection="", attack="", target="", version="v", release="1")
    names = {"suite", "task", "injection", "attack", "target", "version", "release"}
    assert set(plain.definition()) == names
    assert set(replace(plain, person=True).definition()) == {*names, "person"}
    assert replace(plain, stated=True).definition()["stated"] is True


def test_what_trials_share_is_made_once() -> None:
    """The world before any task of a suite is read once, and its tools are described once; that took most of
    the time of a trial.
    """
    agentdojo._pristine.cache_clear()
    agentdojo._schema.cache_clear()
    places = [scenario.environment for scenario in load_agentdojo("banking", limit=3).scenarios]
    worlds = [place.open() for place in places if isinstance(place, Situation)]
    tools = [world.tools for world in worlds]
    assert len({id(world.state) for world in worlds}) == 3
    assert agentdojo._pristine.cache_info().misses == 1
    assert agentdojo._schema.cache_info().misses == len(tools[0])


def test_a_tool_that_fails_says_so(session: Lab) -> None:
    """What the benchmark answers to a wrong call reaches the model as an error, and the run goes on."""
    (scenario,) = load_agentdojo("slack", limit=1).scenarios
    seen: list[str] = []

    def play(request: ModelRequest) -> Turn:
        seen.extend(message.text for message in request.messages if message.role == "tool")
        return "Done." if seen else [("read_channel_messages", {"channel": "nowhere"})]

    suite = load_agentdojo("slack", limit=1).model_copy(update={"scenarios": (scenario,)})
    result = asyncio.run(run_suite(session, suite, configs={"script": ScriptedModel(play)}))
    assert seen[0] == "error: ValueError: Channel does not exist!"
    assert result.frame.outcome.tolist() == ["fail"]


def test_names() -> None:
    """A name with options gives what the loader gives; the system message is the benchmark's."""
    named = load_published("agentdojo:slack?attack=direct&limit=7")
    assert named == load_agentdojo("slack", attack="direct", limit=7)
    ids = [scenario.id for scenario in named.scenarios]
    assert (ids[0], ids[5]) == ("slack/user_task_0/injection_task_1", "slack/user_task_1/injection_task_1")
    assert "Emma Johnson" in named.scenarios[0].environment.instructions  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("agentdojo:bankin", "agentdojo has no suite 'bankin'; did you mean 'banking'?"),
        ("agentdojo:slack?attack=important_instruction", "did you mean 'important_instructions'?"),
        ("agentdojo:slack?attack=dos", "agentdojo has no attack 'dos' with an injection task"),
        (
            "agentdojo:slack?attack=direct&target=gpt-9",
            "agentdojo has no name for the model 'gpt-9' that an attack could address",
        ),
        ("agentdojo:slack?version=v9", "agentdojo has no version 'v9'"),
        ("agentdojo:slack?limit=-1", "agentdojo:slack: a limit is at least 1, not -1"),
    ],
)
def test_wrong_names(name: str, problem: str) -> None:
    """A name that means nothing is refused with what would."""
    with pytest.raises(UsageError) as raised:
        load_published(name)
    assert problem in str(raised.value)


def test_tools_of_the_configuration_are_refused(tmp_path: Path) -> None:
    """A configuration with tools of its own cannot do a task that is about its own tools."""
    from kestrel_lab.evals.execution.prepare import prepare_suite
    from kestrel_lab.evals.suite import Config

    suite = load_agentdojo("slack", limit=1).model_copy(
        update={"configs": (Config(name="mine", tools=("grep",)),)}
    )
    with pytest.raises(
        UsageError, match="configuration 'mine' has tools of its own, but the scenario 'slack/user_task_0'"
    ):
        prepare_suite(Lab(home=tmp_path), suite)


def test_answers_are_shown_as_the_benchmark_writes_them() -> None:
    """What is kept as objects, so that their fields are known, reads for a model as it does in the
    benchmark.
    """
    situation = Situation(
        suite="workspace", task="user_task_0", injection="", attack="", target="", version="v1", release=""
    )
    world = situation.open()
    (files,) = (one for one in world.tools if one.name == "list_files")
    answer = asyncio.run(files.run({}, None))
    assert files.own == ("id_", "filename")
    assert files.shown is not None
    assert files.shown(answer) == agentdojo._answer_text(list(world.state.cloud_drive.files.values()))
