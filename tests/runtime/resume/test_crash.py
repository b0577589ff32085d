"""Killed at any moment, a run loses nothing it acknowledged and shows no effect twice; a checker that misses
a defect proves nothing.

`KESTREL_KILLS` sets at how many random moments; 200 unless set. It is also killed at every boundary.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from crash_worker import fingerprint
from reference import ANSWER, ONCE, REPEATABLE, illegal_states, unreported
from waits import PATIENCE_S

from kestrel_lab.core.events.union import ApprovalAsked, Record
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.eventlog.store import SessionStore

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KESTREL_KILLS", "200"))


@dataclass
class Findings:
    """What was wrong, over all sessions."""

    kills: int = 0
    acknowledged: int = 0
    questions: int = 0
    lost: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    illegal: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unreported: list[str] = field(default_factory=list)

    @property
    def nothing_wrong(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.gaps or self.illegal or self.twice or self.missing or self.unreported)

    def check(self, folder: Path) -> None:
        """Look at what a finished session left: its log, what it was told was safe, and the effects it
        had.
        """
        store = SessionStore(folder / "home" / "kestrel.db")
        rows = store.runs()
        records = [record for row in rows for record in store.records(row.id)]
        there = {f"{record.run_id} {record.seq} {fingerprint(record.event)}" for record in records}
        acks = (folder / "acks").read_text().splitlines()
        self.acknowledged += len(acks)
        self.lost += [ack for ack in acks if ack not in there]
        for row in rows:
            own = [record for record in records if record.run_id == row.id]
            self._check_run(store, own, row.status)
        if [row.status for row in rows] != [RunStatus.COMPLETE] or fold(records).answer != ANSWER:
            self.illegal.append(f"ended as {rows}")
        effects = Counter((folder / "effects").read_text().splitlines())
        self.twice += [name for name in ONCE if effects[name] > 1]
        self.missing += [name for name in (*ONCE, REPEATABLE) if not effects[name]]
        store.close()
        raw = apsw.Connection(str(folder / "home" / "kestrel.db"))
        if (verdict := raw.pragma("integrity_check")) != "ok":
            self.illegal.append(str(verdict))
        raw.close()

    def _check_run(self, store: SessionStore, records: list[Record], status: RunStatus) -> None:
        self.gaps += [str(record) for place, record in enumerate(records, 1) if record.seq != place]
        self.illegal += illegal_states(records)
        if fold(records).status is not status:
            self.illegal.append(f"the row says {status}")
        if store.state(records[0].run_id) != fold(records):
            self.illegal.append("a checkpoint says something else than the events")
        self.unreported += unreported(records)
        self.questions += sum(
            isinstance(r.event, ApprovalAsked) and r.event.why == "unknown_outcome" for r in records
        )


class Worker:
    """The process that forks and kills."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("crash_worker.py"))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def run(self, folder: Path, mutant: str = "", point: int = 0, after_s: float = 0) -> int:
        """Work on the session in `folder`; returns 0 when it is done, -9 when it was killed, else what
        failed.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(
            json.dumps({"folder": str(folder), "mutant": mutant, "point": point, "after_s": after_s}) + "\n"
        )
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all tests here."""
    started = Worker()
    yield started
    started.process.communicate(timeout=PATIENCE_S)


def session(
    worker: Worker, folder: Path, findings: Findings, deaths: list[dict[str, float]], mutant: str = ""
) -> None:
    """One session that dies at each of `deaths` in turn, then ends; checked afterwards."""
    folder.mkdir(parents=True)
    status = -9
    for death in deaths:
        status = worker.run(folder, mutant, int(death.get("point", 0)), death.get("after_s", 0))
        if status != -9:
            break
        findings.kills += 1
    if status == -9:
        status = worker.run(folder, mutant)
    if status != 0:
        findings.illegal.append(f"a session could not go on: see its stderr ({folder.name})")
    findings.check(folder)


def number_of_points(worker: Worker, folder: Path) -> int:
    """How many moments of interest an undisturbed session has."""
    findings = Findings()
    session(worker, folder, findings, [])
    assert findings == Findings(acknowledged=findings.acknowledged)
    return findings.acknowledged + 2 * (len(ONCE) + 2)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.once
def test_killed_at_every_boundary_nothing_is_lost_or_done_twice(worker: Worker, tmp_path: Path) -> None:
    """Behind every acknowledged event, before and behind every effect, and once more while going on: every
    promise is kept.

    Nothing acknowledged is lost, numbers have no gap, states are legal, no effect happens twice or never, and
    each unknown outcome was put to the person.
    """
    points = number_of_points(worker, tmp_path / "undisturbed")
    assert points >= 70
    dice, findings = random.Random(7), Findings()  # reproducible, not secret
    for point in range(1, points + 1):
        session(worker, tmp_path / str(point), findings, [{"point": point}, {"point": dice.randint(1, 12)}])
    assert findings.nothing_wrong, findings
    assert findings.kills >= 1.8 * points  # the last boundaries leave nothing to kill a second time
    assert findings.questions >= 10


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.once
def test_killed_at_random_moments_nothing_is_lost_or_done_twice(worker: Worker, tmp_path: Path) -> None:
    """At any moment, in the middle of whatever it is, and again while going on: the same promises."""
    began = time.perf_counter()
    number_of_points(worker, tmp_path / "undisturbed")
    usual_s = time.perf_counter() - began
    dice, findings, number = random.Random(8), Findings(), 0  # reproducible, not secret
    while findings.kills < KILLS:
        number += 1
        session(
            worker,
            tmp_path / str(number),
            findings,
            [{"after_s": dice.uniform(0.005, usual_s)} for _ in range(4)],
        )
    assert findings.nothing_wrong, findings
    assert findings.acknowledged > 30 * number


def caught(worker: Worker, folder: Path, mutant: str, *, wrong: str) -> Findings:
    """What the checker says of a mutant that is killed at up to 40 boundaries."""
    findings = Findings()
    for point in random.Random(3).sample(range(4, 70), 40):  # reproducible, not secret
        session(worker, folder / str(point), findings, [{"point": point}], mutant)
        if getattr(findings, wrong):
            break
    return findings


def test_acknowledging_before_the_commit_is_caught(worker: Worker, tmp_path: Path) -> None:
    """The same checker finds lost events in a writer that acknowledges too early."""
    assert caught(worker, tmp_path, "hasty", wrong="lost").lost != []


@pytest.mark.long
def test_repeating_instead_of_asking_is_caught(worker: Worker, tmp_path: Path) -> None:
    """The same checker finds doubled effects, and that nobody was asked, where calls of unknown outcome are
    just made again.
    """
    findings = caught(worker, tmp_path, "repeat", wrong="twice")
    assert findings.twice != []
    assert findings.unreported != []


def test_state_and_event_in_two_transactions_is_caught(worker: Worker, tmp_path: Path) -> None:
    """The same checker finds runs whose state is not what their events say, or that cannot go on, where a
    crash can come between.
    """
    findings = caught(worker, tmp_path, "tear", wrong="illegal")
    assert any("the row says" in found for found in findings.illegal)
