"""A shell with variables, and a kernel around it, for tests that need no front end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from kestrel_lab.tools.kernel.live_kernel import ExecutionResult, LiveKernel
from kestrel_lab.tools.kernel.preview import Preview

SETUP = """
import numpy as np, pandas as pd
rng = np.random.default_rng(0)
df = pd.DataFrame({"day": pd.date_range("2025-01-01", periods=1200, freq="8h"), "sales": \
rng.random(1200).round(3)})
df.loc[:11, "sales"] = np.nan
x, items, table, arr = 3, [1, 2], {"a": [1]}, np.arange(5)
"""


def quiet_shell() -> Any:
    """A shell that keeps no history on disk."""
    kind: Any = InteractiveShell
    made = kind()
    made.history_manager.enabled = False
    return made


class Kernel:
    """One shell whose code is previewed, adopted, executed and undone."""

    def __init__(self, folder: Path, setup: str = SETUP) -> None:
        self.folder = folder
        self.shell = quiet_shell()
        self.shell.run_cell(setup)
        self.live = LiveKernel(self.shell)

    @property
    def ns(self) -> dict[str, Any]:
        """The variables."""
        return dict(self.shell.user_ns)

    def preview(self, code: str) -> Preview:
        """The preview of code."""
        return asyncio.run(self.live.preview(code, str(self.folder)))

    def adopt(self, code: str) -> ExecutionResult:
        """Take over what a preview of code computed."""
        return self.live.adopt(self.preview(code), "r", code)

    def execute(self, code: str) -> ExecutionResult:
        """Run code."""
        return asyncio.run(self.live.execute(code, str(self.folder), "r", code))
