"""Claims about runners: each trial that was asked for has its row, or the runner raises."""

import asyncio
import sys
import tempfile
from pathlib import Path

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import RunError
from kestrel_lab.evals.commits.interleaved_trials import Worker
from kestrel_lab.evals.execution.runner import Keeper, plan_trials
from kestrel_lab.evals.execution.trial import TrialRequest
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Config, Scenario, Suite

LAZY = """
import json, sys
asked = json.loads(sys.stdin.readline())
for scenario, config, epoch in asked[:int(sys.argv[1])]:
    row = dict(id=scenario, suite="s", scenario=scenario, config=config, epoch=epoch, result={})
    row |= dict(metrics={}, git_sha="", created_at=0, key=scenario)
    print(json.dumps({"row": row}), flush=True)
print(json.dumps({"done": True}), flush=True)
"""
"""A worker that runs only so many of the trials and says that it is done."""


def asks() -> list[TrialRequest]:
    """Three trials."""
    scenarios = tuple(
        Scenario(id=f"s{number}", goal="look", checks=(AnswerContains(texts=("42",)),)) for number in range(3)
    )
    suite = Suite(name="s", scenarios=scenarios, configs=(Config(name="c", model="scripted:x"),))
    return plan_trials(suite, code="", git_sha="")


def rows(trials: int) -> list[EvalRow]:
    """Rows of the first of them."""
    return [
        EvalRow(
            id=ask.scenario.id,
            suite="s",
            scenario=ask.scenario.id,
            config="c",
            epoch=ask.epoch,
            result={},
            metrics={},
            git_sha="",
            created_at=0,
            key=ask.scenario.id,
        )
        for ask in asks()[:trials]
    ]


async def make_with_worker(trials: int) -> int:
    """Have a process, as a commit has one, run so many of the three trials."""
    received: list[EvalRow] = []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LAZY, str(trials), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    with tempfile.TemporaryFile() as errors:
        worker = Worker(title="a commit", process=process, errors=errors)
        try:
            await worker.make(asks(), received.append)
        finally:
            await process.communicate()
    return len(received)


async def keep(trials: int) -> int:
    """Keep rows as the runner of this process and that of a cluster do."""
    keeper = Keeper(None, lambda row: None)
    for row in rows(trials):
        keeper.keep(row)
    await keeper.finish(asks())
    return len(keeper.rows)


@pytest.mark.parametrize("make", [make_with_worker, keep])
def test_a_runner_that_leaves_a_trial_out_raises(make) -> None:
    """Whoever asks for three trials gets three rows, or an error that names what lacks."""
    assert asyncio.run(make(3)) == 3
    with pytest.raises(RunError, match=r"1 trial of 3 ended without a result: s2 × c, epoch"):
        asyncio.run(make(2))


def test_every_runner_keeps_its_rows_so() -> None:
    """Each module that makes rows for trials that it was asked for ends with the check."""
    evals = Path(__file__).parents[3] / "kestrel_lab" / "evals"
    makers = [
        path
        for path in evals.rglob("*.py")
        if "EvalRow(**" in path.read_text() or "Keeper(" in path.read_text()
    ]
    unchecked = [
        path.name
        for path in makers
        if "TrialRequest" in path.read_text()
        and not any(check in path.read_text() for check in ("keeper.finish(", "require_all_rows("))
    ]
    assert unchecked == []
