"""Progress bar of a long job in a cell: one line, replaced at most five times a second."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING

from kestrel_lab.core.sanitize import AS_TEXT, one_line

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

INTERVAL_S = 0.2


class NotebookReporter:
    """A `Reporter` that shows a bar in the running cell; the last state stays in the notebook."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._shown_at = float("-inf")

    def __call__(self, done: int, total: int, note: str) -> None:
        """Show `done` of `total` unless something was shown just now; the end is always shown."""
        from IPython.display import DisplayHandle  # loaded on use

        now = time.monotonic()
        if done < total and now - self._shown_at < INTERVAL_S:
            return
        self._shown_at = now
        picture = Bar(done, total, note)
        if self._handle is None:
            self._handle = DisplayHandle()  # type: ignore[no-untyped-call]
            self._handle.display(picture)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(picture)  # type: ignore[no-untyped-call]


class Bar:
    """One state of a job, for display."""

    def __init__(self, done: int, total: int, note: str) -> None:
        self.text = f"{done:,} of {total:,}{f' · {one_line(note, 300)}' if note else ''}"
        self.html = (
            f'<div {AS_TEXT}><progress value="{done}" max="{max(total, 1)}" aria-label="progress"></progress> {escape(self.text)}</div>'
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}
