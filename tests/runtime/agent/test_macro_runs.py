"""A macro within a run: one call for the model, many for the log; none of them twice, none of them
unasked.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from reference import HonestPerson, illegal_states, tools, unreported

from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    MacroFinished,
    MacroStarted,
    Record,
    RunStarted,
    SchedulerParallelBatch,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.conversation import OpenMacro
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedApprover, ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.macros import Macro, MacroRegistry, macro_tool
from kestrel_lab.tools.tool import ToolContext

WHO = {
    "type": "object",
    "properties": {"who": {"type": "string"}},
    "required": ["who"],
    "additionalProperties": False,
}
DEPLOY = Macro.from_json(
    "deploy",
    "Looks, changes, dares and puts.",
    WHO,
    [
        {"type": "tool", "name": "look", "args": {"name": "{{who}}"}},
        {"type": "tool", "name": "bump", "args": {"name": "{{who}}"}},
        {"type": "tool", "name": "risky", "args": {"name": "{{steps[0].content}}"}},
        {"type": "tool", "name": "put", "args": {"name": "after ${previous.content}"}},
    ],
)
ONCE = ("bump z", "bump a", "risky a looks fine", "bump b", "risky b looks fine")
TURNS: list[Any] = [
    [
        ("look", {"name": "1"}),
        ("bump", {"name": "z"}),
        ("macro_run", {"name": "deploy", "args": {"who": "a"}}),
    ],
    [("macro_run", {"name": "deploy", "args": {"who": "b"}})],
    "deployed",
]


def with_deploy(home: Path, workspace: Path, effect: Callable[[str], None]) -> Lab:
    """A session whose workspace has the macro."""
    session = Lab(home, env={}, tools=tools(effect))
    MacroRegistry(session.store, str(workspace)).save(DEPLOY)
    return session


def completed(folder: Path) -> list[Record]:
    """The records of a run with the macro that nothing interrupted."""
    effects: list[str] = []
    session = with_deploy(folder / "home", folder, effects.append)
    run = asyncio.run(
        session.run(
            "deploy",
            model=ScriptedModel(TURNS),
            workspace=folder,
            approver=HonestPerson(effects.__contains__),
        )
    )
    assert (run.status, run.answer, Counter(effects)) == (
        RunStatus.COMPLETE,
        "deployed",
        Counter([*ONCE, "put after dared", "put after dared"]),
    )
    records = run.records()
    assert run._state == fold(records)
    session.close()
    return records


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The records of one uninterrupted run."""
    return completed(tmp_path_factory.mktemp("macros").resolve())


@dataclass(frozen=True)
class Resumed:
    """What there is after a run was taken up again."""

    effects: list[str]
    run: Run
    records: list[Record]
    open_calls: list[ToolCalled]
    """Those with a side effect that had no outcome."""


def cut_and_resumed(reference: list[Record], cut: int, home: Path, *, happened: bool) -> Resumed | None:
    """What there is after a session takes the run up after event `cut`; `None` when `happened` makes no
    difference.
    """
    prefix = reference[:cut]
    called = {r.event.call: r.event for r in prefix if isinstance(r.event, ToolCalled)}
    answered = {r.event.call for r in prefix if isinstance(r.event, ToolAnswered)}
    open_calls = [
        event for call, event in called.items() if call not in answered and event.effect == "opaque"
    ]
    if not happened and not open_calls:
        return None
    effects = [
        f"{event.tool} {event.args['name']}"
        for call, event in called.items()
        if event.tool != "macro_run" and event.effect != "pure" and (call in answered or happened)
    ]
    first = reference[0].event
    assert isinstance(first, RunStarted)
    session = with_deploy(home, Path(first.workspace), effects.append)
    session.store.create_run("r", first)
    for record in prefix[1:]:
        session.store.append("r", record.event, at=record.at)
    person = HonestPerson(effects.__contains__)
    run = asyncio.run(session.resume("r", model=ScriptedModel(TURNS), approver=person))
    asked = sorted(asked.call for asked in person.asked if asked.why == "unknown_outcome")
    assert asked == sorted(event.call for event in open_calls), cut
    after = Resumed(effects, run, run.records(), open_calls)
    session.close()
    return after


@pytest.mark.parametrize("happened", [True, False], ids=["happened", "did-not-happen"])
def test_a_run_with_macros_is_completed_from_any_event(
    happened: bool, reference: list[Record], tmp_path: Path
) -> None:
    """Cut after any event, within a macro too, and resumed: same answer, each effect once, one start and one
    end per macro.

    A call of a macro without an outcome is asked about like any call; if it is not to be made again the macro
    stops there, because nobody knows its result. One that was answered is not made again.
    """
    for cut in range(1, len(reference) + 1):
        found = cut_and_resumed(reference, cut, tmp_path / f"cut{cut}", happened=happened)
        if found is None:
            continue
        run, counts = found.run, Counter(found.effects)
        stopped = {
            f"risky {event.args['name']} looks fine"
            for event in found.open_calls
            if happened and event.tool == "bump" and "/" in event.call
        }
        expected = {name: int(name not in stopped) for name in ONCE}
        assert (cut, run.status, run.answer, {name: counts[name] for name in ONCE}) == (
            cut,
            RunStatus.COMPLETE,
            "deployed",
            expected,
        )
        assert (illegal_states(found.records), unreported(found.records)) == ([], [])
        marks = [
            (record.event.type, record.event.call)
            for record in found.records
            if isinstance(record.event, MacroStarted | MacroFinished)
        ]
        assert [kind for kind, _ in marks] == ["macro_started", "macro_finished"] * 2, cut
        assert (marks[0][1], marks[2][1]) == (marks[1][1], marks[3][1]), cut


def test_the_check_catches_a_macro_that_forgets_what_it_did(
    reference: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant whose resumed macros begin anew shows an effect twice, and is seen to."""
    apply = RunState.apply

    def forgetful(state: RunState, event: Any, at: float) -> None:
        apply(state, event, at)
        if event.type == "run_resumed":
            state.macros = {call: OpenMacro(started=macro.started) for call, macro in state.macros.items()}

    monkeypatch.setattr(RunState, "apply", forgetful)
    within = next(
        r.seq for r in reference if isinstance(r.event, ToolAnswered) and r.event.call.endswith("/3")
    )
    found = cut_and_resumed(reference, within, tmp_path / "home", happened=True)
    assert found is not None
    assert Counter(found.effects)["risky a looks fine"] > 1


def test_each_call_of_a_macro_is_recorded(reference: list[Record]) -> None:
    """Calls have the macro's call and a number as id; results keep their value; the model sees one answer
    with all of them.
    """
    first = next(r.event for r in reference if isinstance(r.event, MacroStarted))
    assert (first.macro, first.version, first.args) == ("deploy", 1, {"who": "a"})
    parts = [
        r.event
        for r in reference
        if isinstance(r.event, ToolAnswered) and r.event.call.startswith(f"{first.call}/")
    ]
    assert [(part.call, part.tool, part.value) for part in parts] == [
        (f"{first.call}/1", "look", "a looks fine"),
        (f"{first.call}/2", "bump", "bumped"),
        (f"{first.call}/3", "risky", "dared"),
        (f"{first.call}/4", "put", "put"),
    ]
    answer = next(
        r.event for r in reference if isinstance(r.event, ToolAnswered) and r.event.call == first.call
    )
    assert (answer.tool, answer.error) == ("macro_run", None)
    assert all(
        text in answer.text for text in ("1 look", "a looks fine", "2 bump", "3 risky", "dared", "4 put")
    )
    asked = [r.event.call for r in reference if isinstance(r.event, ApprovalAsked)]
    assert asked == [f"{first.call}/3", f"{first.step}.2.1/3"]


def test_a_call_of_a_macro_waits_for_a_person_who_is_not_here(tmp_path: Path) -> None:
    """With nobody here the run waits inside the macro; approved and resumed it goes on there, with no effect
    repeated.
    """
    effects: list[str] = []
    session = with_deploy(tmp_path / "home", tmp_path, effects.append)
    script = ScriptedModel([TURNS[1], "deployed"])
    with pytest.raises(ApprovalRequired, match="wants to call risky") as caught:
        asyncio.run(session.run("go", model=script, workspace=tmp_path))
    assert effects == ["bump b"]
    assert session.history.decide(caught.value.run_id, granted=True, by="ann", how="command") == ["risky"]
    run = asyncio.run(session.resume(caught.value.run_id, model=script))
    assert (run.status, effects) == (RunStatus.COMPLETE, ["bump b", "risky b looks fine", "put after dared"])
    session.close()


def test_a_macro_stops_at_the_first_call_that_fails(tmp_path: Path) -> None:
    """The model is told the step, the tool, why, and what was done before; nothing after it happens."""
    effects: list[str] = []
    session = with_deploy(tmp_path / "home", tmp_path, effects.append)
    run = asyncio.run(
        session.run(
            "go",
            model=ScriptedModel([TURNS[1], "no"]),
            workspace=tmp_path,
            approver=ScriptedApprover([False]),
        )
    )
    (answer,) = [
        event for event in run.events() if isinstance(event, ToolAnswered) and event.tool == "macro_run"
    ]
    (ended,) = [event for event in run.events() if isinstance(event, MacroFinished)]
    assert effects == ["bump b"]
    assert answer.text.startswith("error: macro deploy stopped at step 3 of 4, risky: risky was denied by")
    assert answer.text.endswith("Steps done before it: 1 look, 2 bump.")
    assert (ended.ok, ended.reason.startswith("step 3, risky: risky was denied by")) == (False, True)
    session.close()


def test_arguments_and_names_are_checked_before_anything_happens(tmp_path: Path) -> None:
    """A macro that is not there, a missing parameter, one of the wrong type: told to the model, nothing
    begins.
    """
    effects: list[str] = []
    session = with_deploy(tmp_path / "home", tmp_path, effects.append)
    wrong = [
        ("macro_run", {"name": "deplo", "args": {}}),
        ("macro_run", {"name": "deploy", "args": {}}),
        ("macro_run", {"name": "deploy", "args": {"who": 3}}),
        ("macro_run", {"name": "deploy", "args": {"who": "a", "x": 1}}),
        ("macro_run", {"name": "deploy", "arguments": {}}),
    ]
    run = asyncio.run(session.run("go", model=ScriptedModel([wrong, "ok"]), workspace=tmp_path))
    told = [event.text for event in run.events() if isinstance(event, ToolAnswered)]
    assert (effects, [event for event in run.events() if isinstance(event, MacroStarted | ToolCalled)]) == (
        [],
        [],
    )
    for text, part in zip(
        told,
        [
            "did you mean 'deploy'?",
            "'who' is a required property",
            "who: 3 is not of type 'string'",
            "('x' was unexpected)",
            "takes name and args",
        ],
        strict=True,
    ):
        assert part in text
    session.close()


def test_a_macro_is_offered_first_and_only_where_it_can_run(tmp_path: Path) -> None:
    """`macro_run` stands before all tools and tells each macro; not in other workspaces, not disabled, not
    without its tools.
    """
    session = with_deploy(tmp_path / "home", tmp_path, lambda _: None)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    seen: list[list[str]] = []
    told: list[str] = []

    def answer(request: Any) -> str:
        seen.append([spec.name for spec in request.tools])
        told.append(request.tools[0].description if request.tools else "")
        return "ok"

    def ask(**options: Any) -> list[str]:
        run = asyncio.run(
            session.run("go", model=ScriptedModel(answer), **{"workspace": tmp_path, **options})
        )
        started = run.events()[0]
        assert isinstance(started, RunStarted)
        assert [item["name"] for item in started.tools] == seen[-1]
        return seen[-1]

    everything = list(session.registry.resolve_tools(None).names)
    assert ask() == ["macro_run", *everything]
    assert (
        "- deploy(who): Looks, changes, dares and puts. Calls look, bump, risky, put.\n  - who (string)"
        in told[-1]
    )
    assert ask(workspace=elsewhere) == everything
    assert ask(tools=["look", "bump"]) == ["look", "bump"]
    MacroRegistry(session.store, str(tmp_path)).disable("deploy")
    assert ask() == everything
    session.close()


def test_a_resumed_run_keeps_the_version_it_had_begun(tmp_path: Path) -> None:
    """A macro changed while a run waits within it goes on as it was begun; runs that start later get the new
    version.
    """
    effects: list[str] = []
    session = with_deploy(tmp_path / "home", tmp_path, effects.append)
    registry = MacroRegistry(session.store, str(tmp_path))
    script = ScriptedModel([TURNS[1], "deployed"])
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", model=script, workspace=tmp_path))
    changed = Macro(name="deploy", description="Only changes.", schema=DEPLOY.schema, steps=DEPLOY.steps[1:2])
    assert registry.save(changed).version == 2
    run = asyncio.run(session.resume(caught.value.run_id, model=script, approve="auto"))
    assert (run.answer, effects) == ("deployed", ["bump b", "risky b looks fine", "put after dared"])
    asyncio.run(session.run("go", model=script, workspace=tmp_path))
    assert effects[3:] == ["bump b"]
    session.close()


def test_macros_of_harmless_calls_run_side_by_side(tmp_path: Path) -> None:
    """Two macros that only read are started together; one that changes something dangerous waits for its
    turn.
    """
    session = with_deploy(tmp_path / "home", tmp_path, lambda _: None)
    reading = Macro.from_json(
        "reading", "Reads.", WHO, [{"type": "tool", "name": "look", "args": {"name": "{{who}}"}}]
    )
    MacroRegistry(session.store, str(tmp_path)).save(reading)
    calls = [
        ("macro_run", {"name": name, "args": {"who": who}})
        for name, who in (("reading", "1"), ("reading", "2"), ("deploy", "3"))
    ]
    run = asyncio.run(
        session.run("go", model=ScriptedModel([calls, "ok"]), workspace=tmp_path, approve="auto")
    )
    (batch,) = [event for event in run.events() if isinstance(event, SchedulerParallelBatch)]
    assert [call.rpartition(".")[2] for call in batch.calls] == ["1", "2"]
    assert run.status is RunStatus.COMPLETE
    session.close()


def test_a_macro_can_be_a_step_of_a_plan(tmp_path: Path) -> None:
    """A step that calls `macro_run` needs no model turn; when a call fails, so does the step."""
    effects: list[str] = []
    session = with_deploy(tmp_path / "home", tmp_path, effects.append)
    plan = Plan(steps=(Step(id="d", tool="macro_run", args={"name": "deploy", "args": {"who": "p"}}),))
    run = asyncio.run(
        session.run("deploy p", plan=plan, model=ScriptedModel([]), workspace=tmp_path, approve="auto")
    )
    assert (run.status, effects) == (RunStatus.COMPLETE, ["bump p", "risky p looks fine", "put after dared"])
    failed = asyncio.run(
        session.run("deploy p", plan=plan, model=ScriptedModel([]), workspace=tmp_path, approve="deny")
    )
    assert (failed.status, "stopped at step 3 of 4, risky" in failed.reason) == (RunStatus.FAILED, True)
    session.close()


def test_a_fork_within_a_macro_goes_on_there(tmp_path: Path) -> None:
    """A fork that gives the result of one call by hand makes only the calls after it, and refers to what was
    given.
    """
    effects: list[str] = []
    session = with_deploy(tmp_path / "home", tmp_path, effects.append)
    script = ScriptedModel([TURNS[1], "deployed"])
    run = asyncio.run(session.run("go", model=script, workspace=tmp_path, approve="auto"))
    at = next(r.seq for r in run.records() if isinstance(r.event, ToolCalled) and r.event.call.endswith("/3"))
    effects.clear()
    fork = asyncio.run(session.fork(run.id, at=at, result="a gift", model=script))
    assert (fork.status, effects) == (RunStatus.COMPLETE, ["put after a gift"])
    session.close()


def test_a_cancelled_macro_says_so(tmp_path: Path) -> None:
    """Stopping a run within a macro ends the call, the macro and the run in the log, in that order."""
    session = Lab(tmp_path / "home", env={})

    @tool
    async def forever(name: str) -> str:
        """Take long."""
        await asyncio.sleep(60)
        return name

    waiting = Macro.from_json(
        "waiting", "Waits.", WHO, [{"type": "tool", "name": "forever", "args": {"name": "{{who}}"}}]
    )
    MacroRegistry(session.store, str(tmp_path)).save(waiting)

    async def stop() -> Any:
        script = ScriptedModel([[("macro_run", {"name": "waiting", "args": {"who": "x"}})], "no"])
        run = session.start("go", model=script, tools=[forever], workspace=tmp_path)
        run.subscribe(
            lambda event: run.cancel() if isinstance(event, ToolCalled) and event.tool == "forever" else None
        )
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        return run

    run = asyncio.run(stop())
    kinds = [event.type for event in run.events() if event.type != "files_kept"]
    assert run.status is RunStatus.CANCELLED
    assert kinds[kinds.index("macro_started") :][:5] == [
        "macro_started",
        "tool_called",
        "tool_answered",
        "macro_finished",
        "tool_answered",
    ]
    session.close()


def test_working_time_is_that_of_the_calls(tmp_path: Path) -> None:
    """The seconds of a macro are those of its calls, without the time a person took to answer."""
    effects: list[str] = []
    session = with_deploy(tmp_path / "home", tmp_path, effects.append)
    honest = HonestPerson(effects.__contains__)

    async def slow(asked: ApprovalAsked) -> Any:
        await asyncio.sleep(0.5)
        return await honest(asked)

    began = time.perf_counter()
    run = asyncio.run(
        session.run("go", model=ScriptedModel([TURNS[1], "ok"]), workspace=tmp_path, approver=slow)
    )
    took = time.perf_counter() - began
    *calls, answer = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert answer.tool == "macro_run"
    assert answer.seconds == pytest.approx(sum(call.seconds for call in calls))
    assert 0 < answer.seconds < took - 0.5
    session.close()


def test_a_macro_without_a_run_is_refused(tmp_path: Path) -> None:
    """`macro_run` outside a run would make calls that nobody approves or records."""
    with pytest.raises(UsageError, match="only within a run"):
        asyncio.run(
            macro_tool({"deploy": DEPLOY}).run(
                {"name": "deploy", "args": {"who": "x"}}, ToolContext(workspace=Workspace(tmp_path))
            )
        )


def test_the_prompt_names_macros_before_the_tools(tmp_path: Path) -> None:
    """An agent with macros is told their names first, and to prefer them; without macros it is told
    nothing of them.
    """
    effects: list[str] = []
    with with_deploy(tmp_path / "home", tmp_path, effects.append) as session:
        told = session.run_sync("go", model=ScriptedModel(["done"]), workspace=tmp_path).events()[0]
    assert isinstance(told, RunStarted)
    first = told.system.partition("\n- ")[2]
    assert first.startswith("Macros are sequences of calls")
    assert "rather than its single tools: deploy." in first
    assert told.system.index("deploy") < told.system.index("Use tools to find things out")
    with Lab(tmp_path / "other", env={}) as session:
        plain = session.run_sync("go", model=ScriptedModel(["done"]), workspace=tmp_path).events()[0]
    assert isinstance(plain, RunStarted)
    assert "acro" not in plain.system
