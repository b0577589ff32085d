"""Workflow files: what they say, and what a reader is told who made a mistake."""

import asyncio
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.agents import LLMAgent
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import StepFinished
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.plan_shapes import all_steps
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.step import AgentSettings
from kestrel_lab.core.yaml.reader import read_yaml
from kestrel_lab.evals.suites.json_schemas import NAMES, schema_text
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.execution.steps import check_steps
from kestrel_lab.runtime.operations.registry import OPERATIONS
from kestrel_lab.runtime.workflows.agent_files import SHIPPED_AGENTS, load_agent
from kestrel_lab.runtime.workflows.loader import SHIPPED, load_plan
from kestrel_lab.runtime.workflows.models import FOLDER, StepEntry
from kestrel_lab.testing import ScriptedModel

EXAMPLES = Path(__file__).parents[3] / "scenarios" / "workflows"
PLAN = """\
kind: plan
name: report
inputs:
  language: {description: what to write in, default: English}
  words: {type: integer}
acceptance_criteria: ["at most {{words}} words"]
steps:
  - id: write
    goal: "Write about {{goal}} in {{language}}"
    produces: [text]
  - id: keep
    tool: write_file
    args: {path: out.txt, content: "{{text}}"}
    consumes: [text]
"""


def written(folder: Path, text: str, name: str = "flow.yaml") -> Path:
    """A workflow file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_file_is_the_plan_it_says(tmp_path: Path) -> None:
    """Goal and inputs are put into goals and criteria, and are artifacts; references to what steps make are
    left for later.
    """
    assert load_plan(written(tmp_path, PLAN), "bees {{x}}", {"words": "40"}) == Plan(
        steps=(
            Step(id="write", goal="Write about bees {{x}} in English", produces=("text",)),
            Step(
                id="keep",
                tool="write_file",
                args={"path": "out.txt", "content": "{{text}}"},
                consumes=("text",),
            ),
        ),
        artifacts={"goal": "bees {{x}}", "language": "English", "words": 40},
        acceptance_criteria=("at most 40 words",),
    )


def test_a_run_follows_a_shipped_workflow_by_name(session: Lab, workspace: Path) -> None:
    """`plan="react"` works with a model that only writes text."""
    run = asyncio.run(
        session.run(
            "say hello", plan="react", model=ScriptedModel(["Final Answer: hello"]), workspace=workspace
        )
    )
    assert (run.status, run.plan.steps) == (
        RunStatus.COMPLETE,
        (Step(id="answer", goal="say hello", react=True),),
    )


def test_a_file_may_say_all_that_a_step_says() -> None:
    """No field of `Step` but those that growth gives is missing in files."""
    own = set(Step.__dataclass_fields__) - {"parent", "given", "scope"}
    assert {one.name for one in fields(StepEntry)} - {"written"} == own | {"agent", "workflow"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('goal: "Write', 'gaol: "Write', "flow.yaml:9: steps[0].gaol: unknown key; did you mean 'goal'?"),
        (
            "{{language}}",
            "{{langage}}",
            "flow.yaml:9: steps[0].goal: {{langage}} is neither the goal nor a declared input; did you "
            "mean 'language'?",
        ),
        ("id: keep", "id: 7", "flow.yaml:11: steps[1].id: must be text, not 7; put it in quotes"),
        (
            "consumes: [text]",
            "consumes: [txt]",
            "flow.yaml:14: steps[1].consumes[0]: nothing makes 'txt'; did you mean 'text'?",
        ),
        (
            "produces: [text]",
            "produces: [txt]",
            "flow.yaml:14: steps[1].consumes[0]: nothing makes 'text'; did you mean 'txt'?",
        ),
        ("type: integer", "typ: integer", "flow.yaml:5: inputs.words.typ: unknown key; did you mean 'type'?"),
        ("kind: plan\n", "", "flow.yaml:1: kind: is missing"),
    ],
)
def test_mistakes_are_told_with_their_place(
    old: str, new: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, line, key and the nearest spelling."""
    monkeypatch.chdir(tmp_path)
    assert old in PLAN
    written(tmp_path, PLAN.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        load_plan("flow.yaml", "bees", {"words": 40})
    assert str(caught.value).startswith(told)


def test_inputs_are_checked(tmp_path: Path) -> None:
    """A missing input, one that is not declared, one of another type, and inputs without a workflow are
    refused.
    """
    path = written(tmp_path, PLAN)
    with pytest.raises(UsageError, match="needs the input 'words'"):
        load_plan(path, "bees")
    with pytest.raises(UsageError, match="has no input 'word'; did you mean 'words'"):
        load_plan(path, "bees", {"word": 1})
    with pytest.raises(UsageError, match="'words' must be of type integer, not 'many'"):
        load_plan(path, "bees", {"words": "many"})
    with pytest.raises(UsageError, match="must be of type integer, not True"):
        load_plan(path, "bees", {"words": True})


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    """An unknown shipped workflow is told with the nearest one, a file that is not there as a file."""
    with pytest.raises(UsageError, match="no shipped workflow 'reakt'; did you mean 'react'"):
        load_plan("reakt", "x")
    with pytest.raises(UsageError, match=r"there is no workflow file .a/b\.yaml."):
        load_plan("a/b.yaml", "x")


SEQUENCE = """\
kind: sequential
agents:
  poet: {instructions: Rhyme., turns: 2}
steps:
  - {id: first, agent: poet}
  - {id: second, agent: {use: poet, model: small, tools: []}, goal: "More of {{goal}}", instructions: Be \
brief.}
"""
LOOP = """\
kind: loop
state: {draft: "-"}
steps:
  - {id: draft, goal: "{{goal}}", consumes: [draft]}
until: draft == "good"
limit: 3
"""
GRAPH = """\
kind: graph
start: [a]
nodes:
  - {id: a, goal: one}
  - {id: b, goal: two}
edges:
  - {from: a, to: b, when: a == "x"}
  - {from: b, to: a}
limit: 4
"""


def test_agents_give_steps_their_settings(tmp_path: Path) -> None:
    """By name in the workflow; what a reference or a step says itself goes first, instructions are added up;
    the goal is the run's by default.
    """
    first, second = load_plan(written(tmp_path, SEQUENCE), "bees").steps
    assert first == Step(id="first", goal="bees", instructions="Rhyme.", turns=2, produces=("first",))
    assert second == Step(
        id="second",
        goal="More of bees",
        instructions="Rhyme.\n\nBe brief.",
        turns=2,
        model="small",
        tools=(),
        produces=("second",),
        consumes=("first",),
        depends_on=("first",),
    )


def test_python_and_files_say_the_same_of_an_agent(tmp_path: Path) -> None:
    """Every setting, in an agent file, in a step of a workflow and in Python, makes the same step."""
    said: dict[str, Any] = {
        "model": "small",
        "provider": "openai",
        "instructions": "Rhyme.",
        "tools": ["read_file"],
        "turns": 2,
        "react": True,
        "temperature": 0.5,
        "params": {"top_p": 0.9},
        "schema": {"type": "object"},
    }
    assert set(said) == {one.name for one in fields(AgentSettings)}
    agent = LLMAgent(name="poet", **said)
    path = written(tmp_path, json.dumps({"kind": "agent", "name": "poet", **said}), "poet.yaml")
    assert load_agent(path) == agent
    step = {"id": "poet", "goal": "bees", **said}
    flow = written(tmp_path, json.dumps({"kind": "plan", "steps": [step]}))
    assert load_plan(flow, "bees").steps == (agent.step("poet", "bees"),) == (Step(**step),)


def test_agent_files_are_shared(tmp_path: Path) -> None:
    """A file beside the workflow, in a folder of it, or shipped; a mistake in it is told with both places."""
    (tmp_path / "agents").mkdir()
    written(tmp_path / "agents", "kind: agent\ninstructions: Look twice.\nreact: true\n", "careful.yaml")
    flow = written(
        tmp_path,
        "kind: sequential\nsteps:\n  - {id: a, agent: agents/careful.yaml}\n  - {id: b, agent: critic}\n",
    )
    first, second = load_plan(flow, "bees").steps
    assert (first.instructions, first.react) == ("Look twice.", True)
    assert second.schema is not None and second.schema["required"] == ["verdict", "issues"]
    assert load_agent(tmp_path / "agents" / "careful.yaml") == LLMAgent("careful", "Look twice.", react=True)
    written(tmp_path / "agents", "kind: agent\ninstrutions: x\n", "careful.yaml")
    with pytest.raises(
        UsageError,
        match=r"flow.yaml:3: steps\[0\].agent: .*careful.yaml:2: instrutions: unknown key; did you mean "
        r"'instructions'",
    ):
        load_plan(flow, "bees")


@pytest.mark.parametrize(
    "name", ["../x.yaml", "/etc/x.yaml", "agents/../../x.yaml", "link.yaml", "a\\b.yaml", "http://x/y.yaml"]
)
def test_agent_files_stay_in_the_folder_of_the_workflow(name: str, tmp_path: Path) -> None:
    """No path and no link leads out of it, and nothing is fetched."""
    folder = tmp_path / "flows"
    folder.mkdir()
    written(tmp_path, "kind: agent\n", "x.yaml")
    (folder / "link.yaml").symlink_to(tmp_path / "x.yaml")
    flow = written(folder, f"kind: sequential\nsteps:\n  - id: a\n    agent: '{name}'\n")
    with pytest.raises(
        UsageError,
        match=r"flow.yaml:4: steps\[0\].agent: (.* is not in the folder of the workflow|there is no "
        r"agent file)",
    ):
        load_plan(flow, "bees")


@pytest.mark.parametrize(
    ("text", "old", "new", "told"),
    [
        (
            SEQUENCE,
            "agent: poet}",
            "agent: poett}",
            "flow.yaml:5: steps[0].agent: there is no agent 'poett'; did you mean 'poet'?",
        ),
        (
            SEQUENCE,
            "turns: 2",
            "use: critik",
            "flow.yaml:3: agents.poet: there is no agent 'critik'; did you mean 'critic'?",
        ),
        (
            SEQUENCE,
            "turns: 2",
            "turn: 2",
            "flow.yaml:3: agents.poet.turn: unknown key; did you mean 'turns'?",
        ),
        (
            SEQUENCE,
            "kind: sequential",
            "kind: sequence",
            "flow.yaml:1: kind: there is no kind 'sequence'; did you mean 'sequential'?",
        ),
        (SEQUENCE, "id: second", "id: first", "flow.yaml:6: steps[1].id: 'first' is already on line 5"),
        (SEQUENCE, "id: second", "id: 'two words'", "flow.yaml:6: steps[1].id: String should match pattern"),
        (
            SEQUENCE,
            "id: second",
            "id: goal",
            "flow.yaml:6: steps[1].produces: 'goal' is the goal or an input: choose another name",
        ),
        (LOOP, "limit: 3\n", "", "flow.yaml:1: limit: is missing"),
        (LOOP, "limit: 3", "limit: 51", "flow.yaml:6: limit: must be less than or equal to 50, not 51"),
        (
            LOOP,
            "until: draft",
            "until: draf",
            "flow.yaml:5: until: condition 'draf == \"good\"': nothing makes 'draf'; did you mean 'draft'?",
        ),
        (LOOP, 'draft == "good"', 'draft === "good"', "flow.yaml:5: until: condition 'draft === \"good\"': "),
        (
            LOOP,
            "consumes: [draft]",
            "consumes: [drft]",
            "flow.yaml:4: steps[0].consumes[0]: nothing makes 'drft'; did you mean 'draft'?",
        ),
        (
            LOOP,
            "consumes: [draft]",
            "when: drft == 1",
            "flow.yaml:4: steps[0].when: nothing makes 'drft'; did you mean 'draft'?",
        ),
        (
            LOOP,
            'goal: "{{goal}}"',
            'goal: "{{draft}}"',
            "flow.yaml:4: steps[0].goal: {{draft}} is neither the goal nor a declared input",
        ),
        (GRAPH, "limit: 4\n", "", "flow.yaml:3: nodes: the graph goes in a circle, "),
        (GRAPH, "to: b", "to: bb", "flow.yaml:7: edges[0].to: there is no node 'bb'; did you mean 'b'?"),
        (
            GRAPH,
            "when: a ==",
            "when: c ==",
            "flow.yaml:7: edges[0].when: condition 'c == \"x\"': nothing makes 'c'",
        ),
        (GRAPH, "when: a ==", "if: a ==", "flow.yaml:7: edges[0].if: unknown key"),
        (GRAPH, "start: [a]\n", "", "flow.yaml:2: nodes: an edge leads to every node"),
        (
            GRAPH,
            "{id: a, goal: one}",
            "{id: a}",
            "flow.yaml:4: nodes[0]: step 'a' has neither a goal nor a tool nor an operation: give "
            "exactly one",
        ),
        (
            GRAPH,
            "{id: a, goal: one}",
            "{id: a, goal: one, tool: x}",
            "flow.yaml:4: nodes[0]: step 'a' has both a goal and a tool",
        ),
        (
            GRAPH,
            "limit: 4",
            "limit: 4\nstate: {goal: 1}",
            "flow.yaml:10: state: 'goal' is the goal or an input",
        ),
    ],
)
def test_mistakes_in_shapes_are_told_with_their_place(
    text: str, old: str, new: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown agents, kinds and nodes, circles and loops without limit, conditions that name nothing or
    cannot be read.
    """
    monkeypatch.chdir(tmp_path)
    assert old in text
    written(tmp_path, text.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        load_plan("flow.yaml", "bees")
    assert str(caught.value).startswith(told)


BOMBS = {
    "aliases": "kind: plan\na: &a [x, x]\nb: [*a, *a]\n",
    "tags": "kind: !!python/object:os.system plan\n",
    "a key twice": "kind: plan\nkind: loop\n",
    "deep": "kind: " + "[" * 100_000,
    "many": "kind: plan\nsteps: [" + "{}, " * 60_000 + "]\n",
    "long": "kind: plan\nname: " + "x" * 1_100_000,
    "two documents": "kind: plan\n---\nkind: plan\n",
    "not a mapping": "- kind: plan\n",
    "nothing": "",
    "a long condition": "kind: loop\nsteps: [{id: a, goal: b}]\nlimit: 2\nuntil: "
    + "a == 1 and " * 500
    + "a == 1\n",
    "a deep condition": "kind: loop\nsteps: [{id: a, goal: b}]\nlimit: 2\nuntil: "
    + "(" * 500
    + "a == 1"
    + ")" * 500
    + "\n",
    "attributes": 'kind: sequential\nsteps:\n  - {id: a, goal: "{{goal.__class__}}"}\n',
    "code": "kind: loop\nsteps: [{id: a, goal: b}]\nlimit: 2\nuntil: __import__('os').system('x')\n",
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.timeout(120)
def test_bombs_are_refused(bomb: str, tmp_path: Path) -> None:
    """What an attack needs and a workflow does not is refused before it goes off, with the file named."""
    path = written(tmp_path, BOMBS[bomb])
    with pytest.raises(UsageError, match=r"flow\.yaml"):
        load_plan(path, "bees")


def test_what_a_person_gives_is_not_looked_at_again(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """References in the goal and in inputs stay text, also in loops, where steps are written down and read
    again for each round.
    """
    flow = written(
        tmp_path,
        LOOP.replace("state:", "inputs: {tone: how it sounds}\nstate:").replace(
            '"{{goal}}"', '"{{goal}} {{tone}}"'
        ),
    )
    seen: list[str] = []

    def says(request: ModelRequest) -> str:
        seen.append(request.messages[-1].text)
        return "good" if len(seen) == 3 else "bad"

    run = asyncio.run(
        session.run(
            "{{draft}} ${x}",
            plan=flow,
            inputs={"tone": "{{{{goal}}"},
            model=ScriptedModel(says),
            workspace=workspace,
        )
    )
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "good")
    assert [text.splitlines()[0] for text in seen] == ["{{draft}} ${x} {{{{goal}}"] * 3
    assert ["bad" in text for text in seen] == [False, True, True]


def test_what_a_loop_will_need_is_looked_at_before_it_runs(
    session: Lab, workspace: Path, tmp_path: Path
) -> None:
    """A call of a tool that does not exist, inside a loop, is refused before anything is written."""
    steps = {"id": "draft", "tool": "raed_file", "args": {"path": "a"}}
    flow = written(
        tmp_path, json.dumps({"kind": "loop", "steps": [steps], "until": "draft == 'x'", "limit": 2})
    )
    with pytest.raises(
        UsageError, match="step 'draft': there is no tool 'raed_file'; did you mean 'read_file'"
    ):
        asyncio.run(session.run("x", plan=flow, model=ScriptedModel([]), workspace=workspace))
    assert session.store.runs() == []


@pytest.mark.parametrize(
    ("name", "value", "least"), [("rounds", -1, 0), ("rounds", "-1", 0), ("max_steps", 0, 1)]
)
@pytest.mark.parametrize("plan", ["standard", "pev"])
def test_an_input_that_is_too_small_is_refused_before_anything_runs(
    plan: str, name: str, value: object, least: int
) -> None:
    """No model is asked for a plan whose check cannot be done afterwards."""
    with pytest.raises(UsageError, match=f"'{name}' must be at least {least}, not '?-?[01]'?"):
        load_plan(plan, "x", {name: value})
    assert load_plan(plan, "x", {name: least})


@pytest.mark.parametrize("name", NAMES)
def test_the_published_schemas_match_the_code(name: str) -> None:
    """`kestrel_lab/schemas` holds what the models say now; write it anew with: kestrel schema NAME."""
    stored = (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert stored == schema_text(name)
    jsonschema.Draft202012Validator.check_schema(json.loads(stored))


@pytest.mark.parametrize(
    "path", [*SHIPPED.glob("*.yaml"), *EXAMPLES.glob("*.yaml")], ids=lambda path: path.stem
)
def test_workflow_files_fit_the_schema(path: Path) -> None:
    """An editor finds no fault with any workflow that comes with the project, and finds one with a misspelt
    key.
    """
    validator = jsonschema.Draft202012Validator(json.loads(schema_text("workflow")))
    value = read_yaml(path).value
    assert isinstance(value, dict)
    assert list(validator.iter_errors(value)) == []
    assert list(validator.iter_errors({**value, "stepps": []})) != []


@pytest.mark.parametrize(
    "path",
    [*SHIPPED_AGENTS.glob("*.yaml"), *(EXAMPLES / "agents").glob("*.yaml")],
    ids=lambda path: path.stem,
)
def test_agent_files_fit_the_schema_and_load(path: Path, session: Lab) -> None:
    """Every agent that comes with the project has the name of its file, a description, and tools that
    exist.
    """
    assert (
        list(
            jsonschema.Draft202012Validator(json.loads(schema_text("agent"))).iter_errors(
                read_yaml(path).value
            )
        )
        == []
    )
    agent = load_agent(path)
    assert (agent.name, bool(agent.description)) == (path.stem, True)
    session.registry.toolbox.only(agent.tools or ())


@st.composite
def workflows(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """A workflow file of up to five nodes that may skip, call tools, use agents and refer to what others
    make.
    """
    names = [f"n{number}" for number in range(draw(st.integers(1, 5)))]
    nodes: list[dict[str, Any]] = []
    for name in names:
        # Where all is there from the start anything may be used; otherwise what was made before.
        there = names if kind in ("loop", "cyclic") else [] if kind == "parallel" else names[: len(nodes)]
        node: dict[str, Any] = {
            "id": name,
            **draw(st.sampled_from([{"goal": "{{goal}}"}, {"agent": "writer"}, {"tool": "read_file"}])),
        }
        if "tool" in node:
            node["args"] = {"path": f"{{{{{draw(st.sampled_from([*there, 'goal', 'n']))}}}}}"}
        elif draw(st.booleans()):
            node["consumes"] = draw(st.lists(st.sampled_from([*there, "goal", "n"]), unique=True, max_size=3))
        if draw(st.booleans()):
            node["when"] = f"{draw(st.sampled_from([*there, 'n']))} != 1"
        nodes.append(node)
    shape: dict[str, Any] = {"kind": kind, "inputs": {"n": {"type": "integer", "default": 1}}}
    if kind == "sequential":
        return {**shape, "steps": nodes}
    if kind == "parallel":
        return {
            **shape,
            "branches": nodes,
            **draw(st.sampled_from([{}, {"join": {"id": "end", "agent": "writer"}}])),
        }
    if kind == "loop":
        return {**shape, "steps": nodes, "until": f"{names[-1]} == 1", "limit": draw(st.integers(1, 50))}
    edges = [
        {"from": names[draw(st.integers(0, place - 1))], "to": names[place]} for place in range(1, len(names))
    ]
    if kind == "cyclic":
        edges.append({"from": names[-1], "to": names[0], "when": f"{names[0]} == 1"})
        return {
            **shape,
            "kind": "graph",
            "nodes": nodes,
            "edges": edges,
            "start": names[:1],
            "limit": draw(st.integers(1, 200)),
        }
    return {**shape, "nodes": nodes, "edges": edges}


@pytest.mark.parametrize("kind", ["sequential", "parallel", "loop", "graph", "cyclic"])
def test_a_random_workflow_becomes_a_plan(kind: str, session: Lab, tmp_path: Path) -> None:
    """Whatever fits the schema and names only what is there is a plan that can be stored, and that a run
    accepts; its text is JSON as well as YAML.
    """
    validator = jsonschema.Draft202012Validator(json.loads(schema_text("workflow")))

    @settings(max_examples=30)
    @given(value=workflows(kind))
    def law(value: dict[str, Any]) -> None:
        assert list(validator.iter_errors(value)) == []
        plan = load_plan(written(tmp_path, json.dumps(value)), "bees", {"n": "2"})
        nodes = value.get("nodes") or value.get("branches") or value["steps"]
        assert {node["id"] for node in nodes} <= {step.id for step in all_steps(plan.steps)}
        assert Plan.from_json(plan.as_json()) == plan
        check_steps(
            all_steps(plan.steps), session.registry.toolbox, OPERATIONS, session.registry.resolve_model
        )

    law()


CRITERIA = """\
kind: sequential
name: careful
acceptance_criteria: ["it is about {{goal}}"]
steps:
  - {id: facts, goal: "Find facts about {{goal}}"}
  - {id: text, agent: writer, goal: "Write about {{goal}}"}
  - {id: verified, operation: verify, args: {goal: "{{goal}}", answer: "{{text}}"}}
"""


def test_a_sequence_is_held_to_its_criteria(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """One step at a time, each leaves an artifact for the next, and the answer that was repaired is the one
    that meets the file's criteria.
    """

    def verdict(*, met: bool) -> str:
        entry = {"criterion": 1, "met": met, "why": "as read", "evidence": []}
        return json.dumps({"criteria": [entry], "confidence": 0.9})

    def says(request: ModelRequest) -> str:
        goal = next(message.text for message in request.messages if message.role == "user")
        if goal.startswith("Judge"):
            assert "it is about bees" in goal
            return verdict(met="Bees dance." in goal)
        return {"Find": "They dance.", "Writ": "Something dances."}.get(goal[:4], "Bees dance.")

    flow = written(tmp_path, CRITERIA)
    run = asyncio.run(session.run("bees", plan=flow, model=ScriptedModel(says), workspace=workspace))
    assert (run.status, run.reason, run.answer) == (RunStatus.COMPLETE, "", "Bees dance.")
    assert run.plan.acceptance_criteria == ("it is about bees",)
    assert "They dance." in run._state.conversations["text"].messages[1].text
    order = [event.step for event in run.events() if isinstance(event, StepFinished)]
    assert order == ["facts", "text", "verified", "verified/repair#1", "verified#2"]


def test_a_step_that_grows_others_may_be_in_a_loop(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """What an operation inside a round grows belongs to that round: the question whether to go on waits for
    it and is given what it made.
    """
    flow = written(
        tmp_path,
        "kind: loop\nsteps:\n  - {id: work, operation: plan, args: {goal: '{{goal}}'}}\nuntil: work == "
        '"good"\nlimit: 3\n',
    )
    answers = iter(["bad", "good"])

    def says(request: ModelRequest) -> str:
        text = next(message.text for message in request.messages if message.role == "user")
        if text.startswith("Make a plan"):
            return json.dumps({"steps": [{"id": "do", "goal": "do it"}], "acceptance_criteria": ["done"]})
        return next(answers)

    run = asyncio.run(session.run("bees", plan=flow, model=ScriptedModel(says), workspace=workspace))
    assert (run.status, run.reason, run.answer) == (RunStatus.COMPLETE, "", "good")
    assert [step.id for step in run.plan.steps] == [
        "loop",
        "work#1",
        "loop#1",
        "work#1/do",
        "work#2",
        "loop#2",
        "work#2/do",
    ]
