"""Forks of a run: where the history parts, the shared events, and what replaces an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import (
    CacheHit,
    Event,
    ModelAnswered,
    ModelCalled,
    Record,
    RunFinished,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.resume import damage_error


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """The events that a fork shares with its parent."""

    at: int
    """The last event it shares."""
    state: RunState
    """The state of the parent at that event."""
    given: Event | None = None
    """The answer or result that replaces that of the model or the tool."""

    @property
    def began(self) -> RunStarted:
        """How the run was set up at that point."""
        # The first event, which every branch has.
        assert self.state.started is not None
        return self.state.started


def branch_of(
    run_id: str, records: list[Record], at: int | None, *, answer: str | None, result: str | None
) -> Branch:
    """Return the shared beginning of a fork of the run of `records`; see `Lab.fork` for the
    arguments.

    Raises `UsageError` when the run has no such event, had ended by then, or has something there that an
    answer or a result cannot follow.
    """
    if answer is not None and result is not None:
        raise UsageError("give an answer or a result, not both: a fork changes one thing")
    if answer is not None and not answer.strip():
        raise UsageError("the answer is empty: give the text that the model should have answered")
    ended = next(
        (record.seq for record in records if isinstance(record.event, RunFinished)), len(records) + 1
    )
    usable = records[: ended - 1]
    # An answer from the cache has no call of its own: what stands for one is that the cache had it.
    wanted, word = (
        ((ToolCalled, CacheHit), ToolCalled.type)
        if result is not None
        else ((ModelCalled,), ModelCalled.type)
    )
    places = [record.seq for record in usable if isinstance(record.event, wanted)]
    if at is None:
        if not places:
            raise UsageError(
                f"run {run_id} has no {word} to fork at: say at which event, with at=1 to at={len(usable)}"
            )
        at = places[-1]
    if not 1 <= at <= len(records):
        raise UsageError(
            f"run {run_id} has no event {at}: its events are 1 to {len(records)}, and it can be forked "
            f"at 1 to {len(usable)}"
        )
    if at > len(usable):
        raise UsageError(f"run {run_id} had ended by event {at}: it can be forked at 1 to {len(usable)}")
    return Branch(
        at=at,
        state=fold(records[:at]),
        given=_replacement_event(run_id, records, at, places, answer=answer, result=result),
    )


def _replacement_event(
    run_id: str, records: list[Record], at: int, places: list[int], *, answer: str | None, result: str | None
) -> Event | None:
    record = records[at - 1]
    event = record.event
    if answer is not None:
        if isinstance(event, ModelCalled):
            return ModelAnswered(
                call=event.call, step=event.step, model="(given)", text=answer, cost_usd=0.0, given=True
            )
        raise _wrong_place(run_id, record, "an answer takes the place of a model's", "model_called", places)
    if result is not None:
        if isinstance(event, ToolCalled):
            return ToolAnswered(call=event.call, step=event.step, tool=event.tool, text=result, given=True)
        if isinstance(event, CacheHit):
            later = (later.event for later in records[at:])
            stored = next(
                (one for one in later if isinstance(one, ToolAnswered) and one.call == event.call), None
            )
            if stored is not None:
                return replace(
                    stored,
                    text=result,
                    given=True,
                    cached=False,
                    error=None,
                    value=None,
                    truncated=False,
                    whole="",
                    chars=0,
                )
        raise _wrong_place(run_id, record, "a result takes the place of a tool's", "tool_called", places)
    return None


def _wrong_place(run_id: str, record: Record, rule: str, kind: str, places: list[int]) -> UsageError:
    near = ", ".join(map(str, sorted(sorted(places, key=lambda seq: abs(seq - record.seq))[:5])))
    where = f"the nearest {kind} events are {near}" if near else f"the run has no {kind}"
    return UsageError(
        f"event {record.seq} of run {run_id} is {record.event.type}: {rule}, so fork at a {kind}; {where}"
    )


def records_to_fork(store: SessionStore, run_id: str, at: int | None) -> list[Record]:
    """The events of a fork at `at`; of a damaged run those before the damage, or raises `Damaged`."""
    damage = store.damage(run_id)
    if damage is None:
        return store.records(run_id)
    if at is None or at >= damage.seq or damage.row:
        raise damage_error(run_id, damage)
    return store.records(run_id, until=damage.seq - 1)
