"""A run goes on from any event of another one; what they share is stored once, and the other one stays as it
is.
"""

import asyncio
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
from reference import ANSWER, GOAL, HonestPerson, illegal_states, model, tools, unreported
from waits import until

from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    CacheHit,
    Event,
    ModelAnswered,
    ModelCalled,
    RunForked,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool


def rows(session: Lab, run_id: str) -> list[tuple[Any, ...]]:
    """What the database has under this id, byte for byte."""
    session.store.flush()
    raw = apsw.Connection(str(session.store.path))
    events = raw.execute("SELECT * FROM events WHERE run_id = ? ORDER BY seq", (run_id,)).fetchall()
    row = raw.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchall()
    raw.close()
    return [*row, *events]


def numbers(run: Run, kind: type[Event]) -> list[int]:
    """Where the run has events of a kind."""
    return [record.seq for record in run.records() if isinstance(record.event, kind)]


def test_any_event_can_be_forked_at(tmp_path: Path, workspace: Path) -> None:
    """Forked behind any event before the end, the run completes; the parent is unchanged and none of its
    events is copied.
    """
    effects: list[str] = []
    session = Lab(tmp_path / "home", env={}, tools=tools(effects.append))
    parent = asyncio.run(
        session.run(GOAL, model=model(), workspace=workspace, approver=HonestPerson(effects.__contains__))
    )
    records, before = parent.records(), rows(session, parent.id)
    for at in range(1, len(records) - 1):
        called = {r.event.call: r.event for r in records[:at] if isinstance(r.event, ToolCalled)}
        answered = {r.event.call for r in records[:at] if isinstance(r.event, ToolAnswered)}
        person = HonestPerson(effects.__contains__)

        child = asyncio.run(session.fork(parent.id, at=at, model=model(), approver=person))

        assert (at, child.status, child.answer) == (at, RunStatus.COMPLETE, ANSWER)
        mine = child.records()
        assert [(r.eid, r.at, r.event) for r in mine[:at]] == [(r.eid, r.at, r.event) for r in records[:at]]
        assert [r.seq for r in mine] == list(range(1, len(mine) + 1))
        assert {r.run_id for r in mine} == {child.id}
        assert isinstance(mine[at].event, RunForked)
        assert [row[1] for row in rows(session, child.id)[1:]] == [r.seq for r in mine[at:]]
        row = session.store.run(child.id)
        assert (row.parent, row.forked_at, row.status, row.goal) == (parent.id, at, RunStatus.COMPLETE, GOAL)
        assert child._state == fold(mine) == session.get(child.id)._state
        assert (illegal_states(mine), unreported(mine)) == ([], [])
        unknown = sorted(asked.call for asked in person.asked if asked.why == "unknown_outcome")
        assert unknown == sorted(
            call for call, event in called.items() if call not in answered and event.effect == "opaque"
        )
        assert child.usage.model_calls == 5
        assert session.history.diff(parent.id, child.id).shared >= sum(_counts(r.event) for r in records[:at])
    assert rows(session, parent.id) == before
    session.close()


def _counts(event: Event) -> bool:
    """Whether a diff shows the event, and it need not be asked again in the fork."""
    return event.type not in {"state_transition", "model_called", "approval_asked", "tool_called"}


def test_a_given_answer_ends_the_fork(session: Lab, workspace: Path) -> None:
    """At each question to the model an answer given by hand is recorded as given, costs nothing and is the
    run's answer.
    """
    effects: list[str] = []
    options: dict[str, Any] = {
        "model": model(),
        "tools": tools(effects.append),
        "approver": HonestPerson(effects.__contains__),
    }
    parent = asyncio.run(session.run(GOAL, workspace=workspace, **options))
    happened = list(effects)
    for turn, at in enumerate(numbers(parent, ModelCalled)):
        child = asyncio.run(
            session.fork(parent.id, at=at, answer="by hand", model=model(), tools=tools(effects.append))
        )
        given = child.events()[at + 1]
        assert isinstance(given, ModelAnswered)
        assert (given.model, given.text, given.given, given.tokens_in + given.tokens_out) == (
            "(given)",
            "by hand",
            True,
            0,
        )
        assert (child.status, child.answer) == (RunStatus.COMPLETE, "by hand")
        assert (child.usage.model_calls, child.usage.unpriced, child.usage.tokens) == (turn, 0, 25 * turn)
        assert f"forked from {parent.id} at {at} with an answer given by hand" in repr(child.report)
        assert "given by hand" in child._repr_html_()
        assert child._state == fold(child.records())
    assert effects == happened


def test_a_cached_result_can_be_replaced(session: Lab, workspace: Path) -> None:
    """A result given by hand also takes the place of one from the cache, by default of the last."""
    (workspace / "a.txt").write_text("long")
    time.sleep(0.1)  # a file that has just changed is not cached

    def turn(request: ModelRequest) -> Turn:
        told = [message.text for message in request.messages if message.role == "tool"]
        return told[-1] if told else [("read_file", {"path": "a.txt"})]

    options: dict[str, Any] = {"model": ScriptedModel(turn), "tools": ["read_file"]}
    asyncio.run(session.run("read it", workspace=workspace, **options))
    parent = asyncio.run(session.run("read it", workspace=workspace, **options))
    (hit,) = numbers(parent, CacheHit)
    assert not numbers(parent, ToolCalled)

    child = asyncio.run(session.fork(parent.id, result="short", **options))
    given = [event for event in child.events() if isinstance(event, ToolAnswered) and event.given]
    assert (session.store.run(child.id).forked_at, child.answer) == (hit, "short")
    assert [(event.text, event.cached) for event in given] == [("short", False)]


def test_a_given_result_is_what_the_model_is_told(session: Lab, workspace: Path) -> None:
    """A result given by hand takes the place of the tool's: the tool does not run and the model reads what
    was given.
    """
    ran: list[str] = []

    @tool(danger_level="medium")
    async def weigh(name: str) -> str:
        """Weigh something."""
        ran.append(name)
        return "heavy"

    def turn(request: ModelRequest) -> Turn:
        told = [message.text for message in request.messages if message.role == "tool"]
        return ", ".join(told) if told else [("weigh", {"name": "a"}), ("weigh", {"name": "b"})]

    parent = asyncio.run(
        session.run("weigh", model=ScriptedModel(turn), tools=[weigh], workspace=workspace, approve="auto")
    )
    assert (parent.answer, ran) == ("heavy, heavy", ["a", "b"])
    first, second = numbers(parent, ToolCalled)

    child = asyncio.run(session.fork(parent.id, result="light", model=ScriptedModel(turn), tools=[weigh]))
    assert (session.store.run(child.id).forked_at, child.answer, ran) == (second, "heavy, light", ["a", "b"])
    given = [event for event in child.events() if isinstance(event, ToolAnswered) and event.given]
    assert [(event.text, event.cached, event.error) for event in given] == [("light", False, None)]

    other = asyncio.run(
        session.fork(parent.id, at=first, result="light", model=ScriptedModel(turn), tools=[weigh])
    )
    assert (other.answer, ran) == ("light, heavy", ["a", "b", "b"])


def test_a_fork_of_a_fork_reads_all_its_ancestors(session: Lab, workspace: Path) -> None:
    """Each generation stores its own events only; an event shared with a parent is forked at in the
    parent.
    """
    turns: list[Turn] = [[("glob", {"pattern": str(n)})] for n in range(3)]
    script = ScriptedModel([*turns, "end"])
    line = [asyncio.run(session.run("look", model=script, workspace=workspace))]
    for number in (1, 2, 3):
        at = numbers(line[-1], ModelCalled)[number]
        line.append(
            asyncio.run(session.fork(line[-1].id, at=at, model=ScriptedModel([*turns, f"end {number}"])))
        )
    assert [run.answer for run in line] == ["end", "end 1", "end 2", "end 3"]
    for before, run in pairwise(line):
        row = session.store.run(run.id)
        assert (row.parent, len(rows(session, run.id)) - 1) == (
            before.id,
            len(run.records()) - (row.forked_at or 0),
        )
        assert [r.eid for r in run.records()[: row.forked_at]] == [
            r.eid for r in before.records()[: row.forked_at]
        ]
        assert session.store.records(run.id, after=2) == run.records()[2:]
    early = asyncio.run(session.fork(line[-1].id, at=2, model=script))
    assert (session.store.run(early.id).parent, early.answer) == (line[0].id, "end")


@tool(danger_level="high")
async def launch() -> str:
    """Launch it."""
    return "launched"


LAUNCH = ScriptedModel([[("launch", {})], "up"])


def test_a_waiting_run_and_its_fork_are_decided_apart(session: Lab, workspace: Path) -> None:
    """A fork asks a question anew that its parent waits for; the answer to one is none to the other, and each
    is resumed.
    """
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", model=LAUNCH, tools=[launch], workspace=workspace))
    parent = session.get(caught.value.run_id)
    last = len(parent.records())
    assert parent.status is RunStatus.WAITING_APPROVAL
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.fork(parent.id, at=last, model=LAUNCH, tools=[launch]))
    child = session.get(caught.value.run_id)
    assert (child.id != parent.id, child.status) == (True, RunStatus.WAITING_APPROVAL)
    assert numbers(child, ApprovalAsked)[-1] > last

    session.history.decide(child.id, granted=False, by="ann", how="command")
    assert [len(session.get(run.id).questions) for run in (parent, child)] == [1, 0]
    session.history.decide(parent.id, granted=True, by="ann", how="command")
    ended = [asyncio.run(session.resume(run.id, model=LAUNCH, tools=[launch])) for run in (parent, child)]
    assert [run.status for run in ended] == [RunStatus.COMPLETE] * 2
    results = [next(event for event in run.events() if isinstance(event, ToolAnswered)) for run in ended]
    assert [result.error is None for result in results] == [True, False]


def test_a_fork_keeps_what_it_was_given(session: Lab, workspace: Path) -> None:
    """Model, tools and policy of a fork are recorded: resuming it uses them; limits and goal are the
    parent's.
    """
    parent = asyncio.run(
        session.run(
            "go", model=ScriptedModel(["no"]), tools=["glob"], workspace=workspace, limits=Limits(cycles=7)
        )
    )
    session.change(model=ScriptedModel([[("launch", {})], "up"], name="other"))
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(
            session.fork(parent.id, model=session.options.get("model"), tools=[launch], approve="ask")
        )
    session.registry.toolbox = session.registry.toolbox + [launch]
    child = session.get(caught.value.run_id)
    assert (child.goal, child.report.model) == ("go", "other (scripted)")
    began = child._state.started
    assert began is not None
    assert ([item["name"] for item in began.tools], began.policy, began.limits["cycles"]) == (
        ["launch"],
        "ask",
        7,
    )
    session.history.decide(child.id, granted=True, by="ann", how="command")
    assert asyncio.run(session.resume(child.id)).answer == "up"


class Echo:
    """A model that says it is real."""

    name = "echo"
    kind = "real"

    async def __call__(self, request: ModelRequest, on_delta: Any) -> Any:
        """Say what was asked."""
        return await ScriptedModel([request.messages[-1].text])(request, on_delta)


def test_a_run_with_any_scripted_part_says_so(session: Lab, workspace: Path) -> None:
    """A fork of a scripted run by a real model stays labelled scripted wherever it is shown, and so does the
    reverse.
    """
    scripted = asyncio.run(session.run("hi", model=ScriptedModel(["no"]), workspace=workspace))
    real = asyncio.run(session.run("hi", model=Echo(), workspace=workspace))
    mixed = asyncio.run(session.fork(scripted.id, model=Echo()))
    reverse = asyncio.run(session.fork(real.id, model=ScriptedModel(["no"])))
    assert (real.report.model, mixed.report.model, reverse.report.model) == (
        "echo",
        "echo (scripted)",
        "scripted (scripted)",
    )
    assert [run.report.view().head.model_kind for run in (real, mixed, reverse)] == [
        "real",
        "scripted",
        "scripted",
    ]


def test_limits_do_not_count_a_question_asked_again(session: Lab, workspace: Path) -> None:
    """A run that used all its turns can be forked at its last question."""
    parent = asyncio.run(
        session.run("hi", model=ScriptedModel(["no"]), workspace=workspace, limits=Limits(cycles=1))
    )
    child = asyncio.run(session.fork(parent.id, model=ScriptedModel(["yes"])))
    assert (child.status, child.answer, parent.answer) == (RunStatus.COMPLETE, "yes", "no")


def test_listeners_hear_of_the_fork(tmp_path: Path, workspace: Path) -> None:
    """The session's listeners are told the fork's own events, what was given included; a subscriber also
    those before.
    """
    told: list[tuple[str, str]] = []
    session = Lab(tmp_path / "home", env={}, listeners=[lambda run, event: told.append((run.id, event.type))])
    parent = asyncio.run(session.run("hi", model=ScriptedModel(["no"]), workspace=workspace))
    child = asyncio.run(session.fork(parent.id, answer="yes", model=ScriptedModel(["no"])))
    own = [
        record.event.type
        for record in child.records()
        if record.seq > (session.store.run(child.id).forked_at or 0)
    ]
    assert [kind for run_id, kind in told if run_id == child.id] == own
    assert own[:2] == ["run_forked", "model_answered"]
    heard: list[Event] = []
    child.subscribe(heard.append)
    assert heard == child.events()
    assert isinstance(heard[0], RunStarted)
    session.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": 99}, r"has no event 99: its events are 1 to 13, and it can be forked at 1 to 11"),
        ({"at": 0}, r"has no event 0: its events are 1 to 13"),
        ({"at": 12}, r"had ended by event 12: it can be forked at 1 to 11"),
        ({"at": 13}, r"had ended by event 13"),
        (
            {"at": 6, "answer": "x"},
            r"event 6 of run \S+ is model_answered: an answer .* fork at a model_called; the nearest "
            r".* are 5, 9",
        ),
        (
            {"at": 9, "result": "x"},
            r"event 9 of run \S+ is model_called: a result .* fork at a tool_called; the nearest .* are 7",
        ),
        ({"answer": "x", "result": "y"}, r"not both"),
        ({"answer": " "}, r"the answer is empty"),
        ({"model": None, "at": 5}, r"only exists in memory: pass model="),
        ({"tools": ["golb"]}, r"did you mean 'glob'"),
    ],
)
def test_what_cannot_be_forked_is_explained(
    options: dict[str, Any], message: str, session: Lab, workspace: Path
) -> None:
    """A number that is not there, one after the end, one of the wrong kind and missing parts are named;
    nothing is created.
    """
    script = ScriptedModel([[("glob", {"pattern": "x"})], "end"])
    parent = asyncio.run(session.run("look", model=script, tools=["glob"], workspace=workspace))
    kinds = [event.type for event in parent.events()]
    assert kinds[4:6] == ["model_called", "model_answered"], kinds
    with pytest.raises(UsageError, match=message):
        asyncio.run(session.fork(parent.id, **{"model": script, **options}))
    assert [row.id for row in session.store.runs()] == [parent.id]


def test_a_run_without_a_question_needs_a_number(session: Lab, workspace: Path) -> None:
    """Where there is no default the message says which numbers can be given; an unknown run is named."""
    parent = asyncio.run(session.run("hi", model=ScriptedModel(["no"]), workspace=workspace))
    with pytest.raises(
        UsageError, match=r"has no tool_called to fork at: say at which event, with at=1 to at=7"
    ):
        asyncio.run(session.fork(parent.id, result="x", model=ScriptedModel([])))
    with pytest.raises(UsageError, match="did you mean"):
        asyncio.run(session.fork(parent.id[:-1], model=ScriptedModel([])))


def test_a_diff_shows_where_runs_part(session: Lab, workspace: Path) -> None:
    """Shared events, the first of each side that differs, and what each did; text of models is escaped."""
    first: list[Turn] = [[("glob", {"pattern": "*.py"})], "no files"]
    second: list[Turn] = [first[0], [("grep", {"pattern": "x"})], "<b>nothing</b>"]
    parent = asyncio.run(session.run("look", model=ScriptedModel(first), workspace=workspace))
    at = numbers(parent, ModelCalled)[1]
    child = asyncio.run(session.fork(parent.id, at=at, model=ScriptedModel(second)))
    diff = session.history.diff(parent.id, child.id)

    assert diff.first_a is not None
    assert diff.first_b is not None
    assert (diff.first_a.seq, diff.first_a.event.type) == (at + 1, "model_answered")
    assert (diff.first_b.event.type, diff.first_b.seq > at) == ("model_answered", True)
    frame = diff.frame
    assert list(frame.columns) == ["a_seq", "b_seq", "type", "same", "a", "b"]
    assert list(frame["same"][: diff.shared]) == [True] * diff.shared
    row = frame.iloc[diff.shared]
    assert (row["type"], row["same"], row["a"]) == ("model_answered", False, "no files")
    assert row["b"].startswith("grep")
    assert Counter(frame["type"])["tool_called"] == 2
    assert frame[frame["b_seq"].isna()].empty
    assert f"the runs share {diff.shared} events, then part" in repr(diff)
    assert parent.id in repr(diff)
    assert "<b>nothing" not in diff._repr_html_()
    assert "&lt;b&gt;nothing" in diff._repr_html_()


def test_runs_that_did_the_same_do_not_part(session: Lab, workspace: Path) -> None:
    """Two runs of one script, and a run and a fork that changes nothing, differ in times and ids only; `asked
    again` is not a difference.
    """
    script = ScriptedModel([[("launch", {}), ("launch", {})], "up"])

    def run() -> Run:
        return asyncio.run(
            session.run("go", model=script, tools=[launch], workspace=workspace, approve="auto")
        )

    one, second = run(), int(time.time())
    until(lambda: int(time.time()) > second)  # when a run began is no difference
    two = run()
    forks = [
        asyncio.run(session.fork(one.id, at=at, model=script, tools=[launch]))
        for at in (1, 4, numbers(one, ModelCalled)[1])
    ]
    for other in (two, *forks):
        diff = session.history.diff(one.id, other.id)
        assert (diff.same, diff.first_a, diff.first_b) == (True, None, None)
        assert diff.frame["same"].all()
        assert repr(diff).startswith(f"the runs did the same: {diff.shared} events")
        assert "then part" not in diff._repr_html_()


def test_a_longer_run_goes_on_alone(session: Lab, workspace: Path) -> None:
    """Where one run is a prefix of the other, only the longer one has a first differing event."""
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", model=LAUNCH, tools=[launch], workspace=workspace))
    run_id = caught.value.run_id
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.fork(run_id, model=LAUNCH, tools=[launch]))
    session.get(run_id).decide(
        ApprovalGiven(call="answer.1.1", question="answer.1.1", granted=True, by="ann", how="click")
    )
    diff = session.history.diff(run_id, caught.value.run_id)
    assert diff.first_a is not None
    assert (diff.first_a.event.type, diff.first_b, diff.same) == ("approval_given", None, False)
