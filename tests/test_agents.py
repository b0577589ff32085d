"""Agents with names: each makes a plan, in which it is held to its own settings."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab import GraphAgent, LLMAgent, Plan, ReActAgent, Step, UsageError
from kestrel_lab.agents import Council, Ensemble, Escalation, MakesPlan, Router, SearchAgent
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool


@tool(danger_level="safe", effect="pure")
def measure(what: str) -> str:
    """Measure something."""
    return f"{what} is 7 m"


def test_an_agent_is_the_plan_of_its_step() -> None:
    """Everything an agent is goes into its step; the goal is there as an artifact too."""
    agent = LLMAgent(
        "critic", "Be strict.", tools=["measure"], model="small", turns=3, schema={"type": "object"}
    )
    step = Step(
        id="critic",
        goal="Judge",
        instructions="Be strict.",
        tools=("measure",),
        model="small",
        turns=3,
        schema={"type": "object"},
    )
    assert agent.plan("Judge") == Plan(steps=(step,), artifacts={"goal": "Judge"})
    assert replace(agent.step("last", "Judge"), consumes=["text"], when="text != ''").consumes == ("text",)
    with pytest.raises(UsageError, match="tools of agent 'x' must be a list, not the text 'measure'"):
        LLMAgent("x", tools="measure").plan("go")


def test_a_react_agent_works_with_a_model_that_only_writes_text(session: Lab, workspace: Path) -> None:
    """Thought and action are text, the observation comes back as text, and all three are to be read in the
    run; no tools are offered on the wire.
    """
    offered: list[int] = []

    def says(request: ModelRequest) -> Turn:
        offered.append(len(request.tools))
        if not any("roof is 7 m" in message.text for message in request.messages):
            return '{"thought": "I must look.", "tool": "measure", "arguments": {"what": "roof"}}'
        return '{"thought": "I know it now.", "answer": "7 m"}'

    agent = ReActAgent("surveyor", "Measure before you answer.", tools=["measure"])
    run = asyncio.run(
        session.run(
            "How long is the roof?",
            plan=agent,
            model=ScriptedModel(says),
            tools=[measure],
            workspace=workspace,
        )
    )
    assert (run.status, run.answer, set(offered)) == (RunStatus.COMPLETE, "7 m", {0})
    shown = repr(run.report)
    assert [part in shown for part in ("I must look.", "measure", "roof is 7 m", "7 m")] == [True] * 4


def test_a_graph_agent_follows_its_edges_and_keeps_its_state(session: Lab, workspace: Path) -> None:
    """Agents, an agent with a goal of its own and a call are nodes; a way back is taken until its condition
    fails; state is carried.
    """
    wins = {"guess": 0}

    def says(request: ModelRequest) -> Turn:
        goal = request.messages[1].text
        if goal.startswith("Is it right"):
            return '{"right": true}' if "guess 2" in goal else '{"right": false}'
        wins["guess"] += 1
        return f"guess {wins['guess']}"

    graph = GraphAgent(
        "guessing",
        {
            "look": Step(id="look", tool="measure", args={"what": "roof"}),
            "guess": LLMAgent("guesser"),
            "check": (
                LLMAgent("checker", schema={"type": "object", "required": ["right"]}),
                "Is it right: {{goal}}",
            ),
        },
        [("look", "guess"), ("guess", "check"), ("check", "guess", "not check.right")],
        state={"guess": "nothing yet"},
        limit=8,
        result="guess",
    )
    run = asyncio.run(
        session.run("a number", plan=graph, model=ScriptedModel(says), tools=[measure], workspace=workspace)
    )
    assert (run.status, run.reason, run.answer) == (RunStatus.COMPLETE, "", "guess 2")
    assert [step.id for step in run.plan.steps if not step.operation] == [
        "look#1",
        "guess#1",
        "check#1",
        "guess#2",
        "check#2",
    ]
    assert "roof is 7 m" in run._state.conversations["guess#1"].messages[1].text
    assert run._state.conversations["check#1"].messages[1].text.startswith("Is it right: a number")


def test_a_graph_that_is_not_in_order_is_refused() -> None:
    """A circle without a limit, and a goal that refers to what steps make."""
    agent = LLMAgent("a")
    with pytest.raises(UsageError, match="goes in a circle"):
        GraphAgent("g", {"a": agent, "b": agent}, [("a", "b"), ("b", "a")], start=["a"]).plan("go")
    with pytest.raises(UsageError, match=r"\{\{b\}\} is neither the goal nor a declared input"):
        GraphAgent("g", {"a": (agent, "do {{b}}"), "b": agent}, [("a", "b")]).plan("go")


@pytest.mark.parametrize("kind", [Ensemble, Router, Escalation])
def test_agents_may_be_given_as_a_list(kind: type[Ensemble] | type[Router] | type[Escalation]) -> None:
    """As for a council: their names are those of the agents, so they must differ, and anything else needs a
    name.
    """
    ann, bob = LLMAgent("ann", description="Measures."), LLMAgent("bob", description="Guesses.")
    assert kind("all", [ann, bob]).plan("go") == kind("all", {"ann": ann, "bob": bob}).plan("go")
    with pytest.raises(UsageError, match="the same name: ann, ann"):
        kind("all", [ann, ann]).plan("go")
    with pytest.raises(UsageError, match="only agents have names"):
        kind("all", [ann, Council("c", [ann, bob])]).plan("go")  # type: ignore[list-item]


@pytest.mark.parametrize(
    "agent",
    [
        LLMAgent("critic", model=ScriptedModel(["no"])),  # type: ignore[arg-type]
        ReActAgent("critic", model=ScriptedModel(["no"])),  # type: ignore[arg-type]
        LLMAgent("lead", team=[LLMAgent("critic", model=ScriptedModel(["no"]))]),  # type: ignore[arg-type]
        Router("r", [LLMAgent("critic", model=ScriptedModel(["no"])), LLMAgent("b")]),  # type: ignore[arg-type]
        Council("c", [LLMAgent("critic", model=ScriptedModel(["no"])), LLMAgent("b")]),  # type: ignore[arg-type]
        SearchAgent("critic", model=ScriptedModel(["no"])),  # type: ignore[arg-type]
    ],
    ids=["agent", "react", "team", "router", "council", "search"],
)
def test_a_model_object_in_a_plan_is_refused(agent: MakesPlan, session: Lab, workspace: Path) -> None:
    """A plan names its models: the error has the agent and the way to give it an object, which works."""
    with pytest.raises(UsageError, match=r"critic.*has a model object.*Lab\(models=\{'scripted': OBJECT\}"):
        asyncio.run(session.run("Judge", plan=agent, workspace=workspace))


def test_an_agent_uses_a_model_object_that_its_lab_has(tmp_path: Path) -> None:
    """The way that the error shows: the object is the lab's, the agent has its name."""
    with Lab(tmp_path / "home", models={"mine": ScriptedModel(["fine"])}) as lab:
        run = lab.run_sync("Judge", plan=LLMAgent("critic", model="mine"), workspace=tmp_path, model="none")
    assert run.answer == "fine"
