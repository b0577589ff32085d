"""A plan: a directed acyclic graph of steps, valid by construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One piece of work."""

    id: str
    goal: str
    depends_on: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()
    parallelizable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps and what must hold at the end.

    Raises `UsageError` that names the steps for: a step id used twice, an unknown dependency, a cycle,
    an artifact produced twice, an artifact consumed that nothing produces. Consuming an artifact
    depends on its producer, written or not.
    """

    steps: tuple[Step, ...]
    artifacts: dict[str, Json] = field(default_factory=dict)
    """Artifacts that exist before the first step."""
    acceptance_criteria: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ids = [step.id for step in self.steps]
        if repeated := sorted({i for i in ids if ids.count(i) > 1}):
            msg = f"step ids used twice: {', '.join(repeated)}"
            raise UsageError(msg)
        if not any(step.depends_on or step.consumes for step in self.steps):
            # Nothing waits for anything: the library for graphs, 40 MB with what it loads, is not needed.
            self._producers()
            return
        import networkx as nx

        graph = self.graph()
        if unknown := sorted(set(graph) - set(ids)):
            msg = f"steps depend on steps that are not in the plan: {', '.join(unknown)}"
            raise UsageError(msg)
        if not nx.is_directed_acyclic_graph(graph):
            cycle = " → ".join(edge[0] for edge in nx.find_cycle(graph))
            msg = f"steps wait for each other in a circle: {cycle}"
            raise UsageError(msg)

    def graph(self) -> nx.DiGraph[str]:
        """Steps as nodes, an edge from each step to those that need it."""
        import networkx as nx  # a tenth of a second: not at import

        producer = self._producers()
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(step.id for step in self.steps)
        for step in self.steps:
            needs = list(step.depends_on)
            for name in step.consumes:
                if name in producer:
                    needs.append(producer[name])
                elif name not in self.artifacts:
                    msg = f"step {step.id!r} consumes {name!r}, which no step produces"
                    raise UsageError(msg)
            graph.add_edges_from((need, step.id) for need in needs)
        return graph

    def _producers(self) -> dict[str, str]:
        producer: dict[str, str] = {}
        for step in self.steps:
            for name in step.produces:
                if name in producer:
                    msg = f"steps {producer[name]!r} and {step.id!r} both produce {name!r}"
                    raise UsageError(msg)
                producer[name] = step.id
        return producer

    @classmethod
    def single(cls, goal: str) -> Plan:
        """The plan of a plain run: one agent works on the goal."""
        return cls(steps=(Step(id="answer", goal=goal),))

    def as_json(self) -> dict[str, Json]:
        """The same as a JSON object."""
        steps: list[Json] = [
            {name: list(value) if isinstance(value, tuple) else value for name, value in ((name, getattr(step, name)) for name in _STEP)}
            for step in self.steps
        ]
        return {"steps": steps, "artifacts": self.artifacts, "acceptance_criteria": list(self.acceptance_criteria)}


_STEP = tuple(Step.__dataclass_fields__)
