"""The notebook in the page that shows it, for the agent's tools: cells with what is not saved yet, changed
where the user sees it.

The page compares and changes in one step, and the change is part of its own history, so that Ctrl+Z takes it
back too. Where a notebook is open in several pages, all questions after the first go to the page that
answered that one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from kestrel_lab.core.errors import ConflictError, ToolError
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.documents import Cell, Swap

HERE_S: Final = 2.0
"""Seconds that a page may take to say that it is there."""
ANSWER_S: Final = 20.0


class PageDocument:
    """The cells in the page of one panel. Its methods block; `answered` may be called on any thread."""

    how = "the page that shows the notebook"

    def __init__(
        self,
        send: Callable[[dict[str, Json]], object],
        heard: Callable[[float], bool],
        listen: Callable[[], object],
    ) -> None:
        """`heard` waits for a page's first message; `listen` receives while the main thread waits."""
        self._send, self._heard, self._listen = send, heard, listen
        self._page = ""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[threading.Event, dict[str, Json]]] = {}

    def here(self) -> bool:
        """Whether a page answers that gives access to its notebook."""
        if not self._heard(HERE_S):
            return False
        self._page = ""
        try:
            self._page = str(self._asked({"op": "here"}, HERE_S)["page"])
        except ToolError:
            return False
        return True

    def read(self, whole: str = "") -> list[Cell]:
        """Return the cells as the page has them; outputs only as texts and types, except those of `whole`."""
        return cast("list[Cell]", self._asked({"op": "read", "whole": whole}, ANSWER_S)["cells"])

    def swap(self, swap: Swap, *, force: bool = False) -> str:
        """Change a cell in the page; `ConflictError` where it is not as expected."""
        request: dict[str, Any] = {**swap.as_json(), "force": force}
        answer = self._asked({"op": "swap", **request}, ANSWER_S)
        if answer.get("conflict"):
            raise ConflictError(
                f"cell {swap.cell} {answer['conflict']}: nothing was changed; read the notebook again"
            )
        return ""

    def answered(self, content: dict[str, Json]) -> None:
        """Take the answer of a page."""
        number = content.get("n")
        waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
        if waiting is not None:
            waiting[1].update(content)
            waiting[0].set()

    def _asked(self, question: dict[str, Json], seconds: float) -> dict[str, Json]:
        if threading.current_thread() is threading.main_thread():
            self._listen()
        number, came, answer = next(self._numbers), threading.Event(), dict[str, Json]()
        self._waiting[number] = came, answer
        self._send({"k": "cells", "n": number, "page": self._page, **question})
        if not came.wait(seconds):
            self._waiting.pop(number, None)
            raise ToolError(f"the page with the notebook did not answer in {seconds:g} s: is it still open?")
        if answer.get("problem"):
            raise ToolError(f"the page gives no access to its notebook: {answer['problem']}")
        return answer
