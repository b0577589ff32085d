"""A plan: a directed acyclic graph of steps, valid by construction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json, dumps
from kestrel_lab.core.text import plain

if TYPE_CHECKING:
    import networkx as nx

START_STEP = "start_step"
"""Stands for a tool's name in the question whether an agent may begin a step that needs approval."""
_REFERENCE = re.compile(r"\{\{([^{}\s]+)\}\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One piece of work: a goal for an agent, or one call of a tool.

    Raises `UsageError` that names the step unless it has exactly one of `goal` and `tool`.
    """

    id: str
    goal: str = ""
    tool: str = ""
    """Name of the tool to call, with `args`."""
    args: dict[str, Json] = field(default_factory=dict)
    """Arguments of the call. A value that is all of `"{{name}}"` stands for the consumed artifact of that name."""
    depends_on: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    """Names under which others may consume what this step answers."""
    consumes: tuple[str, ...] = ()
    parallelizable: bool = True
    """Whether it may run beside other steps; those that may not run one at a time, in a fixed order."""
    needs_approval: bool = False
    """Whether it is put to the approval policy before it begins, as a call of danger HIGH."""
    stage: str = ""
    """A heading for readers; it orders nothing."""

    def __post_init__(self) -> None:
        if not self.id.strip():
            msg = "a step has an empty id: name it"
            raise UsageError(msg)
        if bool(self.goal.strip()) == bool(self.tool):
            msg = f"step {self.id!r} has {'both a goal and a tool' if self.tool else 'neither a goal nor a tool'}: give exactly one"
            raise UsageError(msg)
        if self.args and not self.tool:
            msg = f"step {self.id!r} has args without a tool"
            raise UsageError(msg)
        for name in _MANY:
            value = getattr(self, name)
            if isinstance(value, str):
                msg = f"{name} of step {self.id!r} must be a list, not the text {value!r}"
                raise UsageError(msg)
            object.__setattr__(self, name, tuple(value))
        if unknown := [name for name in self.references.values() if name not in self.consumes]:
            msg = f"step {self.id!r} refers to {unknown[0]!r}, which it does not consume"
            raise UsageError(msg)

    @property
    def references(self) -> dict[str, str]:
        """Arguments that stand for an artifact, with its name."""
        found = {key: _REFERENCE.fullmatch(value) for key, value in self.args.items() if isinstance(value, str)}
        return {key: match[1] for key, match in found.items() if match}

    @property
    def exclusive(self) -> bool:
        """Whether it never runs beside another step of this kind."""
        return self.needs_approval or not self.parallelizable


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps and what must hold at the end.

    Raises `UsageError` that names the steps for: no step, a step id used twice, an unknown dependency, a
    cycle, an artifact produced twice, an artifact consumed that nothing produces, values that are not JSON.
    Consuming an artifact depends on its producer, written or not.
    """

    steps: tuple[Step, ...]
    artifacts: dict[str, Json] = field(default_factory=dict)
    """Artifacts that exist before the first step."""
    acceptance_criteria: tuple[str, ...] = ()
    """For readers; no check is made from them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "acceptance_criteria", tuple(self.acceptance_criteria))
        if not self.steps:
            msg = "the plan has no steps"
            raise UsageError(msg)
        if repeated := sorted(name for name, times in Counter(step.id for step in self.steps).items() if times > 1):
            msg = f"step ids used twice: {', '.join(repeated)}"
            raise UsageError(msg)
        self._check_json()
        if not any(step.depends_on or step.consumes for step in self.steps):
            # Nothing waits for anything: the library for graphs, 40 MB with what it loads, is not needed.
            self._producers()
            return
        import networkx as nx

        graph = self.graph()
        if unknown := sorted(set(graph) - {step.id for step in self.steps}):
            msg = f"steps depend on steps that are not in the plan: {', '.join(unknown)}"
            raise UsageError(msg)
        if not nx.is_directed_acyclic_graph(graph):
            cycle = " → ".join(edge[0] for edge in nx.find_cycle(graph))
            msg = f"steps wait for each other in a circle: {cycle}"
            raise UsageError(msg)

    def needs(self) -> dict[str, tuple[str, ...]]:
        """For each step, in the order written, the steps it waits for: named ones and producers of what it consumes."""
        producer = self._producers()
        found: dict[str, tuple[str, ...]] = {}
        for step in self.steps:
            waits = list(step.depends_on)
            for name in step.consumes:
                if name in producer:
                    waits.append(producer[name])
                elif name not in self.artifacts:
                    msg = f"step {step.id!r} consumes {name!r}, which no step produces"
                    raise UsageError(msg)
            found[step.id] = tuple(dict.fromkeys(waits))
        return found

    def graph(self) -> nx.DiGraph[str]:
        """Steps as nodes, an edge from each step to those that need it."""
        import networkx as nx  # a tenth of a second: not at import

        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(step.id for step in self.steps)
        graph.add_edges_from((need, step) for step, needs in self.needs().items() for need in needs)
        return graph

    def order(self) -> tuple[Step, ...]:
        """The steps, each after those it needs and otherwise as they are written: always the same order."""
        if not any(self.needs().values()):
            return self.steps
        import networkx as nx

        place = {step.id: number for number, step in enumerate(self.steps)}
        return tuple(self.steps[place[name]] for name in nx.lexicographical_topological_sort(self.graph(), key=place.__getitem__))

    def ends(self) -> tuple[Step, ...]:
        """The steps that nothing waits for: their answers are the run's."""
        needed = {need for needs in self.needs().values() for need in needs}
        return tuple(step for step in self.steps if step.id not in needed)

    def _producers(self) -> dict[str, str]:
        producer: dict[str, str] = {}
        for step in self.steps:
            for name in step.produces:
                if name in producer:
                    msg = f"steps {producer[name]!r} and {step.id!r} both produce {name!r}"
                    raise UsageError(msg)
                if name in self.artifacts:
                    msg = f"step {step.id!r} produces {name!r}, which is there before the first step"
                    raise UsageError(msg)
                producer[name] = step.id
        return producer

    def _check_json(self) -> None:
        for whose, value in (("the artifacts", self.artifacts), *((f"the args of step {step.id!r}", step.args) for step in self.steps)):
            try:
                if value:
                    dumps(value)
            except (TypeError, ValueError) as error:
                msg = f"{whose} of the plan are not JSON: {error}"
                raise UsageError(msg) from error

    @classmethod
    def single(cls, goal: str) -> Plan:
        """The plan of a plain run: one agent works on the goal."""
        return cls(steps=(Step(id="answer", goal=goal),))

    @classmethod
    def from_json(cls, body: Mapping[str, Json]) -> Plan:
        """Rebuild what `as_json` gave; fields this version does not know are ignored.

        Raises `UsageError` for anything that is no valid plan.
        """
        steps = body.get("steps")
        if not isinstance(steps, list) or not all(isinstance(step, dict) and isinstance(step.get("id"), str) for step in steps):
            msg = "a plan needs a list of steps, each with an id"
            raise UsageError(msg)
        specs = cast("list[dict[str, Any]]", steps)
        artifacts, criteria = body.get("artifacts") or {}, body.get("acceptance_criteria") or []
        if not isinstance(artifacts, dict) or not isinstance(criteria, list):
            msg = "a plan's artifacts are an object and its acceptance_criteria a list"
            raise UsageError(msg)
        for step in specs:
            for name, kind in _KINDS.items():
                if name in step and not isinstance(step[name], kind):
                    msg = f"{name} of step {step['id']!r} cannot be {step[name]!r}"
                    raise UsageError(msg)
        return cls(
            steps=tuple(Step(**{name: step[name] for name in _STEP if name in step}) for step in specs),
            artifacts=artifacts,
            acceptance_criteria=tuple(map(str, criteria)),
        )

    def as_json(self) -> dict[str, Json]:
        """The same as a JSON object."""
        steps: list[Json] = [
            {name: list(value) if isinstance(value, tuple) else value for name, value in ((name, getattr(step, name)) for name in _STEP)}
            for step in self.steps
        ]
        return {"steps": steps, "artifacts": self.artifacts, "acceptance_criteria": list(self.acceptance_criteria)}

    def _repr_html_(self) -> str:
        needs = self.needs()
        heads = "".join(f'<th scope="col" style="text-align:left">{word}</th>' for word in ("step", "stage", "work", "after", "produces"))
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{escape(plain(text))}</td>' for text in cells) + "</tr>"
            for step in self.steps
            for cells in [(step.id, step.stage, step.goal or f"call {step.tool}", ", ".join(needs[step.id]), ", ".join(step.produces))]
        )
        return f"<table><caption>Plan</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


_STEP = tuple(Step.__dataclass_fields__)
_MANY = ("depends_on", "produces", "consumes")
_KINDS: dict[str, type] = {
    **dict.fromkeys(("goal", "tool", "stage"), str),
    **dict.fromkeys(_MANY, list),
    **dict.fromkeys(("parallelizable", "needs_approval"), bool),
    "args": dict,
}
"""What the fields of a step are in JSON."""
