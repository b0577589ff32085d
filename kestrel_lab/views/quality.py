"""A report on the quality of an answer as texts: what is wrong, how bad, where, what to do, and what has no evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kestrel_lab.core import events as e
from kestrel_lab.core.plan import REPORTS
from kestrel_lab.core.text import one_line, plain
from kestrel_lab.views.rows import NoticeRow
from kestrel_lab.views.wording import count

COLUMNS: Final = ("severity", "place", "what", "fix", "step", "check")
UNSHOWN: Final = "no evidence"
"""Stands where the severity of an issue does, for a claim that nothing in the run speaks of."""


def quality_rows(report: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A row of texts per issue, the worst first, then one per claim without evidence."""
    for one in report.get("issues", ()):
        yield {column: one_line(plain(str(one.get(column, ""))), 300) for column in COLUMNS}
    for text in report.get("missing_evidence", ()):
        what, fix = "nothing in the run speaks of it", "show where it is from, or say that it is not known"
        yield {"severity": UNSHOWN, "place": one_line(plain(str(text)), 300), "what": what, "fix": fix, "step": "", "check": ""}


def quality_line(report: Mapping[str, Any]) -> str:
    """How it went, and how many of what was found."""
    severities = [str(one.get("severity")) for one in report.get("issues", ())]
    parts = [f"{severities.count(word)} {word}" for word in ("critical", "major", "minor") if word in severities]
    missing = len(report.get("missing_evidence", ()))
    parts += [f"{count(missing, 'claim')} without evidence"] if missing else []
    return f"quality: {'passed' if report.get('pass') is True else 'did not pass'}, {', '.join(parts) or 'nothing found'}"


def quality_row(event: e.StepFinished, operation: str) -> NoticeRow | None:
    """The row that shows a report; `None` for the end of any other step."""
    if operation not in REPORTS or not isinstance(event.output, dict):
        return None
    rows = [list(row.values()) for row in quality_rows(event.output)]
    level = "good" if event.output.get("pass") is True else "bad"
    return NoticeRow(id="", step=event.step, level=level, text=quality_line(event.output), table=[list(COLUMNS), *rows] if rows else [])
