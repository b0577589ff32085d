"""Blame and shrink: the turn that made a run fail, by real forks of it; the least that still fails. All agents are
scripted, with known rates.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bench.blame import ChanceAgent, blame_one, suite_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.events.union import RunScanned
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.blame.receipt import read_receipt
from kestrel_lab.evals.stats.decisive_step import DecisiveStep
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.workspace.removal import remove_runs
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.views.rows import CallRow


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Let a coroutine be a test."""

    @wraps(test)
    def run(*args: Any, **given: Any) -> None:
        asyncio.run(test(*args, **given))

    return run


RECORDINGS = Path(__file__).parents[3] / "notebooks" / "recordings"
CHECK = 'answer_contains: "42"'


def searched(steps: int, decisive: int, before: float, after: float, random: Random) -> DecisiveStep:
    """Return a search that was carried out with forks of these rates."""
    search, cost = DecisiveStep(steps), 0.0
    while not search.over() and cost < 40:
        step = search.next()
        search.add(step, passed=random.random() < (before if step <= decisive else after))
        cost += (steps - step + 1) / steps
    return search


async def failed_run(lab: Lab, folder: Path, agent: Any, goal: str = "Give the sum.", **options: Any) -> str:
    """Run a scripted agent in `folder`, which fails; returns the run's id."""
    folder.mkdir(exist_ok=True)
    model = ScriptedModel(agent)
    run = await lab.run(goal, workspace=folder, model=model, verify="off", approve="auto", **options)
    return run.id


def test_the_probability_of_each_step_is_that_of_all_rates_together():
    """With forks that all pass up to a step and all fail behind it, that step is named; with forks that all fail,
    none is.
    """
    search = DecisiveStep(10)
    for step in range(1, 11):
        for _ in range(4):
            search.add(step, passed=step <= 6)
    assert search.accused() == (6,)
    assert sum(search.posterior()) == pytest.approx(1)
    nothing = DecisiveStep(10)
    for step in (1, 1, 1, 5, 5, 5, 10, 10):
        nothing.add(step, passed=False)
    assert nothing.accused() == ()
    assert nothing.posterior()[0] > 0.8


@pytest.mark.long
def test_a_planted_step_is_in_the_set_and_nobody_is_accused_without_one():
    """At .7/.1 a set of at most three holds the planted step in nine of ten searches; without a contrast at most one
    in twenty accuses anybody.
    """
    random, found, accused = Random(7), 0, 0
    for seed in range(60):
        planted = random.randint(1, 11)
        steps = searched(12, planted, 0.7, 0.1, random).accused()
        found += planted in steps and len(steps) <= 3
        accused += bool(searched(12, 0, 0.3, (0.1, 0.3, 0.5)[seed % 3], random).accused())
    assert found >= 51
    assert accused <= 6


@in_loop
async def test_a_trial_is_blamed_by_forks_in_private_copies_that_are_gone_afterwards(tmp_path):
    """The planted turn of a trial is named; its workspace was a throw-away one, and no copy is left."""
    agent = ChanceAgent(6, 3, 1.0, 0.0, Random(1))
    async with Lab(home=tmp_path / "home", model=ScriptedModel(agent, name="chance")) as lab:
        trial = await lab.eval(suite_of(6))
        agent.fails = False
        receipt = await lab.get(trial.rows[0].run).blame(suite=suite_of(6), runs=15)
        assert receipt.verdict == "decisive"
        assert receipt.steps[0] == 3
        assert receipt.before.mean > 0.9
        assert receipt.after.mean < 0.1
        assert "note3.txt, content=wrong" in str(receipt)
        assert not [*(tmp_path / "home" / "forks").iterdir()]
        assert read_receipt(lab.home, receipt.run) == receipt
        assert json.loads(receipt.write(tmp_path / "receipt.json").read_text())["steps"][0] == 3
        assert "decisive" in receipt._repr_html_().lower()
        run = lab.get(receipt.run)
        marked = [row for row in run.report.view().rows.values() if getattr(row, "note", "").startswith("▶")]
        assert [row.tool for row in marked if isinstance(row, CallRow)] == ["write_file"] * len(receipt.steps)
        page = run.report(tmp_path / "run.html").read_text(encoding="utf-8")
        assert "▶ decisive" in page
        assert "Re-runs blame" in page
        lab.store.decide(run.id, RunScanned(scanners={BLAME: "1"}, upto=1))
        assert "▶ decisive" not in run._repr_html_(), "a later blame that names none takes the marks away"


@in_loop
async def test_a_budget_that_ends_keeps_what_was_found_and_is_gone_on_with(tmp_path):
    """After too small a budget the answer is undecided and says so; asked again, the forks made count."""
    agent = ChanceAgent(6, 3, 1.0, 0.0, Random(1))
    async with Lab(home=tmp_path / "home", model=ScriptedModel(agent, name="chance")) as lab:
        run = (await lab.eval(suite_of(6))).rows[0].run
        agent.fails = False
        first = await lab.evals.blame(run, suite=suite_of(6), runs=1)
        assert (first.verdict, first.exit_code) == ("undecided", 1)
        assert "whole runs were used up" in str(first)
        again = await lab.evals.blame(run, suite=suite_of(6), runs=15)
        assert again.verdict == "decisive"
        assert again.reruns[: len(first.reruns)] == first.reruns


@in_loop
async def test_a_shrink_that_cannot_replay_says_why(tmp_path):
    """A budget without room for a replay, and a model that breaks: no scenario is called reliable."""
    away = False

    def agent(request: ModelRequest) -> Turn:
        if away:
            raise RuntimeError("the endpoint is away")
        return "7"

    async with Lab(home=tmp_path / "home", model=ScriptedModel(agent)) as lab:
        run = await failed_run(lab, tmp_path / "work", agent)
        little = await lab.evals.shrink(run, checks=[CHECK], runs=0.1)
        assert (little.reliable, little.whole_runs) == (False, 0)
        away = True
        broken = await lab.evals.shrink(run, checks=[CHECK])
        assert (broken.reliable, broken.replays) == (False, 0)
        assert "the endpoint is away" in str(broken)
        assert "NOT SHRUNK" in str(broken)
        assert "NOT SHRUNK" in str(little)


class Bank:
    """An environment whose one tool pays; judged by what was paid."""

    instructions = ""

    def definition(self) -> dict[str, Any]:
        """Nothing but its name."""
        return {"bank": 1}

    def open(self) -> SimpleNamespace:
        """A state of its own."""
        paid: list[int] = []

        @tool(danger_level="LOW", effect="opaque")
        def pay(amount: int) -> str:
            """Pay an amount."""
            paid.append(amount)
            return f"paid {sum(paid)} in all"

        return SimpleNamespace(tools=(pay,), approver=None, paid=paid)


@dataclass(frozen=True)
class Paid:
    """Passes where exactly 42 was paid."""

    label: str = "42 paid"

    async def __call__(self, trial: Any) -> Score:
        """Look into the environment."""
        right = sum(trial.environment.paid) == 42
        return Score(check=self.label, passed=right, value=float(right))


@in_loop
async def test_the_state_of_an_environment_is_that_of_the_fork_s_event(tmp_path):
    """The calls before a fork are made again in a new environment, so the wrong payment is the decisive turn."""
    recorded = [40, 1, 0, 0]

    def payer(request: ModelRequest) -> Turn:
        done = sum(message.role == "assistant" for message in request.messages)
        amounts = [40, 2, 0, 0] if again else recorded
        return [("pay", {"amount": amounts[done]})] if done < 4 else "done"

    again, model = False, ScriptedModel(payer)
    scenario = Scenario(id="pay", goal="Pay 42.", environment=Bank(), checks=(Paid(),))
    suite = Suite(name="bank", scenarios=(scenario,), configs=(Config(name="c"),))
    async with Lab(home=tmp_path / "home", model=model) as lab:
        run = (await lab.eval(suite)).rows[0].run
        again = True
        receipt = await lab.evals.blame(run, suite=suite)
        assert receipt.steps[0] == 2
        with pytest.raises(UsageError, match="an environment of its own"):
            await lab.evals.shrink(run, suite=suite)


def gives_up(request: ModelRequest) -> Turn:
    """Read twice and give a wrong answer, unless a line says better."""
    done = sum(message.role == "assistant" for message in request.messages)
    if "Write 3 instructions" in request.messages[-1].text:
        return "1. look again\n2. add, do not guess\n"
    if any("add, do not guess" in message.text for message in request.messages):
        return "42"
    return [("list_directory", {"path": "."})] if done < 2 else "7"


@in_loop
async def test_a_run_that_always_fails_accuses_nobody_and_a_line_that_repairs_it_is_found(tmp_path):
    """No single step is an answer; a change is tried as often as asked at the likeliest turn."""
    async with Lab(home=tmp_path / "home", model=ScriptedModel(gives_up)) as lab:
        run = await failed_run(lab, tmp_path / "work", gives_up)
        receipt = await lab.evals.blame(run, checks=[CHECK], change="add, do not guess", tries=4)
        assert (receipt.verdict, receipt.steps) == ("no single step", ())
        assert [(one.passed, one.tried) for one in receipt.repairs] == [(4, 4)]
        whole = receipt.whole_runs
        receipt = await lab.evals.blame(run, checks=[CHECK], repair=True, tries=2)
        assert {one.change: (one.passed, one.tried) for one in receipt.repairs} == {
            "look again": (0, 2),
            "add, do not guess": (4, 4),
        }, "what was tried before counts"
        assert receipt.whole_runs > whole
        receipt = await lab.evals.blame(
            run, checks=[CHECK], change=["look again", "be brief"], tries=5, runs=receipt.whole_runs + 1.1
        )
        assert sum(receipt.untried.values()) in range(3, 8)
        assert "not tried for want of budget" in str(receipt)
        assert read_receipt(lab.home, run) == receipt
        assert [*lab.runs().index] == [run], "forks of a blame are listed with trials only"
        remove_runs(lab, run, children=True)
        assert read_receipt(lab.home, run) is None


SENT: list[str] = []


@tool(reaches="others", danger_level="MEDIUM")
def post(text: str) -> str:
    """Send a text."""
    SENT.append(text)
    return "sent"


def posts(request: ModelRequest) -> Turn:
    """Send a text, then another one, then answer wrongly."""
    done = sum(message.role == "assistant" for message in request.messages)
    return [("post", {"text": "same"})] if done < 2 else "7"


@in_loop
async def test_what_reaches_outside_of_the_copy_is_answered_from_the_log(tmp_path):
    """A fork sends nothing again: equal calls are answered from the log, and the receipt says which."""
    SENT.clear()
    async with Lab(
        home=tmp_path / "home", model=ScriptedModel(posts), tools=[post], containment="off"
    ) as lab:
        run = await failed_run(lab, tmp_path / "work", posts, tools=["post"])
        assert SENT == ["same", "same"]
        receipt = await lab.evals.blame(run, checks=[CHECK], runs=6)
        assert SENT == ["same", "same"]
        assert receipt.replayed["post"] > 0
        assert "answered from the log" in str(receipt)
        with pytest.raises(UsageError, match="reach outside of the workspace"):
            await lab.evals.shrink(run, checks=[CHECK])


@in_loop
async def test_what_cannot_be_re_run_is_refused_with_the_reason(tmp_path):
    """Nothing that says what success is, a run that passes, a budget of nothing, a folder that is gone, and tools
    of another program.
    """
    async with Lab(home=tmp_path / "home", model=ScriptedModel(gives_up)) as lab:
        run = await failed_run(lab, tmp_path / "work", gives_up)
        with pytest.raises(UsageError, match="nothing says when a re-run"):
            await lab.evals.blame(run)
        with pytest.raises(UsageError, match="nothing to blame"):
            await lab.evals.blame(run, checks=["answer_contains: '7'"])
        with pytest.raises(UsageError, match="a budget is positive"):
            await lab.evals.blame(run, checks=[CHECK], runs=0)
        shutil.rmtree(tmp_path / "work")
        with pytest.raises(UsageError, match="is gone"):
            await lab.evals.blame(run, checks=[CHECK])
        imported = await lab.evals.import_runs(RECORDINGS)
        assert imported
        theirs = next(one for one, row in lab.runs().iterrows() if row["model"].startswith("claude"))
        with pytest.raises(UsageError, match="was imported, and its tools"):
            await lab.evals.blame(theirs, checks=[CHECK])


def adds(request: ModelRequest) -> Turn:
    """Read three files and answer by what stands in one of them."""
    done = sum(message.role == "assistant" for message in request.messages)
    if done < 3:
        return [("read_file", {"path": f"part{done}.txt"})]
    return "7" if any("old price" in message.text for message in request.messages) else "42"


@in_loop
async def test_a_run_is_shrunk_to_a_scenario_that_fails_today_and_passes_after_the_fix(tmp_path):
    """Files and tools that the run did not name are gone, and so is its history; the file loads as a suite."""
    work = tmp_path / "work"
    work.mkdir()
    for number in range(9):
        (work / f"part{number}.txt").write_text("old price\n" if number == 1 else "x\n")
    (work / "AGENTS.md").write_text("Be brief.\n\nUse tabs.\n")
    async with Lab(home=tmp_path / "home", model=ScriptedModel(adds)) as lab:
        run = await failed_run(lab, work, adds)
        shrunk = await lab.evals.shrink(run, checks=[CHECK])
        assert shrunk.reliable
        assert (shrunk.kept["file"], shrunk.kept["tool"], shrunk.kept["guidance"]) == (3, 1, 0)
        assert shrunk.kept_events <= 0.2 * shrunk.events
        assert shrunk.whole_runs <= 12
        file = shrunk.write(tmp_path / "found.yaml")
        models = {"today": ScriptedModel(adds), "fixed": ScriptedModel(lambda _: "42")}
        outcomes = {row.config: row.outcome for row in (await lab.eval(file, configs=models)).rows}
        assert outcomes == {"today": "fail", "fixed": "pass"}


@in_loop
async def test_a_failure_that_comes_from_a_turn_is_kept_with_that_turn_as_history(tmp_path):
    """What fails only behind a recorded turn becomes a scenario that begins behind it, without making its calls
    again.
    """
    agent = ChanceAgent(8, 3, 1.0, 0.0, Random(1))
    model = ScriptedModel(agent, name="chance")
    async with Lab(home=tmp_path / "home", model=model) as lab:
        run = (await lab.eval(suite_of(8))).rows[0].run
        agent.fails = False
        shrunk = await lab.evals.shrink(run, suite=suite_of(8), model=model)
        assert shrunk.reliable
        assert shrunk.kept_events <= 0.2 * shrunk.events
        assert (shrunk.kept["turn"], shrunk.kept["file"]) == (1, 1), "the file that the turn made"
        assert shrunk.whole_runs <= 10
        file = shrunk.write(tmp_path / "found.yaml")
        [row] = (await lab.eval(file, configs={"today": model})).rows
        assert row.outcome == "fail"
        assert "wrong" in str(lab.get(row.run).records()[5].event)


@in_loop
async def test_the_bench_blames_what_it_planted():
    """A case of the bench with a sharp contrast names the turn in which its error was planted."""
    case = await blame_one(4, 1.0, 0.0, seed=3, runs=20)
    assert case.found
    assert case.whole_runs <= 20
