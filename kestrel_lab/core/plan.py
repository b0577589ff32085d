"""A plan: a directed acyclic graph of steps, valid by construction. It may grow, and never jumps back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.plan_shapes import planned_rows
from kestrel_lab.core.sanitize import AS_TEXT, sanitize_text
from kestrel_lab.core.step import STEPS, Step

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.figure import Figure

    from kestrel_lab.core.drawing.layout import Node

__all__ = ["REPORTS", "Plan", "Step", "conversation_step"]

REPORTS: Final = frozenset({"quality"})
"""Operations that report on an answer and never make one."""


ONLY_STEP: Final = "answer"
"""The id of the step of a plain run."""


def artifact_key(step: Step, name: str) -> str:
    """Return the key of an artifact among all of a plan, as `step` names it."""
    return f"{step.scope}/{name}" if step.scope else name


def conversation_step(plan: Mapping[str, Any]) -> str:
    """Return the id of the step that continues an earlier conversation: the first agent step of `plan`."""
    agents = [
        str(step.get("id"))
        for step in plan.get("steps") or ()
        if not step.get("tool") and not step.get("operation")
    ]
    return agents[0] if agents else ONLY_STEP


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps and what must hold at the end.

    Raises `UsageError` that names the steps for: no step, a step id used twice, an unknown dependency, a
    cycle, an artifact produced twice, an artifact consumed that nothing produces, values that are not JSON.
    Consuming an artifact depends on its producer, written or not.

    A step that is done may have grown more steps (`grown`). Whatever waits for it waits for these as well,
    and an artifact it produces is the one that they produce, if they do. Grown steps may produce an artifact
    anew: who comes later in the plan is given the last version before it.
    """

    steps: tuple[Step, ...]
    artifacts: dict[str, Json] = field(default_factory=dict)
    """Artifacts that exist before the first step; in `Run.plan` also what its steps made."""
    acceptance_criteria: tuple[str, ...] = ()
    """What the answer must meet: the operations `plan` and `verify` hold it to these."""
    _given: dict[str, Json] | None = field(default=None, init=False, repr=False, compare=False)
    """The artifacts before the first step, in a plan whose `artifacts` have what its steps made, too."""
    _growth: Mapping[str, tuple[str, ...]] | None = field(default=None, init=False, repr=False, compare=False)
    """What `growth` found."""
    _waits: dict[str, tuple[str, ...]] | None = field(default=None, init=False, repr=False, compare=False)
    """What `needs` found."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "acceptance_criteria", tuple(self.acceptance_criteria))
        if not self.steps:
            raise UsageError("the plan has no steps")
        names = [step.id for step in self.steps]
        if len(set(names)) < len(names):
            raise UsageError(
                f"step ids used twice: {', '.join(sorted({name for name in names if names.count(name) > 1}))}"
            )
        self._check_steps()
        producers = self._producers()
        if not any(step.depends_on or step.consumes or step.parent for step in self.steps):
            # Nothing waits for anything: the library for graphs, 40 MB with what it loads, is not needed.
            object.__setattr__(self, "_waits", dict.fromkeys(names, ()))
            return
        import networkx as nx

        graph = self._graph(producers)
        if unknown := sorted(set(graph) - {step.id for step in self.steps}):
            raise UsageError(f"steps depend on steps that are not in the plan: {', '.join(unknown)}")
        if not nx.is_directed_acyclic_graph(graph):
            cycle = " → ".join(edge[0] for edge in nx.find_cycle(graph))
            raise UsageError(f"steps wait for each other in a circle: {cycle}")

    @property
    def given(self) -> Mapping[str, Json]:
        """The artifacts that exist before the first step."""
        return self.artifacts if self._given is None else self._given

    def with_results(self, made: Mapping[str, Json], criteria: Iterable[str]) -> Plan:
        """Return the plan with what came of it in a run: in `artifacts` also what its steps made, and the
        criteria that were proposed while it ran. Its JSON has only the artifacts before the first step.
        """
        known = dict.fromkeys((*self.acceptance_criteria, *criteria))
        plan = replace(self, artifacts=dict(self.given), acceptance_criteria=tuple(known))
        object.__setattr__(plan, "_given", plan.artifacts)
        object.__setattr__(plan, "artifacts", {**plan.artifacts, **made})
        return plan

    def without_results(self) -> Plan:
        """Return the plan as it was before a run, to be carried out again."""
        return self if self._given is None else replace(self, artifacts=self._given)

    def needs(self) -> dict[str, tuple[str, ...]]:
        """For each step, the steps it waits for: named ones, producers of its inputs, and what these grew."""
        # Cached: each run asks several times, and a plan never changes.
        if self._waits is None:
            object.__setattr__(self, "_waits", self._needs(self._producers()))
        assert self._waits is not None
        return dict(self._waits)

    def growth(self) -> Mapping[str, tuple[str, ...]]:
        """For each step that grew others, all that came of it, in the order of the plan."""
        # Cached: each step of a run asks several times.
        if self._growth is not None:
            return self._growth
        parents = {step.id: step.parent for step in self.steps if step.parent}
        found: dict[str, list[str]] = {}
        for name in parents:
            # A damaged log may name a step as its own ancestor.
            above, seen = parents.get(name), {name}
            while above is not None and above not in seen:
                found.setdefault(above, []).append(name)
                seen.add(above)
                above = parents.get(above)
        growth = {name: tuple(steps) for name, steps in found.items()}
        object.__setattr__(self, "_growth", growth)
        return growth

    def source(self, step: Step, name: str) -> str | None:
        """Which step gives `step` the artifact `name`; `None` for one that is there before the first step."""
        place = {other.id: number for number, other in enumerate(self.steps)}
        key = artifact_key(step, name)
        return self._source(
            step, self._producers().get(key, ()), place, self.growth(), there=key in self.given
        )

    def grown(self, by: str, steps: Iterable[Step], artifacts: Mapping[str, Json] | None = None) -> Plan:
        """The plan with `steps` added, grown by the step `by`; raises `UsageError` like the constructor."""
        known = {**self.given, **(artifacts or {})}
        return replace(
            self, steps=(*self.steps, *(replace(step, parent=by) for step in steps)), artifacts=known
        )

    def graph(self) -> nx.DiGraph[str]:
        """Steps as nodes, an edge from each step to those that need it."""
        return self._graph(self._producers())

    def order(self) -> tuple[Step, ...]:
        """The steps, each after those it needs and otherwise as they are written: always the same order."""
        if not any(self.needs().values()):
            return self.steps
        import networkx as nx

        place = {step.id: number for number, step in enumerate(self.steps)}
        return tuple(
            self.steps[place[name]]
            for name in nx.lexicographical_topological_sort(self.graph(), key=place.__getitem__)
        )

    def ends(self, among: Collection[str] | None = None) -> tuple[Step, ...]:
        """Return the steps that no other step waits for, among all or some. Those of all give the run's
        answer.

        A final report on an answer does not count: a step that only such a report waits for is an end. If all
        ends are reports, they count.
        """
        if among is None and len(self.steps) == 1:
            return self.steps
        needs = {name: needs for name, needs in self.needs().items() if among is None or name in among}
        reports = {step.id for step in self.steps if step.operation in REPORTS} - {
            need for found in needs.values() for need in found
        }
        needed = {need for name, found in needs.items() if name not in reports for need in found}
        last = tuple(step for step in self.steps if step.id in needs and step.id not in needed)
        return tuple(step for step in last if step.id not in reports) or last

    def _needs(self, producers: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        growth = self.growth()
        within = {name: frozenset(steps) for name, steps in growth.items()}
        place = {step.id: number for number, step in enumerate(self.steps)}
        found: dict[str, tuple[str, ...]] = {}
        for step in self.steps:
            # A step that another one added cannot start before that one ends.
            waits = [step.parent, *step.depends_on] if step.parent else list(step.depends_on)
            for name in step.consumes:
                key = artifact_key(step, name)
                source = self._source(step, producers.get(key, ()), place, growth, there=key in self.given)
                if source is not None:
                    waits.append(source)
                elif key not in self.given:
                    only = f"in a circle: step {step.id!r} consumes {name!r}, which only it produces"
                    raise UsageError(
                        only
                        if name in step.produces
                        else f"step {step.id!r} consumes {name!r}, which no step produces"
                    )
            # A step also waits for the steps that its predecessors add, unless it is one of them.
            if growth:
                waits = [
                    name
                    for need in waits
                    for name in (need, *(() if step.id in within.get(need, ()) else growth.get(need, ())))
                ]
            found[step.id] = tuple(dict.fromkeys(waits))
        return found

    def _source(
        self,
        step: Step,
        producers: tuple[str, ...],
        place: Mapping[str, int],
        growth: Mapping[str, tuple[str, ...]],
        *,
        there: bool,
    ) -> str | None:
        """Return the last producer written before `step`, else `None` if the artifact was there before the
        first step, else the first producer.

        A step of the original plan never reads from steps that were added later.
        """
        others = [
            name
            for name in producers
            if name != step.id
            and step.id not in growth.get(name, ())
            and (step.parent or not self.steps[place[name]].parent)
        ]
        before = [name for name in others if place[name] < place[step.id]]
        if before:
            return before[-1]
        return others[0] if others and not there else None

    def _graph(self, producers: Mapping[str, tuple[str, ...]]) -> nx.DiGraph[str]:
        import networkx as nx  # a tenth of a second: not at import

        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(step.id for step in self.steps)
        graph.add_edges_from((need, step) for step, needs in self._needs(producers).items() for need in needs)
        return graph

    def _producers(self) -> dict[str, tuple[str, ...]]:
        producers: dict[str, tuple[str, ...]] = {}
        for step in self.steps:
            for name in step.produces:
                key = artifact_key(step, name)
                earlier = producers.get(key, ())
                # A step that was added while the plan ran, or that also consumes the artifact, makes its next
                # version.
                if step.parent or name in step.consumes:
                    pass
                elif earlier:
                    raise UsageError(f"steps {earlier[0]!r} and {step.id!r} both produce {name!r}")
                elif key in self.given:
                    raise UsageError(
                        f"step {step.id!r} produces {name!r}, which is there before the first step"
                    )
                producers[key] = (*earlier, step.id)
        return producers

    def _check_steps(self) -> None:
        for step in self.steps:
            if (condition := step.condition) and (
                unknown := sorted(condition.names - {*step.consumes, *step.given, STEPS})
            ):
                raise UsageError(
                    f"the condition of step {step.id!r} asks for {unknown[0]!r}, which the step does "
                    "not consume"
                )
        own = [
            (f"the {name} of step {step.id!r}", getattr(step, name))
            for step in self.steps
            for name in ("args", "given", "team")
        ]
        for whose, value in (("the artifacts", self.given), *own):
            try:
                if value:
                    dumps(value)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{whose} of the plan are not JSON: {error}") from error

    @classmethod
    def single(cls, goal: str) -> Plan:
        """The plan of a plain run: one agent works on the goal."""
        return cls(steps=(Step(id=ONLY_STEP, goal=goal),))

    @classmethod
    def from_json(cls, body: Mapping[str, Json]) -> Plan:
        """Rebuild what `as_json` gave; fields this version does not know are ignored.

        Raises `UsageError` for anything that is not a valid plan.
        """
        steps, artifacts, criteria = (
            body.get("steps"),
            body.get("artifacts") or {},
            body.get("acceptance_criteria") or [],
        )
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise UsageError("a plan needs a list of steps, each with an id")
        if not isinstance(artifacts, dict) or not isinstance(criteria, list):
            raise UsageError("a plan's artifacts are an object and its acceptance_criteria a list")
        return cls(
            steps=tuple(Step.from_json(step) for step in steps if isinstance(step, dict)),
            artifacts=artifacts,
            acceptance_criteria=tuple(map(str, criteria)),
        )

    def as_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object."""
        steps: list[Json] = [step.as_json() for step in self.steps]
        return {
            "steps": steps,
            "artifacts": dict(self.given),
            "acceptance_criteria": list(self.acceptance_criteria),
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and one row for each step in words; loops and graphs with their parts."""
        needs = self.needs()
        rows: list[tuple[str, ...]] = []
        for step in self.steps:
            plain_row = (
                step.id,
                step.stage,
                step.work,
                ", ".join(needs[step.id]),
                step.when,
                ", ".join(step.produces),
            )
            rows += planned_rows(step) or [plain_row]
        return ("step", "stage", "work", "after", "if", "produces"), rows

    def plot(self, states: Mapping[str, str] | None = None) -> Figure:
        """The plan as a figure: a notebook shows it, `savefig` stores it as PNG, SVG or PDF.

        `states` says how far each step is, `pending`, `running`, `waiting`, `ok`, `failed`, `skipped` or
        `stopped`: it is written in the step and colours its frame; steps not named are pending. Exclusive
        steps have a dashed frame.
        """
        from kestrel_lab.core.drawing.layout import lay_out  # drawings are loaded when the first is asked for
        from kestrel_lab.core.drawing.matplotlib_figure import plan_figure

        return plan_figure(lay_out(self.nodes(states)))

    def to_svg(self, states: Mapping[str, str] | None = None) -> str:
        """The plan as a self-contained SVG file, light or dark as the reader prefers; see `plot`."""
        from kestrel_lab.core.drawing.layout import lay_out
        from kestrel_lab.core.drawing.svg import plan_svg

        return plan_svg(lay_out(self.nodes(states)), alone=True)

    def nodes(self, states: Mapping[str, str] | None = None) -> tuple[Node, ...]:
        """The steps as drawings know them."""
        from kestrel_lab.core.drawing.layout import Node

        needs = self.needs()
        return tuple(
            Node(
                id=step.id,
                needs=needs[step.id],
                state="" if states is None else states.get(step.id, "pending"),
                work=step.work,
                stage=step.stage,
                parent=step.parent,
                exclusive=step.exclusive,
            )
            for step in self.steps
        )

    @property
    def _headline(self) -> str:
        return f"Plan of {format_count(len(self.steps), 'step')}"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """The plain form in IPython, and beside the drawing in a stored notebook."""
        names, rows = self.table()
        details = [
            "; ".join(f"{name} {text}" for name, text in zip(names[3:], row[3:], strict=True) if text)
            for row in rows
        ]
        lines = [
            f"  {row[0]}: {sanitize_text(f'{row[2]} ({more})' if more else row[2])}"
            for row, more in zip(rows, details, strict=True)
        ]
        printer.text("\n".join([self._headline, *lines]))

    def _repr_html_(self) -> str:
        from kestrel_lab.core.drawing.layout import lay_out
        from kestrel_lab.core.drawing.svg import plan_svg

        drawing = f'<div {AS_TEXT} style="overflow-x:auto">{plan_svg(lay_out(self.nodes()))}</div>'
        names, cells = self.table()
        heads = "".join(f'<th scope="col" style="text-align:left">{word}</th>' for word in names)
        rows = "".join(
            "<tr>"
            + "".join(f'<td style="text-align:left">{escape(sanitize_text(text))}</td>' for text in row)
            + "</tr>"
            for row in cells
        )
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        return f"{drawing}<details {AS_TEXT}><summary>{self._headline} as a table</summary>{table}</details>"
