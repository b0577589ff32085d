"""`%kestrel` at the top of a cell becomes `await …`, so that the cell waits and the kernel goes on.

Only a magic at the beginning of a line is rewritten, and only in a cell that is about to run: code
that a running cell hands to IPython once more (`%%time`, `%%capture`) may not contain `await`.
"""

from __future__ import annotations

import re
from typing import Any

MAGIC = "kestrel"
AWAITED = "kestrel_await"

_CALL = re.compile(rf"^((?:[A-Za-z_]\w*\s*=\s*)?)get_ipython\(\)\.run_(cell|line)_magic\('{MAGIC}',")
# IPython refuses a cell without a body, in words of its own and without an error that programs see.
_EMPTY = re.compile(rf"^(await get_ipython\(\)\.run_cell_magic\('{AWAITED}', .*, )''\)$")


class AwaitRewriter:
    """An input transformer for one IPython shell, and the hooks that tell it whether a cell is running."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._running = False

    def began(self, *_: object) -> None:
        """A cell starts."""
        self._running = True

    def ended(self, *_: object) -> None:
        """A cell is over."""
        self._running = False

    def __call__(self, lines: list[str]) -> list[str]:
        """The lines of a cell, its magics already turned into calls, with `await` where one is possible."""
        if self._running or not self._shell.autoawait or getattr(self._shell, "kernel", None) is None:
            return lines
        return [_EMPTY.sub(r"\1'\\n')", _CALL.sub(rf"\1await get_ipython().run_\2_magic('{AWAITED}',", line)) for line in lines]

    def install(self) -> None:
        """Put the transformer and its hooks into the shell."""
        self._shell.input_transformers_post.append(self)
        self._shell.events.register("pre_run_cell", self.began)
        self._shell.events.register("post_run_cell", self.ended)
        # Loaded by a cell, which runs while this is installed.
        self._running = True

    def remove(self) -> None:
        """Take them out again."""
        self._shell.input_transformers_post.remove(self)
        self._shell.events.unregister("pre_run_cell", self.began)
        self._shell.events.unregister("post_run_cell", self.ended)
