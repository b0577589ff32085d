"""The identity, status and limits of a run."""

import math
import os
import random
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json


class HasRunId(Protocol):
    """A run that somebody holds."""

    id: str


RunReference: TypeAlias = str | HasRunId
"""A run, given by its id or as the `Run` itself."""


def run_id_of(run: RunReference) -> str:
    """Return the id of a run; raises `UsageError` for what is neither an id nor a run."""
    run_id = run if isinstance(run, str) else getattr(run, "id", None)
    if not isinstance(run_id, str):
        raise UsageError(f"a run is given as a Run or as its id, not as {type(run).__name__} {run!r}")
    return run_id


MAX_TOOL_CALLS_PER_TURN = 5
"""Tool calls of one model turn that are carried out at once; further ones follow in the next batch."""

EARLY_STOPPING = "early_stopping"
"""The limit, in the end of a run, of one that was ended because it could not succeed any more."""
_COUNTED = ("cycles", "tokens", "messages", "context_tokens", "calls_per_turn", "steps_at_once")
_ALWAYS = ("calls_per_turn", "steps_at_once")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one run; reaching one ends it FAILED with the limit as reason and what it has so far.

    `None` means no bound. Raises `UsageError` for a bound that is not positive, or not whole where things are
    counted.
    """

    cycles: int | None = 20
    """Model turns, over all steps."""
    cost_usd: float | None = 1.0
    seconds: float | None = 300.0
    """Working time: waiting for a person, an endpoint or the next attempt does not count."""
    tokens: int | None = None
    """Tokens read and written."""
    calls_per_turn: int = MAX_TOOL_CALLS_PER_TURN
    """Tool calls of one model turn that are carried out at once; further ones follow in the next batch."""
    steps_at_once: int = 8
    """Steps of a plan that are worked on together."""
    wall_seconds: float | None = None
    """All the time a session has the run open, waiting included."""
    model_seconds: float | None = 600.0
    """Seconds of one model call, to the end of its answer. A call that takes longer has failed, as one whose
    endpoint is away has; it is asked again as such a call is, and does not end the run by itself.
    """
    messages: int | None = None
    """Messages of its conversations, over all steps: prompts, model answers and tool answers."""

    context_tokens: int | None = None
    """Tokens of the context that a model is sent; a longer conversation is compacted. By default what is
    known of the model. Reaching it does not end the run.
    """

    def __post_init__(self) -> None:
        for name, value in self.as_json().items():
            kind, wanted = (int, "whole number") if name in _COUNTED else (int | float, "number")
            if value is None and name not in _ALWAYS:
                continue
            # `true` would count as 1, and NaN would never be reached.
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                msg = (
                    f"limit {name!r} must be a positive "
                    f"{wanted}{' or None' if name != 'calls_per_turn' else ''}, not {value!r}"
                )
                raise UsageError(msg)

    @property
    def patience_s(self) -> float:
        """The seconds that a call waits for an endpoint that is away: the shortest limit of time."""
        shortest = math.inf
        for bound in (self.seconds, self.wall_seconds, self.model_seconds):
            if bound is not None and bound < shortest:
                shortest = bound
        return shortest

    def as_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(Limits.__dataclass_fields__)


# The life of a run as a map of legal transitions; the database enforces the same table.


class FilledGoal(str):
    """A goal with variables filled in; `said` is what the person wrote."""

    __slots__ = ("said",)
    said: str

    @classmethod
    def of(cls, goal: str, said: str) -> "FilledGoal":
        """Make one."""
        found = cls(goal)
        found.said = said
        return found


class RunStatus(StrEnum):
    """The status of a run."""

    PLANNING = "PLANNING"
    EXECUTING = "EXECUTING"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """Return whether the status is final."""
        return self in TERMINAL


INTERRUPTED = "INTERRUPTED"
"""Shown of a run that could go on and that nobody works on.

It is not a state: in the log such a run stays in the one it was left in.
"""
TERMINAL = frozenset({RunStatus.COMPLETE, RunStatus.FAILED, RunStatus.CANCELLED})

TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PLANNING: frozenset({RunStatus.EXECUTING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.EXECUTING: frozenset(
        {RunStatus.WAITING_APPROVAL, RunStatus.COMPLETE, RunStatus.FAILED, RunStatus.CANCELLED}
    ),
    RunStatus.WAITING_APPROVAL: frozenset({RunStatus.EXECUTING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.COMPLETE: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}


# Names for runs, calls and events that sort by time and never repeat.

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_random = random.Random()  # noqa: S311
# Names are no secrets, and the system is slow to ask for each. A forked process would repeat
# those of its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def new_trial_id() -> str:
    """Return the id of a row: 64 random bits."""
    return f"t{_random.getrandbits(64):016x}"


def new_run_id(now: float | None = None) -> str:
    """A short id such as `r6a1x9k-7q4dm2`: seconds since 2020 in base 32, then 30 random bits.

    Where the clock is set to a time before 2020, as on a machine without a battery, the seconds are zero.
    """
    seconds = max(0, int((time.time() if now is None else now) - 1_577_836_800))
    return f"r{_base32(seconds, 6)}-{_base32(_random.getrandbits(30), 6)}"


def _base32(number: int, width: int) -> str:
    digits = []
    while number:
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits)).rjust(width, "0")
