"""An agent asks a person something: who answers, when nobody does, and that one answer stands."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import AlreadyDecided, ApprovalRequired, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, ToolAnswered, ToolCalled
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedApprover, ScriptedModel

ASKED: dict[str, Any] = {"question": "Which colour?", "options": ["red", "blue"]}
NOBODY = "error: nobody is here to answer: decide yourself, go on, and say in your answer what you assumed"


def model(*asked: dict[str, Any]) -> ScriptedModel:
    """Asks everything in one turn, then answers."""
    return ScriptedModel([[("ask_user", question) for question in asked or (ASKED,)], "painted"])


def run(session: Lab, workspace: Path, approver: Any = None, **options: Any) -> Run:
    """A run that asks, to its end."""
    return asyncio.run(
        session.run("paint", **{"model": model(), **options}, workspace=workspace, approver=approver)
    )


def answers(done: Run) -> list[str]:
    """What the model was told, in order."""
    return [event.text for event in done.events() if isinstance(event, ToolAnswered)]


def test_what_a_person_says_is_the_answer(session: Lab, workspace: Path) -> None:
    """The words come back as the tool's result and are recorded with who said them; the run waited, its clock
    did not run.
    """
    approver = ScriptedApprover(["green, rather"])
    done = run(session, workspace, approver)

    (asked,) = approver.asked
    assert (asked.tool, asked.args, asked.why) == ("ask_user", ASKED, "question")
    assert (done.status, answers(done)) == (RunStatus.COMPLETE, ["green, rather"])
    (given,) = [event for event in done.events() if isinstance(event, ApprovalGiven)]
    assert (given.answer, given.by, given.granted, given.call) == (
        "green, rather",
        "script",
        True,
        asked.call,
    )
    assert not [event for event in done.events() if isinstance(event, ToolCalled)]
    state, meter = fold(done.records()), done.report.view().meter
    assert done._state == state
    assert (meter.turns, meter.working_s) == (
        sum(conversation.cycles for conversation in state.conversations.values()),
        pytest.approx(state.working_s),
    )


def test_no_answer_is_told_to_the_model(session: Lab, workspace: Path) -> None:
    """A person who declines, and one who says yes without a word, both let the run go on, and the model reads
    that.
    """
    assert answers(run(session, workspace, ScriptedApprover([False])))[0].startswith(
        "error: ask_user was denied by script"
    )
    assert answers(run(session, workspace, ScriptedApprover([True]))) == [NOBODY]


@pytest.mark.parametrize("policy", ["auto", "auto:medium", "deny"])
def test_where_nobody_is_nothing_waits(session: Lab, workspace: Path, policy: str) -> None:
    """Under policies for runs that nobody looks after the model is told at once to decide itself."""
    done = run(session, workspace, approve=policy)
    assert (done.status, answers(done)) == (RunStatus.COMPLETE, [NOBODY])
    assert not [event for event in done.events() if isinstance(event, ApprovalAsked)]


def test_auto_asks_somebody_who_is_here_and_deny_nobody(session: Lab, workspace: Path) -> None:
    """A policy that lets calls go on does not keep a question from the person who is there; `deny` does."""
    assert answers(run(session, workspace, ScriptedApprover(["red"]), approve="auto")) == ["red"]
    silent = ScriptedApprover([])
    assert answers(run(session, workspace, silent, approve="deny")) == [NOBODY]
    assert silent.asked == []


def waits(session: Lab, workspace: Path, **options: Any) -> str:
    """A run that waits for an answer in the log."""
    with pytest.raises(ApprovalRequired) as caught:
        run(session, workspace, **options)
    assert f"answer: kestrel approve {caught.value.run_id} --answer TEXT" in str(caught.value)
    return caught.value.run_id


def test_an_answer_from_outside_is_used_when_the_run_is_resumed(session: Lab, workspace: Path) -> None:
    """Under `ask` the run waits; a plain yes is not an answer; the first answer stands, a second one is
    refused; then it goes on.
    """
    run_id = waits(session, workspace)
    with pytest.raises(
        UsageError, match=r"waits for an answer \('Which colour\?'\): kestrel approve \S+ --answer TEXT"
    ):
        session.history.decide(run_id, granted=True, by="ann", how="command")
    with pytest.raises(UsageError, match="waits for an answer, not 2"):
        session.history.decide(run_id, granted=True, by="ann", how="command", answers=["red", "blue"])
    assert session.history.decide(run_id, granted=True, by="ann", how="command", answers=["blue"]) == [
        "ask_user"
    ]
    (asked,) = [event for event in session.get(run_id).events() if isinstance(event, ApprovalAsked)]
    with pytest.raises(AlreadyDecided):
        session.store.decide(
            run_id, ApprovalGiven(call=asked.call, granted=True, by="bob", how="click", answer="red")
        )
    done = asyncio.run(session.resume(run_id, model=model()))
    assert (done.status, answers(done)) == (RunStatus.COMPLETE, ["blue"])


def test_several_questions_are_answered_in_their_order(session: Lab, workspace: Path) -> None:
    """Each takes one answer, in the order the agent asked; a denial is for all of them."""
    two = model(ASKED, {"question": "How many?"})
    run_id = waits(session, workspace, model=two)
    with pytest.raises(UsageError, match="2 answers, in this order, not 1"):
        session.history.decide(run_id, granted=True, by="ann", how="command", answers=["blue"])
    session.history.decide(run_id, granted=True, by="ann", how="command", answers=["blue", "three"])
    assert answers(asyncio.run(session.resume(run_id, model=two))) == ["blue", "three"]
    denied = waits(session, workspace, model=two)
    assert session.history.decide(denied, granted=False, by="ann", how="command") == ["ask_user", "ask_user"]


def test_an_answer_does_not_allow_a_call(session: Lab, workspace: Path) -> None:
    """With a question and a risky call waiting, an answer decides on the question only, a yes on the call
    only.
    """
    both = ScriptedModel([[("ask_user", ASKED), ("write_file", {"path": "a", "content": "x"})], "done"])
    run_id = waits(session, workspace, model=both)
    assert session.history.decide(run_id, granted=True, by="ann", how="command", answers=["red"]) == [
        "ask_user"
    ]
    assert [asked.tool for asked in session.get(run_id).questions] == ["write_file"]
    with pytest.raises(UsageError, match="asks no question, it waits for leave to call write_file"):
        session.history.decide(run_id, granted=True, by="ann", how="command", answers=["red"])
    assert session.history.decide(run_id, granted=True, by="ann", how="command") == ["write_file"]


def test_a_question_left_open_does_not_hold_up_a_run_that_nobody_looks_after(
    session: Lab, workspace: Path
) -> None:
    """Resumed under `auto` with nobody here, the open question is closed by the policy and the run
    completes.
    """
    run_id = waits(session, workspace)
    done = asyncio.run(session.resume(run_id, model=model(), approve="auto"))
    assert done.status is RunStatus.COMPLETE
    assert "denied by policy: nobody is here to answer" in answers(done)[0]


_ASKS = """
import asyncio, sys
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

async def thinks(asked):
    print(asked.call, flush=True)
    await asyncio.Event().wait()

model = ScriptedModel([[("ask_user", {"question": "Which colour?"})], "painted"])
session = Lab(sys.argv[1])
asyncio.run(session.run("paint", model=model, workspace=sys.argv[2], approver=thinks))
"""


def left_by_a_dead_session(session: Lab, workspace: Path) -> str:
    """A run whose session was killed while a person thought about its question."""
    command = [sys.executable, "-c", _ASKS, str(session.home), str(workspace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline()
        dying.send_signal(signal.SIGKILL)
    (row,) = session.store.runs()
    return row.id


def test_a_question_survives_the_death_of_its_session(session: Lab, workspace: Path) -> None:
    """Killed while a person thinks, the run is answered from outside, and another session goes on with that
    answer, unasked.
    """
    run_id = left_by_a_dead_session(session, workspace)
    session.history.decide(run_id, granted=True, by="ann", how="command", answers=["blue"])
    silent = ScriptedApprover([])
    done = asyncio.run(session.resume(run_id, model=model({"question": "Which colour?"}), approver=silent))
    assert (done.status, answers(done), silent.asked) == (RunStatus.COMPLETE, ["blue"], [])
    assert [type(event) for event in done.events() if isinstance(event, ApprovalAsked | ApprovalGiven)] == [
        ApprovalAsked,
        ApprovalGiven,
    ]


def test_a_lost_answer_would_be_noticed(session: Lab, workspace: Path) -> None:
    """Mutant of the test above: without the answer in the log the run asks again, of whom nobody expects it,
    and fails.
    """
    run_id = left_by_a_dead_session(session, workspace)
    silent = ScriptedApprover([])
    with pytest.raises(IndexError):
        asyncio.run(session.resume(run_id, model=model({"question": "Which colour?"}), approver=silent))
    assert [asked.args["question"] for asked in silent.asked] == ["Which colour?"]


def test_a_call_is_asked_about_with_what_it_would_change(session: Lab, workspace: Path) -> None:
    """The question carries a diff of the file as it is then, in the order of the calls; an edit that cannot
    work says why.
    """
    (workspace / "a").write_text("one\ntwo\n")
    (workspace / "binary").write_bytes(b"\0\1")
    approver = ScriptedApprover([False] * 5)
    turns = ScriptedModel(
        [
            [
                ("write_file", {"path": "a", "content": "one\n2\n"}),
                ("edit_file", {"path": "a", "old": "two", "new": "2"}),
                ("edit_file", {"path": "a", "old": "three", "new": "3"}),
                ("bash", {"command": "true"}),
                ("write_file", {"path": "binary", "content": "x"}),
            ],
            "ok",
        ]
    )
    asyncio.run(session.run("go", model=turns, workspace=workspace, approver=approver))
    diff = "--- a\n+++ a\n@@ -1,2 +1,2 @@\n one\n-two\n+2"
    assert [asked.tool for asked in approver.asked] == [
        "write_file",
        "edit_file",
        "edit_file",
        "bash",
        "write_file",
    ]
    assert [asked.preview for asked in approver.asked][:2] == [diff, diff]
    assert approver.asked[2].preview.startswith("this edit would fail: old was not found")
    assert approver.asked[3].preview == ""
    assert approver.asked[4].preview.startswith("no diff can be shown: binary")
