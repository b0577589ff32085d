"""Appending, acknowledging and reading back."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path

import apsw
import pytest
from waits import PATIENCE_S

from kestrel_lab.core.errors import AlreadyDecided, Fenced, IllegalTransition, StoreError, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Progress,
    RunForked,
    RunStarted,
    StateTransition,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.stored_trials import EvalRow, store_trial, stored_trials
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.run_status import decided_runs
from kestrel_lab.eventlog.store import SessionStore

STARTED = RunStarted(goal="count", workspace="/w", model="scripted", model_kind="scripted")


def texts(store: SessionStore, run_id: str) -> list[str]:
    """The texts of a run's progress events, in order."""
    return [record.event.text for record in store.records(run_id) if isinstance(record.event, Progress)]


def plain(path: Path) -> apsw.Connection:
    """A connection that has nothing of ours."""
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)


def test_an_acknowledged_event_is_seen_by_everybody(tmp_path: Path) -> None:
    """Whenever a future has resolved, another connection finds the event, under the number it gave."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    other = plain(store.path)
    seen = []

    def look(done: Future[int]) -> None:
        row = other.execute(
            "SELECT json_extract(body, '$.text') FROM events WHERE run_id = 'r' AND seq = ?", (done.result(),)
        ).fetchone()
        seen.append(row[0] if row else None)

    futures = []
    for number in range(300):
        future = store.append("r", Progress(text=str(number)))
        future.add_done_callback(look)
        futures.append(future)
    store.close()

    assert [future.result() for future in futures] == list(range(2, 302))
    assert seen == [str(number) for number in range(300)]


def test_appends_share_commits(tmp_path: Path) -> None:
    """A thousand appends that nobody waits for take far fewer commits than a thousand."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    store.flush()
    other = plain(store.path)
    versions = set()
    for number in range(1000):
        store.append("r", Progress(text=str(number))).add_done_callback(
            lambda _: versions.add(other.pragma("data_version"))
        )
    store.flush()

    assert texts(store, "r") == [str(number) for number in range(1000)]
    assert len(versions) <= 100
    store.close()


def test_a_refused_append_harms_no_other(tmp_path: Path) -> None:
    """In one batch, whatever is refused says why and everything else is kept in order without a gap."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    good, bad = [], []
    for number in range(20):
        good.append(store.append("r", Progress(text=str(number))))
        bad.append(store.append("nowhere", Progress(text="lost")))
        bad.append(
            store.append(
                "r", ApprovalGiven(call="never", granted=True, by="x", how="click", question="never")
            )
        )
    store.flush()

    assert [future.result() for future in good] == list(range(2, 22))
    assert {type(future.exception()) for future in bad} == {StoreError}
    assert "never asked" in str(bad[1].exception())
    assert "E_NO_RUN" in str(bad[0].exception())
    assert texts(store, "r") == [str(number) for number in range(20)]
    store.close()


def test_close_writes_what_is_queued(tmp_path: Path) -> None:
    """Everything appended before `close` is on disk after it, and then nothing is accepted or read."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    futures = [store.append("r", Progress(text=str(number))) for number in range(700)]
    store.close()

    assert all(future.done() for future in futures)
    with pytest.raises(StoreError, match="closed"):
        store.append("r", Progress(text="late"))
    with pytest.raises(StoreError, match="closed"):
        store.records("r")
    again = SessionStore(tmp_path / "k.db")
    assert texts(again, "r") == [str(number) for number in range(700)]
    again.close()


def test_an_abandoned_append_is_still_written(tmp_path: Path) -> None:
    """Cancelling the future of a queued append neither takes it back nor stops the writer."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    futures = [store.append("r", Progress(text=str(number))) for number in range(5)]

    assert [future.cancel() for future in futures] == [False] * 5
    assert store.append("r", Progress(text="after"), urgent=True).result(PATIENCE_S) == 7
    assert texts(store, "r") == ["0", "1", "2", "3", "4", "after"]
    store.close()


def test_many_threads_append_at_once(tmp_path: Path) -> None:
    """Eight threads lose nothing: each thread's events keep their order, numbers have no gap."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    futures: list[list[Future[int]]] = [[] for _ in range(8)]

    def work(place: int) -> None:
        futures[place] = [
            store.append("r", Progress(text=f"{place} {number}"), urgent=number % 7 == 0)
            for number in range(100)
        ]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.flush()

    assert sorted(future.result() for batch in futures for future in batch) == list(range(2, 802))
    assert [record.seq for record in store.records("r")] == list(range(1, 802))
    for place in range(8):
        assert [text for text in texts(store, "r") if text.startswith(f"{place} ")] == [
            f"{place} {number}" for number in range(100)
        ]
    store.close()


_APPENDER = """
import sys
from kestrel_lab.core.events.union import ApprovalGiven, Progress
from kestrel_lab.eventlog.store import SessionStore
store = SessionStore(sys.argv[1])
if sys.argv[2] == "worker":
    assert store.claim(store.run("r"))
print("ready", flush=True)
sys.stdin.readline()
for number in range(150):
    if sys.argv[2] == "worker":
        done = store.append("r", Progress(text=f"worker {number}"), urgent=number % 3 == 0)
        if number % 10 == 0:
            done.result()
    else:
        store.decide("r", ApprovalGiven(call=f"c{number}", granted=True, by="person", how="command"))
store.close()
"""


def test_two_processes_append_to_one_run(tmp_path: Path) -> None:
    """One process working on a run and another deciding on it at once leave no gap, lose nothing and are
    never refused.
    """
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    for number in range(150):
        store.append(
            "r",
            ApprovalAsked(
                call=f"c{number}", step="s", tool="t", args={}, danger="HIGH", key="k", question=f"c{number}"
            ),
        )
    store.flush()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _APPENDER, str(store.path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("worker", "person")
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.communicate("go\n", timeout=PATIENCE_S)

    assert [worker.returncode for worker in workers] == [0, 0]
    assert [record.seq for record in store.records("r")] == list(range(1, 452))
    assert texts(store, "r") == [f"worker {number}" for number in range(150)]
    given = [record.event.call for record in store.records("r") if isinstance(record.event, ApprovalGiven)]
    assert given == [f"c{number}" for number in range(150)]
    assert len({record.eid for record in store.records("r")}) == 451
    store.close()


def test_a_run_and_its_first_event_are_one_transaction(tmp_path: Path) -> None:
    """No moment shows a run without its `run_started`; a second run of the same name is refused whole."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    store.flush()
    store.create_run("r", STARTED)
    store.flush()
    other = plain(store.path)

    assert other.execute("SELECT id, last_seq, owner FROM runs").fetchall() == [
        ("r", 1, store.run("r").owner)
    ]
    assert Owner.parse(store.run("r").owner) == Owner.here(store.session)
    assert other.execute("SELECT seq, type FROM events").fetchall() == [(1, "run_started")]
    store.close()


def test_text_that_is_no_unicode_is_kept(tmp_path: Path) -> None:
    """A goal with lone surrogates and NUL characters is listed readably and kept exactly in its event."""
    store = SessionStore(tmp_path / "k.db")
    odd = RunStarted(goal="a\ud800b\0c", workspace="/w\udcff", model="m")
    store.create_run("r", odd)
    store.flush()

    assert store.records("r")[0].event == odd
    assert store.run("r").goal == "a?b\0c"
    store.close()


def test_a_value_that_no_column_holds_is_refused(tmp_path: Path) -> None:
    """A job that SQLite's driver itself rejects is refused like any other, and the writer goes on."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    bad = store.append("r\ud800", Progress(text="lost"))
    good = store.append("r", Progress(text="kept"))
    store.flush()

    assert isinstance(bad.exception(), StoreError)
    assert good.result() == 2
    store.close()


def test_a_decision_is_taken_once(tmp_path: Path) -> None:
    """Of two decisions on a question the first is kept and the second raises `AlreadyDecided`; an unasked one
    is refused.
    """
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    store.append(
        "r", ApprovalAsked(call="c", step="s", tool="t", args={}, danger="HIGH", key="k", question="c")
    )
    yes = ApprovalGiven(call="c", granted=True, by="ann", how="click")
    assert store.decision("r", "c") is None
    store.decide("r", yes)
    with pytest.raises(AlreadyDecided, match="first answer stands"):
        store.decide("r", ApprovalGiven(call="c", granted=False, by="bob", how="command"))
    with pytest.raises(StoreError, match="never asked"):
        store.decide("r", ApprovalGiven(call="d", granted=False, by="bob", how="command"))

    found = store.decision("r", "c")
    assert found is not None
    assert found.event == ApprovalGiven(call="c", granted=True, by="ann", how="click", question="c")
    store.close()


def test_four_processes_race_to_decide(tmp_path: Path) -> None:
    """However many processes answer a question at once, exactly one is told that its answer stands."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    for number in range(40):
        store.append(
            "r",
            ApprovalAsked(
                call=f"c{number}", step="s", tool="t", args={}, danger="HIGH", key="k", question=f"c{number}"
            ),
        )
    store.flush()
    code = (
        "import sys; from kestrel_lab.core.errors import AlreadyDecided; from "
        "kestrel_lab.core.events.union import ApprovalGiven\n"
        "from kestrel_lab.eventlog.store import SessionStore\n"
        "store = SessionStore(sys.argv[1]); print('ready', flush=True); sys.stdin.readline()\n"
        "for number in range(40):\n"
        "    try: store.decide('r', ApprovalGiven(call=f'c{number}', granted=True, by=sys.argv[2], "
        "how='command')); print(number)\n"
        "    except AlreadyDecided: pass\n"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(store.path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abcd"
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    outputs = [worker.communicate("go\n", timeout=PATIENCE_S)[0].split() for worker in workers]

    winners = {int(number): name for name, numbers in zip("abcd", outputs, strict=True) for number in numbers}
    assert sum(map(len, outputs)) == 40
    stored = [record.event for record in store.records("r") if isinstance(record.event, ApprovalGiven)]
    assert {int(given.call[1:]): given.by for given in stored} == winners
    store.close()


def test_a_transition_follows_the_map(tmp_path: Path) -> None:
    """`transition` changes the state where the map allows it, raises `IllegalTransition` elsewhere, and ends
    what is ended.
    """
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    store.flush()
    with pytest.raises(IllegalTransition):
        store.transition("r", RunStatus.COMPLETE).result()
    assert store.run("r").status is RunStatus.PLANNING
    store.transition("r", RunStatus.EXECUTING).result()
    store.transition("r", RunStatus.COMPLETE).result()

    assert store.run("r").status is RunStatus.COMPLETE
    with pytest.raises(IllegalTransition, match="E_RUN_TERMINAL"):
        store.append("r", Progress(text="late"), urgent=True).result()
    store.close()


def test_an_owner_is_taken_over_once(tmp_path: Path) -> None:
    """Of two that claim a run as they saw it one succeeds, and only that one writes from then on; `release`
    gives it back.
    """
    first, second, third = (SessionStore(tmp_path / "k.db") for _ in range(3))
    first.create_run("r", STARTED)
    first.flush()
    seen = first.run("r")
    assert (second.claim(seen), third.claim(seen)) == (True, False)
    assert [Owner.parse(second.run("r").owner).session, second.run("r").epoch] == [second.session, 1]
    for store in (first, third):
        with pytest.raises(
            Fenced, match="'progress' of run r was not written: the run belongs to another session now"
        ):
            store.append("r", Progress(text="late"), urgent=True).result()
    first.release("r").result()  # no longer its to give back
    assert Owner.parse(first.run("r").owner).session == second.session
    assert second.append("r", Progress(text="mine"), urgent=True).result() == 2
    second.release("r").result()
    assert (first.run("r").owner, first.run("r").epoch) == ("", 1)
    assert first.claim(first.run("r")) is True
    assert first.append("r", Progress(text="mine again"), urgent=True).result() == 3
    with pytest.raises(Fenced):
        second.append("r", Progress(text="late"), urgent=True).result()
    assert texts(third, "r") == ["mine", "mine again"]
    for store in (first, second, third):
        store.close()


def test_anybody_may_decide_and_only_the_owner_may_go_on(tmp_path: Path) -> None:
    """A decision of a store that never owned the run, or no longer does, is kept as `decide` gives it; the
    run's own, late, is not.
    """
    first, second = SessionStore(tmp_path / "k.db"), SessionStore(tmp_path / "k.db")
    first.create_run("r", STARTED)
    for name in ("a", "b"):
        first.append(
            "r", ApprovalAsked(call=name, step="s", tool="t", args={}, danger="HIGH", key="k", question=name)
        )
    first.flush()
    second.decide("r", ApprovalGiven(call="a", granted=True, by="ann", how="click"))
    assert second.claim(second.run("r"))
    given = ApprovalGiven(call="b", granted=True, by="ann", how="prompt", question="b")
    assert isinstance(first.append("r", given, urgent=True).exception(), Fenced)
    first.decide("r", given)
    assert [
        record.event.call for record in second.records("r") if isinstance(record.event, ApprovalGiven)
    ] == ["a", "b"]
    for store in (first, second):
        store.close()


def test_runs_and_trials_are_listed(tmp_path: Path) -> None:
    """The newest runs come first and suites' runs can be left out; trials come oldest first and filtered."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r1", STARTED)
    time.sleep(0.002)
    store.create_run("r2", RunStarted(goal="trial", workspace="/w", model="m", scenario="s1", config="c"))
    rows = [
        EvalRow(
            id=f"t{n}",
            scenario="s1",
            result={"n": n},
            metrics={"\ud800": 1.5},
            git_sha=sha,
            created_at=n,
            suite="u",
            config="c",
            epoch=1,
            key="k",
        )
        for n, sha in enumerate("aab")
    ]
    futures = [store_trial(store, row) for row in rows]
    again = store_trial(store, rows[0])
    wait([*futures, again])

    assert [row.id for row in store.runs()] == ["r2", "r1"]
    assert [row.id for row in store.runs(trials=False)] == ["r1"]
    assert [row.id for row in store.runs(limit=1)] == ["r2"]
    assert stored_trials(store) == rows
    assert stored_trials(store, suite="u", git_sha="a") == rows[:2]
    assert stored_trials(store, suite="v") == []
    assert "E_TRIAL_EXISTS" in str(again.exception())
    store.close()


def test_what_rests_on_a_run_is_refused_with_an_event_of_it(tmp_path: Path) -> None:
    """A statement that rests on a run is kept where all events queued before it were, and else refused for the
    same reason: of the same commit or an earlier one, whatever others rest on.
    """
    store, other = SessionStore(tmp_path / "k.db"), SessionStore(tmp_path / "k.db")
    for run in ("taken", "whole"):
        store.create_run(run, STARTED)
    store.flush()
    assert other.claim(store.run("taken"))

    def note(*runs: str) -> Future[None]:
        sql = "INSERT INTO file_trust(content, path, at) VALUES (?, '', 0)"
        return store.execute(sql, (str(time.monotonic_ns()),), "a note", rests_on=runs, urgent=False)

    for run in ("taken", "whole"):
        store.append(run, Progress(text="on"))
    notes = {runs: note(*runs) for runs in [("taken",), ("whole", "taken"), ("whole",), ()]}
    store.flush()
    later = note("taken")
    store.flush()
    refused = {runs: type(done.exception()) for runs, done in notes.items()}
    none = type(None)
    assert refused == {("taken",): Fenced, ("whole", "taken"): Fenced, ("whole",): none, (): none}
    assert isinstance(later.exception(), Fenced)
    store.close()
    other.close()


def test_a_missing_run_names_the_nearest(tmp_path: Path) -> None:
    """Asking for a run that does not exist tells the nearest id, or that there are none."""
    store = SessionStore(tmp_path / "k.db")
    with pytest.raises(UsageError, match="it has no runs yet"):
        store.run("r1")
    store.create_run("rabc-1", STARTED)
    store.flush()
    with pytest.raises(UsageError, match="did you mean 'rabc-1'"):
        store.run("rabc-2")
    store.close()


def test_records_after_a_number(tmp_path: Path) -> None:
    """`records(after=n)` gives the events from n + 1 on."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    for number in range(5):
        store.append("r", Progress(text=str(number)))
    store.flush()
    assert [record.seq for record in store.records("r", after=4)] == [5, 6]
    assert store.records("r", after=6) == []
    store.close()


def test_the_folder_is_ignored_by_git(tmp_path: Path) -> None:
    """A log's folder carries a `.gitignore` that hides it; one that is there already is left alone."""
    SessionStore(tmp_path / "new" / "k.db").close()
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"
    (tmp_path / "new" / ".gitignore").write_text("mine")
    SessionStore(tmp_path / "new" / "k.db").close()
    assert (tmp_path / "new" / ".gitignore").read_text() == "mine"
    assert sorted(os.listdir(tmp_path / "new")) == [".gitignore", "k.db"]


def test_a_long_read_holds_up_no_short_one(tmp_path: Path) -> None:
    """While a thread reads for seconds, another one is answered; with one connection behind a lock it had to
    wait.
    """
    store = SessionStore(tmp_path / "kestrel.db")

    def answered_meanwhile(rows: int) -> bool:
        """Whether a short read that began after one of so many rows is answered before it."""
        begins, ended = threading.Event(), threading.Event()

        def read() -> None:
            begins.set()
            store.query(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "
                "SELECT max(i) FROM n"
            )
            ended.set()

        reading = threading.Thread(target=read)
        reading.start()
        begins.wait()
        time.sleep(0.05)
        assert store.runs() == []
        meanwhile = not ended.is_set()
        reading.join()
        return meanwhile

    assert any(
        answered_meanwhile(rows) for rows in (3_000_000, 30_000_000)
    )  # a thread may have to wait for a processor
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.runs()


def test_what_waits_for_the_disk_is_counted(tmp_path: Path) -> None:
    """While a commit takes its time later events are queued; once all are written none is.

    A listener that was ended hears no more.
    """
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    store.flush()
    held, free, heard = threading.Event(), threading.Event(), []

    def hold() -> None:
        heard.append(True)
        held.set()
        assert free.wait(PATIENCE_S)

    end = store.on_commit(hold)
    store.append("r", Progress(text="first"), urgent=True)
    assert held.wait(PATIENCE_S)
    for number in range(5):
        store.append("r", Progress(text=str(number)))
    assert store.backlog == 5
    free.set()
    store.flush()
    end()
    said = len(heard)
    store.append("r", Progress(text="last"), urgent=True).result(PATIENCE_S)
    store.flush()
    assert (store.backlog, len(heard)) == (0, said)
    store.close()


def test_a_log_lies_on_a_disk_of_this_machine(tmp_path: Path) -> None:
    """Unless whoever opens it takes the risk."""
    with pytest.raises(UsageError):
        SessionStore(tmp_path / "k.db", filesystem=lambda _: "nfs4")
    SessionStore(tmp_path / "k.db", network=True, filesystem=lambda _: "nfs4").close()


def test_events_have_the_time_that_their_run_was_told(tmp_path: Path) -> None:
    """The one that was given, else now; a fork's first events have one time, and each event is of the run
    that recorded it.
    """
    store = SessionStore(tmp_path / "k.db")
    assert store.create_run("r", STARTED, at=5.0) == 5.0
    now = store.create_run("other", STARTED)
    store.transition("r", RunStatus.EXECUTING, source=RunStatus.PLANNING).result()
    forked = store.fork_run(
        "f", RunForked(parent="r", at=2, model="m"), RunStatus.EXECUTING, Progress(text="x")
    )
    store.flush()
    assert [record.at for record in store.records("other")] == [now]
    assert [record.at for record in store.records("f", after=2)] == [forked, forked]
    assert ([store.origin("f", seq) for seq in (1, 2, 3, 4)], store.run("r").created_at) == (
        ["r", "r", "f", "f"],
        5.0,
    )
    store.close()


def test_who_is_late_is_told_so_also_when_the_run_has_ended(tmp_path: Path) -> None:
    """A run may end with the first answer; what nobody answered in time is refused by the end of the run.

    Calls without a name of the question too.
    """
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    for call in "cd":
        store.append("r", ApprovalAsked(call=call, step="s", tool="t", args={}, danger="HIGH", key="k"))
    store.decide("r", ApprovalGiven(call="c", granted=True, by="ann", how="click"))
    store.transition("r", RunStatus.CANCELLED).result()
    with pytest.raises(AlreadyDecided, match="first answer stands"):
        store.decide("r", ApprovalGiven(call="c", granted=False, by="bob", how="command"))
    with pytest.raises(IllegalTransition):
        store.decide("r", ApprovalGiven(call="d", granted=False, by="bob", how="command"))
    assert store.decision("r", "d") is None
    store.close()


def test_a_run_waits_for_a_process_once_all_is_decided(tmp_path: Path) -> None:
    """It is still said to wait for a person, and asks nothing."""
    store = SessionStore(tmp_path / "k.db")
    for run_id, answered in (("open", "a"), ("decided", "ab")):
        store.create_run(run_id, STARTED)
        store.append(run_id, StateTransition(source="PLANNING", target="EXECUTING"))
        for call in "ab":
            store.append(
                run_id,
                ApprovalAsked(call=call, step="s", tool="t", args={}, danger="HIGH", key="k", question=call),
            )
        store.append(run_id, StateTransition(source="EXECUTING", target="WAITING_APPROVAL"))
        for call in answered:
            store.decide(run_id, ApprovalGiven(call=call, granted=True, by="ann", how="click"))
    store.create_run("new", STARTED)
    store.flush()
    assert decided_runs(store) == {"decided"}
    store.close()


def test_a_snapshot_is_of_what_this_store_appended(tmp_path: Path) -> None:
    """Behind its last event; there is none of a run that another one works on."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", STARTED)
    assert store.image("r", RunState()) is None
    store.append("r", Progress(text="x")).result()
    image = store.image("r", store.state("r"))
    assert image is not None
    assert (image.seq, image.eid) == (2, store.records("r")[-1].eid)
    store.close()


def test_reads_one_after_the_other_use_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening one takes longer than most reads."""
    store = SessionStore(tmp_path / "k.db")
    made: list[Path] = []
    monkeypatch.setattr("kestrel_lab.eventlog.store.connect_log", made.append)
    for _ in range(10):
        assert store.query("SELECT 1") == [(1,)]
    assert made == []
    store.close()


def test_an_append_gives_the_number_of_its_event(tmp_path: Path) -> None:
    """Also of several that share a commit, of two runs."""
    store = SessionStore(tmp_path / "k.db")
    for run_id in ("r", "other"):
        store.create_run(run_id, STARTED)
    numbers = [
        store.append(run_id, Progress(text=str(number))) for number in range(3) for run_id in ("r", "other")
    ]
    assert [number.result(PATIENCE_S) for number in numbers] == [2, 2, 3, 3, 4, 4]
    store.close()
