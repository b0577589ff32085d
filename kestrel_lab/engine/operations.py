"""Every operation a step may name."""

from __future__ import annotations

from collections.abc import Mapping

from kestrel_lab.engine.graph import graph
from kestrel_lab.engine.loop import loop
from kestrel_lab.engine.operation import Operation
from kestrel_lab.engine.planning import plan

OPERATIONS: Mapping[str, Operation] = {"plan": plan, "loop": loop, "graph": graph}
