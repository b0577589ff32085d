"""Resume a run: the event behind which it goes on, and whether its log is as it was written."""

from __future__ import annotations

from kestrel_lab.core.calls import REPEATABLE
from kestrel_lab.core.errors import Damaged
from kestrel_lab.core.events.union import (
    Record,
    RunFinished,
    StepFinished,
    StepStarted,
    ToolCalled,
)
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.eventlog.seals.hash_chain import Damage
from kestrel_lab.eventlog.store import SessionStore


def resume_point(records: list[Record]) -> tuple[int, str] | None:
    """Return the last event to keep of a run that ended FAILED or CANCELLED, and its last completed stage;
    `None` where there is nothing to go on from.

    Nothing that is done is done again. A step that failed for want of something outside, of time or of money
    keeps what it has and goes on; so does a call that cannot be repeated, which a person is then asked about.
    A step that failed for any other reason begins anew. Without a completed stage, a run goes on that reached
    a limit or had an error while a model was at work: the model is asked again where it was.
    """
    ended = next(
        (record.seq for record in records if isinstance(record.event, RunFinished)), len(records) + 1
    )
    usable = records[: ended - 1]
    if not usable:
        return None
    state = fold(usable)
    done = _completed_stages(state.planned, state, usable)
    if not done:
        return (usable[-1].seq, "") if _can_ask_again(state, records[ended - 1 :]) else None
    stage = max(done, key=done.__getitem__)
    return max(done[stage], _last_kept_event(state, usable)), stage


def _can_ask_again(state: RunState, end: list[Record]) -> bool:
    """Whether a run ended, by a limit or error, when each failed step was about to ask a model."""
    if not end or not isinstance(end[0].event, RunFinished) or end[0].event.outcome not in ("limit", "error"):
        return False
    steps = {step.id: step for step in state.planned.steps}
    failed = [steps[name] for name, done in state.finished_steps.items() if not done and name in steps]
    wrong = {
        row.task
        for row in state.checkpoints.values()
        if row.status == "failed" and row.error_class == "logic"
    }
    answered = {
        name
        for name, conversation in state.conversations.items()
        if [said.role for said in conversation.messages[-1:]] == ["assistant"]
    }
    return bool(failed) and not any(
        step.tool or step.operation or step.id in wrong | answered for step in failed
    )


def _completed_stages(plan: Plan, state: RunState, usable: list[Record]) -> dict[str, int]:
    """The stages of which every step is done, with the number of the event that completed them."""
    ends = {record.event.step: record.seq for record in usable if isinstance(record.event, StepFinished)}
    stages: dict[str, list[str]] = {}
    for step in plan.steps:
        if step.stage:
            stages.setdefault(step.stage, []).append(step.id)
    return {
        stage: max(ends[step] for step in steps)
        for stage, steps in stages.items()
        if all(state.finished_steps.get(step) for step in steps)
    }


def _last_kept_event(state: RunState, usable: list[Record]) -> int:
    """The last event to keep so that failed steps run again; all if they go on where they are."""
    failed = {row.task for row in state.checkpoints.values() if row.status == "failed"}
    anew = {
        row.task
        for row in state.checkpoints.values()
        if row.status == "failed" and row.error_class == "logic"
    }
    called = {
        record.event.step
        for record in usable
        if isinstance(record.event, ToolCalled) and record.event.effect not in REPEATABLE
    }
    calls = {step.id for step in state.planned.steps if step.tool}
    if not anew or failed & called & calls:
        return usable[-1].seq
    return (
        min(
            (
                record.seq
                for record in usable
                if isinstance(record.event, StepStarted) and record.event.step in anew
            ),
            default=1,
        )
        - 1
    )


def damage_error(run_id: str, damage: Damage) -> Damaged:
    """Return the error for a run whose log is not as it was written."""
    last = damage.seq - 1
    whose = f" of run {damage.run_id}, which it was forked from" if damage.run_id != run_id else ""
    todo = (
        f"go on from what came before: kestrel fork {run_id} --at {last} (lab.fork({run_id!r}, at={last}))"
        if last
        else "start it anew"
    )
    text = (
        f"run {run_id} is damaged: {damage.what}{whose}. Its events are whole: it can be shown "
        f"(kestrel show {run_id}), "
        "and is not gone on with"
        if damage.row
        else f"run {run_id} is damaged from event {damage.seq}{whose} on: "
        f"{full_stop(damage.what)} It can be shown "
        f"(kestrel show {run_id}) and is not gone on with; {todo}"
    )
    cause = "Find out what changed the log: a failing disk, a copy made while it was written, or somebody"
    return Damaged(f"{text}. {cause}", run_id=run_id, seq=damage.seq)


def check_whole(store: SessionStore, run_id: str, *, anew: bool = True) -> None:
    """Raise `Damaged` unless all stored events are intact; `anew` as in `SessionStore.damage`."""
    if (damage := store.damage(run_id, anew=anew)) is not None:
        raise damage_error(run_id, damage)
