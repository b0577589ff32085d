"""What the operation `quality` reported of a run's answer, as its user holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.plan import REPORTS
from kestrel_lab.log.fold import RunState
from kestrel_lab.views.frames import shown_frame
from kestrel_lab.views.html import headline_html, paragraph_html, table_html
from kestrel_lab.views.quality import COLUMNS, quality_line, quality_rows
from kestrel_lab.views.text import table_text

if TYPE_CHECKING:
    import pandas as pd

_NONE: Final = "no step of this run reports on quality: kestrel run GOAL --verify quality, or a step with `operation: quality`"


@dataclass(frozen=True, slots=True, repr=False)
class Quality:
    """A report on an answer, shown as a table; nothing of it was acted upon. Without a report it says how to get one."""

    report: Mapping[str, Any] = field(default_factory=dict)
    """As the step gave it: `pass`, `issues`, `fixes` by step, `missing_evidence`; empty where there is none."""

    @property
    def passed(self) -> bool | None:
        """Whether nothing critical or major was found; `None` without a report."""
        return self.report.get("pass")

    @property
    def issues(self) -> list[dict[str, Json]]:
        """The worst first: `severity`, `place`, `what`, `fix`, `step`, `check` each."""
        return list(self.report.get("issues", ()))

    @property
    def fixes(self) -> dict[str, list[str]]:
        """What would put it right, by the step that should do it; `answer` where no step is known."""
        return dict(self.report.get("fixes", {}))

    @property
    def missing_evidence(self) -> list[str]:
        """Claims of the answer that nothing in the run speaks of."""
        return list(self.report.get("missing_evidence", ()))

    @property
    def frame(self) -> pd.DataFrame:
        """A row per issue, the worst first, then one per claim without evidence, whose `severity` says so.

        Columns: `severity`, `place`, `what`, `fix`, `step`, `check`.
        """
        return shown_frame(list(quality_rows(self.report)), columns=list(COLUMNS), units={})

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and the rows of `frame`."""
        return COLUMNS, [tuple(row.values()) for row in quality_rows(self.report)]

    def __str__(self) -> str:
        return quality_line(self.report) if self.report else _NONE

    def __repr__(self) -> str:
        return f"{self}\n{table_text(*self.table())}" if any(quality_rows(self.report)) else str(self)

    def _repr_html_(self) -> str:
        if not self.report:
            return paragraph_html(_NONE)
        return headline_html(str(self)) + (table_html(*self.table()) if any(quality_rows(self.report)) else "")

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""


def quality_of(state: RunState) -> Quality:
    """The last report of a run."""
    reports = [state.outputs.get(step.id) for step in state.planned.steps if step.operation in REPORTS]
    last = next((report for report in reversed(reports) if isinstance(report, dict)), {})
    return Quality(last)
