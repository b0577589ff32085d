"""Run, watch, steer and measure LLM agents: a durable runtime for notebooks and scripts, and evaluation one
can trust.

    from kestrel_lab import Lab, Limits, tool

Everything promised is named in `__all__`; anything else may move. Importing this package reads no
file, opens no connection and loads nothing heavy: names are looked up when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kestrel_lab.host import safe_imports as modules
from kestrel_lab.host.version import __version__

modules.install_guard()

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from kestrel_lab.agents import GraphAgent, LLMAgent, ReActAgent
    from kestrel_lab.checks.decorator import check
    from kestrel_lab.core.calls import Danger, Usage
    from kestrel_lab.core.errors import ApprovalRequired, KestrelError, RunCancelled, RunFailed, UsageError
    from kestrel_lab.core.plan import Plan, Step
    from kestrel_lab.core.run_types import Limits, RunStatus
    from kestrel_lab.evals.commits.compare import Comparison
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.evals.metrics import metric
    from kestrel_lab.evals.suite import Scenario, Suite
    from kestrel_lab.lab import Lab
    from kestrel_lab.runtime.run import Run
    from kestrel_lab.tools.decorator import tool
    from kestrel_lab.tools.tool import Tool, Toolbox, ToolContext

__all__ = [
    "ApprovalRequired",
    "Comparison",
    "Danger",
    "EvalResult",
    "GraphAgent",
    "KestrelError",
    "LLMAgent",
    "Lab",
    "Limits",
    "Plan",
    "ReActAgent",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunStatus",
    "Scenario",
    "Step",
    "Suite",
    "Tool",
    "ToolContext",
    "Toolbox",
    "Usage",
    "UsageError",
    "__version__",
    "check",
    "metric",
    "tool",
]

_HOMES = {
    "ApprovalRequired": "kestrel_lab.core.errors",
    "Comparison": "kestrel_lab.evals.commits.compare",
    "Danger": "kestrel_lab.core.calls",
    "EvalResult": "kestrel_lab.evals.execution.result",
    "GraphAgent": "kestrel_lab.agents",
    "KestrelError": "kestrel_lab.core.errors",
    "LLMAgent": "kestrel_lab.agents",
    "Lab": "kestrel_lab.lab",
    "Limits": "kestrel_lab.core.run_types",
    "Plan": "kestrel_lab.core.plan",
    "ReActAgent": "kestrel_lab.agents",
    "Run": "kestrel_lab.runtime.run",
    "RunCancelled": "kestrel_lab.core.errors",
    "RunFailed": "kestrel_lab.core.errors",
    "RunStatus": "kestrel_lab.core.run_types",
    "Scenario": "kestrel_lab.evals.suite",
    "Step": "kestrel_lab.core.plan",
    "Suite": "kestrel_lab.evals.suite",
    "Tool": "kestrel_lab.tools.tool",
    "ToolContext": "kestrel_lab.tools.tool",
    "Toolbox": "kestrel_lab.tools.tool",
    "Usage": "kestrel_lab.core.calls",
    "UsageError": "kestrel_lab.core.errors",
    "check": "kestrel_lab.checks.decorator",
    "metric": "kestrel_lab.evals.metrics",
    "tool": "kestrel_lab.tools.decorator",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'kestrel_lab' has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def load_ipython_extension(ip: InteractiveShell) -> None:
    """`%load_ext kestrel_lab`: add the `%kestrel` magics."""
    import_module("kestrel_lab.notebook.magics").load_ipython_extension(ip)


def unload_ipython_extension(ip: InteractiveShell) -> None:
    """`%unload_ext kestrel_lab`."""
    import_module("kestrel_lab.notebook.magics").unload_ipython_extension(ip)
