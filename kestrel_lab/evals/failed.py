"""Which scenarios were failed, by whom and why: the first thing to know after a rate below one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from kestrel_lab.core.text import one_line
from kestrel_lab.log.store import EvalRow

FAILED_HEADINGS: Final = ("did not pass", "with", "why")
_MOST: Final = 8
_REASON: Final = 100
"""Characters of a reason; the frame, `--csv` and the report have all of it."""


def failed_table(rows: Iterable[EvalRow]) -> list[list[str]]:
    """Cells under `FAILED_HEADINGS`: a row per scenario that was failed, those that the best configurations failed first.

    The reason is that of the best configuration that failed it. Trials that broke are not among them. Of many the last
    row says how many more there are.
    """
    rows = list(rows)
    passed = Counter(row.config for row in rows if row.result["outcome"] == "pass")
    found: dict[str, list[EvalRow]] = {}
    for row in sorted(rows, key=lambda row: -passed[row.config]):
        if row.result["outcome"] == "fail":
            found.setdefault(row.scenario, []).append(row)
    first = sorted(found.items(), key=lambda item: -passed[item[1][0].config])
    cells = [
        [scenario, ", ".join(dict.fromkeys(row.config for row in failed)), one_line(str(failed[0].result["reason"]), _REASON)]
        for scenario, failed in first[:_MOST]
    ]
    return cells + ([[f"and {len(first) - _MOST:,} more", "", "all of them: --csv FILE, --report FILE.html"]] if len(first) > _MOST else [])
