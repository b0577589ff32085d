"""A run that stopped anywhere goes on where its log ends, and repeats nothing that shows."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
from reference import (
    ANSWER,
    GOAL,
    ONCE,
    PLAN,
    REPEATABLE,
    HonestPerson,
    illegal_states,
    model,
    put_prefix,
    tools,
    unreported,
)
from waits import PATIENCE_S

from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import Record, RunResumed, ToolAnswered, ToolCalled
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedApprover, ScriptedModel
from kestrel_lab.tools.decorator import tool


def completed(home: Path, workspace: Path) -> list[Record]:
    """The records of the reference session, run without interruption."""
    effects: list[str] = []
    session = Lab(home, env={}, tools=tools(effects.append))
    run = asyncio.run(
        session.run(
            GOAL, plan=PLAN, model=model(), workspace=workspace, approver=HonestPerson(effects.__contains__)
        )
    )
    assert (run.status, run.answer, Counter(effects)) == (
        RunStatus.COMPLETE,
        ANSWER,
        Counter([*ONCE, REPEATABLE, REPEATABLE]),
    )
    records = run.records()
    session.close()
    return records


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The records of one uninterrupted run."""
    folder = tmp_path_factory.mktemp("reference")
    return completed(folder / "home", folder)


def shown(event: ToolCalled) -> str:
    """The effect line of a call."""
    return f"{event.tool} {event.args['name']}"


@pytest.mark.parametrize("happened", [True, False], ids=["happened", "did-not-happen"])
def test_any_prefix_is_completed(happened: bool, reference: list[Record], tmp_path: Path) -> None:
    """Cut after any event and resumed, the run gives the same answer, and each effect happens once in all.

    A call without an outcome is put to a person, who knows whether it happened; reads may be repeated.
    """
    effects: list[str] = []
    session = Lab(tmp_path / "other", env={}, tools=tools(effects.append))
    for cut in range(1, len(reference) + 1):
        prefix = reference[:cut]
        called = {r.event.call: r.event for r in prefix if isinstance(r.event, ToolCalled)}
        answered = {r.event.call for r in prefix if isinstance(r.event, ToolAnswered)}
        open_calls = [
            event for call, event in called.items() if call not in answered and event.effect == "opaque"
        ]
        if not happened and not open_calls:  # nothing that could have happened or not
            continue
        effects[:] = [
            shown(event)
            for call, event in called.items()
            if event.effect != "pure" and (call in answered or happened)
        ]
        person = HonestPerson(effects.__contains__)

        run = asyncio.run(session.resume(put_prefix(session, reference, cut), model=model(), approver=person))

        assert (cut, run.status, run.answer) == (cut, RunStatus.COMPLETE, ANSWER)
        counts = Counter(effects)
        assert {name: counts[name] for name in ONCE} == dict.fromkeys(ONCE, 1), cut
        assert counts[REPEATABLE] >= 1
        unknown = sorted(asked.call for asked in person.asked if asked.why == "unknown_outcome")
        assert unknown == sorted(event.call for event in open_calls), cut
        records = run.records()
        assert (illegal_states(records), unreported(records)) == ([], [])
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert len([r for r in records if isinstance(r.event, RunResumed)]) == (
            0 if cut == len(reference) else 1
        )
    session.close()


def test_the_live_state_is_what_the_log_says(session: Lab, workspace: Path) -> None:
    """After a run its handle knows exactly what folding its stored events gives."""
    effects: list[str] = []
    options = {
        "tools": tools(effects.append),
        "workspace": workspace,
        "approver": HonestPerson(effects.__contains__),
    }
    run = asyncio.run(session.run(GOAL, plan=PLAN, model=model(), **options))
    assert run._state == fold(run.records())
    assert session.get(run.id)._state == run._state


def test_an_ended_run_is_returned_as_it_is(session: Lab, workspace: Path) -> None:
    """Resuming a run that has ended adds no event and asks no model."""
    run = asyncio.run(session.run("hello", model=ScriptedModel(["hi"]), workspace=workspace))
    before = run.records()
    again = asyncio.run(session.resume(run.id))
    assert (again.answer, again.records()) == ("hi", before)


@tool(danger_level="high")
async def launch() -> str:
    """Launch it."""
    return "launched"


LAUNCH = ScriptedModel([[("launch", {})], "up"])


def waiting(session: Lab, workspace: Path) -> str:
    """A run that waits for approval of `launch`, with nobody here; its id."""
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", model=LAUNCH, tools=[launch], workspace=workspace))
    return caught.value.run_id


@pytest.mark.parametrize("policy", ["auto", "deny"])
def test_a_waiting_run_is_resumed_under_another_policy(policy: str, session: Lab, workspace: Path) -> None:
    """A question left open is settled by the new policy and recorded; the run leaves WAITING_APPROVAL and
    completes.
    """
    run_id = waiting(session, workspace)
    run = asyncio.run(session.resume(run_id, model=LAUNCH, tools=[launch], approve=policy))

    assert (run.status, run.answer) == (RunStatus.COMPLETE, "up")
    assert run.questions == ()
    (given,) = run._state.decisions.values()
    assert (given.granted, given.by, given.how) == (policy == "auto", "policy", "policy")
    assert run._state.events == len(run.records())
    assert illegal_states(run.records()) == []


def test_always_given_while_nobody_worked_covers_the_other_questions(session: Lab, workspace: Path) -> None:
    """One of two equal questions is answered "always" offline; resumed, the other needs no person."""
    twice = ScriptedModel([[("launch", {}), ("launch", {})], "up"])
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", model=twice, tools=[launch], workspace=workspace))
    run = session.get(caught.value.run_id)
    first, second = run.questions
    from_user = ScriptedApprover([True])
    given = asyncio.run(from_user(first))
    run.decide(
        type(given)(
            call=first.call, question=first.question, granted=True, by="ann", how="click", scope="run"
        )
    )
    assert [asked.question for asked in run.questions] == [second.question]

    again = asyncio.run(session.resume(run.id, model=twice, tools=[launch]))
    assert (again.status, again.answer) == (RunStatus.COMPLETE, "up")
    assert again._state.decisions[second.question].reason == "allowed for the whole run"


def test_a_run_of_a_live_process_is_not_taken_over(session: Lab, workspace: Path) -> None:
    """While another process works on a run it cannot be resumed; the message names the process.

    Dead or gone, it can.
    """
    run_id = waiting(session, workspace)
    assert session.store.run(run_id).owner == ""  # given back when the run began to wait
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        name = Owner(
            process=f"{os.uname().nodename}:{other.pid}",
            began=psutil.Process(other.pid).create_time(),
            session="theirs",
        )
        sql = "UPDATE runs SET owner = ?, epoch = epoch + 1 WHERE id = ?"
        session.store.execute(sql, (str(name), run_id), "another session").result()
        with pytest.raises(UsageError, match=rf"worked on by process .*:{other.pid}; stop that one first"):
            asyncio.run(session.resume(run_id, model=LAUNCH, tools=[launch]))
        other.communicate(b"\n")
    run = asyncio.run(session.resume(run_id, model=LAUNCH, tools=[launch], approve="auto"))
    assert run.status is RunStatus.COMPLETE


_RACER = """
import asyncio, sys
from pathlib import Path
from kestrel_lab.core.errors import UsageError
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool

@tool(danger_level="high")
async def launch() -> str:
    "Launch it."
    with open(sys.argv[3], "a") as file:
        file.write("launched\\n")
    await asyncio.sleep(1)
    return "launched"

session = Lab(sys.argv[1], env={})
print("ready", flush=True)
sys.stdin.readline()
try:
    run = asyncio.run(session.resume(sys.argv[2], model=ScriptedModel([[("launch", {})], "up"]), \
tools=[launch], approve="auto"))
    print(run.status)
except UsageError as error:
    print("refused", error)
session.close()
"""


def test_two_processes_resume_one_run(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """Of two processes that resume a run at the same moment one works and the other is told so; the effect
    happens once.
    """
    run_id = waiting(session, workspace)
    command = [sys.executable, "-c", _RACER, str(session.home), run_id, str(tmp_path / "effects")]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outputs = sorted(racer.communicate(timeout=PATIENCE_S)[0].strip() for racer in racers)

    assert outputs[0] == "COMPLETE"
    assert outputs[1].startswith(f"refused run {run_id} is being worked on by process")
    assert (tmp_path / "effects").read_text() == "launched\n"


def test_resuming_needs_what_the_run_had(session: Lab, workspace: Path) -> None:
    """A model that only lived in memory, a tool that is gone and a run that never was are each named."""
    run_id = waiting(session, workspace)
    with pytest.raises(UsageError, match=r"scripted model 'scripted'.*pass model="):
        asyncio.run(session.resume(run_id, tools=[launch]))
    with pytest.raises(UsageError, match="there is no tool 'launch'"):
        asyncio.run(session.resume(run_id, model=LAUNCH))
    with pytest.raises(UsageError, match="did you mean"):
        asyncio.run(session.resume(run_id[:-1], model=LAUNCH))
