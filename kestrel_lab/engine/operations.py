"""Every operation a step may name."""

from __future__ import annotations

from collections.abc import Mapping

from kestrel_lab.engine.bootstrap import bootstrap
from kestrel_lab.engine.conversing import converse
from kestrel_lab.engine.filesearch import find_files
from kestrel_lab.engine.gathering import gather
from kestrel_lab.engine.graph import graph
from kestrel_lab.engine.intake import intake
from kestrel_lab.engine.loop import loop
from kestrel_lab.engine.operation import Operation
from kestrel_lab.engine.planning import plan
from kestrel_lab.engine.quality import quality
from kestrel_lab.engine.remembering import commit
from kestrel_lab.engine.thinking import thoughts_expand, thoughts_score
from kestrel_lab.engine.thoughts import thoughts
from kestrel_lab.engine.verifying import verify
from kestrel_lab.engine.websearch import websearch, websearch_facts, websearch_pages, websearch_report

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
"""Those that never ask a model."""
