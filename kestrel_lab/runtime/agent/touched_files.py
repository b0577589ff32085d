"""Files that a call touched: of a command or a piece of code, which files of the workspace were other ones
when it ended.

The review of the answer reads it: a call that touched no file cannot have done what the answer says about
files.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.protocols import Handler
from kestrel_lab.runtime.agent.file_trace import paths_of
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.tools.files.workspace import SKIPPED

MOST_ENTRIES: Final = 20_000
"""Entries of a workspace that are compared: a listing of that size takes some .1 s.

In a larger one nothing is recorded.
"""
MOST_TOUCHED: Final = 1_000
"""Files that are recorded; where there are more, nothing is."""


class TouchedFiles(Struct, frozen=True):
    """A layer that compares the workspace's files before and after calls that may change any of them."""

    ctx: RunContext

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Proceed; the result of a call that names no file says which files were touched."""
        tool = self.ctx.tools.find(call.target)
        if tool is None or tool.flow.reaches != "workspace" or paths_of(call.args):
            return await proceed(call)
        before = await asyncio.to_thread(self._stamps)
        result = await proceed(call)
        if before is None or (after := await asyncio.to_thread(self._stamps)) is None:
            return result
        touched = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        return replace(result, touched=touched) if len(touched) <= MOST_TOUCHED else result

    def _stamps(self) -> dict[str, tuple[int, ...]] | None:
        """A stamp per file that changes with it; `None` for too many files or an unreadable folder."""
        workspace, home = self.ctx.given.workspace, str(self.ctx.services.store.path.resolve().parent)
        try:
            found = workspace.stamps(SKIPPED, home.removeprefix(f"{workspace.root}/"), MOST_ENTRIES)
        except OSError:
            # A folder that cannot be read whole cannot be compared.
            return None
        return found if len(found) <= MOST_ENTRIES else None
