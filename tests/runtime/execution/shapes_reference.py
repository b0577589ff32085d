"""Random loops and graphs, and a tiny interpreter that says what each of them must do.

The nodes are calls of `mix`, which makes a small number from the node's name and what it is given. The
interpreter does one node after another and knows nothing of plans.
"""

import random
import zlib
from dataclasses import dataclass, field
from typing import Any

from kestrel_lab.core.expressions.conditions import parse_condition
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.plan_shapes import Edge, Part, Repeats, Shape, along_edges, loop_plan
from kestrel_lab.core.step import Step
from kestrel_lab.tools.decorator import tool


def mixed(node: str, given: dict[str, Json]) -> int:
    """A number from 0 to 3."""
    return zlib.crc32(dumps([node, sorted(given.items())]).encode()) % 4


@tool(danger_level="safe", effect="pure")
def mix(node: str, given: dict[str, Any]) -> int:
    """Make a number."""
    return mixed(node, given)


@dataclass(frozen=True)
class Work:
    """A node: what it is given, what it makes, when it is done at all."""

    name: str
    uses: tuple[str, ...]
    makes: str
    when: str

    @property
    def part(self) -> Part:
        """As a step."""
        given: dict[str, Json] = {name: f"{{{{{name}}}}}" for name in self.uses}
        names = tuple(dict.fromkeys((*self.uses, *(parse_condition(self.when).names if self.when else ()))))
        args: dict[str, Json] = {"node": self.name, "given": given}
        return Part(
            Step(id=self.name, tool="mix", args=args, consumes=names, produces=(self.makes,), when=self.when)
        )


@dataclass(frozen=True)
class Case:
    """A loop (without edges) or a graph."""

    works: tuple[Work, ...]
    state: dict[str, Json]
    limit: int
    result: str
    until: str = ""
    edges: tuple[Edge, ...] = ()
    start: tuple[str, ...] = ()
    cyclic: bool = True

    @property
    def shape(self) -> Shape:
        """The plan's part that is under test."""
        parts = [work.part for work in self.works]
        if self.until:
            return loop_plan(
                parts,
                until=self.until,
                repeats=Repeats(limit=self.limit, state=self.state, result=self.result),
            )
        if self.cyclic:
            return along_edges(
                parts,
                self.edges,
                start=self.start,
                repeats=Repeats(state=self.state, limit=self.limit, result=self.result),
            )
        return along_edges(parts, self.edges, start=self.start, repeats=Repeats(state=self.state))


@dataclass
class Outcome:
    """What came of it."""

    done: list[str] = field(default_factory=list)
    """Nodes in the order of the plan, each with the number of its visit where it may have several."""
    values: dict[str, Json] = field(default_factory=dict)
    limited: bool = False


NAMES = ("x", "y", "z")


def _condition(chance: random.Random) -> str:
    name, number = chance.choice(NAMES), chance.randrange(4)
    return chance.choice(
        [
            f"{name} == {number}",
            f"{name} != {number}",
            f"{name} in [{number}, null]",
            f"not ({name} == {number})",
        ]
    )


def _works(chance: random.Random, count: int) -> tuple[Work, ...]:
    return tuple(
        Work(
            f"n{number}",
            tuple(name for name in NAMES if chance.random() < 0.5),
            chance.choice(NAMES),
            _condition(chance) if chance.random() < 0.3 else "",
        )
        for number in range(count)
    )


def random_loop(seed: int) -> Case:
    """A loop of one to four nodes that share three artifacts."""
    chance = random.Random(seed)
    works = _works(chance, chance.randint(1, 4))
    state: dict[str, Json] = {name: chance.choice([None, 0, 1]) for name in NAMES}
    return Case(works, state, chance.randint(1, 5), chance.choice(NAMES), until=_condition(chance))


def random_graph(seed: int, *, cyclic: bool) -> Case:
    """A graph of two to five nodes, every one of which can be reached."""
    chance = random.Random(seed)
    works = _works(chance, chance.randint(2, 5))
    names = [work.name for work in works]
    if not cyclic:
        chance.shuffle(names)  # the order of the file is not that of the edges
    edges = {(names[chance.randrange(place)], names[place]) for place in range(1, len(names))}
    for _ in range(chance.randint(0, 4)):
        a, b = (
            sorted(chance.sample(range(len(names)), 2))
            if not cyclic
            else (chance.randrange(len(names)), chance.randrange(len(names)))
        )
        edges.add((names[a], names[b]))
    if cyclic:
        edges.add((names[-1], names[0]))
    ways = tuple(Edge(a, b, _condition(chance) if chance.random() < 0.6 else "") for a, b in sorted(edges))
    state: dict[str, Json] = {name: chance.choice([None, 0, 1]) for name in NAMES}
    return Case(
        works, state, chance.randint(1, 9), chance.choice(NAMES), edges=ways, start=(names[0],), cyclic=cyclic
    )


def expected(case: Case, bug: str = "") -> Outcome:
    """What must come of it; with a `bug`, what a wrong implementation would make of it."""
    outcome = Outcome(values=dict(case.state))
    if case.until:
        _loop(case, outcome, bug)
    elif case.cyclic:
        _waves(case, outcome, bug)
    else:
        _once(case, outcome, bug)
    return outcome


def _visit(work: Work, outcome: Outcome, label: str, bug: str) -> bool:
    if work.when and not parse_condition(work.when).holds(outcome.values):
        if bug == "a skipped node leaves null":
            outcome.values[work.makes] = None
        return bug == "a skipped node leads on"
    outcome.values[work.makes] = mixed(work.name, {name: outcome.values[name] for name in work.uses})
    outcome.done.append(label)
    return True


def _loop(case: Case, outcome: Outcome, bug: str) -> None:
    for turn in range(1, case.limit + 1 + (bug == "one round too many")):
        if bug == "each round begins anew":
            outcome.values.update(case.state)
        for work in case.works:
            _visit(work, outcome, f"{work.name}#{turn}", bug)
        if parse_condition(case.until).holds(outcome.values):
            return
    outcome.limited = True


def _waves(case: Case, outcome: Outcome, bug: str) -> None:
    wave, visits = set(case.start), dict.fromkeys([work.name for work in case.works], 0)
    while wave:
        if sum(visits.values()) + len(wave) > case.limit + (bug == "one visit too many"):
            outcome.limited = True
            return
        ran = set()
        for work in case.works:
            if work.name in wave:
                visits[work.name] += 1
                if _visit(work, outcome, f"{work.name}#{visits[work.name]}", bug):
                    ran.add(work.name)
        wave = {
            edge.target
            for edge in case.edges
            if edge.source in ran and (not edge.when or parse_condition(edge.when).holds(outcome.values))
        }


def _once(case: Case, outcome: Outcome, bug: str) -> None:
    left, ran = list(case.works), set()
    while left:
        work = next(
            work
            for work in left
            if not any(
                edge.target == work.name and edge.source in {other.name for other in left}
                for edge in case.edges
            )
        )
        left.remove(work)
        ways = [edge for edge in case.edges if edge.target == work.name]
        led = [
            edge
            for edge in ways
            if edge.source in ran and (not edge.when or parse_condition(edge.when).holds(outcome.values))
        ]
        wanted = work.name in case.start or (
            len(led) == len(ways) if bug == "all edges must hold" else bool(led)
        )
        if wanted and _visit(work, outcome, work.name, bug):
            ran.add(work.name)
