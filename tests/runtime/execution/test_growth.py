"""Plans that grow while they run: the scheduler against a simple reference, and whole runs of planning
agents.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import illegal_states, put_prefix

from kestrel_lab.core.errors import RunError, ToolError, UsageError
from kestrel_lab.core.events.union import (
    Event,
    ModelCalled,
    PlanExtended,
    Prompted,
    StepFinished,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.execution.scheduler import Outcome, StepScheduler
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedApprover, ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool


@dataclass
class Growing:
    """Does steps of a plan, each of which may grow others or fail; keeps what was done when."""

    plan: Plan
    grows: dict[str, tuple[Step, ...]]
    fails: frozenset[str]
    ticks: dict[str, int]
    ended_before: dict[str, frozenset[str]] = field(default_factory=dict)
    told: dict[str, StepFinished] = field(default_factory=dict)

    async def __call__(self, step: Step) -> Outcome:
        """Take some turns of the event loop, then fail, grow or end."""
        assert step.id not in self.ended_before
        self.ended_before[step.id] = frozenset(self.told)
        for _ in range(self.ticks.get(step.id, 0)):
            await asyncio.sleep(0)
        if step.id in self.fails:
            raise ToolError(step.id)
        if not self.grows.get(step.id):
            return Outcome()
        self.plan = self.plan.grown(step.id, self.grows[step.id])
        return Outcome(grown=self.plan)

    def hear(self, event: Event) -> None:
        """Keep how a step ended."""
        if isinstance(event, StepFinished):
            assert event.step not in self.told
            self.told[event.step] = event


@st.composite
def growing(draw: st.DrawFn) -> Growing:
    """A plan of up to five steps, of which some grow up to three, some of which grow two more."""
    count = draw(st.integers(1, 5))
    steps: list[Step] = []
    for number in range(count):
        earlier = [step.id for step in steps]
        needs = tuple(draw(st.lists(st.sampled_from(earlier), unique=True, max_size=2))) if earlier else ()
        steps.append(
            Step(
                id=f"s{number}",
                goal="x",
                depends_on=needs,
                parallelizable=draw(st.booleans()),
                after_failure=draw(st.integers(0, 3)) == 0,
            )
        )
    grows: dict[str, tuple[Step, ...]] = {}
    for parent in steps:
        children: list[Step] = []
        for number in range(draw(st.integers(0, 3))):
            needs = (children[-1].id,) if children and draw(st.booleans()) else ()
            children.append(Step(id=f"{parent.id}/{number}", goal="x", depends_on=needs))
        grows[parent.id] = tuple(children)
        for child in children:
            grows[child.id] = tuple(
                Step(id=f"{child.id}/{number}", goal="x") for number in range(draw(st.integers(0, 2)))
            )
    names = [*[step.id for step in steps], *(step.id for found in grows.values() for step in found)]
    fails = frozenset(draw(st.lists(st.sampled_from(names), unique=True, max_size=2)))
    return Growing(
        plan=Plan(steps=tuple(steps)),
        grows=grows,
        fails=fails,
        ticks=draw(st.dictionaries(st.sampled_from(names), st.integers(0, 3))),
    )


def expected(work: Growing) -> tuple[dict[str, str], bool]:
    """How each step must end (`ok`, `failed`, `skipped`) and whether the run must fail: by going through all
    until nothing changes.
    """
    ends: dict[str, str] = {}
    plan = work.plan
    while True:
        before = dict(ends)
        for step in plan.steps:
            needs = plan.needs()[step.id]
            if step.id in ends or any(need not in ends for need in needs):
                continue
            bad = [need for need in needs if ends[need] != "ok"]
            if not step.after_failure and any(
                not _dealing(plan, need) & _before(plan, step.id) for need in bad
            ):
                ends[step.id] = "skipped"
            elif step.id in work.fails:
                ends[step.id] = "failed"
            else:
                ends[step.id] = "ok"
                if work.grows.get(step.id):
                    plan = plan.grown(step.id, work.grows[step.id])
                break
        if ends == before:
            break
    reach = {name: _reached(plan, name) for name, end in ends.items() if end == "failed"}
    return ends, any(not _settled(name, ends, reach) for name in reach)


def _settled(failed: str, ends: dict[str, str], reach: dict[str, set[str]]) -> bool:
    """Whether a step that came after dealt with it: one that ended well, or one whose own failure was dealt
    with.
    """
    return any(
        ends[handler] == "ok" or (ends[handler] == "failed" and _settled(handler, ends, reach))
        for handler in reach[failed]
    )


def _before(plan: Plan, name: str) -> set[str]:
    """All that a step waits for, however far back."""
    needs = plan.needs()
    return {*needs[name], *(earlier for need in needs[name] for earlier in _before(plan, need))}


def _dealing(plan: Plan, name: str) -> set[str]:
    """The first steps with `after_failure` on each way that leads on from a step."""
    onward = [step for step in plan.steps if name in plan.needs()[step.id]]
    return {
        found for step in onward for found in ({step.id} if step.after_failure else _dealing(plan, step.id))
    }


def _reached(plan: Plan, failed: str) -> set[str]:
    """The steps with `after_failure` that come after `failed`, with nothing but skipped steps between."""
    found: set[str] = set()
    todo, seen = [failed], {failed}
    while todo:
        name = todo.pop()
        for step in plan.steps:
            if name in plan.needs()[step.id] and step.id not in seen:
                seen.add(step.id)
                if step.after_failure:
                    found.add(step.id)
                else:
                    todo.append(step.id)
    return found


@settings(
    max_examples=100, deadline=None
)  # the mutant below is seen within 11, in twelve tries with other seeds
@given(work=growing(), limit=st.integers(1, 4))
def test_growth_against_a_reference(work: Growing, limit: int) -> None:
    """Every step, given or grown, ends as the reference says, begins after all it waits for, and an untreated
    failure fails the run.
    """
    ends, fails = expected(replace(work))
    scheduler = StepScheduler(work.plan, work, emit=work.hear)
    if fails:
        with pytest.raises(RunError):
            asyncio.run(scheduler.run_parallel(limit))
    else:
        asyncio.run(scheduler.run_parallel(limit))
    assert {
        name: "ok" if e.ok else "skipped" if e.skipped else "failed" for name, e in work.told.items()
    } == ends
    needs = work.plan.needs()
    # What was grown later than a step began is not waited for by it, unless it came of something it waits
    # for.
    assert all(set(needs[name]) <= before for name, before in work.ended_before.items())


def test_two_failures_before_one_repair() -> None:
    """A step that deals with what comes after several failed steps deals with them all, whichever failed
    first.
    """
    steps = (
        Step(id="a", goal="x"),
        Step(id="b", goal="x"),
        Step(id="c", goal="x", depends_on=("a", "b")),
        Step(id="repair", goal="x", depends_on=("c",), after_failure=True),
    )
    work = Growing(plan=Plan(steps=steps), grows={}, fails=frozenset({"a", "b"}), ticks={})
    asyncio.run(StepScheduler(work.plan, work, emit=work.hear).run_parallel(1))
    assert {name: (event.ok, event.skipped) for name, event in work.told.items()} == {
        "a": (False, False),
        "b": (False, False),
        "c": (False, True),
        "repair": (True, False),
    }


def test_a_repair_that_fails_and_is_repaired() -> None:
    """A failure is dealt with when the step that took it up failed too, and that failure was dealt with."""
    steps = (
        Step(id="a", goal="x"),
        *(Step(id=name, goal="x", depends_on=(need,), after_failure=True) for name, need in ("ba", "cb")),
    )
    work = Growing(plan=Plan(steps=steps), grows={}, fails=frozenset({"a", "b"}), ticks={})
    assert expected(replace(work)) == ({"a": "failed", "b": "failed", "c": "ok"}, False)
    asyncio.run(StepScheduler(work.plan, work, emit=work.hear).run_parallel(1))
    assert {name: event.ok for name, event in work.told.items()} == {"a": False, "b": False, "c": True}


def test_a_scheduler_that_does_not_wait_for_what_grew_is_caught() -> None:
    """The deliberate bug: dependants are let go when their need is done, before what it grew; the test above
    must see it.
    """

    class Hasty(StepScheduler):
        def _arrange(self, plan: Plan) -> None:
            super()._arrange(replace(plan, steps=tuple(replace(step, parent="") for step in plan.steps)))

    work = Growing(
        plan=Plan(steps=(Step(id="a", goal="x"), Step(id="b", goal="x", depends_on=("a",)))),
        grows={"a": (Step(id="a/1", goal="x"),)},
        fails=frozenset(),
        ticks={},
    )
    asyncio.run(Hasty(work.plan, work, emit=work.hear).run_parallel(4))
    assert "a/1" not in work.ended_before["b"]


PROPOSAL = {
    "steps": [
        {"id": "read", "tool": "measure", "args": {"what": "roof"}, "produces": ["height"]},
        {
            "id": "keep",
            "tool": "keep",
            "args": {"text": "{{height}}"},
            "consumes": ["height"],
            "produces": ["kept"],
        },
        {"id": "tell", "goal": "tell what was measured", "consumes": ["height"], "depends_on": ["keep"]},
    ],
    "acceptance_criteria": ["the height is named"],
}


def tools(effect: Callable[[str], None]) -> list[Tool]:
    """A read and a write."""

    @tool(danger_level="safe", effect="pure")
    async def measure(what: str) -> dict[str, object]:
        """Measure something."""
        return {"what": what, "metres": 7}

    @tool
    async def keep(text: dict[str, object]) -> str:
        """Keep a value."""
        effect(f"keep {json.dumps(text)}")
        return "kept"

    return [measure, keep]


def planner(*proposals: object) -> ScriptedModel:
    """Proposes the plans in order, then carries them out: an agent answers with the first word of its goal in
    capitals.
    """

    def says(request: ModelRequest) -> Turn:
        goal = next(message.text for message in request.messages if message.role == "user")
        if not goal.startswith("Make a plan"):
            return goal.split()[0].upper()
        said = proposals[
            min(sum(message.role == "assistant" for message in request.messages), len(proposals) - 1)
        ]
        return said if isinstance(said, str) else f"Here it is:\n```json\n{json.dumps(said)}\n```"

    return ScriptedModel(says)


PLANNED = Plan(
    steps=(
        Step(
            id="plan",
            operation="plan",
            args={"goal": "{{goal}}"},
            consumes=("goal",),
            produces=("plan", "result"),
        ),
        Step(id="close", goal="close", consumes=("result", "plan")),
    ),
    artifacts={"goal": "measure the roof"},
)


def carry_out(
    session: Lab, workspace: Path, model: ScriptedModel, effects: list[str], plan: Plan = PLANNED
) -> Run:
    """A run of the plan, to its end."""
    return asyncio.run(
        session.run(
            "build", plan=plan, model=model, tools=tools(effects.append), workspace=workspace, approve="auto"
        )
    )


def test_an_agent_proposes_a_plan_and_it_is_carried_out(session: Lab, workspace: Path) -> None:
    """The proposed steps run between the step that proposed them and the one that waits for it, artifacts
    keep their type.
    """
    effects: list[str] = []
    run = carry_out(session, workspace, planner(PROPOSAL), effects)
    assert (run.status, run.answer, effects) == (
        RunStatus.COMPLETE,
        "CLOSE",
        ['keep {"what": "roof", "metres": 7}'],
    )
    finished = [event.step for event in run.events() if isinstance(event, StepFinished) and event.ok]
    assert finished == ["plan", "plan/read", "plan/keep", "plan/tell", "close"]
    assert [step.parent for step in run.plan.steps] == ["", "", "plan", "plan", "plan"]
    told = run._state.conversations["close"].messages[1].text
    assert "\nTELL\n" in told
    assert '"the height is named"' in told


def test_a_bad_plan_goes_back_with_its_errors(session: Lab, workspace: Path) -> None:
    """What is wrong is told to the model: the form, an unknown tool, a circle; a good plan after two bad ones
    is used.
    """
    circle = {
        "steps": [
            {"id": "a", "goal": "x", "depends_on": ["b"]},
            {"id": "b", "goal": "x", "depends_on": ["a"]},
        ],
        "acceptance_criteria": ["done"],
    }
    unknown = {"steps": [{"id": "a", "tool": "mesure", "args": {}}], "acceptance_criteria": ["done"]}
    run = carry_out(session, workspace, planner(circle, unknown, PROPOSAL), [])
    told = [event.text for event in run.events() if isinstance(event, Prompted)]
    assert (run.status, len(told)) == (RunStatus.COMPLETE, 3)
    assert told[1].startswith("This answer cannot be used: steps wait for each other in a circle: ")
    assert "there is no tool 'mesure'; did you mean 'measure'" in told[2]


def test_a_plan_that_stays_bad_fails_the_run(session: Lab, workspace: Path) -> None:
    """After two answers were sent back the third bad one ends the run with what is wrong; nothing was carried
    out.
    """
    run = carry_out(
        session,
        workspace,
        planner("I would rather not.", {"steps": []}, {"steps": [{"id": "a"}], "acceptance_criteria": ["x"]}),
        [],
    )
    assert run.status is RunStatus.FAILED
    assert run.reason == (
        "step 'plan' failed: the model's answer could not be used after 3 attempts: "
        "step 'a' has neither a goal nor a tool nor an operation: give exactly one; skipped: close"
    )
    assert [event for event in run.events() if isinstance(event, ToolCalled | PlanExtended)] == []
    assert sum(isinstance(event, ModelCalled) for event in run.events()) == 3


def test_any_prefix_of_a_growing_plan_is_completed(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """Cut after any event, the run ends with the same plan and answer; no question is asked twice, nothing
    done is done again.
    """
    script = planner({"steps": []}, PROPOSAL)
    reference = carry_out(session, workspace, script, [])
    records = reference.records()
    effects: list[str] = []
    other = Lab(tmp_path / "other", env={}, tools=tools(effects.append))
    for cut in range(1, len(records)):
        prefix = records[:cut]
        effects.clear()
        person = ScriptedApprover([True])
        run = asyncio.run(
            other.resume(put_prefix(other, records, cut), model=script, approve="auto", approver=person)
        )
        begun = any(isinstance(record.event, ToolCalled) and record.event.tool == "keep" for record in prefix)
        answered = any(
            isinstance(record.event, ToolAnswered) and record.event.tool == "keep" for record in prefix
        )
        assert (cut, run.status, run.answer, run.plan) == (cut, RunStatus.COMPLETE, "CLOSE", reference.plan)
        # What was under way is repeated only because a person said so.
        assert (cut, len(effects), len(person.asked)) == (cut, int(not answered), int(begun and not answered))
        extended = [event for event in run.events() if isinstance(event, PlanExtended)]
        assert (cut, len(extended)) == (cut, 1)
        done = {record.event.step for record in prefix if isinstance(record.event, StepFinished)}
        again = {record.event.step for record in run.records()[cut:] if isinstance(record.event, StepStarted)}
        assert (cut, done & again, illegal_states(run.records())) == (cut, set(), [])
    other.close()


def test_a_condition_chooses_what_is_done(session: Lab, workspace: Path) -> None:
    """A step whose condition does not hold is skipped, which is not a failure; what waits for it goes on
    without its artifact.
    """
    verdict: dict[str, object] = {
        "type": "object",
        "properties": {"bug": {"type": "boolean"}},
        "required": ["bug"],
    }
    plan = Plan(
        steps=(
            Step(id="triage", goal="triage", schema=verdict, produces=("verdict",)),  # type: ignore[arg-type]  # plain JSON
            Step(id="fix", goal="fix it", consumes=("verdict",), when="verdict.bug", produces=("patch",)),
            Step(id="thank", goal="thank them", consumes=("verdict",), when="not verdict.bug"),
            Step(id="report", goal="report", consumes=("patch",), depends_on=("thank",)),
            Step(id="after", goal="after all", depends_on=("fix",), when="steps.fix.skipped"),
        )
    )

    def says(request: ModelRequest) -> Turn:
        goal = next(message.text for message in request.messages if message.role == "user")
        return '{"bug": false}' if goal.startswith("triage") else goal.split()[0].upper()

    run = carry_out(session, workspace, ScriptedModel(says), [], plan)
    ends = {
        event.step: (event.ok, event.skipped) for event in run.events() if isinstance(event, StepFinished)
    }
    assert ends == {
        "triage": (True, False),
        "fix": (True, True),
        "thank": (True, False),
        "report": (True, False),
        "after": (True, False),
    }
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "REPORT\n\nAFTER")


def test_a_condition_that_cannot_be_decided_fails_its_step(session: Lab, workspace: Path) -> None:
    """A path that leads nowhere is an error that names step and path, not a no."""
    plan = Plan(
        steps=(
            Step(id="a", goal="a", produces=("x",)),
            Step(id="b", goal="b", consumes=("x",), when="x.y == 1"),
        )
    )
    run = carry_out(session, workspace, ScriptedModel(lambda _: "plain"), [], plan)
    assert run.status is RunStatus.FAILED
    assert "the condition of step 'b' cannot be decided" in run.reason


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"when": "x =="}, "step 'a':"),
        ({"when": "y == 1"}, "the condition of step 'a' asks for 'y', which the step does not consume"),
        ({"operation": "fly", "goal": ""}, "step 'a': there is no operation 'fly'"),
        ({"tool": "mesure", "goal": ""}, "step 'a': there is no tool 'mesure'; did you mean 'measure'"),
        ({"turns": 0}, "step 'a' has 0 turns"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run_begins(
    session: Lab, workspace: Path, fields: dict[str, object], message: str
) -> None:
    """A condition that cannot be read or names nothing, an unknown operation or tool: a `UsageError` that
    names the step.
    """
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        step = Step(**({"id": "a", "goal": "x"} | fields))  # type: ignore[arg-type]  # wrong on purpose
        carry_out(session, workspace, ScriptedModel([]), [], Plan(steps=(step,)))


def test_steps_have_their_own_model_instructions_tools_and_turns(tmp_path: Path, workspace: Path) -> None:
    """Each step is worked on by its own model, told its own instructions, offered its own tools, and held to
    its turns.
    """
    seen: dict[str, tuple[str, tuple[str, ...]]] = {}

    def listener(name: str, *turns: Turn) -> ScriptedModel:
        def says(request: ModelRequest) -> Turn:
            seen[name] = (request.messages[0].text, tuple(spec.name for spec in request.tools))
            played = sum(message.role == "assistant" for message in request.messages)
            return turns[min(played, len(turns) - 1)]

        return ScriptedModel(says, name=name)

    look: Turn = [("measure", {"what": "roof"})]
    lab = Lab(
        tmp_path / "own",
        env={},
        tools=tools(lambda _: None),
        models={"small": listener("small", "done"), "busy": listener("busy", look)},
    )
    plan = Plan(
        steps=(
            Step(id="a", goal="one", model="small", instructions="Be brief.", tools=("measure",)),
            Step(id="b", goal="two", model="busy", tools=("keep",), turns=2),
            Step(id="c", goal="three"),
        )
    )
    run = asyncio.run(
        lab.run(
            "all", plan=plan, model=listener("main", "fine"), workspace=workspace, limits=Limits(cycles=9)
        )
    )
    assert run.status is RunStatus.FAILED
    assert run.reason == "step 'b' failed: there was no answer within the step's 2 model turns"
    assert {name: offered for name, (_, offered) in seen.items() if name != "main"} == {
        "small": ("measure",),
        "busy": ("keep",),
    }
    assert seen["small"][0] == f"{seen['main'][0]}\n\nBe brief."
    asked = {event.step: event.model for event in run.events() if isinstance(event, ModelCalled)}
    assert asked == {"a": "small", "b": "busy", "c": "main"}
    lab.close()


def test_an_answer_that_does_not_fit_its_schema_goes_back(session: Lab, workspace: Path) -> None:
    """The model is told which place of its answer is wrong; the artifact is the value of the one that
    fits.
    """
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }
    plan = Plan(
        steps=(
            Step(id="count", goal="count", schema=schema, produces=("count",)),  # type: ignore[arg-type]  # plain JSON
            Step(id="keep", tool="keep", args={"text": "{{count}}"}, consumes=("count",)),
        )
    )
    effects: list[str] = []
    run = carry_out(session, workspace, ScriptedModel(['{"n": "seven"}', 'It is {"n": 7}.']), effects, plan)
    assert (run.status, effects) == (RunStatus.COMPLETE, ['keep {"n": 7}'])
    told = [event.text for event in run.events() if isinstance(event, Prompted)]
    assert [text.splitlines()[0] for text in told] == [
        "This answer cannot be used: n: 'seven' is not of type 'integer'"
    ]


def test_a_failure_that_a_later_step_deals_with_does_not_fail_the_run(session: Lab, workspace: Path) -> None:
    """A step that starts after failures sees them, and if it ends well the run completes; what was between is
    skipped.
    """
    plan = Plan(
        steps=(
            Step(id="try", tool="keep", args={"text": {}}),
            Step(id="use", goal="use it", depends_on=("try",)),
            Step(
                id="rescue", goal="rescue", depends_on=("use",), after_failure=True, when="not steps.use.ok"
            ),
        )
    )

    @tool(name="keep")
    async def broken(text: dict[str, object]) -> str:
        """Fail."""
        raise OSError("no disk")

    run = asyncio.run(
        session.run(
            "x",
            plan=plan,
            model=ScriptedModel(lambda _: "RESCUED"),
            tools=[broken],
            workspace=workspace,
            approve="auto",
        )
    )
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "RESCUED")
    assert run._state.finished_steps == {"try": False, "use": False, "rescue": True}
