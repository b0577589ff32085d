"""Being woken by what another process writes."""

import asyncio
import errno
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import watchfiles
from waits import PATIENCE_S, becomes

from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Record, RunStarted
from kestrel_lab.eventlog.notify import wait_until
from kestrel_lab.eventlog.store import SessionStore

_DECIDE = """
import sys
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.eventlog.store import SessionStore
store = SessionStore(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    store.decide("r", ApprovalGiven(call=line.strip(), granted=True, by="other", how="command"))
"""


@pytest.fixture
def without_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at the log that comes by itself after a second: what is found is found by the file system's
    word.
    """
    watch = watchfiles.awatch
    monkeypatch.setattr(
        watchfiles, "awatch", lambda *args, **options: watch(*args, **{**options, "rust_timeout": 3_600_000})
    )


async def _woken(store: SessionStore, questions: int) -> list[str]:
    loop = asyncio.get_running_loop()
    command = [sys.executable, "-c", _DECIDE, str(store.path.absolute())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        await loop.run_in_executor(None, other.stdout.readline)
        found: list[str] = []
        for number in range(questions):
            name = f"c{number}"
            store.append(
                "r",
                ApprovalAsked(call=name, step="s", tool="t", args={}, danger="HIGH", key="k", question=name),
                urgent=True,
            ).result()

            looks = 0

            def look(name: str = name) -> Record | None:
                nonlocal looks
                looks += 1
                return store.decision("r", name)

            waiting = asyncio.create_task(wait_until(store.path, look))
            await becomes(lambda: looks >= 6)  # the frequent looks of the beginning are over
            other.stdin.write(f"{name}\n")
            record = await asyncio.wait_for(waiting, PATIENCE_S)
            assert isinstance(record.event, ApprovalGiven)
            found.append(record.event.call)
        other.stdin.close()
    return found


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.usefixtures("without_timer")
def test_another_process_wakes_a_waiter(
    relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision committed elsewhere is seen when it comes, also for a log whose path is relative.

    Mutant: one that watches another folder or other names never sees it.
    """
    monkeypatch.chdir(tmp_path)
    store = SessionStore(Path("home/k.db") if relative else tmp_path / "home" / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    assert asyncio.run(_woken(store, 5)) == [f"c{number}" for number in range(5)]
    store.close()


def test_what_is_there_already_is_found_at_once(tmp_path: Path) -> None:
    """Nothing is waited for when the first look finds it."""

    async def scene() -> str:
        return await asyncio.wait_for(wait_until(tmp_path / "k.db", lambda: "here"), PATIENCE_S)

    assert asyncio.run(scene()) == "here"


def test_more_waits_than_watchers_are_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operating system gives no further watcher, a wait still ends, if not at once.

    Taking all that it has, as this did, left none for the tests beside it: those see more taint where files
    cannot be watched.
    """
    given, watch = itertools.count(1), watchfiles.awatch

    def few(*args: object, **options: object) -> object:
        if next(given) > 10:
            raise OSError(errno.EMFILE, "Too many open files")
        return watch(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(watchfiles, "awatch", few)

    async def scene() -> int:
        here: list[str] = []
        waits = [
            asyncio.create_task(wait_until(tmp_path / "k.db", lambda: here[0] if here else None))
            for _ in range(30)
        ]
        await asyncio.sleep(0.5)
        here.append("here")
        (tmp_path / "k.db").touch()
        async with asyncio.timeout(PATIENCE_S):
            return len(await asyncio.gather(*waits))

    assert asyncio.run(scene()) == 30
    assert next(given) == 31


def test_waiting_can_be_given_up(tmp_path: Path) -> None:
    """A cancelled wait ends promptly, and many waits at once are no problem."""

    async def scene() -> None:
        waits: list[asyncio.Task[None]] = [
            asyncio.create_task(wait_until(tmp_path / "k.db", lambda: None)) for _ in range(20)
        ]
        await asyncio.sleep(0.3)
        for wait in waits:
            wait.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*waits, return_exceptions=True)

    asyncio.run(scene())


@pytest.mark.usefixtures("without_timer")
def test_what_comes_while_the_watch_is_set_up_is_not_missed(tmp_path: Path) -> None:
    """What appears right after the first look, with no word from the file system, is found.

    Mutant: one look, and then waiting for the file system, waits for ever.
    """
    looks = 0

    def look() -> str | None:
        nonlocal looks
        looks += 1
        return "here" if looks == 4 else None

    assert asyncio.run(asyncio.wait_for(wait_until(tmp_path / "k.db", look), PATIENCE_S)) == "here"
