"""Never run: what a user may write, as a type checker must accept it.

Each wrong line carries the complaint it must cause.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import BaseModel

from kestrel_lab import (
    ApprovalRequired,
    Comparison,
    Danger,
    EvalResult,
    GraphAgent,
    KestrelError,
    Lab,
    Limits,
    LLMAgent,
    Plan,
    ReActAgent,
    Run,
    RunStatus,
    Scenario,
    Step,
    Suite,
    Tool,
    Toolbox,
    ToolContext,
    Usage,
    UsageError,
    check,
    metric,
    tool,
)
from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelDelta,
    Record,
    ToolAnswered,
)
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import (
    Approver,
    Check,
    Handler,
    Middleware,
    Model,
    ModelKind,
    OnDelta,
    Reporter,
    Trial,
)
from kestrel_lab.core.scores import Score
from kestrel_lab.runtime import start
from kestrel_lab.testing import (
    FixedCheck,
    RecordingMiddleware,
    RecordingReporter,
    ScriptedApprover,
    ScriptedModel,
)


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(danger_level="high", effect="opaque", timeout_s=5)
async def launch(where: str, ctx: ToolContext) -> str:
    """Launch something."""
    ctx.progress("counting down", 0.5)
    return where


@check
def four(trial: Trial) -> bool:
    """Judge a trial."""
    return "4" in trial.answer


@check(needs="")
async def half(trial: Trial) -> tuple[float, str]:
    """Judge a trial by its log."""
    return 0.5, "half"


@check  # type: ignore[arg-type]
def unsure(trial: Trial) -> str:
    """Judge nothing."""
    return "perhaps"


@metric(unit="turns", better="lower")
def turns(records: Sequence[Record]) -> float:
    """Measure a run."""
    return len(records)


SHIPPED: Check = check(answer_contains="4")


class Echo:
    """A model of one's own."""

    @property
    def name(self) -> str:
        """Its name."""
        return "echo"

    @property
    def kind(self) -> ModelKind:
        """Its kind."""
        return "real"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Say what was said."""
        on_delta(request.messages[-1].text)
        return ModelAnswer(text=request.messages[-1].text)


async def person(asked: ApprovalAsked) -> ApprovalGiven:
    """An approver of one's own."""
    return ApprovalGiven(call=asked.call, granted=asked.danger != "CRITICAL", by="me", how="rule")


async def timed(call: Call, proceed: Handler) -> Result:
    """A middleware of one's own."""
    return await proceed(call)


def follow(event: Event) -> None:
    """A listener of one's own."""
    if isinstance(event, ModelDelta):
        print(event.text, end="")
    elif isinstance(event, ToolAnswered) and event.error:
        print(event.error["kind"])


def count(done: int, total: int, note: str) -> None:
    """A reporter of one's own."""


class Place(BaseModel):
    """What an answer has to be."""

    path: str
    line: int


class Short:
    """A check of one's own."""

    label = "is short"

    async def __call__(self, trial: Trial) -> Score:
        """Look at the answer."""
        return Score(check=self.label, passed=len(trial.answer) < 100, value=1.0)


async def main(lab: Lab) -> None:
    """A user's afternoon."""
    run: Run = await lab.run(
        "add 1 and 2", tools=[add, launch, "read_file"], limits=Limits(cycles=5), approver=person
    )
    status: RunStatus = run.status
    usage: Usage = run.usage + Usage(tokens_in=1)
    frame: pd.DataFrame = run.to_frame()
    records: list[Record] = run.records()
    page: Path = run.report("run.html")
    print(
        status.terminal, usage.tokens, frame.shape, records[0].at, page.name, run.answer.upper(), run.reason
    )

    number: int = (await lab.run("how many?", output=int)).value
    places: list[Place] = (await lab.run("where?", output=list[Place], model="openai/gpt-5")).value
    one: Place = lab.start("where?", output=Place).value
    again: Place = (await lab.resume(run.id, output=Place)).value
    loaded: Place = lab.get(run.id, output=Place).value
    counted: int = (await run.ask("how many?", output=int)).value
    misread: str = (await run.ask("how many?", output=int)).value  # type: ignore[assignment]
    await run.ask("how many?", output=7)  # type: ignore[arg-type]
    chat = lab.chat(model="openai/gpt-5")
    told: list[Place] = (await chat.ask("where?", output=list[Place])).value
    soon: Place = chat.begin("where?", output=Place).value
    held: list[Run] = [await lab.resume(run), await lab.fork(run, at=3), lab.get(run)]
    print(
        lab.diff(run, held[0]), lab.history.stages(run), lab.history.checkpoints(run), lab.memory.learn(run)
    )
    await lab.resume(7)  # type: ignore[arg-type]
    print(counted, misread, told, soon)
    word = (await lab.run("which?", output=Literal["a", "b"])).value
    either = (await lab.run("which?", output=int | str, plan=LLMAgent("a", output=Place))).value
    shaped = (await lab.run("which?", output={"type": "object"})).value
    await lab.run("how many?", output=7)  # type: ignore[arg-type]
    wrong: str = (await lab.run("how many?", output=int)).value  # type: ignore[assignment]
    print(number, places, one.line, again, loaded, word, either, shaped, wrong)

    begun = lab.start("go", model=Echo(), workspace=Path(), approve="auto:medium", instructions="be brief")
    stop = begun.subscribe(follow)
    for question in begun.questions:
        begun.decide(ApprovalGiven(call=question.call, granted=True, by="me", how="click", scope="run"))
    begun.cancel()
    stop()

    try:
        await lab.resume(run.id, model="openai/gpt-5")
    except ApprovalRequired as waiting:
        decided: list[str] = lab.decide(waiting.run_id, granted=False, by="me", how="command", reason="no")
        print(decided)
    except (UsageError, KestrelError) as error:
        print(error)

    critic = LLMAgent("critic", "Be strict.", tools=["grep"], turns=3)
    ways = [("a", "b"), ("b", "a", "not b.done")]
    Plan(
        steps=(
            replace(critic.step("first", "look"), produces=("view",)),
            replace(critic.step("last", "judge"), consumes=["view"]),
        )
    )
    graph = GraphAgent("graph", {"a": critic, "b": (ReActAgent("b"), "check {{goal}}")}, ways, limit=9)
    await lab.run("go", plan=critic)
    await lab.run("go", plan=graph)
    await lab.run("go", plan="react", inputs={"n": 3})
    await lab.run("go", plan=Path("flow.yaml"))
    await lab.run("go", plan=7)  # type: ignore[arg-type]

    fork: Run = await lab.fork(
        run.id, at=5, model="openai/gpt-5", tools=["grep"], answer="42", approver=person
    )
    begun = start.fork(lab, fork.id, result="text", approve="auto")
    parted: pd.DataFrame = lab.diff(run.id, fork.id).frame
    print(parted)
    result: EvalResult = await lab.eval("suite.yaml", configs=["small"], epochs=2, reporter=count)
    print(result)
    mine: EvalResult = await lab.eval(
        Suite(
            name="mine",
            scenarios=(Scenario(id="a", goal="2 + 2?", checks=(four, SHIPPED)),),
            metrics=(turns,),
        )
    )
    change: Comparison = lab.evals.compare_configs(mine, "small", "large")
    print(change)
    found = await lab.evals.import_runs("runs", "log.eval", suite="suite.yaml")
    imported: pd.DataFrame = found.frame
    trials: dict[str, EvalResult] = found.results
    print(imported, trials, len(found.runs))
    events: list[Event] = list(run.events())
    first: Event = run.events()[0]
    async for event in run.events():
        print(event.type, events, first)
    with Lab() as other:
        print(other)
    async with Lab() as other:
        print(other)
    runs: pd.DataFrame = lab.runs(limit=5)
    print(runs)
    lab.close()


def build() -> None:
    """What a user may build."""
    lab = Lab(home=Path(".kestrel"), model=ScriptedModel(["hi"]), approve="ask", tools=[add])
    done: Run = lab.run_sync("go")
    box = Toolbox([add]) + [launch]
    three: object = add(1, b=2)
    danger: Danger = launch.danger
    plan = Plan(steps=(Step(id="a", goal="x"), Step(id="b", goal="y", depends_on=("a",))))
    print(done, box.names, three, danger > Danger.LOW, plan.graph().nodes, isinstance(add, Tool))
    asyncio.run(main(lab))


models: list[Model] = [Echo(), ScriptedModel(["hi"])]
approvers: list[Approver] = [person, ScriptedApprover([True])]
layers: list[Middleware] = [timed, RecordingMiddleware()]
checks: list[Check] = [Short(), FixedCheck(passes=True), four, half, SHIPPED]
reporters: list[Reporter] = [count, RecordingReporter()]

Limits(cycle=1)  # type: ignore[call-arg]
Step(id=1, goal="x")  # type: ignore[arg-type]
ApprovalGiven(call="c", granted=True)  # type: ignore[call-arg]
Usage().tokens_in = 1  # type: ignore[misc]
wrong: Model = person  # type: ignore[assignment]
