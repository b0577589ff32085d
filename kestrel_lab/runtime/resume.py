"""Resume or fork a run: the event behind which it goes on, what is given in place of an answer, and whether its log is as it was written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kestrel_lab.core.calls import REPEATABLE
from kestrel_lab.core.errors import Damaged, UsageError
from kestrel_lab.core.events.union import (
    CacheHit,
    Event,
    ModelAnswered,
    ModelCalled,
    Record,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.plan import Plan
from kestrel_lab.eventlog.hash_chain import Damage
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.eventlog.store import SessionStore


def continuation(records: list[Record]) -> tuple[int, str] | None:
    """Return the last event to keep of a run that ended FAILED or CANCELLED, and its last completed stage; `None` without one.

    Nothing that is done is done again. A step that failed for want of something outside, of time or of money keeps what
    it has and goes on; so does a call that cannot be repeated, which a person is then asked about. A step that
    failed for any other reason begins anew.
    """
    ended = next((record.seq for record in records if isinstance(record.event, RunFinished)), len(records) + 1)
    usable = records[: ended - 1]
    if not usable:
        return None
    state = fold(usable)
    done = _completed(state.planned, state, usable)
    if not done:
        return None
    stage = max(done, key=done.__getitem__)
    return max(done[stage], _kept(state, usable)), stage


def _completed(plan: Plan, state: RunState, usable: list[Record]) -> dict[str, int]:
    """The stages of which every step is done, with the number of the event that completed them."""
    ends = {record.event.step: record.seq for record in usable if isinstance(record.event, StepFinished)}
    stages: dict[str, list[str]] = {}
    for step in plan.steps:
        if step.stage:
            stages.setdefault(step.stage, []).append(step.id)
    return {
        stage: max(ends[step] for step in steps) for stage, steps in stages.items() if all(state.finished_steps.get(step) for step in steps)
    }


def _kept(state: RunState, usable: list[Record]) -> int:
    """The last event to keep for the sake of the steps that failed; all of them if these go on where they are."""
    failed = {row.task for row in state.checkpoints.values() if row.status == "failed"}
    anew = {row.task for row in state.checkpoints.values() if row.status == "failed" and row.error_class == "logic"}
    called = {record.event.step for record in usable if isinstance(record.event, ToolCalled) and record.event.effect not in REPEATABLE}
    calls = {step.id for step in state.planned.steps if step.tool}
    if not anew or failed & called & calls:
        return usable[-1].seq
    return min((record.seq for record in usable if isinstance(record.event, StepStarted) and record.event.step in anew), default=1) - 1


def damaged(run_id: str, damage: Damage) -> Damaged:
    """Return the error for a run whose log is not as it was written."""
    last = damage.seq - 1
    whose = f" of run {damage.run_id}, which it was forked from" if damage.run_id != run_id else ""
    todo = f"go on from what came before: kestrel fork {run_id} --at {last} (lab.fork({run_id!r}, at={last}))" if last else "start it anew"
    text = (
        f"run {run_id} is damaged: {damage.what}{whose}. Its events are whole: it can be shown (kestrel show {run_id}), and is not gone on with"
        if damage.row
        else f"run {run_id} is damaged from event {damage.seq}{whose} on: {damage.what}. It can be shown (kestrel show {run_id}) and is not "
        f"gone on with; {todo}"
    )
    cause = "Find out what changed the log: a failing disk, a copy made while it was written, or somebody"
    return Damaged(f"{text}. {cause}", run_id=run_id, seq=damage.seq)


def check_whole(store: SessionStore, run_id: str) -> None:
    """Raise `Damaged` unless every event of the run on disk is as it was written; see `SessionStore.damage`."""
    if (damage := store.damage(run_id)) is not None:
        raise damaged(run_id, damage)


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
        assert self.state.started is not None  # the first event, which every branch has
        return self.state.started


def branch_of(run_id: str, records: list[Record], at: int | None, *, answer: str | None, result: str | None) -> Branch:
    """Return the shared beginning of a fork of the run of `records`; see `Session.start_fork` for the arguments.

    Raises `UsageError` when the run has no such event, had ended by then, or has something there that an
    answer or a result cannot follow.
    """
    if answer is not None and result is not None:
        raise UsageError("give an answer or a result, not both: a fork changes one thing")
    if answer is not None and not answer.strip():
        raise UsageError("the answer is empty: give the text that the model should have answered")
    ended = next((record.seq for record in records if isinstance(record.event, RunFinished)), len(records) + 1)
    usable = records[: ended - 1]
    # An answer from the cache has no call of its own: what stands for one is that the cache had it.
    wanted, word = ((ToolCalled, CacheHit), ToolCalled.type) if result is not None else ((ModelCalled,), ModelCalled.type)
    places = [record.seq for record in usable if isinstance(record.event, wanted)]
    if at is None:
        if not places:
            raise UsageError(f"run {run_id} has no {word} to fork at: say at which event, with at=1 to at={len(usable)}")
        at = places[-1]
    if not 1 <= at <= len(records):
        raise UsageError(f"run {run_id} has no event {at}: its events are 1 to {len(records)}, and it can be forked at 1 to {len(usable)}")
    if at > len(usable):
        raise UsageError(f"run {run_id} had ended by event {at}: it can be forked at 1 to {len(usable)}")
    return Branch(at=at, state=fold(records[:at]), given=_given(run_id, records, at, places, answer=answer, result=result))


def _given(run_id: str, records: list[Record], at: int, places: list[int], *, answer: str | None, result: str | None) -> Event | None:
    record = records[at - 1]
    event = record.event
    if answer is not None:
        if isinstance(event, ModelCalled):
            return ModelAnswered(call=event.call, step=event.step, model="(given)", text=answer, cost_usd=0.0, given=True)
        raise _wrong_place(run_id, record, "an answer takes the place of a model's", "model_called", places)
    if result is not None:
        if isinstance(event, ToolCalled):
            return ToolAnswered(call=event.call, step=event.step, tool=event.tool, text=result, given=True)
        if isinstance(event, CacheHit):
            later = (later.event for later in records[at:])
            stored = next((one for one in later if isinstance(one, ToolAnswered) and one.call == event.call), None)
            if stored is not None:
                return replace(stored, text=result, given=True, cached=False, error=None, value=None, truncated=False, whole="", chars=0)
        raise _wrong_place(run_id, record, "a result takes the place of a tool's", "tool_called", places)
    return None


def _wrong_place(run_id: str, record: Record, rule: str, kind: str, places: list[int]) -> UsageError:
    near = ", ".join(map(str, sorted(sorted(places, key=lambda seq: abs(seq - record.seq))[:5])))
    where = f"the nearest {kind} events are {near}" if near else f"the run has no {kind}"
    return UsageError(f"event {record.seq} of run {run_id} is {record.event.type}: {rule}, so fork at a {kind}; {where}")


def records_to_fork(store: SessionStore, run_id: str, at: int | None) -> list[Record]:
    """The events that a fork at `at` is made of; of a damaged run those before the damage, or `Damaged` if `at` is none of them."""
    damage = store.damage(run_id)
    if damage is None:
        return store.records(run_id)
    if at is None or at >= damage.seq or damage.row:
        raise damaged(run_id, damage)
    return store.records(run_id, until=damage.seq - 1)
