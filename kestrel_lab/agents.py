"""Reusable agents: each makes a plan for a goal, and all of them run in the same loop.

critic = LLMAgent("critic", "Find what is wrong.", tools=["read_file"])
run = await lab.run("Is the README right?", plan=critic)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from kestrel_lab.answers.output_types import OutputType
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.expressions.templates import escape_template, referenced_names, render_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelParams
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.plan_shapes import (
    Edge,
    Part,
    Repeats,
    Shape,
    Unsure,
    Voting,
    along_edges,
    council_plan,
    ensemble_plan,
    escalation_plan,
    plan_step,
    router_plan,
)
from kestrel_lab.core.step import AgentSettings, Step, check_model_name

GOAL = "goal"
"""The name of the artifact that holds the goal of a run."""


@dataclass(frozen=True)
class Named:
    """What has a name of its own in a workflow."""

    name: str


@dataclass(frozen=True)
class LLMAgent(AgentSettings, Named):
    """A model with instructions and tools, which calls tools in a loop until it answers."""

    instructions: str = ""
    """Added to the system message."""
    output: Any = field(default=None, kw_only=True)
    """The type of the answer in place of `schema`; see `StartOptions.output`."""
    team: Sequence[LLMAgent] = field(default=(), kw_only=True)
    """Agents to which it may delegate, each in a conversation of its own; see the tool `delegate`."""
    description: str = field(default="", kw_only=True)
    """What it is for; agents that may delegate to it read this."""

    def step(self, id: str, goal: str) -> Step:  # as in `Step`  # noqa: A002
        """Return a step of a plan in which this agent works on `goal`; `dataclasses.replace` gives it a place
        among others.

        Raises `UsageError` like `Step`, and for an `output` that is no type.
        """
        output = OutputType.of(self.output)
        if output is not None and self.schema is not None:
            raise UsageError(f"agent {self.name!r} has a schema and an output: leave out one of them")
        check_model_name(self.model, f"agent {self.name!r}")
        # A text is a sequence, too: its letters would be taken for tools.
        if isinstance(self.tools, str):
            raise UsageError(f"tools of agent {self.name!r} must be a list, not the text {self.tools!r}")
        team: dict[str, Json] = {
            # The goal comes with the call that delegates; the name takes its place until then.
            agent.name: {**agent.step(agent.name, agent.name).as_json(), "description": agent.description}
            for agent in self.team
        }
        own = {one.name: getattr(self, one.name) for one in fields(AgentSettings)}
        own["params"] = ModelParams.of(self.params).as_json()
        if output is not None:
            texts = filter(None, (self.instructions, output.instructions))
            own |= {"schema": output.schema, "instructions": "\n\n".join(texts)}
        return Step(id=id, goal=goal, team=team, **own)

    def plan(self, goal: str) -> Plan:
        """Return a plan in which this agent alone works on `goal`."""
        return Plan(steps=(self.step(self.name, goal),), artifacts={GOAL: goal})


@dataclass(frozen=True)
class ReActAgent(LLMAgent):
    """An agent that writes thought, action and observation as text: readable in the run, and for models
    without tool calling.
    """

    react: bool = field(default=True, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class SearchBounds:
    """How far a web search goes."""

    queries: int = 3
    """Most queries to a search engine."""
    results: int = 8
    """Most results of each."""
    pages: int = 4
    """Most pages that are read."""
    grounded: bool = False
    """The model's own web search finds the pages; only models that have one can."""


@dataclass(frozen=True)
class SearchAgent(SearchBounds):
    """Searches the web for the answer to a goal, and gives facts with quotes from the pages.

    Its step produces the artifact `evidence`, an `EvidenceBundle` as JSON that other steps may consume.
    """

    name: str = "searcher"
    model: str = field(default="", kw_only=True)
    """The run's by default; with `none` there are results and no facts."""
    instructions: str = field(default="", kw_only=True)
    description: str = field(default="", kw_only=True)

    def step(self, id: str, goal: str) -> Step:  # as in `Step`  # noqa: A002
        """Return a step of a plan that searches the web for `goal`; raises `UsageError` like `Step`."""
        return Step(
            id=id,
            operation="websearch",
            # Braces in a goal are no references.
            args=escape_template(
                {"question": goal} | {one.name: getattr(self, one.name) for one in fields(SearchBounds)}
            ),
            model=self.model,
            instructions=self.instructions,
            tools=("web_results", "web_page"),
            produces=("evidence",),
        )

    def plan(self, goal: str) -> Plan:
        """Return a plan in which this agent alone works on `goal` and then reports."""
        args: dict[str, Json] = {"evidence": "{{evidence}}"}
        report = Step(id="report", operation="websearch_report", args=args, consumes=("evidence",))
        return Plan(steps=(self.step(self.name, goal), report), artifacts={GOAL: goal})


class MakesPlan(Protocol):
    """Anything that makes a plan for a goal: an agent, a graph, a council."""

    def plan(self, goal: str) -> Plan:
        """Return the plan for `goal`."""
        ...


Node = LLMAgent | tuple[LLMAgent, str] | Step | MakesPlan | Plan
"""An agent that works on the run's goal, one with a goal of its own (`{{goal}}` stands for the run's), any
step, or a workflow within this one.
"""
Way = tuple[str, ...]
"""The ids of two nodes and, optionally, a condition on artifacts."""


@dataclass(frozen=True)
class GraphAgent(Repeats, Named):
    """Agents and calls as nodes of a graph, with conditions on its edges and named state; see
    `core.plan_shapes.along_edges`.

    Each node produces an artifact of its own name, unless it is a step with others. An agent consumes the
    artifacts of the nodes before it.
    """

    nodes: Mapping[str, Node]
    edges: Sequence[Way]
    start: Sequence[str] = field(default=(), kw_only=True)

    def plan(self, goal: str) -> Plan:
        """Return the plan of the graph; raises `UsageError` for an invalid graph."""
        return _plan_of(
            along_edges(
                [_part(name, node, goal) for name, node in self.nodes.items()],
                [_edge(way) for way in self.edges],
                self,
                # A text is a sequence, too: its letters would be taken for nodes.
                start=(self.start,) if isinstance(self.start, str) else self.start,
                name=self.name,
            ),
            goal,
        )


@dataclass(frozen=True)
class Router(Unsure, Named):
    """An agent chooses one of several nodes, which alone works on the goal; see
    `core.plan_shapes.router_plan`.
    """

    routes: Mapping[str, Node] | Sequence[LLMAgent]
    """Nodes by name, or agents."""
    purposes: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """What each route is for, as the router reads it; by default the agent's own description."""
    router: LLMAgent = field(default=LLMAgent("router"), kw_only=True)

    def plan(self, goal: str) -> Plan:
        """Return the plan of the router; raises `UsageError` for an invalid one."""
        nodes = _named(self.routes)
        routes = [_part(name, node, goal) for name, node in nodes.items()]
        purposes = {
            name: node.description for name, node in nodes.items() if isinstance(node, LLMAgent)
        } | dict(self.purposes)
        router = _part(self.router.name, self.router, goal)
        return _plan_of(router_plan(router, routes, purposes, self), goal)


@dataclass(frozen=True)
class Ensemble(Named):
    """Several nodes work on the goal at once, and a synthesiser answers from what they made; see
    `core.plan_shapes.ensemble_plan`.
    """

    members: Mapping[str, Node] | Sequence[LLMAgent]
    """Nodes by name, or agents."""
    synthesiser: LLMAgent = field(
        default=LLMAgent("synthesiser", "Answer from what the others found; say where they differ."),
        kw_only=True,
    )

    def plan(self, goal: str) -> Plan:
        """Return the plan of the ensemble; raises `UsageError` for an invalid one."""
        members = [_part(name, node, goal) for name, node in _named(self.members).items()]
        return _plan_of(ensemble_plan(members, _part(self.synthesiser.name, self.synthesiser, goal)), goal)


@dataclass(frozen=True)
class Council(Voting, Named):
    """Agents take positions with evidence in rounds and vote, and a chair decides; see
    `core.plan_shapes.council_plan`.
    """

    members: Sequence[LLMAgent]
    chair: LLMAgent = field(default=LLMAgent("chair"), kw_only=True)

    def plan(self, goal: str) -> Plan:
        """Return the plan of the council; raises `UsageError` for an invalid one."""
        return _plan_of(
            council_plan(
                [_part(agent.name, agent, goal) for agent in self.members],
                _part(self.chair.name, self.chair, goal),
                self,
                name=self.name,
            ),
            goal,
        )


@dataclass(frozen=True)
class Escalation(Named):
    """Nodes that take over from each other on failure, low confidence or a split vote; see
    `core.plan_shapes.escalation_plan`.
    """

    tiers: Mapping[str, Node] | Sequence[LLMAgent]
    """Nodes by name, or agents, in the order in which they are tried."""
    below: float = field(default=0.0, kw_only=True)
    """The confidence below which the next tier takes over."""

    def plan(self, goal: str) -> Plan:
        """Return the plan of the escalation; raises `UsageError` for an invalid one."""
        tiers = [_part(name, node, goal) for name, node in _named(self.tiers).items()]
        return _plan_of(escalation_plan(tiers, below=self.below, name=self.name), goal)


def _plan_of(shape: Shape, goal: str) -> Plan:
    return Plan(steps=shape.steps, artifacts={GOAL: goal, **shape.artifacts})


def with_goal(text: str, scope: Mapping[str, Json]) -> str:
    """Return `text` with the goal and other values of `scope` inserted; raises `UsageError` with the nearest
    name for others.

    Only text of a person becomes part of an agent's instructions: the results of steps are consumed, never
    inserted.
    """
    if unknown := sorted(referenced_names(text) - set(scope)):
        raise UsageError(
            f"{{{{{unknown[0]}}}}} is neither the goal nor a declared input; "
            f"{did_you_mean(unknown[0], scope)}. What steps make is consumed, not put in"
        )
    # With the space a text that is one reference stays a text; alone it would become the value.
    return str(render_template(f"{text} ", scope))[:-1]


def _edge(way: Way) -> Edge:
    if not 2 <= len(way) <= 3:
        raise UsageError(f"an edge is (from, to) or (from, to, condition), not {way!r}")
    return Edge(*way)


def _named(nodes: Mapping[str, Node] | Sequence[LLMAgent]) -> Mapping[str, Node]:
    if isinstance(nodes, Mapping):
        return nodes
    if not all(isinstance(agent, LLMAgent) for agent in nodes):
        raise UsageError("only agents have names of their own: give other nodes as {name: node}")
    if len(named := {agent.name: agent for agent in nodes}) < len(nodes):
        raise UsageError(f"several agents have the same name: {', '.join(agent.name for agent in nodes)}")
    return named


def _part(name: str, node: Node, goal: str) -> Part:
    if not isinstance(node, Step | LLMAgent | tuple):
        return Part(
            replace(plan_step(name, node if isinstance(node, Plan) else node.plan(goal)), produces=(name,)),
            fed=True,
        )
    if isinstance(node, Step):
        return Part(
            replace(node, id=name, produces=node.produces or (name,)),
            fed=bool(node.goal) and not node.consumes,
        )
    agent, text = node if isinstance(node, tuple) else (node, f"{{{{{GOAL}}}}}")
    return Part(replace(agent.step(name, with_goal(text, {GOAL: goal})), produces=(name,)), fed=True)
