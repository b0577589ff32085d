"""Retrieval trace of a run, from its log: every step, and why a file was or was not found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Event, RetrievalStep
from kestrel_lab.core.sanitize import full_stop, one_line
from kestrel_lab.retrieval.explain import FileExplanation, explain_missing, index_path, last_step_about
from kestrel_lab.retrieval.hits import Retrieval
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.search import FAINT, MAX_LISTED
from kestrel_lab.retrieval.trace_events import retrievals_in
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("question", "step", "retriever", "asked for", "matched", "chosen", "dropped", "seconds", "note")
_NOTHING = (
    "this run looked nothing up: searches of search_code and of the operations gather and find_files "
    "are shown here"
)


def _tells_of_all(step: RetrievalStep) -> bool:
    """Return whether the log lists every file that matched in a step, and every one that matched faintly.

    A step counts those that matched well, and lists a limited number of each.
    """
    faint = sum(why == FAINT for why in step.dropped.values())
    listed = len({*step.chosen, *step.dropped}) - faint
    return listed >= step.found and faint < MAX_LISTED


class RunRetrieval(PartsView):
    """The retrievals of a run in its workspace, shown as a table of steps."""

    def __init__(self, events: Iterable[Event], workspace: Path, home: Path) -> None:
        self.questions: list[Retrieval] = retrievals_in(
            event for event in events if isinstance(event, RetrievalStep)
        )
        self._workspace, self._home = workspace, home

    def explain(self, path: str, question: int = -1) -> FileExplanation:
        """Explain by the log why `path` was or was not found; `question` selects the search, by default the
        last.

        What the log cannot tell, such as an ignore rule, is read from the current workspace, and marked so.
        Raises `UsageError` without searches or for an unknown question.
        """
        if not self.questions:
            raise UsageError(_NOTHING)
        if not -len(self.questions) <= question < len(self.questions):
            raise UsageError(
                f"there are {len(self.questions)} questions, counted from 0: there is no question {question}"
            )
        asked = self.questions[question]
        name = index_path(self._workspace, path)
        for place, hit in enumerate(asked.hits, 1):
            if hit.path == name:
                return FileExplanation(
                    path=name,
                    state="found",
                    place=place,
                    reason=f"number {place}, {hit.place}, by {hit.how}: {hit.why}",
                    parts={},
                )
        if (explained := last_step_about(asked.steps, name)) is not None:
            return explained
        matched = max((step.found for step in asked.steps), default=0)
        now = self._explain_now(name)
        if all(map(_tells_of_all, asked.steps)):
            reason = f"no step names it, and the log tells of every one of the {matched} files that matched"
            if now is None:
                return FileExplanation(path=name, state="unmatched", reason=reason)
            reason += f"; as the workspace is now, {now.reason}"
            return FileExplanation(path=name, state=now.state, reason=reason)
        if now is not None:
            reason = f"no step of the log names it; as the workspace is now, {now.reason}"
            return FileExplanation(path=name, state=now.state, reason=reason)
        reason = (
            f"{matched} files matched, and the log tells of the chosen ones and the next "
            f"{MAX_LISTED}: it is behind these, or did not match"
        )
        return FileExplanation(
            path=name,
            state="behind",
            reason=f"{full_stop(reason)} Ranked anew: kestrel search QUERY --explain {name}",
        )

    def _explain_now(self, path: str) -> FileExplanation | None:
        """Return why a file is not in the index of the workspace as it is now; `None` where it is, or where
        there is none.
        """
        index = CodeIndex(self._workspace, self._home)
        return explain_missing(index, path) if index.exists and self._workspace.is_dir() else None

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row per step."""
        rows: list[tuple[str, ...]] = []
        for asked in self.questions:
            for number, step in enumerate(asked.steps, 1):
                head = (one_line(asked.query, 60) if number == 1 else "", str(number), step.retriever)
                counts = (
                    str(step.arguments.get("top_k", "")),
                    str(step.found),
                    str(len(step.chosen)),
                    str(len(step.dropped)),
                )
                end = (
                    f"covers {asked.coverage:.0%}, stopped: {asked.stopped}"
                    if number == len(asked.steps) and asked.stopped
                    else ""
                )
                rows.append(
                    (*head, *counts, f"{step.seconds:.2f}", "; ".join(filter(None, (step.note, end))))
                )
        return _COLUMNS, rows

    def hits(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row per place that was found."""
        rows: list[tuple[str, ...]] = [
            (one_line(asked.query, 60), hit.place, hit.how, hit.why, f"{hit.score:.2f}")
            for asked in self.questions
            for hit in asked.hits
        ]
        return ("question", "place", "by", "why", "score"), rows

    def to_frame(self) -> pd.DataFrame:
        """A row per file chosen or dropped: `question`, `step`, `retriever`, `path`, `place`, `dropped`."""
        rows = []
        for asked in self.questions:
            for number, step in enumerate(asked.steps, 1):
                head = {"question": asked.query, "step": number, "retriever": step.retriever}
                rows += [
                    {**head, "path": path, "place": place, "dropped": ""}
                    for place, path in enumerate(step.chosen, 1)
                ]
                rows += [
                    {**head, "path": path, "place": None, "dropped": why}
                    for path, why in step.dropped.items()
                ]
        return unit_frame(rows, columns=["question", "step", "retriever", "path", "place", "dropped"])

    def parts(self) -> Iterable[Part]:
        """Return the steps and the places that were found."""
        return [Table(*self.table()), "", Table(*self.hits())] if self.questions else [_NOTHING]
