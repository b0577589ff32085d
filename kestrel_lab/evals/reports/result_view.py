"""What results of evals share: a short `repr`, text with headline, table and notes, and files that they are
written to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kestrel_lab.views.html.table_view import TableView


class ResultView(TableView):
    """Base of results whose text takes long to make; `asyncio.run` makes the `repr` of a finished task's
    result, so that one is short.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{self.headline}>"

    def __str__(self) -> str:
        rows = ["  " + "  ".join(cell for cell in row if cell) for row in self.table()[1]]
        return "\n".join([self.headline, *rows, *(f"  {line}" for line in self.lines())])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython shows in a terminal."""
        printer.text(str(self))


def write_text(path: str | Path, text: str) -> Path:
    """Write a file, its folder made where it is missing; returns its path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target
