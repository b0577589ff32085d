"""Run history: lists the runs of a log, compares them, and records decisions on what they wait for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from kestrel_lab.answers.output_types import OutputType, T
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.checkpoints import Checkpoint
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.eventlog.run_status import decided_runs, visible_status
from kestrel_lab.eventlog.store import RunRow, SessionStore
from kestrel_lab.runtime.context.run_options import RunOptions
from kestrel_lab.runtime.conversation import conversation_runs
from kestrel_lab.runtime.diff import RunDiff, diff_runs
from kestrel_lab.runtime.resume import damage_error
from kestrel_lab.runtime.run import Run
from kestrel_lab.views.dataframes import unit_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from kestrel_lab.answers.output_types import OutputForm


def runs_frame(rows: Iterable[RunRow], decided: Collection[str]) -> pd.DataFrame:
    """One row per run, by id; `status` shows if it was interrupted or its questions `decided`."""
    found = [
        {
            "run": row.id,
            "status": visible_status(row.id, row.status, row.owner, asks=row.id not in decided).word,
            "goal": one_line(row.goal, 60),
            "model": row.model if row.model_kind == "real" else f"{row.model} ({row.model_kind})",
            "started": row.created_at,
        }
        for row in rows
    ]
    return _frame(found, ["run", "status", "goal", "model", "started"])


def checkpoints_frame(checkpoints: Iterable[Checkpoint]) -> pd.DataFrame:
    """One row per snapshot, indexed by the number of the last event in it."""
    found = [
        {
            "seq": one.seq,
            "reason": one.reason,
            "bytes": len(one.state),
            "created": one.created_at,
            "run": one.run_id,
            "usable": one.usable,
        }
        for one in checkpoints
    ]
    return _frame(found, ["seq", "reason", "bytes", "created", "run", "usable"])


def _frame(rows: list[dict[str, object]], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    frame = unit_frame(rows, columns=columns, units={"started": "UTC", "created": "UTC"})
    for name in {"started", "created"} & set(columns):
        frame[name] = pd.to_datetime(frame[name], unit="s", utc=True).dt.as_unit("ms")
    return frame.set_index(columns[0])


class RunHistory:
    """The runs of one log, those that work now included."""

    def __init__(self, store: SessionStore) -> None:
        self.live: dict[str, Run] = {}
        """The runs that the session of this history works on, by id."""
        self.run: Callable[[str, RunOptions], Awaitable[Run]] | None = None
        """Runs a goal in the session, for `Run.ask`."""
        self._store = store

    def get(self, run_id: str, *, output: type[T] | OutputForm | None = None) -> Run[T]:
        """Return a run of this log by its id; raises `UsageError` with the nearest id when there is none.

        Of a damaged run, see `Run.damage`, the events before the damage. Reads and hashes every event of the
        run. `output` is the type that the run was begun with, for `Run.value`: the log has only its schema.
        """
        kind = OutputType.of(output)
        live_run = self.live.get(run_id)
        if live_run is not None and live_run.live is not None and live_run.live.working:
            return live_run
        self._store.flush()
        self._store.run(run_id)
        damage = self._store.damage(run_id)
        if damage is None:
            return Run(self._store, run_id, run=self.run, output=kind)
        state = fold(self._store.records(run_id, until=damage.seq - 1))
        return Run(self._store, run_id, state, damage_error(run_id, damage), output=kind)

    def conversation(self, run_id: str) -> list[Run]:
        """Return the runs whose conversation a run goes on with, the first one first, and the run itself at
        the end.

        A parent that is no longer in the log ends the list. Raises `UsageError` for a run that does not
        exist.
        """
        return [self.get(one) for one in conversation_runs(self._store, run_id)]

    def decide(
        self,
        run_id: str,
        *,
        granted: bool,
        by: str,
        how: str,
        reason: str = "",
        scope: str = "once",
        answers: Sequence[str] = (),
    ) -> list[str]:
        """Decide on everything a run waits for; returns the tools that were decided on.

        With `answers` only what the agent asked in words is answered, one each in the order it was asked; a
        yes without them only allows calls, a no is for both.

        Raises `UsageError` when nothing of the kind waits, or when there is not one answer for each question.
        A session that waits for the answer goes on at once, also in another process; otherwise the answer is
        used when the run is resumed.
        """
        run = self.get(run_id)
        asked = [
            question
            for question in run.questions
            if not granted or (question.why == "question") == bool(answers)
        ]
        if not asked or (answers and len(answers) != len(asked)):
            raise UsageError(_nothing_to_decide(run, answers))
        words: Sequence[str | None] = answers or [None] * len(asked)
        for question, answer in zip(asked, words, strict=True):
            given = ApprovalGiven(
                call=question.call, granted=granted, by=by, how=how, reason=reason, scope=scope, answer=answer
            )
            run.decide(replace(given, question=question.question))
        return [question.tool for question in asked]

    def stages(self, run_id: str) -> pd.DataFrame:
        """Return the checkpoints of a run's stages, see `RunReport.stages`; `UsageError` if unknown."""
        return self.get(run_id).report.stages()

    def runs(self, *, limit: int = 100, trials: bool = False) -> pd.DataFrame:
        """The newest runs first, one row each, indexed by id; with those of suites if `trials`."""
        self._store.flush()
        return runs_frame(self._store.runs(limit=limit, trials=trials), decided_runs(self._store))

    def count(self) -> int:
        """Return how many runs the log has, without those of suites."""
        return int(
            self._store.query(
                "SELECT count(*) FROM runs WHERE scenario = '' AND id NOT IN (SELECT run_id FROM removals)"
            )[0][0]
        )

    def checkpoints(self, run_id: str) -> pd.DataFrame:
        """Snapshots that a run is taken up from, newest first, indexed by the last event in each; also the
        parent's, in a fork.

        `fork(run_id, at=…)` goes on from any event, `resume` from the last. One that is not `usable`, because
        it is damaged or of another version, is passed over. Raises `UsageError` when there is no such run.
        """
        self._store.flush()
        self._store.run(run_id)
        return checkpoints_frame(self._store.checkpoints(run_id))

    def diff(self, a: str, b: str) -> RunDiff:
        """Return where two runs of this log differ first; raises `UsageError` for an unknown id."""
        return diff_runs(self.get(a), self.get(b))


def _nothing_to_decide(run: Run, answers: Sequence[str]) -> str:
    """Return the error text for a decision that does not fit what `run` waits for."""
    if not run.questions:
        return f"run {run.id} is {run.status} and waits for no approval"
    asked = [question for question in run.questions if question.why == "question"]
    if not asked:
        return (
            f"run {run.id} asks no question, it waits for leave to call {run.questions[0].tool}: "
            "approve or deny it without an answer"
        )
    told = "; ".join(repr(one_line(str(question.args.get("question", "")), 200)) for question in asked)
    needed = "an answer" if len(asked) == 1 else f"{len(asked)} answers, in this order"
    given = f", not {len(answers)}" if answers else ""
    return (
        f"run {run.id} waits for {needed}{given} ({told}): kestrel approve "
        f"{run.id}{' --answer TEXT' * len(asked)}"
    )
