"""What a log holds of runs: to look at them, to compare them, and to decide on what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import ApprovalGiven
from kestrel_lab.engine.diff import RunDiff, diff_runs
from kestrel_lab.engine.frames import checkpoints_frame, runs_frame
from kestrel_lab.engine.run import Run
from kestrel_lab.log.store import SessionStore

if TYPE_CHECKING:
    import pandas as pd


class Archive:
    """The runs of one log, live ones among them."""

    store: SessionStore
    _runs: dict[str, Run]
    """Those that a session here works on."""

    def get(self, run_id: str) -> Run:
        """A run of this log by its id; raises `UsageError` with the nearest id when there is none."""
        live_run = self._runs.get(run_id)
        if live_run is not None and live_run.working:
            return live_run
        self.store.flush()
        self.store.run(run_id)
        return Run(self.store, run_id)

    def decide(self, run_id: str, *, granted: bool, by: str, how: str, reason: str = "", scope: str = "once") -> list[str]:
        """Answer every open question of a run; returns the tools that were decided on.

        Raises `UsageError` when nothing waits. A session that waits for the answer goes on at once,
        also in another process; otherwise the answer is used when the run is resumed.
        """
        run = self.get(run_id)
        questions = run.questions
        if not questions:
            msg = f"run {run_id} is {run.status} and waits for no approval"
            raise UsageError(msg)
        for asked in questions:
            run.decide(ApprovalGiven(call=asked.call, question=asked.question, granted=granted, by=by, how=how, reason=reason, scope=scope))
        return [asked.tool for asked in questions]

    def stages(self, run_id: str) -> pd.DataFrame:
        """The checkpoints of a run's stages, see `Run.stages`; raises `UsageError` when there is no such run."""
        return self.get(run_id).stages()

    def runs(self, *, limit: int = 100, trials: bool = False) -> pd.DataFrame:
        """The newest runs first, one row each, indexed by id; with those of suites if `trials`."""
        self.store.flush()
        return runs_frame(self.store.runs(limit=limit, trials=trials))

    def checkpoints(self, run_id: str) -> pd.DataFrame:
        """Snapshots that a run is taken up from, newest first, indexed by the last event in each; also the parent's, in a fork.

        `fork(run_id, at=…)` goes on from any event, `resume` from the last. One that is not `usable`, because it is
        damaged or of another version, is passed over. Raises `UsageError` when there is no such run.
        """
        self.store.flush()
        self.store.run(run_id)
        return checkpoints_frame(self.store.checkpoints(run_id))

    def diff(self, a: str, b: str) -> RunDiff:
        """Where two runs of this log part, forks of each other or not; raises `UsageError` for an unknown id."""
        return diff_runs(self.get(a), self.get(b))
