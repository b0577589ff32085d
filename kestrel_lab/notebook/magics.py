"""`%kestrel` and `%%kestrel`: a run as a line or a cell of a notebook, and its result as a value."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from kestrel_lab.cli.frontend import files_named
from kestrel_lab.notebook.command_line import carry_out
from kestrel_lab.notebook.frontend import Notebook, NotebookFrontend, surface


@magics_class
class KestrelMagics(Magics):
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.notebook = Notebook(shell.user_ns)

    @no_var_expand
    @line_cell_magic
    def kestrel(self, line: str, cell: str | None = None) -> object:
        """Run, watch and steer agents: `%kestrel --help`."""
        return _shown(self._carry_out(line, cell, awaited=False))

    @no_var_expand
    @line_cell_magic
    def kestrel_await(self, line: str, cell: str | None = None) -> Awaitable[object]:
        """What `%kestrel` becomes at the top of a cell: the same, to be awaited."""
        return _result(self._carry_out(line, cell, awaited=True))

    def _carry_out(self, line: str, cell: str | None, *, awaited: bool) -> Any:
        frontend = NotebookFrontend(self.notebook, surface(self.shell), awaited=awaited)
        with files_named():
            return frontend.finish(carry_out(line, cell, frontend, self.notebook.variables))


async def _result(found: Any) -> object:
    with files_named():
        return _shown(await found if inspect.isawaitable(found) else found)


def _shown(found: object) -> object:
    """What a cell gives; a sentence is printed instead."""
    if isinstance(found, str):
        print(found)  # noqa: T201  # a notebook shows what is printed
        return None
    return found
