"""Decisions of clients on waiting calls: checked against what was asked, then recorded once or refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from kestrel_lab.core.errors import AlreadyDecided, IllegalTransition, StoreError, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, from_json
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.eventlog.run_status import at_work, cancel_in_log
from kestrel_lab.eventlog.store import RunRow
from kestrel_lab.runtime.run import is_working
from kestrel_lab.runtime.services import Services
from kestrel_lab.server.protocol import Accepted, Answer, Approve, Cancel, Decision, Refused, Reply

_ASKED = (
    "SELECT body FROM events WHERE run_id = ? AND ref = ? AND type = 'approval_asked' ORDER BY seq "
    "DESC LIMIT 1"
)


def decide_question(lab: Services, message: Decision, *, by: str, how: str) -> Reply:
    """Record the decision of `by`; the run continues at once, in whichever process works on it.

    Blocks until the decision is on disk.
    """
    try:
        row = lab.store.run(message.run)
    except UsageError as error:
        return message.refused("unknown_run", str(error), todo="`watch` lists the runs")
    found = lab.store.query(_ASKED, (row.id, message.question))
    if not found:
        return message.refused(
            "unknown_question",
            f"run {row.id} has not asked {message.question!r}",
            todo="take `question` from the message that asked",
        )
    asked = cast("ApprovalAsked", from_json(ApprovalAsked.type, cast("dict[str, Json]", loads(found[0][0]))))
    if (refused := _already_decided(lab, message) or _refuse_unfit(row, asked, message)) is not None:
        return refused
    given = ApprovalGiven(
        call=asked.call,
        question=message.question,
        granted=isinstance(message, Approve) or (isinstance(message, Answer) and message.text is not None),
        by=by,
        how=how,
        reason=("no answer was given" if message.text is None else "")
        if isinstance(message, Answer)
        else message.reason,
        scope="once" if isinstance(message, Answer) else message.scope,
        answer=message.text if isinstance(message, Answer) else None,
    )
    try:
        if isinstance(message, Approve) and message.args is not None:
            given = replace(given, args=_complete_args(lab, row, asked, message.args))
        lab.store.decide(row.id, given)
    except UsageError as error:
        return message.refused(
            "bad_arguments", str(error), todo="send arguments that fit the tool, or approve as asked"
        )
    except AlreadyDecided:
        # Another client decided between our check and our write; the database lets only one through.
        return _already_decided(lab, message) or message.refused("already_decided", "this was decided before")
    except IllegalTransition:
        return message.refused("ended", f"run {row.id} has ended: nothing waits for a decision")
    except StoreError as error:
        return message.refused("refused", str(error), todo="try again")
    alone = not at_work(row.owner, row.id)
    return Accepted(
        re=message.id,
        run=row.id,
        note=f"no process works on it: go on with kestrel resume {row.id}" if alone else "",
    )


def _already_decided(lab: Services, message: Decision) -> Refused | None:
    record = lab.store.decision(message.run, message.question)
    if record is None:
        return None
    given = cast("ApprovalGiven", record.event)
    word = ("approved" if given.answer is None else "answered") if given.granted else "denied"
    return message.refused(
        "already_decided", f"{given.by} has {word} this already; the first decision counts", by=given.by
    )


def _refuse_unfit(row: RunRow, asked: ApprovalAsked, message: Decision) -> Refused | None:
    if row.status.terminal:
        return message.refused("ended", f"run {row.id} is {row.status}: nothing waits for a decision")
    if message.key != asked.key:
        return message.refused(
            "changed",
            "the key is not the key of the waiting call: the call has changed since you saw it",
            todo="look at the call again and send the key that comes with it",
        )
    in_words = asked.why == "question"
    if in_words and isinstance(message, Approve):
        return message.refused(
            "refused", "the agent asks a question, not for approval", todo="send `answer` with a text"
        )
    if not in_words and isinstance(message, Answer):
        return message.refused(
            "refused", "the call waits for approval, not for an answer", todo="send `approve` or `deny`"
        )
    return None


def _complete_args(
    lab: Services, row: RunRow, asked: ApprovalAsked, args: dict[str, Json]
) -> dict[str, Json]:
    """Return edited arguments with defaults; raises `UsageError` if they do not fit, or tool unknown."""
    run = lab.history.live.get(row.id)
    if run is not None and run.approvals is not None and is_working(run):
        given = ApprovalGiven(call=asked.call, granted=True, by="", how="", args=args)
        return run.approvals.checked(asked, given).args or {}
    if asked.tool not in lab.registry.toolbox:
        raise UsageError(
            f"tool {asked.tool!r} is not known to this process, so edited arguments cannot be checked"
        )
    try:
        return lab.registry.toolbox.get(asked.tool).validate(args)
    except ValueError as error:  # of the tool's arguments
        raise UsageError(str(error)) from error


async def cancel_run(lab: Services, message: Cancel, *, by: str) -> Reply:
    """End the run as CANCELLED, unless it has ended.

    What another process does in a run that was taken from it is written no more, and it ends when it notices,
    at the latest before its next call with an effect; only the effect of a call under way may still come.
    """
    try:
        row = lab.store.run(message.run)
    except UsageError as error:
        return message.refused("unknown_run", str(error), todo="`watch` lists the runs")
    if row.status.terminal:
        return message.refused("ended", f"run {row.id} is {row.status} already")
    run = lab.history.live.get(row.id)  # `get` would hash every event of the run, on the event loop
    if run is not None and is_working(run):
        run.cancel()
        return Accepted(re=message.id, run=row.id)
    if at_work(row.owner, row.id) and not message.force:
        return message.refused(
            "at_work_elsewhere",
            f"another process works on run {row.id}: stop it there, or take the run over",
            todo="send `cancel` with `force`",
        )
    if not await asyncio.to_thread(cancel_in_log, lab.store, row.id, by):
        return message.refused(
            "at_work_elsewhere", f"another process has just taken run {row.id}", todo="try again"
        )
    return Accepted(re=message.id, run=row.id)
