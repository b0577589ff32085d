"""Claims about agents that work together: router, ensemble, council, escalation, and workflows within
workflows.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from reference import put_prefix

from kestrel_lab.agents import Council, Ensemble, Escalation, GraphAgent, LLMAgent, Router
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import CouncilDecided, ModelAnswered, ModelEscalated, StepStarted, VoteCast
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.workflows.loader import load_plan
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.views.run_text import run_text


@tool(danger_level="safe", effect="pure", reads=(), reaches="nothing")
async def measure(what: str) -> str:
    """Measure something."""
    return f"the {what} is 7 m high"


def goal_of(request: ModelRequest) -> str:
    return next(message.text for message in request.messages if message.role == "user")


def played(request: ModelRequest) -> int:
    return sum(message.role == "assistant" for message in request.messages)


def wanted(request: ModelRequest) -> set[str]:
    """The properties of the answer that is asked for."""
    return set((request.schema or {}).get("properties", {}))  # type: ignore[arg-type]


VOTES = {"ann": "ann", "bob": "ann", "cem": "cem"}


def deliberates(request: ModelRequest) -> Turn:
    """Members of a council: ann measures and quotes it, the others invent their evidence; the chair follows
    ann.
    """
    goal, form = goal_of(request), wanted(request)
    who = next((name for name in VOTES if f"You are {name}," in goal), "")
    if "decision" in form:
        return json.dumps({"decision": "7 m", "reason": "ann measured it", "confidence": 0.8})
    if "vote" in form:
        return json.dumps({"vote": VOTES[who], "reason": f"{who}'s reason"})
    if who == "ann" and played(request) == 0:
        return [("measure", {"what": "roof"})]
    evidence = "the roof is  7 m high" if who == "ann" else "everybody knows"
    return json.dumps(
        {"position": f"{who}'s", "claims": [{"claim": "it is so", "evidence": [evidence]}], "confidence": 0.6}
    )


MEMBERS = [LLMAgent(name, tools=["measure"]) for name in VOTES]
COUNCIL = Council("council", MEMBERS, rounds=2)


def carried_out(
    session: Lab, plan: Any, says: Any, goal: str = "how high is the roof", **options: Any
) -> Run:
    return asyncio.run(session.run(goal, plan=plan, model=ScriptedModel(says), tools=[measure], **options))


def test_a_council_deliberates_votes_and_decides(session: Lab) -> None:
    """Positions, the evidence of each claim, votes and dissent are events; the chair's decision is the
    answer.
    """
    run = carried_out(session, COUNCIL, deliberates)
    assert (run.status, run.answer, run.reason) == (RunStatus.COMPLETE, "7 m", "")
    votes = [event for event in run.events() if isinstance(event, VoteCast)]
    assert [(one.member, one.round, one.vote) for one in votes] == [
        *((name, turn, "") for turn in (1, 2) for name in VOTES),
        *((name, 3, vote) for name, vote in VOTES.items()),
    ]
    assert [[claim["shown"] for claim in one.claims] for one in votes[:3]] == [[1], [0], [0]]
    (decided,) = [event for event in run.events() if isinstance(event, CouncilDecided)]
    assert (decided.step, decided.decision, decided.reason, decided.votes) == (
        "council",
        "7 m",
        "ann measured it",
        {"ann": 2, "cem": 1},
    )
    assert (decided.dissent, decided.split) == (
        [{"member": "cem", "vote": "cem", "reason": "cem's reason"}],
        False,
    )


def test_members_see_the_positions_of_the_round_before(session: Lab) -> None:
    """In the first round each works alone; from the second on all positions are information; the chair has
    the votes as well, and what was found of each evidence.
    """
    run = carried_out(session, COUNCIL, deliberates)
    told = {
        name: conversation.messages[1].text
        for name, conversation in run._state.conversations.items()
        if len(conversation.messages) > 1
    }
    assert "artifact 'positions'" not in told["council/bob#1"]
    assert "ann's" in told["council/bob#2"]
    assert "cem's reason" in told["council/chair"]
    again = "You are given the positions of the round before"
    assert [again in told[f"council/bob#{turn}"] for turn in (1, 2, 3)] == [False, True, False]
    assert [told["council/chair"].count(f'"shown": {pieces}') for pieces in (0, 1)] == [2, 1]
    assert told["council/chair"].count('"claims"') == len(VOTES)


def test_a_council_shows_who_said_what(session: Lab) -> None:
    """Terminal and panel have a row for each position, vote and the decision."""
    text = run_text(carried_out(session, COUNCIL, deliberates).report.view())
    assert "ann, 60% sure: ann's" in text
    assert "it is so – 1 of 1 piece of evidence found" in text
    assert "cem votes for the position of cem: cem's reason" in text
    assert "decided (ann 2, cem 1): 7 m. ann measured it" in text


def test_a_member_that_fails_is_left_out(session: Lab) -> None:
    """The others go on; with fewer than two the council comes to no decision and says so."""

    def says(request: ModelRequest) -> Turn:
        return RuntimeError("broken") if "You are cem," in goal_of(request) else deliberates(request)

    run = carried_out(session, COUNCIL, says)
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "7 m"), run.reason
    assert {event.member for event in run.events() if isinstance(event, VoteCast)} == {"ann", "bob"}
    run = carried_out(session, Council("council", MEMBERS[1:]), says)
    assert run.status is RunStatus.FAILED
    assert "fewer than two of its members came to an answer in round 1" in run.reason


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (RuntimeError("broken"), "small failed"),
        (json.dumps({"answer": "perhaps", "confidence": 0.3}), "small is 30% sure, less than 70%"),
        (json.dumps({"answer": "sure", "confidence": 0.7}), ""),
    ],
)
def test_the_next_tier_takes_over(session: Lab, first: Turn, reason: str) -> None:
    """On failure and on low confidence, and not otherwise; it is told what was said and why that was not
    taken.
    """

    def says(request: ModelRequest) -> Turn:
        return (
            json.dumps({"answer": "certainly", "confidence": 0.9})
            if "why it is not taken" in goal_of(request)
            else first
        )

    run = carried_out(
        session, Escalation("ladder", {"small": LLMAgent("s"), "large": LLMAgent("l")}, below=0.7), says
    )
    escalated = [
        (event.source, event.target, event.reason)
        for event in run.events()
        if isinstance(event, ModelEscalated)
    ]
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "certainly" if reason else "sure"), run.reason
    assert [(source, target) for source, target, _ in escalated] == ([("small", "large")] if reason else [])
    assert all(why.startswith(reason) for *_, why in escalated)


def test_a_split_vote_escalates(session: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A council without a majority is not the last word where somebody can take over."""
    plan = Escalation("ladder", {"council": COUNCIL, "judge": LLMAgent("judge", "Judge.")})

    def says(request: ModelRequest) -> Turn:
        return (
            "the judge's word"
            if "the vote of council was split" in goal_of(request)
            else deliberates(request)
        )

    assert carried_out(session, plan, says).answer == "7 m"
    monkeypatch.setitem(VOTES, "bob", "bob")
    run = carried_out(session, plan, says)
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "the judge's word"), run.reason
    assert [event.split for event in run.events() if isinstance(event, CouncilDecided)] == [True]


def test_a_ladder_ends(session: Lab) -> None:
    """Where the last tier fails the run does and says why; where it is unsure its answer stands with a
    warning.
    """
    ladder = Escalation("ladder", {"small": LLMAgent("s"), "large": LLMAgent("l")}, below=0.7)
    failed = carried_out(session, ladder, lambda _: RuntimeError("broken"))
    assert failed.status is RunStatus.FAILED
    assert "no tier came to an answer; large failed" in failed.reason
    unsure = carried_out(session, ladder, lambda _: json.dumps({"answer": "perhaps", "confidence": 0.1}))
    assert (unsure.status, unsure.answer) == (RunStatus.COMPLETE, "perhaps")
    assert "nobody is left to take over" in run_text(unsure.report.view())


@pytest.mark.parametrize(
    ("route", "confidence", "taken"), [("words", 0.9, "words"), ("sums", 0.9, "sums"), ("sums", 0.2, "words")]
)
def test_a_router_carries_out_one_route(session: Lab, route: str, confidence: float, taken: str) -> None:
    """The one it chose; where it is not sure enough the route for that."""
    routes = {"sums": LLMAgent("a", description="Arithmetic."), "words": LLMAgent("b")}

    def says(request: ModelRequest) -> Turn:
        if "route" in wanted(request):
            assert "- sums: Arithmetic." in goal_of(request)
            return json.dumps({"route": route, "reason": "so", "confidence": confidence})
        return "done"

    run = carried_out(session, Router("r", routes, otherwise="words", below=0.5), says)
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "done"), run.reason
    assert [event.step for event in run.events() if isinstance(event, StepStarted)] == ["router", taken]


def test_an_ensemble_stands_the_failure_of_a_member(session: Lab) -> None:
    """The synthesiser is given what the others made; where all fail so does the run."""

    def says(request: ModelRequest) -> Turn:
        goal = goal_of(request)
        if "artifact" in goal:
            return "from " + ", ".join(name for name in ("one", "two") if f"artifact '{name}'" in goal)
        return RuntimeError("broken") if goal.startswith("break") else "mine"

    agents = Ensemble("e", {"one": (LLMAgent("a"), "break it"), "two": LLMAgent("b")})
    assert carried_out(session, agents, says).answer == "from two"
    broken = Ensemble("e", {"one": (LLMAgent("a"), "break it"), "two": (LLMAgent("b"), "break it")})
    assert carried_out(session, broken, says).status is RunStatus.FAILED


# Workflows within workflows.

REVIEW = """
kind: sequential
steps:
  - {id: draft, goal: "write {{goal}}"}
  - id: review
    workflow:
      kind: loop
      steps:
        - {id: better, goal: "better it", consumes: [draft, better]}
      until: "'fine' in better"
      limit: 3
  - {id: print, goal: "print it"}
"""


def says_review(request: ModelRequest) -> Turn:
    goal = goal_of(request)
    if goal.startswith("write"):
        return "draft"
    if goal.startswith("better"):
        return (
            "fine text"
            if "artifact 'better'" in goal
            else f"text of {'draft' if 'draft' in goal else 'nothing'}"
        )
    return f"printed {'fine text' if 'fine text' in goal else goal}"


def test_a_loop_is_a_node(session: Lab, tmp_path: Path) -> None:
    """It reads what the workflow around it made, its own names stay its own, and what comes after is given
    its answer.
    """
    (tmp_path / "flow.yaml").write_text(REVIEW)
    run = carried_out(session, tmp_path / "flow.yaml", says_review, "a page")
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "printed fine text"), run.reason
    done = [step.id for step in run.plan.steps]
    assert done == [
        "draft",
        "review",
        "print",
        "review/loop",
        "review/better#1",
        "review/loop#1",
        "review/better#2",
        "review/loop#2",
    ]
    assert {step.scope for step in run.plan.steps if step.parent} == {"review"}


INNER = """
kind: graph
inputs: {tone: {description: how}, subject: {description: what}}
nodes:
  - {id: think, goal: "think {{tone}}", consumes: [subject]}
  - {id: say, goal: "say it"}
edges: [{from: think, to: say}]
"""
OUTER = """
kind: parallel
branches:
  - {id: left, workflow: inner.yaml, goal: "left", args: {tone: gently, subject: "{{goal}}"}}
  - {id: right, workflow: inner.yaml, goal: "right", args: {tone: loudly, subject: "two"}}
join: {id: both, goal: "join"}
"""


def test_a_file_is_a_node_twice(session: Lab, tmp_path: Path) -> None:
    """Two nodes of one file do not see each other's artifacts; inputs are put in."""
    (tmp_path / "inner.yaml").write_text(INNER)
    (tmp_path / "outer.yaml").write_text(OUTER)

    def says(request: ModelRequest) -> Turn:
        goal = goal_of(request)
        if goal.startswith("think"):
            return "T-" + goal.split()[1]
        if goal.startswith("say"):
            return "S-" + "".join(word for word in ("gently", "loudly") if word in goal)
        return "joined " + " ".join(word for word in ("S-gently", "S-loudly") if word in goal)

    run = carried_out(session, tmp_path / "outer.yaml", says, "one")
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "joined S-gently S-loudly"), run.reason
    assert "one" in run._state.conversations["left/think"].messages[1].text
    assert "two" in run._state.conversations["right/think"].messages[1].text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: sequential\nsteps: [{id: a, workflow: flow.yaml}]", "nested in itself"),
        ("kind: sequential\nsteps: [{id: a, workflow: gone.yaml}]", "there is no workflow file 'gone.yaml'"),
        ("kind: sequential\nsteps: [{id: a, workflow: {kind: lop}}]", "did you mean 'loop'"),
        (
            "kind: sequential\nsteps: [{id: a, workflow: {kind: loop, steps: [{id: b, gaol: x}], "
            "until: b, limit: 2}}]",
            r"unknown key; did you mean 'goal'",
        ),
        (
            "kind: sequential\nsteps: [{id: a, workflow: {kind: sequential, steps: [{id: b, goal: x, "
            "consumes: [zz]}]}}]",
            "nothing makes 'zz'",
        ),
        (
            "kind: council\nmembers: [{id: a}, {id: b, tool: measure, args: {what: x}}]\nchair: {id: c}",
            "must be an agent",
        ),
        (
            "kind: router\nrouter: {id: r}\nroutes: [{id: a, purpose: x}, {id: b, purpose: y}]\nbelow: 0.5",
            "give both",
        ),
        (
            "kind: escalation\ntiers: [{id: a}, {id: b, schema: {type: object}}]\nbelow: 0.5",
            "needs a property 'confidence'",
        ),
        ("kind: supervisor\nsupervisor: {id: a}\nworkers: [nobody]", "there is no agent 'nobody'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    """With the line of the file."""
    (tmp_path / "flow.yaml").write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        load_plan(tmp_path / "flow.yaml", "go")
    assert "flow.yaml" in str(error.value)


WHOLE = """
kind: sequential
agents:
  reader: {instructions: You read., tools: [measure], description: Reads.}
steps:
  - {id: lead, goal: "lead {{goal}}", team: [reader], tools: []}
  - id: panel
    goal: "decide"
    workflow:
      kind: council
      rounds: 1
      members: [{id: ann, tools: [measure]}, {id: bob, tools: []}]
      chair: {id: chair, tools: []}
"""


def leads(request: ModelRequest) -> Turn:
    """A lead with two sub-agents, then a council."""
    goal = goal_of(request)
    if goal.startswith("lead"):
        calls: Turn = [
            ("delegate", {"agent": "reader", "goal": "the roof"}),
            ("delegate", {"agent": "reader", "goal": "the door"}),
        ]
        return (
            calls
            if played(request) == 0
            else "led: " + " ".join(message.text for message in request.messages if message.role == "tool")
        )
    if goal.startswith("the "):
        return [("measure", {"what": goal[4:]})] if played(request) == 0 else f"read {goal}"
    return deliberates(request)


def test_a_run_with_two_sub_agents_and_a_council_goes_on_from_every_event(
    session: Lab, tmp_path: Path
) -> None:
    """Cut at every event and resumed, the end is the same, every model turn that was answered is not asked
    again, and every vote is in the log once.
    """
    (tmp_path / "flow.yaml").write_text(WHOLE)
    reference = carried_out(session, tmp_path / "flow.yaml", leads, "it")
    records = reference.records()
    assert (reference.status, reference.answer) == (RunStatus.COMPLETE, "7 m"), reference.reason

    def facts(run: Run) -> tuple[Any, ...]:
        turns = Counter(
            event.step.rpartition("/")[2] for event in run.events() if isinstance(event, ModelAnswered)
        )
        votes = sorted((one.member, one.round, one.vote) for one in run.events() if isinstance(one, VoteCast))
        return (
            run.status,
            run.answer,
            turns,
            votes,
            sum(isinstance(event, CouncilDecided) for event in run.events()),
        )

    ended = next(record.seq for record in records if record.event.type == "run_finished")
    other = Lab(tmp_path / "other", env={}, tools=[measure])
    for cut in range(1, ended):
        run = asyncio.run(
            other.resume(
                put_prefix(other, records, cut), model=ScriptedModel(leads), tools=[measure, "delegate"]
            )
        )
        assert (cut, facts(run)) == (cut, facts(reference))
    other.close()


def test_all_that_work_together_share_the_limits(session: Lab) -> None:
    """A limit on tokens ends a council as it ends one agent."""
    run = carried_out(session, COUNCIL, deliberates, limits=Limits(tokens=150))
    assert (run.status, run._state.finished and run._state.finished.limit) == (RunStatus.FAILED, "tokens")


def test_a_plan_in_python_is_a_node(session: Lab) -> None:
    """A council is a node of a graph, and the node after it is given the decision."""
    graph = GraphAgent("g", {"panel": COUNCIL, "print": (LLMAgent("p"), "print it")}, [("panel", "print")])

    def says(request: ModelRequest) -> Turn:
        return (
            f"printed {'7 m' in goal_of(request)}"
            if goal_of(request).startswith("print")
            else deliberates(request)
        )

    assert carried_out(session, graph, says).answer == "printed True"


def test_json_of_plans_holds_patterns() -> None:
    """A plan with nested workflows survives the log."""
    body: dict[str, Json] = COUNCIL.plan("x").as_json()
    assert type(COUNCIL.plan("x")).from_json(json.loads(json.dumps(body))).as_json() == body
