"""The life of a run as a map of legal transitions; the database enforces the same table."""

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run stands."""

    PLANNING = "PLANNING"
    EXECUTING = "EXECUTING"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """Whether nothing may follow."""
        return self in TERMINAL


TERMINAL = frozenset({RunStatus.COMPLETE, RunStatus.FAILED, RunStatus.CANCELLED})

TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PLANNING: frozenset({RunStatus.EXECUTING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.EXECUTING: frozenset({RunStatus.WAITING_APPROVAL, RunStatus.COMPLETE, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.WAITING_APPROVAL: frozenset({RunStatus.EXECUTING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.COMPLETE: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}
