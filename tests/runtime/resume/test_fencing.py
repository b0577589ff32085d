"""Only one session works on a run: of several that want it one gets it, and one it was taken from writes
nothing more.
"""

import asyncio
import json
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import apsw
import psutil
import pytest
from race_worker import launch
from reference import ANSWER, ONCE, HonestPerson, illegal_states, model, tools, unreported
from waits import PATIENCE_S, until

from kestrel_lab.core.errors import Fenced, UsageError
from kestrel_lab.core.events.union import RunResumed, RunStarted
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import start
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool

ROUNDS = 15
FROZEN_AT = (1, 5, 12, 19, 26, 33, 40, 47)
"""Which acknowledgements of the reference session; the one of a call's intent leaves the call under way."""


class Served:
    """A process that carries out orders, a line each, and answers each with a line."""

    def __init__(self, script: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def send(self, **order: Any) -> None:
        """Hand in an order."""
        _pipe(self.process.stdin).write(json.dumps(order) + "\n")

    def answer(self) -> str:
        """The answer to the oldest order that has none."""
        return _pipe(self.process.stdout).readline().strip()


def first_to_answer(servants: list[Served]) -> Served:
    """Which of them answers first."""
    by_number = {_pipe(one.process.stdout).fileno(): one for one in servants}
    poller = select.poll()  # `select.select` takes no number over 1,023
    for number in by_number:
        poller.register(number, select.POLLIN | select.POLLHUP)
    return by_number[poller.poll()[0][0]]


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts processes that serve orders; they end after the test."""
    started: list[Served] = []

    def start(script: str) -> Served:
        started.append(Served(script))
        return started[-1]

    yield start
    for served in started:
        served.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def freezer() -> Iterator[Served]:
    """The process whose forks are frozen, one for all tests here: it has everything imported."""
    served = Served("crash_worker.py")
    yield served
    served.process.communicate(timeout=PATIENCE_S)


def give_to(session: Lab, run_id: str, owner: Owner) -> None:
    """Make the run `owner`'s."""
    session.store.execute(
        "UPDATE runs SET owner = ?, epoch = epoch + 1 WHERE id = ?", (str(owner), run_id), "owner"
    ).result()


def begun(session: Lab) -> None:
    """A run `r` that offers `launch` and was only begun."""
    offered: list[dict[str, Any]] = [{"name": "launch"}]
    session.store.create_run(
        "r",
        RunStarted(
            goal="go", workspace=str(session.home), model="scripted", model_kind="scripted", tools=offered
        ),
    )
    session.store.flush()


@pytest.mark.once
def test_of_two_processes_that_resume_a_dead_run_one_wins(serve: Any, tmp_path: Path) -> None:
    """Round after round, a run whose process died is resumed by two at once: one works, the other is refused,
    the effect happens once.

    The winner's call ends only when the loser has been told. Once it took a tenth of a second instead: a
    loser that came later than that found the run done, which is COMPLETE for it too, and the test failed on a
    busy machine.
    """
    racers = [serve("race_worker.py"), serve("race_worker.py")]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        dead = Owner(
            process=f"{os.uname().nodename}:{child.pid}",
            began=psutil.Process(child.pid).create_time(),
            session="dead",
        )
        child.communicate(b"\n")
    for number in range(ROUNDS):
        home, effects = tmp_path / str(number), tmp_path / f"{number}.effects"
        session = Lab(home, env={}, tools=[launch])
        begun(session)
        give_to(session, "r", dead)
        for racer in racers:
            racer.send(home=str(home), run="r", effects=str(effects))
        loser = first_to_answer(racers)
        assert (told := loser.answer()).startswith("UsageError: run r is being worked on by process "), told
        (winner,) = (racer for racer in racers if racer is not loser)
        winner.send(end=True)
        assert winner.answer() == "COMPLETE"
        assert effects.read_text() == "launched\n"
        records = session.store.records("r")
        assert len([record for record in records if isinstance(record.event, RunResumed)]) == 1
        assert (illegal_states(records), session.store.run("r").epoch) == ([], 2)
        session.close()


def frozen(served: Served, folder: Path, point: int) -> tuple[int, str]:
    """The reference session in a process that is frozen at `point`: its id, and the run."""
    folder.mkdir()
    served.send(folder=str(folder), mutant="", point=point, after_s=0, freeze=True)
    pid = int(served.answer())
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    store = Lab(folder / "home", env={}).store
    (row,) = store.runs()
    store.close()
    return pid, row.id


def stale(path: Path, run_id: str) -> list[tuple[int, int]]:
    """Events that a session wrote after another had written in a later epoch."""
    raw = apsw.Connection(str(path))
    epochs = raw.execute(
        "SELECT seq, epoch FROM events WHERE run_id = ? AND epoch IS NOT NULL ORDER BY seq", (run_id,)
    ).fetchall()
    raw.close()
    return [
        (seq, epoch)
        for place, (seq, epoch) in enumerate(epochs)
        if any(earlier > epoch for _, earlier in epochs[:place])
    ]


def take_over(folder: Path, run_id: str) -> tuple[Lab, HonestPerson]:
    """A session that has taken the run, and the person it asked, after it was refused without saying so."""
    effects = folder / "effects"

    def effect(line: str) -> None:
        with effects.open("a") as file:
            file.write(f"{line}\n")

    person = HonestPerson(lambda line: effects.exists() and line in effects.read_text().splitlines())
    session = Lab(folder / "home", env={}, tools=tools(effect))
    with pytest.raises(UsageError, match=rf"worked on by process .*kestrel resume {run_id} --take-over"):
        asyncio.run(session.resume(run_id, model=model(), approver=person))
    run = asyncio.run(session.resume(run_id, model=model(), approver=person, take_over=True))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, ANSWER)
    return session, person


@pytest.mark.once
def test_a_frozen_session_whose_run_was_taken_writes_nothing(freezer: Served, tmp_path: Path) -> None:
    """A process stopped in the middle, whose run is taken over and done, writes no event when it wakes, and
    ends with `Fenced`.

    Effects happen once; only that of a call it was in the middle of may come twice, and that call was asked
    about.
    """
    for point in FROZEN_AT:
        folder = tmp_path / str(point)
        pid, run_id = frozen(freezer, folder, point)
        before = Lab(folder / "home", env={})
        under_way = {
            f"{event.tool} {event.args['name']}"
            for event in fold(before.store.records(run_id)).begun.values()
        }
        before.close()
        session, _ = take_over(folder, run_id)
        records = session.store.records(run_id)
        freezer.send(thaw=pid)

        assert freezer.answer() == "3", point
        assert session.store.records(run_id) == records
        assert stale(session.store.path, run_id) == []
        assert (illegal_states(records), unreported(records)) == ([], [])
        counts = Counter((folder / "effects").read_text().splitlines())
        assert {name for name in ONCE if counts[name] != 1} <= under_way
        session.close()


def test_without_the_fence_the_stale_events_are_seen(freezer: Served, tmp_path: Path) -> None:
    """The same look finds events of the session that lost the run where the database does not refuse them."""
    pid, run_id = frozen(freezer, tmp_path / "f", 5)
    raw = apsw.Connection(str(tmp_path / "f" / "home" / "kestrel.db"))
    raw.execute("DROP TRIGGER events_fence")
    raw.close()
    other = Lab(tmp_path / "f" / "home", env={})
    assert other.store.claim(other.store.run(run_id))
    other.store.append(run_id, RunResumed(by="other"), urgent=True).result()
    freezer.send(thaw=pid)
    assert freezer.answer() != "3"
    assert stale(other.store.path, run_id) != []
    other.close()


@pytest.mark.once
def test_two_sessions_of_one_process(tmp_path: Path) -> None:
    """A run that lives in one session is refused to another, given back by its own, taken on demand, and free
    once its session is done.
    """

    async def scene() -> None:
        going, held = asyncio.Event(), asyncio.Event()

        @tool(effect="pure")
        async def hold() -> str:
            """Wait."""
            going.set()
            await held.wait()
            return "held"

        script = ScriptedModel([[("hold", {})], [("hold", {})], "done"])
        first, second = (Lab(tmp_path / "home", env={}, tools=[hold]) for _ in range(2))
        run = first.start("go", model=script, workspace=tmp_path)
        await going.wait()
        await asyncio.to_thread(first.store.flush)  # what nobody waits for is on disk some milliseconds later
        with pytest.raises(UsageError, match="worked on by another session of this process"):
            start.resume(second, run.id, model=script)
        assert start.resume(first, run.id, model=script) is run
        taken = start.resume(second, run.id, model=script, take_over=True)
        held.set()
        assert (await taken.wait()).status is RunStatus.COMPLETE
        with pytest.raises(Fenced, match="the run belongs to another session now"):
            await run.wait()
        assert second.store.records(run.id) == second.get(run.id).records()
        assert stale(second.store.path, run.id) == []
        first.close()
        second.close()

    asyncio.run(scene())


def test_a_run_left_by_an_error_is_free_for_another_session_of_the_process(tmp_path: Path) -> None:
    """A session that no longer works on a run, though its process lives and the run was not given back, does
    not stand in the way.
    """
    first, second = (Lab(tmp_path / "home", env={}, tools=[launch]) for _ in range(2))
    begun(first)
    assert Owner.parse(second.store.run("r").owner).same_process
    script = ScriptedModel([[("launch", {"where": str(tmp_path / "effects")})], "up"])
    assert asyncio.run(second.resume("r", model=script)).answer == "up"
    first.close()
    second.close()


def test_a_reused_process_number_is_not_the_owner(tmp_path: Path) -> None:
    """A live process with the owner's number that began at another time does not stand in the way."""
    session = Lab(tmp_path / "home", env={}, tools=[launch])
    begun(session)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        began = psutil.Process(child.pid).create_time()
        name = f"{os.uname().nodename}:{child.pid}"
        give_to(session, "r", Owner(process=name, began=began, session="x"))
        with pytest.raises(UsageError, match=f"worked on by process {name}; stop"):
            asyncio.run(session.resume("r", model=ScriptedModel(["up"])))
        give_to(session, "r", Owner(process=name, began=began - 3600, session="x"))
        assert asyncio.run(session.resume("r", model=ScriptedModel(["up"]))).answer == "up"
        child.communicate(b"\n")
    session.close()


def test_a_killed_process_that_nobody_waited_for_is_dead() -> None:
    """A process that is over but still listed, because its parent has not looked, is not alive."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner(
        process=f"{os.uname().nodename}:{child.pid}",
        began=psutil.Process(child.pid).create_time(),
        session="x",
    )
    assert owner.alive
    child.kill()
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert not owner.alive
    child.communicate()
    assert Owner.parse(str(owner)) == Owner(
        process=owner.process, began=round(owner.began or 0, 2), session="x"
    )
