"""Killed within a macro, a run shows no effect of it twice."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from reference import illegal_states, unreported
from test_macro_runs import ONCE
from waits import PATIENCE_S

from kestrel_lab.core.events.union import ApprovalAsked, MacroFinished
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.eventlog.store import SessionStore

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KESTREL_KILLS", "60")) // 2


class Worker:
    """The process that forks and kills."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("macro_crash_worker.py"))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def run(self, folder: Path, point: int, mutant: str = "") -> bool:
        """Work on the session in `folder`; returns whether it was killed at `point` before it was done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(
            json.dumps({"folder": str(folder), "mutant": mutant, "point": point, "after_s": 0}) + "\n"
        )
        status = int(self.process.stdout.readline())
        assert status in (0, -9), "the worker failed: see its stderr"
        return status == -9


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all tests here."""
    started = Worker()
    yield started
    started.process.communicate(timeout=PATIENCE_S)


def killed_and_finished(
    worker: Worker, folder: Path, points: list[int], mutant: str = ""
) -> tuple[int, Counter[str], list[str]]:
    """How often the session was killed, the effects it had, and what else was wrong when it was done."""
    folder.mkdir(parents=True)
    kills = 0
    for point in points:
        if not worker.run(folder, point, mutant):
            break
        kills += 1
    else:
        assert not worker.run(folder, 0, mutant)
    store = SessionStore(folder / "home" / "kestrel.db")
    (row,) = store.runs()
    records = store.records(row.id)
    store.close()
    effects = Counter((folder / "effects").read_text().splitlines())
    wrong = illegal_states(records) + unreported(records)
    if (row.status, fold(records).answer) != (RunStatus.COMPLETE, "deployed"):
        wrong.append(f"ended {row.status}")
    if [record.seq for record in records] != list(range(1, len(records) + 1)):
        wrong.append("a gap")
    if sum(isinstance(record.event, MacroFinished) for record in records) != 2:
        wrong.append("a macro ended not once")
    doubtful = any(
        isinstance(record.event, ApprovalAsked) and record.event.why == "unknown_outcome"
        for record in records
    )
    if not doubtful:
        wrong += [f"{name} is missing" for name in ONCE if not effects[name]]
    return kills, effects, wrong


@pytest.mark.long
@pytest.mark.once
def test_killed_within_a_macro_nothing_is_done_twice(worker: Worker, tmp_path: Path) -> None:
    """At boundaries between events and effects, and again while resuming: no effect twice, none missing that
    nobody was asked about.
    """
    dice, kills, number = random.Random(11), 0, 0  # reproducible, not secret
    boundaries = dice.sample(range(1, 71), 70)
    while kills < KILLS:
        points = [boundaries[number % len(boundaries)], dice.randint(1, 14)]
        number += 1
        done, effects, wrong = killed_and_finished(worker, tmp_path / str(number), points)
        kills += done
        assert ([name for name in ONCE if effects[name] > 1], wrong) == ([], []), points
    assert kills >= KILLS


def test_repeating_the_calls_of_a_macro_is_caught(worker: Worker, tmp_path: Path) -> None:
    """The same check finds a doubled effect where calls of unknown outcome are just made again."""
    for point in random.Random(5).sample(range(10, 60), 50):  # reproducible, not secret
        _, effects, wrong = killed_and_finished(worker, tmp_path / str(point), [point], "repeat")
        if any(effects[name] > 1 for name in ONCE) and wrong:
            return
    pytest.fail("a mutant was not caught")
