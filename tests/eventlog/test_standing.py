"""Where a run stands by its log and its owner: every state and every owner, and what becomes of a run that
nobody works on.
"""

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from waits import until

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunFinished, RunStarted
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.connection import process_name
from kestrel_lab.eventlog.owner import SLACK_S, Owner
from kestrel_lab.eventlog.run_status import (
    AT_WORK,
    alive_elsewhere,
    at_work,
    busy_message,
    cancel_in_log,
    visible_status,
)
from kestrel_lab.eventlog.store import SessionStore

HOST = process_name().rpartition(":")[0]
BEGAN = psutil.Process(os.getppid()).create_time()
GOES_ON = (RunStatus.PLANNING, RunStatus.EXECUTING)
OWNERS = {
    "nobody": "",
    "working here": str(Owner.here("works")),
    "idle here": str(Owner.here("idle")),
    "another process": f"{HOST}:{os.getppid()}:{BEGAN:.2f}:s",
    "a later process of that number": f"{HOST}:{os.getppid()}:{BEGAN - 3600:.2f}:s",
    "a dead process": f"{HOST}:{2**22 + 1}:1.00:s",
    "another machine": "elsewhere:7:1.00:s",
    "nonsense": "x",
}


@pytest.mark.parametrize("status", list(RunStatus))
@pytest.mark.parametrize("who", OWNERS)
def test_a_run_stands_as_its_log_says_unless_nobody_works_on_it(who: str, status: RunStatus) -> None:
    """Only a run that goes on needs somebody: else it is INTERRUPTED, UNKNOWN where the machine is another
    one, and says how to resume it.
    """
    AT_WORK.add(("works", "r"))
    try:
        found = visible_status("r", status, OWNERS[who])
        assert at_work(OWNERS[who], "r") == (who in ("working here", "another process"))
        assert not at_work(OWNERS["working here"], "other")
    finally:
        AT_WORK.discard(("works", "r"))
    if status not in GOES_ON or who in ("working here", "another process"):
        assert (found.word, found.note, str(found)) == (status, "", status)
    elif who == "another machine":
        assert (found.word, found.note.split(";")[0]) == (
            "UNKNOWN",
            "process elsewhere:7 works or worked on it",
        )
    else:
        why = "nobody works on it" if who in ("nobody", "idle here") else "its process ended"
        assert (found.word, found.note) == ("INTERRUPTED", f"{why}; kestrel run --resume r")
        assert str(found) == f"INTERRUPTED ({why}; kestrel run --resume r)"
    assert not at_work(OWNERS["working here"], "r")  # it has ended
    assert alive_elsewhere(OWNERS[who]) == (who == "another process")


def test_an_owner_is_told_from_a_later_process_by_its_beginning() -> None:
    """Within the slack of a clock that was set it is the same; without a beginning, as the first version
    wrote, it is taken for it.
    """
    own = psutil.Process().create_time()
    for text, process, alive in (
        (f"{HOST}:{os.getpid()}:{own + SLACK_S - 1:.2f}:s", f"{HOST}:{os.getpid()}", True),
        (f"{HOST}:{os.getpid()}:{own + SLACK_S + 1:.2f}:s", f"{HOST}:{os.getpid()}", False),
        (f"{HOST}:{os.getpid()}", f"{HOST}:{os.getpid()}", True),
        (f"{HOST}:{os.getpid()}:soon:s", f"{HOST}:{os.getpid()}:soon:s", False),
        (f"{HOST}:{10**30}", f"{HOST}:{10**30}", False),
    ):
        owner = Owner.parse(text)
        assert (owner.process, owner.alive, owner.same_process, owner.host) == (
            process,
            alive,
            alive,
            "" if process.rpartition(":")[0] == HOST else owner.host,
        )
    assert Owner.parse("a:b:1:2.50:s") == Owner(process="a:b:1", began=2.5, session="s")
    assert str(Owner(process="h:1", session="s")) == "h:1:0.00:s"
    assert Owner.parse(str(Owner.here("s"))).session == "s" and Owner.here("s").same_process
    assert (Owner.parse("elsewhere:7:1.0:s").host, Owner.parse(f"{HOST}:7:1.0:s").host) == ("elsewhere", "")


def test_what_somebody_else_works_on_is_refused_by_name() -> None:
    """A session of this process, or the process; and the ways to get it."""
    assert "by another session of this process; stop that one first" in str(
        busy_message("r", OWNERS["idle here"])
    )
    told = busy_message("r", OWNERS["another machine"])
    assert isinstance(told, UsageError)
    assert (
        "by process elsewhere:7; stop that one first, approve with: kestrel approve r, or take the run "
        "from it" in str(told)
    )


@pytest.mark.parametrize("by", ["", "ann"])
def test_a_run_that_nobody_works_on_is_cancelled_in_its_log_once(by: str, tmp_path: Path) -> None:
    """With who did it as the reason; a run that has ended stays as it is."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.flush()
    assert cancel_in_log(store, "r", by)
    (end,) = (record.event for record in store.records("r") if isinstance(record.event, RunFinished))
    assert (store.run("r").status, end.outcome, end.reason) == (
        RunStatus.CANCELLED,
        "cancelled",
        "stopped on request by ann" if by else "stopped on request",
    )
    before = store.records("r")
    assert cancel_in_log(store, "r", "bob") and store.records("r") == before
    store.close()


def test_a_run_that_was_taken_in_this_moment_is_not_cancelled(tmp_path: Path) -> None:
    """Whoever was faster works on it: nothing is written, and that is said."""

    class Late(SessionStore):
        def claim(self, row: object) -> bool:
            return False

    store = Late(tmp_path / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.flush()
    before = store.records("r")
    assert not cancel_in_log(store, "r") and store.records("r") == before
    store.close()


def test_a_process_that_is_over_is_not_alive_before_its_parent_knows() -> None:
    """A zombie works on nothing; one of somebody else, of which nothing can be seen, may."""
    with subprocess.Popen(["true"]) as process:
        owner = Owner(
            process=f"{HOST}:{process.pid}", began=psutil.Process(process.pid).create_time(), session="s"
        )
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert not owner.alive


def test_a_process_that_may_not_be_looked_at_may_be_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is somebody else's: nobody takes its run away."""

    def refused(_: int) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "Process", refused)
    assert Owner(process=f"{HOST}:1", began=1.0, session="s").alive


def test_an_owner_of_the_first_version_is_not_taken_apart() -> None:
    """`host:pid` and nothing more, whatever else stands there."""
    for text in ("h:7", "h:7:s", "", "h"):
        assert Owner.parse(text) == Owner(process=text)
