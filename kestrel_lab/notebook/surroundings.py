"""What a notebook shows of runs and suites that Python code waits for: `await lab.run(…)`, `await lab.eval(…)`."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from kestrel_lab.host.user import user_name
from kestrel_lab.notebook.frontend import Notebook, surface
from kestrel_lab.notebook.panel import Panel
from kestrel_lab.notebook.prompt import PromptApprover, ask_here
from kestrel_lab.notebook.suite_board import NotebookReporter

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter, Watcher


class NotebookSurroundings:
    """Shows runs in panels and suites on boards, in the cell that waits for them."""

    def __init__(self, notebook: Notebook, shell: Any) -> None:
        self._notebook, self._shell = notebook, shell

    def watcher(self) -> Watcher | None:
        """A panel, where the kernel's own event loop waits and somebody looks."""
        if not self._looked_at():
            return None
        return Panel(user=user_name(), fallback=PromptApprover(ask_here), shown=self._notebook.take)

    def reporter(self) -> Reporter | None:
        """A bar, which becomes a board where trials are counted."""
        return NotebookReporter(self._notebook.lab) if self._looked_at() else None

    def _looked_at(self) -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return threading.current_thread() is threading.main_thread() and surface(self._shell) == "panel"
