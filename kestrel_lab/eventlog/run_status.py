"""Whether somebody is at work on a run, and what becomes of one that nobody here works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunFinished
from kestrel_lab.core.run_types import INTERRUPTED, RunStatus
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.store import SessionStore

STOPPED = "stopped on request"
"""Why a run is CANCELLED."""

AT_WORK: Final[set[tuple[str, str]]] = set()
"""Runs that sessions of this process work on: session and run.

Another process can only be seen to be there.
"""


def at_work(owner: str, run_id: str) -> bool:
    """Whether the session named by `owner` works on the run; of another process, whether that is alive."""
    named = Owner.parse(owner)
    return (named.session, run_id) in AT_WORK if named.same_process else named.alive


@dataclass(frozen=True, slots=True)
class VisibleStatus:
    """Where a run stands, as it is shown.

    It is computed each time: the log cannot know that a process has ended.
    """

    word: str
    """The run's status, or `INTERRUPTED` or `UNKNOWN` for a run that its log takes for one that goes on."""
    note: str = ""
    """Why it is not the status, and what to do."""

    def __str__(self) -> str:
        return f"{self.word} ({self.note})" if self.note else self.word


def visible_status(run_id: str, status: str, owner: str, *, asks: bool = True) -> VisibleStatus:
    """How a run with this status in the log stands, as far as its owner can be seen.

    Without an owner that is at work a run is `INTERRUPTED`, and `UNKNOWN` if the owner is a process of
    another machine. A run that has ended, or waits for a person, does so whether or not a process is there;
    one that waits and `asks` nothing any more, because it has its decisions or was stopped, waits for a
    process.
    """
    goes_on = status in (RunStatus.PLANNING, RunStatus.EXECUTING) or (
        status == RunStatus.WAITING_APPROVAL and not asks
    )
    if not goes_on or at_work(owner, run_id):
        return VisibleStatus(status)
    resume, named = f"kestrel run --resume {run_id}", Owner.parse(owner)
    if named.host:
        return VisibleStatus(
            "UNKNOWN", f"process {named.process} works or worked on it; if that has ended: {resume}"
        )
    ended = "its process ended" if owner and not named.alive else "nobody works on it"
    return VisibleStatus(INTERRUPTED, f"{ended}; {resume}")


def decided_runs(store: SessionStore) -> set[str]:
    """Return the runs whose status waits for a person although nobody is asked: every question has its
    decision, or work on the run was stopped.
    """
    given = "SELECT 1 FROM events WHERE run_id = asked.run_id AND ref = asked.ref AND type = 'approval_given'"
    asking = (
        "SELECT 1 FROM events AS asked WHERE run_id = runs.id AND type = 'approval_asked' AND NOT "
        f"EXISTS ({given})"
    )
    resumed = (
        "SELECT 1 FROM events WHERE run_id = runs.id AND seq > stopped.seq AND type IN ('run_resumed', "
        "'run_forked')"
    )
    stopped = (
        "SELECT 1 FROM events AS stopped WHERE run_id = runs.id AND type = 'run_interrupted' AND NOT EXISTS "
        f"({resumed})"
    )
    sql = f"SELECT id FROM runs WHERE status = ? AND (NOT EXISTS ({asking}) OR EXISTS ({stopped}))"
    return {str(run) for (run,) in store.query(sql, (RunStatus.WAITING_APPROVAL,))}


def alive_elsewhere(owner: str) -> bool:
    """Whether `owner` is another live process of this machine; of other machines nothing is known."""
    named = Owner.parse(owner)
    return named.alive and not named.same_process


def cancel_in_log(store: SessionStore, run_id: str, by: str = "") -> bool:
    """End a run CANCELLED that no session here works on; another process that works on it writes nothing
    more.

    Returns false where somebody else took the run in this moment. A run that has ended stays as it is.
    """
    row = store.run(run_id)
    if row.status.terminal:
        return True
    if not store.claim(row):
        return False
    source = store.run(run_id).status
    if not source.terminal:
        reason = f"{STOPPED} by {by}" if by else STOPPED
        store.append(run_id, RunFinished(outcome="cancelled", answer="", reason=reason))
        store.transition(run_id, RunStatus.CANCELLED, reason=reason, source=source).result()
    return True


def busy_message(run_id: str, by: str) -> UsageError:
    """The error text for a run that `by` works on."""
    named = Owner.parse(by)
    who = "another session of this process" if named.same_process else f"process {named.process}"
    return UsageError(
        f"run {run_id} is being worked on by {who}; stop that one first, approve with: kestrel approve "
        f"{run_id}, "
        f"or take the run from it: kestrel resume {run_id} --take-over (lab.resume({run_id!r}, "
        "take_over=True))"
    )
