"""The operations that a step may name."""

from __future__ import annotations

from collections.abc import Mapping

from kestrel_lab.runtime.execution.operation import Operation
from kestrel_lab.runtime.operations.find_files import find_files
from kestrel_lab.runtime.operations.gather import bootstrap, gather
from kestrel_lab.runtime.operations.graph import graph
from kestrel_lab.runtime.operations.intake import converse, intake
from kestrel_lab.runtime.operations.loop import loop
from kestrel_lab.runtime.operations.plan import plan
from kestrel_lab.runtime.operations.quality import quality
from kestrel_lab.runtime.operations.save_notes import commit
from kestrel_lab.runtime.operations.tree_of_thoughts import thoughts, thoughts_expand, thoughts_score
from kestrel_lab.runtime.operations.verify import verify
from kestrel_lab.runtime.operations.web_search import websearch, websearch_facts, websearch_pages, websearch_report

OPERATIONS: Mapping[str, Operation] = {
    "bootstrap": bootstrap,
    "gather": gather,
    "find_files": find_files,
    "intake": intake,
    "plan": plan,
    "verify": verify,
    "quality": quality,
    "commit": commit,
    "loop": loop,
    "converse": converse,
    "graph": graph,
    "thoughts": thoughts,
    "thoughts_expand": thoughts_expand,
    "thoughts_score": thoughts_score,
    "websearch": websearch,
    "websearch_pages": websearch_pages,
    "websearch_facts": websearch_facts,
    "websearch_report": websearch_report,
}
WITHOUT_MODEL = frozenset({"bootstrap", "gather", "loop", "graph", "thoughts", "websearch_pages", "websearch_report"})
"""Operations that never ask a model."""
