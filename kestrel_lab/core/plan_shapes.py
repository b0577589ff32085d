"""Shapes of plans: in sequence, in parallel, loop, graph, router, ensemble, council, escalation, and one plan
within another.

What is not known beforehand is a step that grows the plan while it runs: `loop`, `graph`, `council_plan`,
`escalation`, `workflow`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.expressions.conditions import parse_condition
from kestrel_lab.core.expressions.templates import escape_template, render_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.step import STEPS, Step

if TYPE_CHECKING:
    from kestrel_lab.core.plan import Plan

MAX_ROUNDS: Final = 50
"""Most rounds of a loop."""
MAX_VISITS: Final = 200
"""Most visits of the nodes of a graph with cycles, all together."""

MAX_COUNCIL_ROUNDS: Final = 10
_SHARE: dict[str, Json] = {"type": "number", "minimum": 0, "maximum": 1}
_TEXT: dict[str, Json] = {"type": "string"}
CONFIDENT: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {"answer": _TEXT, "confidence": _SHARE},
    "required": ["answer", "confidence"],
    "additionalProperties": False,
}
"""JSON Schema of an answer with the confidence that its agent states."""

AtLimit = Literal["fail", "continue"]
"""What a loop or graph does at its limit: fail the run, or go on with its last result and say so."""


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """State and limits of a loop, or of a graph with cycles."""

    state: Mapping[str, Json] = field(default_factory=dict)
    """Artifacts and their values before the first round or node; steps that produce them replace the values.
    """
    limit: int | None = None
    """Most rounds of a loop, or visits of all nodes of a graph together; needed where edges lead back."""
    at_limit: AtLimit = "fail"
    """Whether the run fails at the limit."""
    result: str = ""
    """The artifact that is the answer; by default what the last step or wave makes."""

    def args(self) -> dict[str, Json]:
        """Return the operation's arguments; its state is in the plan."""
        return {"limit": self.limit, "at_limit": self.at_limit, "result": self.result}


@dataclass(frozen=True, kw_only=True)
class Unsure:
    """What a router does when it is not sure enough of its choice."""

    below: float = field(default=0.0, metadata={"ge": 0, "le": 1})
    """Confidence of the router below which `otherwise` is taken."""
    otherwise: str = ""
    """The route to take then."""


@dataclass(frozen=True, kw_only=True)
class Voting:
    """The rounds of a council, and when its vote counts as split."""

    rounds: int = field(default=2, metadata={"ge": 1, "le": MAX_COUNCIL_ROUNDS})
    """Rounds before the vote."""
    majority: float = field(default=0.5, metadata={"ge": 0, "lt": 1})
    """A vote is split where no position has a larger share of the votes."""


_NO_REPEATS: Final = Repeats()
_SURE: Final = Unsure()
_USUAL_VOTING: Final = Voting()


@dataclass(frozen=True, slots=True)
class Part:
    """A step of a shape; the shape decides what it depends on."""

    step: Step
    fed: bool = False
    """Whether it also consumes what the steps before it produce."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one node of a graph to another."""

    source: str = field(metadata={"alias": "from"})
    target: str = field(metadata={"alias": "to"})
    when: str = ""
    """Condition on artifacts, asked when the node it comes from is done; always followed if empty."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Steps of a plan, and the artifacts that must be there before them."""

    steps: tuple[Step, ...]
    artifacts: dict[str, Json] = field(default_factory=dict)


def in_sequence(parts: Iterable[Part]) -> Shape:
    """Steps in sequence, each given the last result; after one that may be skipped, also the earlier one."""
    steps: list[Step] = []
    left: Sequence[str] = ()
    for part in parts:
        step = _with_inputs(part.step, left if part.fed else (), [steps[-1].id] if steps else [])
        left = (*left, *step.produces) if step.when else step.produces
        steps.append(step)
    return Shape(tuple(steps))


def side_by_side(parts: Sequence[Part], join: Part | None = None) -> Shape:
    """Return the steps to run in parallel, then `join`, which consumes what they produce if it is `fed`."""
    steps = tuple(part.step for part in parts)
    if join is None:
        return Shape(steps)
    made = tuple(name for step in steps for name in step.produces)
    return Shape((*steps, _with_inputs(join.step, made if join.fed else (), [step.id for step in steps])))


def loop_plan(parts: Sequence[Part], repeats: Repeats, *, until: str, name: str = "loop") -> Shape:
    """Return a plan that repeats the parts in sequence until `until` holds, at most `limit` times.

    Each round can read what the round before produced. In the first round these artifacts are null, or as
    the state says.
    Raises `UsageError` for a condition that cannot be read, and a limit out of bounds.
    """
    _check_limit(repeats.limit, MAX_ROUNDS)
    body = tuple(_check_repeatable(step) for step in in_sequence(parts).steps)
    artifacts = _initial_artifacts(body, repeats.state)
    condition_names(until)
    args: dict[str, Json] = {
        "body": [step.as_json() for step in body],
        "until": until,
        **repeats.args(),
        "result": repeats.result or body[-1].produces[-1],
    }
    return Shape((Step(id=_free_name(name, body), operation="loop", args=escape_template(args)),), artifacts)


def along_edges(
    parts: Sequence[Part],
    edges: Sequence[Edge],
    repeats: Repeats = _NO_REPEATS,
    *,
    start: Sequence[str] = (),
    name: str = "graph",
) -> Shape:
    """A node runs if an edge leads to it from a node that ran, and the edge's condition holds.

    Without cycles each node runs at most once, after all that could lead to it, and the answer is what the
    last ones answered. With cycles nodes run in waves: those to which an edge leads from the wave before;
    the limit, then needed, is the most visits of all nodes together.

    Args:
        parts: The nodes, in the order in which they go where more than one may.
        edges: What leads from one to another.
        repeats: The state before the first node; the limit and the answer of a graph with cycles.
        start: Nodes that run first; by default those to which no edge leads.
        name: Id of the step that grows the nodes, for graphs with cycles.

    Raises:
        UsageError: For edges from or to nowhere, unreachable nodes, invalid conditions, and a cycle without a
            limit.
    """
    nodes = {part.step.id: part for part in parts}
    targets = {edge.target for edge in edges}
    first = tuple(start) or tuple(node for node in nodes if node not in targets)
    _check_edges(nodes, edges, first)
    into = {node: tuple(edge for edge in edges if edge.target == node) for node in nodes}
    # A cycle cannot be a plan, which is acyclic: one step then grows a wave of nodes at a time.
    cycle = _cycle(into)
    fed = [_with_artifacts(part, into[node], nodes) for node, part in nodes.items()]
    if cycle:
        if repeats.limit is None:
            raise UsageError(
                f"the graph goes in a circle, {' → '.join(cycle)}: give it a limit, the most visits of "
                "its nodes"
            )
        _check_limit(repeats.limit, MAX_VISITS)
        body = tuple(map(_check_repeatable, fed))
        ways: list[Json] = [
            {"source": edge.source, "target": edge.target, "when": edge.when} for edge in edges
        ]
        args: dict[str, Json] = {
            "nodes": [step.as_json() for step in body],
            "edges": ways,
            "start": list(first),
            **repeats.args(),
        }
        return Shape(
            (Step(id=_free_name(name, body), operation="graph", args=escape_template(args)),),
            _initial_artifacts(body, repeats.state),
        )
    if repeats.result:
        raise UsageError(
            "result is only for graphs with cycles: in this graph the answer is that of the last nodes"
        )
    # In this order, so that a node's condition can refer to what the nodes before it produce.
    given, steps = dict(repeats.state), {step.id: step for step in fed}
    for node in _topological_order(into):
        led = _conditional_step(steps[node], () if node in first else into[node], steps)
        steps[node] = _with_inputs(led, (made for made in led.produces if made in given))
    return Shape(tuple(steps[node] for node in _topological_order(into)), given)


def router_plan(
    router: Part, routes: Sequence[Part], purposes: Mapping[str, str], unsure: Unsure = _SURE
) -> Shape:
    """`router` chooses one of the routes, which alone is carried out.

    `purposes` says what each is for. The route `otherwise` is taken as well where the router is less sure
    than `below`. Raises `UsageError` for a router that is no agent, `below` without `otherwise`, and what
    `along_edges` refuses.
    """
    ids, below, otherwise = [part.step.id for part in routes], unsure.below, unsure.otherwise
    if not router.step.goal or router.step.schema is not None:
        raise UsageError(
            f"the router {router.step.id!r} must be an agent without a schema: it answers which route "
            "is taken"
        )
    if bool(below) != bool(otherwise) or (otherwise and otherwise not in ids):
        raise UsageError(
            "a router takes the route otherwise=… where it is less sure than below=…: give both, and a "
            "route that is there"
        )
    choices = "\n".join(f"- {name}: {purposes.get(name) or name}" for name in ids)
    made = router.step.produces[-1]
    step = replace(
        router.step,
        goal=f"{router.step.goal}\n\nDo not do this yourself: choose who does.\n{choices}",
        schema={
            "type": "object",
            "properties": {
                "route": {"type": "string", "enum": cast("list[Json]", ids)},
                "reason": _TEXT,
                "confidence": _SHARE,
            },
            "required": ["route", "reason", "confidence"],
            "additionalProperties": False,
        },
    )

    def chosen(name: str) -> str:
        plain = f"{made}.route == '{name}'"
        if not below:
            return plain
        return (
            f"{plain} or {made}.confidence < {below:g}"
            if name == otherwise
            else f"{plain} and {made}.confidence >= {below:g}"
        )

    return along_edges([Part(step, router.fed), *routes], [Edge(step.id, name, chosen(name)) for name in ids])


def ensemble_plan(members: Sequence[Part], synthesiser: Part) -> Shape:
    """All members at once; the synthesiser is given what they made.

    It begins if one of them has made something, though others failed.
    """
    ids = [part.step.id for part in members]
    # The synthesiser also starts after failures, but with nothing at all it would only make something up.
    made = " or ".join(f"{STEPS}.{name}.ok" for name in ids)
    return side_by_side(
        members,
        replace(
            synthesiser,
            step=replace(synthesiser.step, after_failure=True, when=synthesiser.step.when or made),
        ),
    )


def council_plan(
    members: Sequence[Part], chair: Part, voting: Voting = _USUAL_VOTING, *, name: str = "council"
) -> Shape:
    """Members take positions, round after round with those of the others before them, then vote; the chair
    decides and says why.

    Raises `UsageError` for fewer than two members, a member or chair that is no agent, and numbers out of
    bounds.
    """
    everyone = [*members, chair]
    if len(members) < 2:
        raise UsageError("a council has at least two members")
    if not 1 <= voting.rounds <= MAX_COUNCIL_ROUNDS or not 0 <= voting.majority < 1:
        raise UsageError(
            f"a council has 1 to {MAX_COUNCIL_ROUNDS} rounds, and a majority from 0 to less than 1"
        )
    for part in everyone:
        if not part.step.goal or part.step.schema is not None:
            raise UsageError(
                f"{part.step.id!r} must be an agent without a schema: the council says in which form "
                "it answers"
            )
    args: dict[str, Json] = {
        "members": [_inner_json(part.step) for part in members],
        "chair": _inner_json(chair.step),
        "rounds": voting.rounds,
        "majority": voting.majority,
    }
    return Shape((_container_step(name, "council", args, everyone),))


def escalation_plan(tiers: Sequence[Part], *, below: float = 0.0, name: str = "escalation") -> Shape:
    """The first tier works; the next one takes over where it fails, its council is split, or it is less sure
    than `below`.

    Raises `UsageError` for fewer than two tiers, and for an agent whose schema says nothing of its confidence
    though `below` asks for it.
    """
    if len(tiers) < 2:
        raise UsageError("an escalation has at least two tiers: who begins, and who takes over")
    if not 0 <= below <= 1:
        raise UsageError(f"below is a confidence from 0 to 1, not {below:g}")
    steps = []
    for step in (part.step for part in tiers):
        if below and step.goal and step.schema is None:
            steps.append(replace(step, schema=CONFIDENT))
        elif (
            below
            and step.goal
            and "confidence" not in cast("dict[str, Json]", (step.schema or {}).get("properties", {}))
        ):
            raise UsageError(
                f"the schema of {step.id!r} needs a property 'confidence', a number from 0 to 1: "
                "below= asks for it"
            )
        else:
            steps.append(step)
    args: dict[str, Json] = {"tiers": [_inner_json(step) for step in steps], "below": below}
    return Shape((_container_step(name, "escalation", args, tiers),))


def plan_step(step_id: str, plan: Plan, inputs: Mapping[str, Json] | None = None) -> Step:
    """Return the step that runs `plan`, whose artifacts have names of their own; its answer is that of the
    last steps of the plan.

    `inputs` are further artifacts of the plan. In them `{{name}}` is an artifact of the outer plan.
    """
    return Step(
        id=step_id,
        operation="workflow",
        args={"plan": escape_template(plan.as_json()), "inputs": dict(inputs or {})},
    )


def condition_names(condition: str, known: Collection[str] | None = None) -> tuple[str, ...]:
    """The artifacts that a condition of a loop or graph asks for, sorted.

    Raises `UsageError` for one that cannot be read, that asks for steps, and for names not in `known`.
    """
    names = tuple(sorted(parse_condition(condition).names)) if condition.strip() else ()
    if STEPS in names:
        raise UsageError(
            f"condition {condition!r}: in loops and graphs conditions are about artifacts, not about "
            f"{STEPS!r}"
        )
    for name in names:
        if known is not None and name not in known:
            raise UsageError(f"condition {condition!r}: nothing makes {name!r}; {did_you_mean(name, known)}")
    return names


def all_steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps, each with those that it will grow and those of its team, however deep."""
    return tuple(
        found for step in steps for found in (step, *all_steps((*step.members, *_inner_steps(step))))
    )


def planned_rows(step: Step) -> list[tuple[str, ...]]:
    """Return a row for an operation and each of its parts: id, stage, work, needs, condition, product."""
    inside = _inner_steps(step)
    if not inside:
        return []
    args: dict[str, Any] = {
        key: render_template(value, {}) for key, value in step.args.items() if key != "inputs"
    }
    until = f" until {args['until']}" if "until" in args else ""
    bound = (
        f", at most {args['limit']} {'rounds' if step.operation == 'loop' else 'visits'}"
        if "limit" in args
        else ""
    )
    made = ", ".join(step.produces)
    rows: list[tuple[str, ...]] = [
        (step.id, step.stage, f"{step.operation}{until}{bound}", ", ".join(step.depends_on), step.when, made)
    ]
    for part in inside:
        ways = [edge for edge in args.get("edges", []) if edge["target"] == part.id]
        after = ", ".join(dict.fromkeys([*part.depends_on, *(edge["source"] for edge in ways)]))
        when = " or ".join(
            edge["when"] or f"after {edge['source']}" for edge in ways if any(way["when"] for way in ways)
        )
        rows.append(
            (
                f"{step.id} › {part.id}",
                part.stage,
                part.work,
                after,
                part.when or when,
                ", ".join(part.produces),
            )
        )
    return rows


def _inner_steps(step: Step) -> tuple[Step, ...]:
    keys = _HELD.get(step.operation, ())
    if not keys or {"round", "turn"} & step.args.keys():
        return ()
    held: list[Any] = [render_template(step.args[key], {}) for key in keys]
    bodies = [
        body for value in held for body in (value if isinstance(value, list) else value.get("steps", [value]))
    ]
    return tuple(map(Step.from_json, bodies))


_HELD: Final = {
    "loop": ("body",),
    "graph": ("nodes",),
    "council": ("members", "chair"),
    "escalation": ("tiers",),
    "workflow": ("plan",),
}
"""The arguments of operations that hold steps."""


def _with_inputs(step: Step, names: Iterable[str], after: Iterable[str] = ()) -> Step:
    return replace(
        step,
        consumes=tuple(dict.fromkeys((*step.consumes, *names))),
        depends_on=tuple(dict.fromkeys((*step.depends_on, *after))),
    )


def _check_repeatable(step: Step) -> Step:
    """The step, refused if it cannot be done again and again."""
    if step.after_failure:
        raise UsageError(
            f"step {step.id!r}: after_failure is for steps that run once, not for loops and graphs "
            "with cycles"
        )
    condition_names(step.when)
    return step


def _with_artifacts(part: Part, into: Sequence[Edge], nodes: Mapping[str, Part]) -> Step:
    if part.step.depends_on or part.step.after_failure:
        raise UsageError(
            f"node {part.step.id!r} has depends_on or after_failure: in a graph the edges say what "
            "comes after what"
        )
    condition_names(part.step.when)
    made = (name for edge in into for name in nodes[edge.source].step.produces)
    return _with_inputs(part.step, made if part.fed else ())


def _conditional_step(step: Step, into: Sequence[Edge], before: Mapping[str, Step]) -> Step:
    """The step, run only if an edge leads to it from a step that ran."""
    ways = []
    for edge in into:
        ran = f"not {STEPS}.{edge.source}.skipped" if before[edge.source].when.strip() else ""
        ways.append(" and ".join(part for part in (ran, edge.when.strip() and f"({edge.when})") if part))
    led = "" if "" in ways else ways[0] if len(ways) == 1 else " or ".join(f"({way})" for way in ways)
    names = (name for edge in into for name in condition_names(edge.when))
    when = f"({led}) and ({step.when})" if led and step.when.strip() else led or step.when
    return replace(_with_inputs(step, names if led else (), (edge.source for edge in into)), when=when)


def _initial_artifacts(steps: Iterable[Step], state: Mapping[str, Json]) -> dict[str, Json]:
    """Return the artifacts before the first step that makes them: null, unless the state says more."""
    return {**{name: None for step in steps for name in step.produces}, **state}


def _inner_json(step: Step) -> dict[str, Json]:
    """Return a step as one of an operation: the operation says what it is given and when it runs."""
    if step.when or step.depends_on or step.after_failure:
        raise UsageError(
            f"step {step.id!r} has when, depends_on or after_failure, which a council or an escalation "
            "decides itself"
        )
    return replace(step, produces=()).as_json()


def _container_step(name: str, operation: str, args: dict[str, Json], parts: Sequence[Part]) -> Step:
    """Return the step of an operation that is given what its parts consume."""
    consumed = dict.fromkeys(name for part in parts for name in part.step.consumes)
    return Step(
        id=_free_name(name, (part.step for part in parts)),
        operation=operation,
        args=escape_template(args),
        consumes=tuple(consumed),
    )


def _free_name(name: str, steps: Iterable[Step]) -> str:
    taken = {step.id for step in steps}
    while name in taken:
        name += "_"
    return name


def _check_limit(limit: int | None, most: int) -> None:
    if limit is None or not 1 <= limit <= most:
        raise UsageError(f"the limit must be from 1 to {most}, not {limit}")


def _check_edges(nodes: Mapping[str, Part], edges: Iterable[Edge], first: Sequence[str]) -> None:
    found = tuple(edges)
    for name in (*first, *(end for edge in found for end in (edge.source, edge.target))):
        if name not in nodes:
            raise UsageError(f"there is no node {name!r}; {did_you_mean(name, nodes)}")
    if not first:
        raise UsageError("an edge leads to every node, so that none is the first: name it under start")
    reached: set[str] = set()
    todo = list(first)
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [edge.target for edge in found if edge.source == name]
    if lost := [name for name in nodes if name not in reached]:
        raise UsageError(f"no path of edges leads from the start to {', '.join(map(repr, lost))}")


def _cycle(into: Mapping[str, Sequence[Edge]]) -> list[str]:
    """Nodes that lead to each other in a circle, the first again at the end; empty if there are none."""
    try:
        TopologicalSorter({node: [edge.source for edge in ways] for node, ways in into.items()}).prepare()
    except CycleError as error:
        # graphlib puts the nodes of the cycle into the second argument.
        return list(error.args[1])
    return []


def _topological_order(into: Mapping[str, Sequence[Edge]]) -> list[str]:
    """The nodes, each after all that lead to it and otherwise as they are written."""
    found: list[str] = []
    while len(found) < len(into):
        found.append(
            next(
                node
                for node in into
                if node not in found and all(edge.source in found for edge in into[node])
            )
        )
    return found
