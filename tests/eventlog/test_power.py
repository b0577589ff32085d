"""After a power cut at any moment everything acknowledged is there; a weaker setting is found out.

`KESTREL_CUTS` sets how many cuts there are; 200 unless set.
"""

import os
import random
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import msgspec
import pytest
from power import Tape, Told, laid_out, taped

from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.eventlog.connection import connect_log
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.eventlog.writer import Append, Execute, Writer

CUTS = int(os.environ.get("KESTREL_CUTS", "200"))
EVENTS = 250


@dataclass
class Damage:
    """What was wrong after the cuts."""

    lost: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    no_prefix: list[str] = field(default_factory=list)


def as_it_is(path: Path) -> apsw.Connection:
    """The connection that the log's writer has."""
    return connect_log(path)


def weaker(setting: str) -> Callable[[Path], apsw.Connection]:
    """The same but for the setting."""

    def opened(path: Path) -> apsw.Connection:
        connection = connect_log(path)
        connection.authorizer = None
        connection.execute(f"PRAGMA synchronous = {setting}")
        return connection

    return opened


def write(
    folder: Path, opened: Callable[[Path], apsw.Connection], writer_kind: type[Writer] = Writer
) -> tuple[Tape, list[str]]:
    """Append events, in batches of many sizes; what happened to the files, and the events in order."""
    store = SessionStore(folder / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.close()
    dice, eids = random.Random(5), [f"e{number}" for number in range(EVENTS)]  # reproducible, not secret
    with taped(folder) as tape:
        writer = writer_kind(lambda: opened(folder / "k.db"))
        for number, eid in enumerate(eids):
            done: Future[int] = Future()
            done.add_done_callback(lambda _, eid=eid: tape.happened.append(Told(eid)))  # type: ignore[misc]  # bound to this eid
            body = '{"text":"' + "x" * dice.choice((10, 300, 6_000)) + '"}'
            writer.put(Append("r", eid, 0.0, "progress", None, body, 0, done), urgent=number % 3 == 0)
            if number % 5 == 0:
                done.result()
        writer.close()
    assert len(tape.told(len(tape.happened))) == EVENTS
    return tape, eids


def damage(tape: Tape, eids: list[str], folder: Path, cuts: int = CUTS) -> Damage:
    """Cut the power again and again, each time look what is left."""
    dice, found = random.Random(6), Damage()  # reproducible, not secret
    for number in range(cuts):
        moment = dice.randint(0, len(tape.happened))
        place = laid_out(tape.cut(moment, dice), folder / str(number))
        try:
            raw = apsw.Connection(str(place / "k.db"))
            verdict = raw.pragma("integrity_check")
            rows = raw.execute("SELECT seq, eid FROM events ORDER BY seq").fetchall()
            raw.close()
        except apsw.Error as error:
            found.corrupt.append(f"{moment}: {error}")
            continue
        if verdict != "ok":
            found.corrupt.append(f"{moment}: {verdict}")
        there = [eid for _, eid in rows[1:]]
        found.lost += [eid for eid in tape.told(moment) if eid not in set(there)]
        if [seq for seq, _ in rows] != list(range(1, len(rows) + 1)) or there != eids[: len(there)]:
            found.no_prefix.append(str(moment))
        shutil.rmtree(place)
    return found


@pytest.mark.once
def test_a_power_cut_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Wherever it comes, the log is whole, a prefix of what was appended, and holds whatever was acknowledged
    before.
    """
    (tmp_path / "log").mkdir()
    tape, eids = write(tmp_path / "log", as_it_is)
    files = {item.file for item in tape.happened if not isinstance(item, Told)}
    assert files == {"k.db", "k.db-wal"}  # checkpoints of the write-ahead log are among what is cut
    assert damage(tape, eids, tmp_path / "cut") == Damage()


@pytest.mark.parametrize("setting", ["NORMAL", "OFF"])
def test_less_synchronous_is_caught(setting: str, tmp_path: Path) -> None:
    """The same cuts find lost events where the log does not sync each commit, and a broken log where it never
    syncs.
    """
    (tmp_path / "log").mkdir()
    tape, eids = write(tmp_path / "log", weaker(setting))
    found = damage(tape, eids, tmp_path / "cut", 40)
    assert found.lost != []
    assert (found.corrupt != []) is (setting == "OFF")


class HastyWriter(Writer):
    """A mutant: acknowledges before the commit."""

    def _commit(self, connection: apsw.Connection, batch: list[Append | Execute]) -> None:
        for job in batch:
            assert job.done is not None
            job.done.set_result(0)  # type: ignore[arg-type]  # as an Append's
        super()._commit(connection, [msgspec.structs.replace(job, done=None) for job in batch])


def test_acknowledging_before_the_commit_is_caught(tmp_path: Path) -> None:
    """The same cuts find lost events in a writer that acknowledges too early."""
    (tmp_path / "log").mkdir()
    tape, eids = write(tmp_path / "log", as_it_is, HastyWriter)
    assert damage(tape, eids, tmp_path / "cut", 40).lost != []
