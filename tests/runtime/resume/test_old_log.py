"""A log that an earlier version wrote is brought up to date whole or not at all, means what it meant, and its
runs go on.

`version1.sql` is a stored database of the first schema with runs in every state, a fork among them;
`version1.json` is what its events made of each run then. When a run now means something else, `MEANING` in
`kestrel_lab.eventlog.checkpoints` has to be raised; fields that were added since are no difference.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import apsw
import pytest
from power import laid_out, taped
from reference import ANSWER, HonestPerson, illegal_states, model, tools, unreported

from kestrel_lab.core.errors import Fenced, StoreError
from kestrel_lab.core.events.union import Progress, RunResumed
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.eventlog import connection as connection_module
from kestrel_lab.eventlog.checkpoints import encode_state
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.eventlog.schema import MIGRATIONS
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab

STORED = Path(__file__).parents[2] / "eventlog" / "data"


def old_log(home: Path) -> Path:
    """The stored database, as a log in `home`; its runs worked there too."""
    home.mkdir(parents=True)
    raw = apsw.Connection(str(home / "kestrel.db"))
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute((STORED / "version1.sql").read_text(encoding="utf-8").replace("@WORKSPACE@", str(home)))
    assert raw.pragma("user_version") == 1
    raw.close()
    return home / "kestrel.db"


def content(path: Path) -> list[Any]:
    """Every row and every rule."""
    raw = apsw.Connection(str(path))
    found: list[Any] = [raw.pragma("user_version"), raw.pragma("integrity_check")]
    found += raw.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    for table in ("runs", "events", "eval_runs", "transitions"):
        found += raw.execute(f"SELECT * FROM {table}").fetchall()
    raw.close()
    return found


def within(then: Any, now: Any) -> bool:
    """Whether everything that was known then is the same now."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(key in now and within(value, now[key]) for key, value in then.items())
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(map(within, then, now))
    return bool(then == now)


def test_every_run_means_what_it_meant(tmp_path: Path) -> None:
    """Opened by today's code the old log has today's schema, all its events, and folds to what was stored
    beside it.
    """
    path = old_log(tmp_path / "home")
    before = content(path)
    store = SessionStore(path)
    then = json.loads(
        (STORED / "version1.json").read_text(encoding="utf-8").replace("@WORKSPACE@", str(tmp_path / "home"))
    )
    assert {row.id: str(row.status) for row in store.runs()} == {
        run_id: state["status"] for run_id, state in then.items()
    }
    for run_id, state in then.items():
        now = json.loads(encode_state(fold(store.records(run_id))))
        # Times and usage were fields of the state then, and all amounts were beside each other.
        meter = now["meter"] | now["meter"]["usage"]
        assert within(state, meter | now | {"usage": meter}), run_id
        assert store.state(run_id) == fold(store.records(run_id))
    assert [row.id for row in stored_trials(store)] == ["t1"]
    assert len(then) == 7
    store.close()
    after = content(path)
    assert after[0] == len(MIGRATIONS)
    kept = {row[:7] for row in after if isinstance(row[0] if isinstance(row, tuple) else None, str)}
    assert {row for row in before if isinstance(row, tuple) and len(row) == 7} <= kept


@pytest.mark.parametrize("run_id", ["waiting", "executing"])
def test_an_unfinished_run_goes_on(run_id: str, tmp_path: Path) -> None:
    """A run that waited for approval, and one whose process died in the middle of a call, are resumed to
    their ends.
    """
    path = old_log(tmp_path / "home")
    effects: list[str] = []
    session = Lab(path.parent, env={}, tools=tools(effects.append))
    with pytest.raises(Fenced):  # nobody writes into a run without claiming it, into an old one neither
        session.store.append(run_id, Progress(text="x"), urgent=True).result()
    person = HonestPerson(effects.__contains__)
    run = asyncio.run(session.resume(run_id, model=model(), approver=person))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, ANSWER)
    records = run.records()
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert (illegal_states(records), unreported(records)) == ([], [])
    assert len([record for record in records if isinstance(record.event, RunResumed)]) == 1
    assert any(asked.why == "unknown_outcome" for asked in person.asked) is (run_id == "executing")
    session.close()


@pytest.mark.parametrize(
    "broken", ["CREATE TABLE macros(x)", "SELECT no_such_function()", "INSERT INTO events VALUES(1)"]
)
def test_a_migration_that_fails_half_way_changes_nothing(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong in a migration, the old log is as it was, the error names it, and a right migration
    still works.
    """
    path = old_log(tmp_path / "home")
    before = content(path)
    monkeypatch.setattr(connection_module, "MIGRATIONS", (*MIGRATIONS[:1], f"{MIGRATIONS[1]};{broken};"))
    with pytest.raises(StoreError, match="cannot be used as the log"):
        SessionStore(path)
    assert content(path) == before
    monkeypatch.undo()
    SessionStore(path).close()
    assert content(path)[0] == len(MIGRATIONS)


def test_a_power_cut_in_a_migration(tmp_path: Path) -> None:
    """Cut at any moment of it, the log is the old one or the new one, whole, and opens."""
    path = old_log(tmp_path / "home")
    before = content(path)
    with taped(path.parent) as tape:
        connection_module.connect_log(path).close()
    after = content(path)
    dice, seen = random.Random(9), set()  # reproducible, not secret
    for moment in [*range(len(tape.happened) + 1)] * 2:
        place = laid_out(tape.cut(moment, dice), tmp_path / "cut" / f"{moment} {dice.random()}")
        found = content(place / "kestrel.db")
        assert found in (before, after)
        seen.add(found[0])
        SessionStore(place / "kestrel.db").close()
    assert seen == {1, len(MIGRATIONS)}


def test_many_processes_may_open_an_old_log_at_once(tmp_path: Path) -> None:
    """Connections that find the old schema together bring it up to date once."""
    path = old_log(tmp_path / "home")

    async def scene() -> None:
        await asyncio.gather(*(asyncio.to_thread(lambda: SessionStore(path).close()) for _ in range(6)))

    asyncio.run(scene())
    assert content(path)[:2] == [len(MIGRATIONS), "ok"]
