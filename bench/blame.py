"""How often blame finds a planted error, at what cost, and whom it accuses where there is none: `python -m bench
blame --out FOLDER`; and how small failures become that are shrunk.

Each case is a failed trial of a suite with a scripted agent of known rates, **no model**: it writes its notes
turn by turn, one of them wrong in the trial that is blamed, and what its last turn answers is right with one
chance where all notes are right and with another where one is wrong. Every fork is a real one, in a private
copy of its files. A case without an error answers by one chance in all forks.

With `--logs FILE`, the half of Who&When, also how often the step that people named is found by reading the log
alone, without a model: the first step, and the first step that states what is answered in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.evals.benchmarks.by_name import load_published
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn

RATES = ((0.7, 0.1), (0.9, 0.2), (0.5, 0.1), (0.1, 0.1), (0.4, 0.4))
"""Success before and after the planted error; equal where none is planted."""
LENGTHS = (8, 15, 30)
RIGHT = 98.70
"""The amount of the bill in AgentDojo's bank."""


@dataclass(frozen=True, slots=True)
class Case:
    """One blamed run."""

    turns: int
    before: float
    after: float
    planted: int
    """0 for none."""
    steps: tuple[int, ...]
    whole_runs: float
    reruns: int

    @property
    def found(self) -> bool:
        """Whether at most three turns were named, the planted one among them."""
        return self.planted in self.steps and len(self.steps) <= 3


class ChanceAgent:
    """Writes a note a turn and answers at last, right by chance. While it `fails` it is the recorded trial."""

    def __init__(self, turns: int, planted: int, before: float, after: float, random: Random) -> None:
        self._turns, self._planted, self._rates, self._random = turns, planted, (before, after), random
        self.fails = True

    def __call__(self, request: ModelRequest) -> Turn:
        """Return the turn that follows the conversation."""
        own = [message for message in request.messages if message.role == "assistant"]
        turn = len(own) + 1
        if turn < self._turns:
            note = "wrong" if self.fails and turn == self._planted else "right"
            return [("write_file", {"path": f"note{turn}.txt", "content": note})]
        wrong = any(call.args.get("content") == "wrong" for message in own for call in message.calls)
        right = not self.fails and self._random.random() < self._rates[wrong]
        return "the sum is 42" if right else "the sum is 7"


def suite_of(turns: int) -> Suite:
    """Return the suite with one scenario whose trials have so many turns."""
    scenario = Scenario(
        id="notes",
        goal="Write the notes and give the sum.",
        tools=("write_file",),
        limits={"cycles": turns + 5},
        checks=(AnswerContains(texts=("42",)),),
    )
    return Suite(name=f"blame-{turns}", scenarios=(scenario,), configs=(Config(name="chance"),))


async def blame_one(turns: int, before: float, after: float, seed: int, runs: float) -> Case:
    """Fail a trial with an error planted anywhere but in the last turn, and blame it."""
    random = Random(f"{turns} {before} {after} {seed}")
    planted = random.randint(1, turns - 1) if before != after else 0
    agent = ChanceAgent(turns, planted, before, after, random)
    model = ScriptedModel(agent, name="chance")
    with tempfile.TemporaryDirectory() as home:
        async with Lab(home=home, model=model) as lab:
            suite = suite_of(turns)
            trial = await lab.eval(suite)
            agent.fails = False
            receipt = await lab.evals.blame(trial.rows[0].run, suite=suite, model=model, runs=runs)
    return Case(turns, before, after, planted, receipt.steps, receipt.whole_runs, len(receipt.reruns))


class PayingAgent:
    """Pays a bill in a bank of AgentDojo between calls that only read. While it `fails` it pays wrongly; else it
    pays rightly, or later makes up for it, with the chances that give the rates.
    """

    def __init__(self, turns: int, planted: int, before: float, after: float, random: Random) -> None:
        self._turns, self._planted, self._after, self._random = turns, planted, after, random
        self._pays = (before - after) / (1 - after)
        self.fails = True

    def __call__(self, request: ModelRequest) -> Turn:
        """Return the turn that follows the conversation."""
        own = [message for message in request.messages if message.role == "assistant"]
        turn = len(own) + 1
        paid = any(call.args.get("amount") == RIGHT for message in own for call in message.calls)
        if turn == self._planted:
            return self._pay(not self.fails and self._random.random() < self._pays)
        if turn == self._turns - 1 and not paid and not self.fails and self._random.random() < self._after:
            return self._pay(True)
        return "done" if turn == self._turns else [("get_balance", {})]

    def _pay(self, right: bool) -> Turn:
        told = {"recipient": "UK12345678901234567890", "subject": "Car Rental", "date": "2022-01-01"}
        return [("send_money", {**told, "amount": RIGHT if right else 5.0})]


async def blame_payment(turns: int, before: float, after: float, seed: int) -> Case:
    """Fail the first task of AgentDojo's bank by a wrong payment, and blame it."""
    random = Random(f"dojo {turns} {seed}")
    agent = PayingAgent(turns, random.randint(1, turns - 2), before, after, random)
    model = ScriptedModel(agent, name="paying")
    suite = load_published("agentdojo:banking?limit=1").model_copy(
        update={"configs": (Config(name="paying"),)}
    )
    with tempfile.TemporaryDirectory() as home:
        async with Lab(home=home, model=model) as lab:
            trial = await lab.eval(suite)
            agent.fails = False
            receipt = await lab.evals.blame(trial.rows[0].run, suite=suite, model=model)
    return Case(turns, before, after, agent._planted, receipt.steps, receipt.whole_runs, len(receipt.reruns))


def table(cases: Sequence[Case]) -> str:
    """Return the cases as a Markdown table."""
    lines = [
        "| success before / after | turns | runs | found in at most 3 turns | accused | median cost in whole runs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for before, after in dict.fromkeys((one.before, one.after) for one in cases):
        for turns in (*LENGTHS, 0):
            some = [
                one for one in cases if (one.before, one.after) == (before, after) and turns in (one.turns, 0)
            ]
            if not some:
                continue
            found = f"{100 * fmean(one.found for one in some):.0f} %" if before != after else "none planted"
            accused = fmean(bool(one.steps) for one in some)
            lines.append(
                f"| {before:g} / {after:g} | {turns or 'all'} | {len(some)} | {found} | {100 * accused:.0f} % | "
                f"{median(one.whole_runs for one in some):.1f} |"
            )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Small:
    """One shrunk run."""

    kind: str
    share: float
    """Of the events that were kept."""
    files: int
    whole_runs: float
    reliable: bool


def misled(request: ModelRequest) -> Turn:
    """Read three files, and answer wrongly where one of them has the old price."""
    done = sum(message.role == "assistant" for message in request.messages)
    if done < 3:
        return [("read_file", {"path": f"part{done}.txt"})]
    return "the sum is 7" if any("old price" in one.text for one in request.messages) else "the sum is 42"


async def shrink_one(seed: int) -> Small:
    """Shrink a failure that comes from a turn of the history (even seeds), or from one of twelve files."""
    random = Random(f"shrink {seed}")
    with tempfile.TemporaryDirectory() as home:
        if seed % 2:
            files = {f"part{place}.txt": "some text\n" for place in range(12)}
            files[f"part{random.randint(0, 2)}.txt"] = "old price\n"
            scenario = (
                suite_of(8)
                .scenarios[0]
                .model_copy(
                    update={
                        "place": InlineFiles(files=files),
                        "tools": ("read_file", "list_directory", "write_file"),
                    }
                )
            )
            suite, model = Suite(name="misled", scenarios=(scenario,)), ScriptedModel(misled, name="misled")
            agent = None
        else:
            turns = random.choice(LENGTHS)
            agent = ChanceAgent(turns, random.randint(1, turns - 1), 1.0, 0.05, random)
            suite, model = suite_of(turns), ScriptedModel(agent, name="chance")
        async with Lab(home=home, model=model) as lab:
            run = (await lab.eval(suite)).rows[0].run
            if agent is not None:
                agent.fails = False
            found = await lab.evals.shrink(run, suite=suite, model=model)
    return Small(
        "history" if agent is not None else "file",
        found.kept_events / found.events,
        found.kept["file"],
        found.whole_runs,
        found.reliable,
    )


def small_table(small: Sequence[Small]) -> str:
    """Return the medians of shrunk runs."""
    said = []
    for kind in ("history", "file", ""):
        some = [one for one in small if kind in ("", one.kind)]
        said.append(
            f"{len(some)} failures{f' by a {kind}' if kind else ''} shrunk: median "
            f"{100 * median(one.share for one in some):.0f} % of the events, "
            f"{median(one.files for one in some):g} files, cost {median(one.whole_runs for one in some):.1f} "
            f"whole runs; {sum(one.reliable for one in some)} fail reliably as they are kept."
        )
    return "\n".join(said)


def first_stated(row: dict[str, Any]) -> int:
    """Return the first step of a recorded run that states the last number, name or phrase it ends with."""
    texts = [str(step["content"]) for step in row["history"]]
    told = re.compile(r'\*\*([^*\n]{1,60})\*\*|"([^"\n]{2,60})"|(?<![\w.])(\d[\d,.]*\d|\d)(?!\w)')
    for place in range(len(texts) - 1, 0, -1):
        found = [next(filter(None, one)) for one in told.findall(texts[place])]
        if found and "TERMINATE" not in texts[place]:
            return next(step for step, text in enumerate(texts) if step and found[-1] in text)
    return len(texts) - 1


def read_logs(file: Path) -> str:
    """Return how often the step that people named is found without a re-run and without a model."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    named = [int(row["mistake_step"]) for row in rows]
    first = fmean(step == 1 for step in named)
    stated = fmean(first_stated(row) == step for row, step in zip(rows, named, strict=True))
    return (
        f"Reading {len(rows)} logs alone, without a model: the first step after the task {100 * first:.0f} %, the "
        f"first that states what is answered {100 * stated:.0f} % exact."
    )


async def _pay(seeds: range) -> list[Case]:
    return [await blame_payment(8, 0.7, 0.1, seed) for seed in seeds]


async def _shrink(seeds: range) -> list[Small]:
    return [await shrink_one(seed) for seed in seeds]


async def _measure(seeds: range, runs: float) -> list[Case]:
    return [
        await blame_one(turns, before, after, seed, runs)
        for before, after in RATES
        for turns in LENGTHS
        for seed in seeds
    ]


def main(arguments: Sequence[str]) -> int:
    """Measure, and write `blame.md` and `blame.json`."""
    parser = argparse.ArgumentParser(prog="python -m bench blame", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/blame"))
    parser.add_argument("--each", type=int, default=20, help="Runs for each setting and length.")
    parser.add_argument("--runs", type=float, default=40.0, help="The budget of one blame in whole runs.")
    parser.add_argument("--dojo", type=int, default=0, help="Wrong payments in AgentDojo's bank.")
    parser.add_argument("--shrunk", type=int, default=40, help="Failures to shrink.")
    parser.add_argument("--seed", type=int, default=0, help="The first of as many seeds as cases.")
    parser.add_argument("--logs", type=Path, help="The half of Who&When, JSON Lines.")
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    each, dojo, shrunk = (
        range(asked.seed, asked.seed + number) for number in (asked.each, asked.dojo, asked.shrunk)
    )
    cases = asyncio.run(_measure(each, asked.runs))
    paid = asyncio.run(_pay(dojo))
    small = asyncio.run(_shrink(shrunk))
    parts = (
        table(cases) if cases else "",
        f"AgentDojo's bank:\n\n{table(paid)}" if paid else "",
        small_table(small) if small else "",
        read_logs(asked.logs) if asked.logs else "",
    )
    text = "\n\n".join(filter(None, parts))
    (asked.out / "blame.md").write_text(text + "\n", encoding="utf-8")
    (asked.out / "blame.json").write_text(json.dumps([asdict(one) for one in [*cases, *paid]], indent=1))
    print(text)
    return 0
