"""Whether somebody is at work on a run."""

from kestrel_lab.core.errors import UsageError
from kestrel_lab.log.owner import Owner

_AT_WORK: set[tuple[str, str]] = set()
"""Runs that sessions of this process work on: session and run. Another process can only be seen to be there."""


def began(session: str, run_id: str) -> None:
    """Note that a session of this process works on the run."""
    _AT_WORK.add((session, run_id))


def ended(session: str, run_id: str) -> None:
    """Note that it no longer does."""
    _AT_WORK.discard((session, run_id))


def at_work(owner: str, run_id: str) -> bool:
    """Whether the session that `owner` names works on the run; if it is another process's, whether that is alive."""
    named = Owner.parse(owner)
    return (named.session, run_id) in _AT_WORK if named.same_process else named.alive


def alive_elsewhere(owner: str) -> bool:
    """Whether `owner` is another live process of this machine; of other machines nothing is known."""
    named = Owner.parse(owner)
    return named.alive and not named.same_process


def taken(run_id: str, by: str) -> UsageError:
    """What is said to whoever wants a run that `by` works on."""
    named = Owner.parse(by)
    who = "another session of this process" if named.same_process else f"process {named.process}"
    return UsageError(
        f"run {run_id} is being worked on by {who}; stop that one first, approve with: kestrel approve {run_id}, "
        f"or take the run from it: kestrel resume {run_id} --take-over (lab.resume({run_id!r}, take_over=True))"
    )
