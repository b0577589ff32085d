"""The newest runs with what they cost so far; of a run that has grown only what is new is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, ModelAnswered, StateTransition
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import TERMINAL
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.eventlog.run_status import at_work, standing
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.server.protocol import RunSummary

_RUNS = "id, goal, workspace, model, model_kind, status, parent, created_at, owner, last_seq"
_NEWS = """
    SELECT type, at, ref, body ->> 'cost_usd', body ->> 'tokens_in', body ->> 'tokens_out', body ->> 'error', body ->> 'target',
        body ->> 'cached' OR body ->> 'given'
    FROM events WHERE run_id = ? AND seq > ? AND seq <= ?
    AND type IN ('model_answered', 'approval_asked', 'approval_given', 'state_transition') ORDER BY seq
"""


@dataclass(slots=True)
class _Sums:
    seq: int = 0
    meter: UsageMeter = field(default_factory=UsageMeter)
    ended_at: float | None = None

    def take(self, row: tuple[Any, ...]) -> None:
        """Take in one event, of which only the columns were read that count here."""
        kind, at, ref, cost, read, written, error, target, free = row
        event: Event
        if kind == "approval_asked":
            event = ApprovalAsked(call=ref, step="", tool="", args={}, danger="", key="")
        elif kind == "approval_given":
            event = ApprovalGiven(call=ref, granted=True, by="", how="")
        elif kind == "state_transition":
            event = StateTransition(source="", target=target)
            self.ended_at = at if target in TERMINAL else None
        else:
            failed: dict[str, Json] | None = {} if error is not None else None
            used = {"tokens_in": read or 0, "tokens_out": written or 0, "cost_usd": cost}
            event = ModelAnswered(call=ref, step="", model="", error=failed, cached=bool(free), **used)
        self.meter.take(event, at)


class RunList:
    """Keeps the sums of the runs it was asked about."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._sums: dict[str, _Sums] = {}

    def newest(self, limit: int, *, trials: bool = False) -> list[RunSummary]:
        """The newest runs first; reads the log."""
        where = "" if trials else "WHERE scenario = ''"
        rows = self._store.query(f"SELECT {_RUNS} FROM runs {where} ORDER BY created_at DESC, id DESC LIMIT ?", (limit,))
        if len(self._sums) > 4 * limit + 1_000:
            self._sums.clear()
        return [self._summary(row) for row in rows]

    def _summary(self, row: tuple[Any, ...]) -> RunSummary:
        run_id, goal, workspace, model, kind, status, parent, created_at, owner, last = row
        sums = self._sums.setdefault(run_id, _Sums())
        if sums.seq < last:
            for news in self._store.query(_NEWS, (run_id, sums.seq, last)):
                sums.take(news)
            sums.seq = last
        ended = status in TERMINAL
        return RunSummary(
            id=run_id,
            goal=goal,
            status=status,
            model=model,
            model_kind=kind,
            workspace=workspace,
            parent=parent,
            created_at=created_at,
            ended_at=sums.ended_at,
            seq=last,
            tokens=sums.meter.usage.tokens,
            cost_usd=sums.meter.cost_usd,
            unpriced=sums.meter.unpriced,
            waiting=0 if ended else len(sums.meter.questions),
            standing=standing(run_id, status, owner).word,
            worked_on=not ended and at_work(owner, run_id),
        )
