"""Being woken by what another process writes."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kestrel_lab.core.events.union import ApprovalAsked, Record, RunStarted
from kestrel_lab.eventlog.notify import wait_until
from kestrel_lab.eventlog.store import SessionStore

_DECIDE = """
import sys, time
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.eventlog.store import SessionStore
store = SessionStore(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    store.decide("r", ApprovalGiven(call=line.strip(), granted=True, by="other", how="command"))
    print(time.time(), flush=True)
"""


async def _latencies(store: SessionStore, questions: int) -> list[float]:
    loop = asyncio.get_running_loop()
    command = [sys.executable, "-c", _DECIDE, str(store.path.absolute())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        await loop.run_in_executor(None, other.stdout.readline)
        found = []
        for number in range(questions):
            name = f"c{number}"
            store.append(
                "r", ApprovalAsked(call=name, step="s", tool="t", args={}, danger="HIGH", key="k", question=name), urgent=True
            ).result()

            looks = 0

            def look(name: str = name) -> Record | None:
                nonlocal looks
                looks += 1
                return store.decision("r", name)

            waiting = asyncio.create_task(wait_until(store.path, look))
            while looks < 6:  # the frequent looks of the beginning are over: the next one without a word would be after a second
                await asyncio.sleep(0.01)
            other.stdin.write(f"{name}\n")
            await asyncio.wait_for(waiting, 10)
            woken = time.time()
            found.append(woken - float(await loop.run_in_executor(None, other.stdout.readline)))
        other.stdin.close()
    return found


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
def test_another_process_wakes_a_waiter(relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision committed elsewhere is seen at once, mostly within a tenth of a second, also for a log whose path is relative."""
    monkeypatch.chdir(tmp_path)
    store = SessionStore(Path("home/k.db") if relative else tmp_path / "home" / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    seconds = sorted(asyncio.run(_latencies(store, 5)))

    assert seconds[2] < 0.4
    assert seconds[-1] < 1.5
    store.close()


def test_what_is_there_already_is_found_at_once(tmp_path: Path) -> None:
    """Nothing is waited for when the first look finds it."""

    async def scene() -> str:
        return await asyncio.wait_for(wait_until(tmp_path / "k.db", lambda: "here"), 1)

    assert asyncio.run(scene()) == "here"


def test_more_waits_than_watchers_are_served_too(tmp_path: Path) -> None:
    """Where the operating system gives no further watcher, a wait still ends, if not at once."""

    async def scene() -> int:
        here: list[str] = []
        waits = [asyncio.create_task(wait_until(tmp_path / "k.db", lambda: here[0] if here else None)) for _ in range(150)]
        await asyncio.sleep(0.5)
        here.append("here")
        (tmp_path / "k.db").touch()
        async with asyncio.timeout(15):
            return len(await asyncio.gather(*waits))

    assert asyncio.run(scene()) == 150


def test_waiting_can_be_given_up(tmp_path: Path) -> None:
    """A cancelled wait ends promptly, and many waits at once are no problem."""

    async def scene() -> float:
        waits: list[asyncio.Task[None]] = [asyncio.create_task(wait_until(tmp_path / "k.db", lambda: None)) for _ in range(60)]
        await asyncio.sleep(0.3)
        began = time.perf_counter()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return time.perf_counter() - began

    assert asyncio.run(scene()) < 5


def test_what_comes_while_the_watch_is_set_up_is_not_missed(tmp_path: Path) -> None:
    """What appears right after the first look, with no word from the file system, is found long before a second has passed.

    Mutant: one look, and then waiting for the file system, takes that second.
    """

    async def scene() -> float:
        began = time.monotonic()
        await wait_until(tmp_path / "k.db", lambda: time.monotonic() > began + 0.03 or None)
        return time.monotonic() - began

    assert min(asyncio.run(scene()) for _ in range(3)) < 0.7
