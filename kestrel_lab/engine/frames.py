"""What a log holds, as data frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kestrel_lab.core.text import one_line
from kestrel_lab.log.checkpoints import Checkpoint
from kestrel_lab.log.store import RunRow
from kestrel_lab.views.frames import shown_frame

if TYPE_CHECKING:
    import pandas as pd


def runs_frame(rows: Iterable[RunRow]) -> pd.DataFrame:
    """One row per run, indexed by id."""
    found = [
        {
            "run": row.id,
            "status": str(row.status),
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
        {"seq": one.seq, "reason": one.reason, "bytes": len(one.state), "created": one.created_at, "run": one.run_id, "usable": one.usable}
        for one in checkpoints
    ]
    return _frame(found, ["seq", "reason", "bytes", "created", "run", "usable"])


def _frame(rows: list[dict[str, object]], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    frame = shown_frame(rows, columns=columns, units={"started": "UTC", "created": "UTC"})
    for name in {"started", "created"} & set(columns):
        frame[name] = pd.to_datetime(frame[name], unit="s", utc=True).dt.as_unit("ms")
    return frame.set_index(columns[0])
