"""Who decides on a risky call, how fast that is noticed, and what happens when nobody is there."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waits import FOREVER_S, PATIENCE_S, becomes

from kestrel_lab.core.errors import AlreadyDecided, ApprovalRequired, IllegalTransition, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelAnswered,
    StateTransition,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run, is_working
from kestrel_lab.testing import RecordingListener, ScriptedApprover, ScriptedModel
from kestrel_lab.tools.decorator import tool


@tool(danger_level="high")
async def launch(where: str, times: int = 1) -> str:
    """Launch something."""
    return f"launched {where} {times}"


@tool(danger_level="safe", effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


def one_call(args: dict[str, Any] | None = None, answer: str = "up") -> ScriptedModel:
    """Launches once, then answers."""
    return ScriptedModel([[("launch", args or {"where": "moon"})], answer])


def run(
    session: Lab, workspace: Path, approver: Any, model: ScriptedModel | None = None, **options: Any
) -> Run:
    """A run with the risky tool, to its end."""
    return asyncio.run(
        session.run(
            "go",
            model=model or one_call(),
            tools=[launch, look],
            workspace=workspace,
            approver=approver,
            **options,
        )
    )


def answers(done: Run) -> list[str]:
    """What the tools answered, in order."""
    return [event.text for event in done.events() if isinstance(event, ToolAnswered)]


def decisions(done: Run) -> list[ApprovalGiven]:
    """Every decision of a run."""
    return [event for event in done.events() if isinstance(event, ApprovalGiven)]


def states(done: Run) -> list[str]:
    """The states a run went through."""
    return [event.target for event in done.events() if isinstance(event, StateTransition)]


def test_a_yes_lets_the_call_go_on(session: Lab, workspace: Path) -> None:
    """An approved call runs, and the log tells question, answer and every state on the way."""
    approver = ScriptedApprover([True])
    done = run(session, workspace, approver)

    (asked,) = approver.asked
    assert (asked.tool, asked.args, asked.danger, asked.why) == (
        "launch",
        {"where": "moon", "times": 1},
        "HIGH",
        "danger",
    )
    assert (done.status, done.answer, answers(done)) == (RunStatus.COMPLETE, "up", ["launched moon 1"])
    assert states(done) == ["EXECUTING", "WAITING_APPROVAL", "EXECUTING", "COMPLETE"]
    (given,) = decisions(done)
    assert (given.call, given.question, given.granted, given.by) == (
        asked.call,
        asked.question,
        True,
        "script",
    )
    order = [
        type(event)
        for event in done.events()
        if isinstance(event, ApprovalAsked | ApprovalGiven | ToolCalled | ToolAnswered)
    ]
    assert order == [ApprovalAsked, ApprovalGiven, ToolCalled, ToolAnswered]
    assert done._state == fold(done.records())


def test_a_no_is_told_to_the_model(session: Lab, workspace: Path) -> None:
    """A denied call never begins; the model reads by whom, why, and that it should not repeat it."""
    done = run(session, workspace, ScriptedApprover(["too dangerous"]))
    assert done.status is RunStatus.COMPLETE
    assert answers(done) == [
        "error: launch was denied by script: too dangerous. Do not repeat this call; find another way "
        "or explain what is needed."
    ]
    assert not [event for event in done.events() if isinstance(event, ToolCalled)]


def test_edited_arguments_are_used(session: Lab, workspace: Path) -> None:
    """A person may change the arguments; they are completed as the model's would be, and both versions are
    recorded.
    """
    done = run(session, workspace, ScriptedApprover([{"where": "mars"}]))
    assert answers(done) == ["launched mars 1"]
    (called,) = [event for event in done.events() if isinstance(event, ToolCalled)]
    assert called.args == {"where": "mars", "times": 1}
    assert decisions(done)[0].args == {"where": "mars", "times": 1}


def test_an_edit_that_does_not_fit_is_asked_again(session: Lab, workspace: Path) -> None:
    """Wrong arguments from a person come back with what is wrong, until they fit; one question, one
    decision.
    """
    approver = ScriptedApprover(
        [{"whither": "mars"}, {"where": "mars", "times": "many"}, {"where": "mars", "times": 3}]
    )
    done = run(session, workspace, approver)
    assert answers(done) == ["launched mars 3"]
    assert [asked.args for asked in approver.asked] == [
        {"where": "moon", "times": 1},
        {"whither": "mars"},
        {"where": "mars", "times": "many"},
    ]
    assert "did you mean 'where'?" in approver.asked[1].why
    assert (len(decisions(done)), sum(isinstance(event, ApprovalAsked) for event in done.events())) == (1, 1)


def test_always_is_for_the_rest_of_the_run(session: Lab, workspace: Path) -> None:
    """A yes for the whole run covers later calls of the tool in this run, and none of another run."""
    questions: list[ApprovalAsked] = []

    async def always(asked: ApprovalAsked) -> ApprovalGiven:
        questions.append(asked)
        return ApprovalGiven(call=asked.call, granted=True, by="ann", how="click", scope="run")

    model = ScriptedModel([[("launch", {"where": "moon"})], [("launch", {"where": "mars"})], "up"])
    first = run(session, workspace, always, model)
    assert (len(questions), answers(first)) == (1, ["launched moon 1", "launched mars 1"])
    run(session, workspace, always, model)
    assert len(questions) == 2


def test_an_approval_is_spent_by_its_call(session: Lab, workspace: Path) -> None:
    """A plain yes covers one call: the same call made again is asked about again."""
    approver = ScriptedApprover([True, False])
    done = run(
        session,
        workspace,
        approver,
        ScriptedModel([[("launch", {"where": "moon"})], [("launch", {"where": "moon"})], "up"]),
    )
    assert len(approver.asked) == 2
    assert [given.granted for given in decisions(done)] == [True, False]


def test_the_policy_decides_without_a_person(session: Lab, workspace: Path) -> None:
    """`auto` lets a HIGH call go on unasked; `auto:medium` asks; `deny` refuses it and says so, and nobody is
    asked.
    """
    assert answers(run(session, workspace, None, approve="auto")) == ["launched moon 1"]
    with pytest.raises(ApprovalRequired):
        run(session, workspace, None, approve="auto:medium")
    refused = run(session, workspace, None, approve="deny")
    assert "denied by policy: the approval policy is 'deny'" in answers(refused)[0]
    assert states(refused) == ["EXECUTING", "COMPLETE"]
    assert (len(decisions(refused)), refused.questions) == (1, ())


def test_questions_of_a_turn_are_asked_together(session: Lab, workspace: Path) -> None:
    """All risky calls of a turn are put to the person at once; they run one after the other in the order
    asked for.
    """
    together, answered = asyncio.Event(), [asyncio.Event() for _ in range(4)]
    answered[3].set()
    names: list[str] = []
    running: list[str] = []

    @tool(danger_level="high")
    async def slow(name: str) -> str:
        """Take a while."""
        running.append(f"begin {name}")
        await asyncio.sleep(0.02)
        running.append(f"end {name}")
        return name

    async def person(asked: ApprovalAsked) -> ApprovalGiven:
        names.append(str(asked.args["name"]))
        if len(names) == 3:
            together.set()
        await asyncio.wait_for(together.wait(), PATIENCE_S)
        number = int(str(asked.args["name"]))
        await answered[number + 1].wait()  # the last is answered first
        answered[number].set()
        return ApprovalGiven(call=asked.call, granted=True, by="p", how="click")

    model = ScriptedModel([[("slow", {"name": str(n)}) for n in range(3)], "ok"])
    done = asyncio.run(session.run("go", model=model, tools=[slow], workspace=workspace, approver=person))
    assert sorted(names) == ["0", "1", "2"]
    assert running == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]
    assert states(done) == ["EXECUTING", "WAITING_APPROVAL", "EXECUTING", "COMPLETE"]


def test_safe_calls_run_while_a_person_thinks(session: Lab, workspace: Path) -> None:
    """The safe calls of a turn are answered before the person has answered for the risky one beside them."""
    seen = RecordingListener()

    async def scene() -> Run:
        async def person(asked: ApprovalAsked) -> ApprovalGiven:
            await becomes(lambda: sum(isinstance(event, ToolAnswered) for event in seen.events) == 2)
            return ApprovalGiven(call=asked.call, granted=True, by="p", how="click")

        model = ScriptedModel([[("look", {}), ("look", {}), ("launch", {"where": "moon"})], "ok"])
        begun = session.start("go", model=model, tools=[launch, look], workspace=workspace, approver=person)
        begun.subscribe(seen)
        return await begun.wait()

    done = asyncio.run(scene())
    kinds = [type(event).__name__ for event in seen.events if isinstance(event, ApprovalGiven | ToolAnswered)]
    assert kinds == ["ToolAnswered", "ToolAnswered", "ApprovalGiven", "ToolAnswered"]
    assert done.events() == [event for event in seen.events if event.type != "model_delta"]


def test_with_nobody_here_the_run_waits_in_the_log(session: Lab, workspace: Path) -> None:
    """`ApprovalRequired` comes at once, names run, tool and what to type; after a decision the run resumes
    and completes.
    """
    model = ScriptedModel([[("look", {}), ("launch", {"where": "moon"}), ("look", {})], "up"])
    with pytest.raises(ApprovalRequired) as caught:
        run(session, workspace, None, model)
    error = caught.value
    assert (error.tool, error.args_asked) == ("launch", {"where": "moon", "times": 1})
    assert f"kestrel approve {error.run_id}" in str(error)

    waiting = session.get(error.run_id)
    assert (waiting.status, is_working(waiting), [asked.tool for asked in waiting.questions]) == (
        RunStatus.WAITING_APPROVAL,
        False,
        ["launch"],
    )
    assert answers(waiting) == ["seen"]  # the call before it ran; the one after it keeps its place
    assert session.history.decide(error.run_id, granted=True, by="ann", how="command") == ["launch"]
    assert session.get(error.run_id).questions == ()
    with pytest.raises(UsageError, match="waits for no approval"):
        session.history.decide(error.run_id, granted=False, by="bob", how="command")

    done = asyncio.run(session.resume(error.run_id, model=model, tools=[launch, look]))
    assert (done.status, done.answer, answers(done)) == (
        RunStatus.COMPLETE,
        "up",
        ["seen", "launched moon 1", "seen"],
    )
    assert states(done) == ["EXECUTING", "WAITING_APPROVAL", "EXECUTING", "COMPLETE"]
    assert decisions(done)[0].by == "ann"


def test_resuming_with_nobody_waits_again(session: Lab, workspace: Path) -> None:
    """Resumed while the question is still open, the run asks no second question and raises `ApprovalRequired`
    again.
    """
    with pytest.raises(ApprovalRequired) as caught:
        run(session, workspace, None)
    with pytest.raises(ApprovalRequired):
        asyncio.run(session.resume(caught.value.run_id, model=one_call(), tools=[launch, look]))
    waiting = session.get(caught.value.run_id)
    assert sum(isinstance(event, ApprovalAsked) for event in waiting.events()) == 1
    assert waiting.status is RunStatus.WAITING_APPROVAL


async def never(asked: ApprovalAsked) -> ApprovalGiven:
    """A person who is thinking."""
    await asyncio.Event().wait()
    raise AssertionError


def start(
    session: Lab, workspace: Path, approver: Any = never, **options: Any
) -> tuple[Run, RecordingListener]:
    """A run in progress, and what is told of it."""
    seen = RecordingListener()
    begun = session.start(
        "go", model=one_call(), tools=[launch, look], workspace=workspace, approver=approver, **options
    )
    begun.subscribe(seen)
    return begun, seen


async def until(seen: RecordingListener, kind: type[Event]) -> None:
    """Wait for an event of a kind."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(isinstance(event, kind) for event in seen.events):
            await asyncio.sleep(0.005)


def test_a_click_beats_the_prompt(session: Lab, workspace: Path) -> None:
    """`Run.decide` answers while an approver is still asking: it is cancelled, the click stands, a second
    click changes nothing.
    """
    stopped = []
    shown = (
        asyncio.Event()
    )  # a moment of sleep instead was too short for a busy machine: the prompt had not begun

    async def prompt(asked: ApprovalAsked) -> ApprovalGiven:
        try:
            shown.set()
            return await never(asked)
        finally:
            stopped.append(asked.call)

    async def scene() -> Run:
        begun, seen = start(session, workspace, prompt)
        await until(seen, ApprovalAsked)
        await shown.wait()
        (asked,) = begun.questions
        with pytest.raises(UsageError, match=r"does not wait for a decision on 'other'"):
            begun.decide(ApprovalGiven(call="other", granted=True, by="ann", how="click"))
        with pytest.raises(UsageError, match="times"):
            begun.decide(
                ApprovalGiven(
                    call=asked.call, granted=True, by="ann", how="click", args={"where": "x", "times": "y"}
                )
            )
        begun.decide(
            ApprovalGiven(call=asked.call, granted=True, by="ann", how="click", args={"where": "mars"})
        )
        begun.decide(ApprovalGiven(call=asked.call, granted=False, by="bob", how="click"))
        return await begun.wait()

    done = asyncio.run(scene())
    assert (answers(done), len(stopped)) == (["launched mars 1"], 1)
    (given,) = decisions(done)
    assert (given.by, given.granted, given.args) == ("ann", True, {"where": "mars", "times": 1})
    assert given.waited > 0


def test_a_listener_may_answer_the_moment_it_is_told(session: Lab, workspace: Path) -> None:
    """A decision handed in while the question is still on its way to the disk is not lost, and is recorded
    once.
    """

    async def scene() -> Run:
        begun, _ = start(session, workspace, never)

        def answer(event: Event) -> None:
            if isinstance(event, ApprovalAsked):
                begun.decide(ApprovalGiven(call=event.call, granted=True, by="quick", how="rule"))

        begun.subscribe(answer)
        async with asyncio.timeout(PATIENCE_S):
            return await begun.wait()

    done = asyncio.run(scene())
    assert (answers(done), [given.by for given in decisions(done)]) == (["launched moon 1"], ["quick"])
    assert done._state.events == len(done.records())


@pytest.mark.parametrize("how", ["by the log", "by the run"])
def test_a_decision_for_a_run_that_is_about_to_stop_is_kept(session: Lab, workspace: Path, how: str) -> None:
    """With nobody here and a slow call still running, a decision handed in meanwhile is used when the run is
    resumed.

    One about a question that nobody asked, and a second one, change nothing.
    """
    decided = asyncio.Event()

    @tool(danger_level="safe")
    async def slow() -> str:
        """Take a while."""
        await asyncio.wait_for(decided.wait(), PATIENCE_S)
        return "slept"

    model = ScriptedModel([[("slow", {}), ("launch", {"where": "moon"})], "up"])

    async def scene() -> str:
        seen = RecordingListener()
        begun = session.start("go", model=model, tools=[launch, slow], workspace=workspace)
        begun.subscribe(seen)
        await until(seen, ApprovalAsked)
        await asyncio.sleep(0.05)
        if how == "by the log":
            session.history.decide(begun.id, granted=True, by="ann", how="click")
        else:
            (asked,) = begun.questions
            for call, by in (("answer.9.9", "bob"), (asked.call, "ann"), (asked.call, "carl")):
                with suppress(UsageError, AlreadyDecided):
                    begun.decide(ApprovalGiven(call=call, granted=by == "ann", by=by, how="click"))
        decided.set()
        with pytest.raises(ApprovalRequired):
            await begun.wait()
        return begun.id

    run_id = asyncio.run(scene())
    done = asyncio.run(session.resume(run_id, model=model, tools=[launch, slow]))
    assert (done.status, answers(done), [given.by for given in decisions(done)]) == (
        RunStatus.COMPLETE,
        ["slept", "launched moon 1"],
        ["ann"],
    )


def test_of_two_that_answer_the_first_stands(session: Lab, workspace: Path) -> None:
    """Another process decides while the approver here is about to: one answer is recorded, the slower one is
    told or given up.
    """
    outcomes = []
    other = SessionStore(session.store.path)
    # Seconds until each decides; the first and the last time it is certain who is first.
    for pause, thinks in ((0.0, FOREVER_S), (0.0, 0.02), (0.002, 0.02), (0.01, 0.02), (None, 0.0)):

        async def scene(pause: float | None = pause, thinks: float = thinks) -> Run:
            async def person(asked: ApprovalAsked) -> ApprovalGiven:
                await asyncio.sleep(thinks)
                return ApprovalGiven(call=asked.call, granted=True, by="here", how="prompt")

            begun, seen = start(session, workspace, person)
            await until(seen, ApprovalAsked)
            session.store.flush()  # what is on its way to the disk nobody else was asked
            await (until(seen, ApprovalGiven) if pause is None else asyncio.sleep(pause))
            given = ApprovalGiven(
                call=begun.questions[0].call if begun.questions else "answer.1.1",
                granted=False,
                by="there",
                how="command",
            )
            try:
                await asyncio.to_thread(other.decide, begun.id, given)
                outcomes.append("there")
            except AlreadyDecided:
                outcomes.append("here")
            return await begun.wait()

        done = asyncio.run(scene())
        (given,) = decisions(done)
        assert given.by == outcomes[-1]
        assert answers(done)[0].startswith(
            "launched" if given.by == "here" else "error: launch was denied by there"
        )
        assert done.status is RunStatus.COMPLETE
    assert outcomes[0] == "there"
    assert outcomes[-1] == "here"
    other.close()


def test_a_late_answer_to_a_question_of_an_ended_run_is_told_so(session: Lab, workspace: Path) -> None:
    """Whoever is slower than the whole run learns that the question was answered; a question that nobody
    asked is still an error.
    """

    async def scene() -> Run:
        async def person(asked: ApprovalAsked) -> ApprovalGiven:
            return ApprovalGiven(call=asked.call, granted=True, by="here", how="prompt")

        begun, _ = start(session, workspace, person)
        return await begun.wait()

    run = asyncio.run(scene())
    with pytest.raises(AlreadyDecided):
        session.store.decide(
            run.id, ApprovalGiven(call="answer.1.1", granted=False, by="there", how="command")
        )
    with pytest.raises(IllegalTransition):
        session.store.decide(
            run.id, ApprovalGiven(call="answer.9.9", granted=False, by="there", how="command")
        )


_APPROVE = """
import sys
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.eventlog.store import SessionStore
store = SessionStore(sys.argv[1])
print("ready", flush=True)
run_id = sys.stdin.readline().strip()
store.decide(run_id, ApprovalGiven(call="answer.1.1", granted=True, by="elsewhere", how="command"))
store.close()
"""


def test_another_process_wakes_the_run(session: Lab, workspace: Path) -> None:
    """An approval from another process lets the waiting run go on."""

    async def scene() -> Run:
        command = [sys.executable, "-c", _APPROVE, str(session.store.path)]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        await asyncio.to_thread(other.stdout.readline)
        begun, seen = start(session, workspace)
        await until(seen, ApprovalAsked)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(other.communicate, f"{begun.id}\n", PATIENCE_S)
        await until(seen, ApprovalGiven)
        return await begun.wait()

    done = asyncio.run(scene())
    assert (done.status, answers(done)) == (RunStatus.COMPLETE, ["launched moon 1"])


def test_a_broken_approver_fails_the_run(session: Lab, workspace: Path) -> None:
    """An approver that raises ends the run FAILED with its error as reason, and the error reaches whoever
    waits.
    """
    with pytest.raises(IndexError):
        run(session, workspace, ScriptedApprover([]))
    (row,) = session.store.runs()
    failed = session.get(row.id)
    assert (failed.status, failed.questions) == (RunStatus.FAILED, ())
    assert failed.reason.startswith("the engine failed: IndexError")


def test_nothing_is_asked_for_safe_calls(session: Lab, workspace: Path) -> None:
    """A run of safe calls never waits."""
    done = run(session, workspace, None, ScriptedModel([[("look", {})], "seen it"]))
    assert states(done) == ["EXECUTING", "COMPLETE"]
    assert sum(isinstance(event, ModelAnswered) for event in done.events()) == 2
