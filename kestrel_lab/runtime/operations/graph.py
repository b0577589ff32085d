"""The operation `graph`: nodes visited in waves along edges, cycles included; each wave is grown when the one before is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from kestrel_lab.core.expressions.conditions import parse
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan_shapes import Edge, asked_names
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.loop import asking, numbered, reached


async def graph(scope: Scope) -> Done:
    """Visit the nodes to which the last wave leads, or give the answer; `core.plan_shapes.along_edges` writes the arguments.

    The n-th visit of a node is the step `ID#n`, and after wave n comes `GRAPH#n`, which decides where to go on. A node
    that was skipped leads nowhere. At the limit the graph raises `RunError`, or records a warning, as `at_limit` says.
    """
    args = scope.args
    nodes = {step.id: step for step in (Step.from_json(cast("dict[str, Json]", item)) for item in cast("list[Json]", args["nodes"]))}
    edges = [Edge(**cast("dict[str, str]", item)) for item in cast("list[Json]", args["edges"])]
    visits = cast("dict[str, int]", args.get("visits", {}))
    wave, turn = cast("list[str]", args.get("wave", [])), cast("int", args.get("turn", 0))
    following = _following(scope, nodes, edges, wave, visits) if wave else cast("list[str]", args["start"])
    if not following:
        return Done(output=_answer(scope, nodes, wave))
    limit, name = cast("int", args["limit"]), scope.step.id.rpartition("#")[0] if turn else scope.step.id
    if sum(visits.values()) + len(following) > limit:
        what = f"{name!r} has visited {sum(visits.values())} nodes of at most {limit}, and edges lead on to {', '.join(following)}"
        reached(scope, what, fail=args["at_limit"] == "fail")
        return Done(output=_answer(scope, nodes, wave))
    visits = {**visits, **{node: visits.get(node, 0) + 1 for node in following}}
    steps = tuple(numbered(step, visits) for node, step in nodes.items() if node in following)
    names = {name for edge in edges if edge.source in following for name in asked_names(edge.when)}
    names |= {str(args["result"])} if args["result"] else {made for node in following for made in nodes[node].produces}
    more: dict[str, Json] = {"turn": turn + 1, "wave": list(following), "visits": dict(visits)}
    return Done(grows=(*steps, asking(scope, name, turn + 1, {**args, **more}, steps, names)))


def _following(scope: Scope, nodes: Mapping[str, Step], edges: Sequence[Edge], wave: Sequence[str], visits: Mapping[str, int]) -> list[str]:
    """Return the nodes of the next wave, in the order of the file."""
    ran = {node for node in wave if not scope.went(f"{node}#{visits[node]}")["skipped"]}
    ways = [edge for edge in edges if edge.source in ran]
    led = {edge.target for edge in ways if not edge.when.strip() or parse(edge.when).holds(scope.inputs)}
    return [node for node in nodes if node in led]


def _answer(scope: Scope, nodes: Mapping[str, Step], wave: Sequence[str]) -> Json:
    if result := scope.args["result"]:
        return scope.inputs[str(result)]
    made = [scope.inputs[name] for node in nodes if node in wave for name in nodes[node].produces[-1:]]
    return made[0] if len(made) == 1 else "\n\n".join(as_text(value) for value in made if value is not None)
