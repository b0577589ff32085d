"""Import of other tools' files as one frame and one summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.inspect_logs import is_inspect, read_inspect
from kestrel_lab.evals.importers.routing_data import read_routing
from kestrel_lab.evals.stats.intervals_and_tests import mean_interval
from kestrel_lab.evals.summaries.result_table import COLUMNS, summary_table
from kestrel_lab.evals.summaries.streaming_summary import Reducer
from kestrel_lab.views.dataframes import shown_frame

if TYPE_CHECKING:
    import pandas as pd

_UNKNOWN: Final = {"nan": "–", "$nan": "–", "$nan + calls of unknown price": "–"}


def read_files(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Return the trials in all `paths`: logs of Inspect, and public routing data (JSON Lines).

    Raises `UsageError` with file and place for what is neither.
    """
    import pandas as pd  # takes half a second

    frames = []
    for path in map(Path, paths):
        if not path.is_file():
            msg = f"there is no file {str(path)!r}" if not path.is_dir() else f"{str(path)!r} is a folder: name the files in it"
            raise UsageError(msg)
        frames.append(read_inspect(path) if is_inspect(path) or path.suffix in (".eval", ".json") else read_routing(path))
    return pd.concat(frames, ignore_index=True)


def summary_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row of texts per configuration, as below an eval run: rate with 95 % interval, trials, broken trials, means.

    Marks that are not shares, such as those from 1 to 10, are summarised as `mean (95 %)` instead.
    """
    given = cast("list[dict[str, Any]]", frame.to_dict(orient="records"))
    if any(row["success"] < 0 or row["success"] > 1 for row in given):
        return _means_of(frame)
    unknown = dict.fromkeys(COLUMNS, math.nan)
    defaults = {**unknown, "outcome": "", "weight": 1.0, "model_kind": "real"}
    records = [{**defaults, "model": row["config"], **{key: value for key, value in row.items() if value == value}} for row in given]
    reducer = Reducer("exclude")
    for record in records:
        reducer.add_record(record)
    headings, cells = summary_table(reducer.summaries())
    rows = [[_UNKNOWN.get(str(cell), str(cell)) for cell in row] for row in cells]
    table = shown_frame(rows, columns=list(headings)).set_index("configuration")
    return table.drop(columns=["model", "cache hits", "Pareto front"], errors="ignore")


def _means_of(frame: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for config, group in frame.dropna(subset=["success"]).groupby("config", sort=False):
        found = mean_interval(group["success"].tolist(), group["scenario"].tolist())
        rows.append((str(config), f"{found.mean:.2f} ({found.low:.2f}–{found.high:.2f})", str(len(group))))
    return shown_frame(rows, columns=["configuration", "mean (95 %)", "trials"]).set_index("configuration")
