"""Kernel taint: whose words the variables and cells of a kernel may hold.

Nothing tells which variable was made of which text: code copies, joins and computes. So a kernel is tainted
as a whole, from the first code of an author who had read untrusted text, or the first code that read a
tainted file, until its process ends. A call that looks into a tainted kernel is recorded like one that read a
tainted file, by a `files_tainted` event.
"""

from __future__ import annotations

from kestrel_lab.tools.kernel.live_kernel import kernel_of, live_shell
from kestrel_lab.tools.tool import Tool

_SOURCES: dict[str, str] = {}
"""Source of untrusted words by kernel of this process.

Kernels end with the process, and sessions of one notebook share its kernel.
"""


class KernelTaint:
    """The taint of the kernel that a call works in."""

    def __init__(self, tool: Tool, run: str, *, in_notebook: bool) -> None:
        """Find the kernel: the notebook's, else the run's; `None` for a tool that reads no kernel."""
        self._run = run
        self._kernel = _kernel_id(run, in_notebook=in_notebook) if "kernel" in tool.flow.reads else ""
        self._sets = bool(self._kernel) and tool.flow.reaches != "nothing"

    @property
    def source(self) -> str:
        """Return whose words the kernel may contain; empty for none, and for calls without a kernel."""
        return _SOURCES.get(self._kernel, "")

    @property
    def sets(self) -> bool:
        """Return true if the call may leave data in the kernel."""
        return self._sets

    def mark(self, source: str) -> None:
        """Record that the call may have left words of `source` in the kernel; the first source stays."""
        if self._sets and source:
            _SOURCES.setdefault(
                self._kernel, f"the kernel, in which run {self._run} left what it made after it read {source}"
            )


def _kernel_id(run: str, *, in_notebook: bool) -> str:
    shell = live_shell() if in_notebook else None
    return run if shell is None else kernel_of(shell).id
