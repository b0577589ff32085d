"""Stopping a run on request: one of this process is told to, any other is taken over and ended in the log."""

from __future__ import annotations

import asyncio

from kestrel_lab.control.messages import Accepted, Cancel, Refused, Reply
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import RunFinished
from kestrel_lab.core.states import RunStatus
from kestrel_lab.engine.owner import at_work
from kestrel_lab.engine.session import Session


async def stop(session: Session, message: Cancel, *, by: str) -> Reply:
    """End the run CANCELLED, unless it has ended.

    What another process does in a run that was taken from it is written no more, and it ends when it notices, at the
    latest before its next call with an effect; only the effect of a call under way may still come.
    """
    try:
        row = session.store.run(message.run)
    except UsageError as error:
        return Refused(re=message.id, code="unknown_run", message=str(error), todo="`watch` lists the runs")
    if row.status.terminal:
        return Refused(re=message.id, code="ended", message=f"run {row.id} is {row.status} already")
    run = session.get(row.id)
    if run.working:
        run.cancel()
        return Accepted(re=message.id, run=row.id)
    if at_work(row.owner, row.id) and not message.force:
        told = f"another process works on run {row.id}: stop it there, or take it from it"
        return Refused(re=message.id, code="at_work_elsewhere", message=told, todo="send `cancel` with `force`")
    if not await asyncio.to_thread(_end, session, row.id, by):
        return Refused(re=message.id, code="at_work_elsewhere", message=f"somebody else took run {row.id} just now", todo="try again")
    return Accepted(re=message.id, run=row.id)


def _end(session: Session, run_id: str, by: str) -> bool:
    """Claim the run and write its end; false where somebody else was faster."""
    store = session.store
    if not store.claim(store.run(run_id)):
        return False
    source = store.run(run_id).status
    if not source.terminal:
        reason = f"stopped on request by {by}"
        store.append(run_id, RunFinished(outcome="cancelled", answer="", reason=reason))
        store.transition(run_id, RunStatus.CANCELLED, reason=reason, source=source).result()
    return True
