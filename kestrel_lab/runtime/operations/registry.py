"""The table of operations that a step may name; each is imported when a step first does."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from kestrel_lab.runtime.execution.operation import Done, Operation, Scope

_MODULES = {
    "control_flow": ("escalation", "graph", "loop", "workflow"),
    "council": ("council",),
    "gather": ("bootstrap", "find_files", "gather"),
    "intake": ("converse", "intake"),
    "plan": ("plan",),
    "quality": ("quality",),
    "save_notes": ("commit",),
    "tree_of_thoughts": ("thoughts", "thoughts_expand", "thoughts_score"),
    "verify": ("verify",),
    "web_search": ("websearch", "websearch_facts", "websearch_pages", "websearch_report"),
}


def _imported_on_call(module: str, name: str) -> Operation:
    async def operation(scope: Scope) -> Done:
        found: Operation = getattr(import_module(f"kestrel_lab.runtime.operations.{module}"), name)
        return await found(scope)

    return operation


OPERATIONS: Mapping[str, Operation] = {
    name: _imported_on_call(module, name) for module, names in _MODULES.items() for name in names
}
WITHOUT_MODEL = frozenset(
    {
        "bootstrap",
        "gather",
        "loop",
        "graph",
        "council",
        "escalation",
        "workflow",
        "thoughts",
        "websearch_pages",
        "websearch_report",
    }
)
"""Operations that never ask a model."""
