"""What a recording becomes: the events of its run with their times, its trial, and conversations in the form
of chat logs.
"""

import json
from typing import Any

import pytest

from kestrel_lab.core.events.union import (
    ModelAnswered,
    ModelCalled,
    Prompted,
    RunFinished,
    RunStarted,
    StateTransition,
    StepFinished,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.evals.importers.chat_logs import chat_recording, is_chat
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    offered_tools,
    read_call,
)
from kestrel_lab.evals.importers.json_fields import JsonFields, read_content, read_time
from kestrel_lab.evals.importers.recorded_events import events_of, trial_of


def said(role: Any, text: str = "", **fields: Any) -> ImportedMessage:
    """A message."""
    return ImportedMessage(role=role, text=text, **fields)


ASKED = said("user", "How many?")
CALL = ImportedCall(tool="count", args={"of": "rows"}, id="x1")


def recording(*messages: ImportedMessage, **fields: Any) -> Recording:
    """A recording of these messages."""
    given = {
        "format": "chat",
        "source": "f",
        "id": "7",
        "digest": "0123456789abcdef99",
        "model": "toy",
        **fields,
    }
    return Recording(messages=messages, **given)


def events(found: Recording, kind: type) -> list[Any]:
    """The events of a type, each with its time."""
    return [(at, event) for at, event in events_of(found) if isinstance(event, kind)]


WHOLE = recording(
    ASKED,
    said("assistant", calls=(CALL,), at=110.0, seconds=4.0, tokens_in=5, tokens_out=2, cost_usd=0.5),
    said("tool", "3", call="x1", at=113.0, seconds=2.0),
    said("user", "Sure?", at=114.0),
    said("assistant", "Three.", at=120.0, seconds=1.0, model="toy-2"),
    began=100.0,
    system="Be brief.",
)


def test_calls_begin_as_long_before_their_end_as_they_took() -> None:
    """Each message is complete when the recording says; the question of a model and the call of a tool begin
    before.
    """
    assert [(at, event.cycle, event.model, event.messages) for at, event in events(WHOLE, ModelCalled)] == [
        (106.0, 1, "toy", 2),
        (119.0, 2, "toy-2", 5),
    ]
    assert [
        (at, event.finish, event.metered, event.tokens_in, event.cost_usd)
        for at, event in events(WHOLE, ModelAnswered)
    ] == [
        (110.0, "tool_calls", True, 5, 0.5),
        (120.0, "stop", False, 0, None),
    ]
    assert [(at, event.call, event.args) for at, event in events(WHOLE, ToolCalled)] == [
        (111.0, "answer.1.1", {"of": "rows"})
    ]
    assert [(at, event.text, event.error, event.seconds) for at, event in events(WHOLE, ToolAnswered)] == [
        (113.0, "3", None, 2.0)
    ]
    assert [(at, event.text) for at, event in events(WHOLE, Prompted)] == [(114.0, "Sure?")]
    ((at, started),) = events(WHOLE, RunStarted)
    assert (at, started.goal, started.imported["times"], started.imported["calls"]) == (
        100.0,
        "How many?",
        "each",
        {"answer.1.1": "x1"},
    )
    assert [tool["name"] for tool in started.tools] == ["count"]
    assert events(WHOLE, RunFinished)[0][1].answer == "Three."


@pytest.mark.parametrize(
    ("fields", "times", "end"),
    [({"began": 5.0, "seconds": 3.0}, "total", 8.0), ({"began": 5.0}, "unknown", 5.0)],
)
def test_where_only_the_whole_time_is_known_the_end_has_it(
    fields: dict[str, float], times: str, end: float
) -> None:
    """Times that are not told are those of the event before."""
    found = recording(ASKED, said("assistant", "3"), **fields)
    assert events(found, RunStarted)[0][1].imported["times"] == times
    assert {at for at, _ in events(found, ModelAnswered)} == {5.0}
    assert [at for at, _ in events(found, StepFinished)] == [end]


def test_time_begins_with_the_first_message_that_has_one_and_does_not_go_back() -> None:
    """Without a beginning the earliest time is it; a message with an earlier time is as late as the one
    before.
    """
    found = recording(
        ASKED, said("assistant", "a", at=9.0), said("user", "b", at=7.0), said("assistant", "c", at=8.0)
    )
    assert events(found, RunStarted)[0][0] == 7.0
    assert [at for at, _ in events(found, ModelAnswered)] == [9.0, 9.0]


def test_every_call_is_answered() -> None:
    """Calls without a result say so before the next turn and at the end; one that could not be read was not
    made.
    """
    bad = ImportedCall(tool="count", args={}, problem="no JSON")
    found = recording(
        ASKED, said("assistant", calls=(CALL, bad)), said("user", "Go on"), said("assistant", calls=(CALL,))
    )
    assert [(event.call, event.error["kind"], event.text) for _, event in events(found, ToolAnswered)] == [
        ("answer.1.1", "unknown_outcome", "the recording has no result of this call"),
        ("answer.1.2", "invalid_arguments", "no JSON"),
        ("answer.2.1", "unknown_outcome", "the recording has no result of this call"),
    ]
    assert [event.call for _, event in events(found, ToolCalled)] == ["answer.1.1", "answer.2.1"]
    assert found.answer == ""
    assert recording(ASKED, said("assistant", calls=(CALL,)), summary="some results").answer == "some results"


def test_results_go_to_the_call_that_they_name_else_to_the_next() -> None:
    """Answers may come in another order; one without an id is for the first call that is open."""
    other = ImportedCall(tool="list", args={}, id="x2")
    turn = said("assistant", calls=(CALL, other))
    named = recording(ASKED, turn, said("tool", "two", call="x2"), said("tool", "", call="x1", error="gone"))
    assert [(event.call, event.text) for _, event in events(named, ToolAnswered)] == [
        ("answer.1.2", "two"),
        ("answer.1.1", "gone"),
    ]
    assert events(named, ToolAnswered)[1][1].error == {
        "kind": "failed",
        "message": "gone",
        "transient": False,
    }
    unnamed = recording(ASKED, turn, said("tool", "one"), said("tool", "two"))
    assert [(event.call, event.text) for _, event in events(unnamed, ToolAnswered)] == [
        ("answer.1.1", "one"),
        ("answer.1.2", "two"),
    ]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ((ASKED, said("tool", "3", call="x9")), "answers the call 'x9', which nobody made"),
        ((ASKED, said("tool", "3")), "no call is open"),
        (
            (ASKED, said("assistant", calls=(CALL,)), said("tool", call="x1"), said("tool", call="x1")),
            "which nobody made",
        ),
        ((said("user", " "),), "no message of a user"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: tuple[ImportedMessage, ...], why: str) -> None:
    """A result without a call, and a conversation that nobody began."""
    with pytest.raises(ValueError, match=why):
        events_of(recording(*messages))


def test_a_conversation_without_a_message_of_a_user_is_one_and_is_named() -> None:
    """What the model said is kept; the goal says what is missing."""
    found = recording(said("assistant", "Hi"))
    assert (found.goal, found.answer) == ("(no message of a user can be read in it)", "Hi")
    assert [str(one) for one in found.left_out] == ["f: no message of a user can be read in it"]


def test_a_recording_that_broke_is_a_run_that_failed() -> None:
    """Its error is the reason; an early end is a reason without an error."""
    broke = recording(ASKED, said("assistant", "Hm"), error="out of memory")
    assert [(event.outcome, event.reason) for _, event in events(broke, RunFinished)] == [
        ("error", "out of memory")
    ]
    assert events(broke, StateTransition)[-1][1].target == "FAILED"
    ended = recording(ASKED, said("assistant", "Hm"), reason="too long")
    assert [(event.ok, event.reason) for _, event in events(ended, StepFinished)] == [(True, "too long")]
    assert events(ended, StateTransition)[-1][1].target == "COMPLETE"


NO: dict[str, Any] = {"check": "includes", "passed": False}
YES: dict[str, Any] = {"check": "match", "passed": True}


@pytest.mark.parametrize(
    ("fields", "outcome", "reason"),
    [
        ({"passed": True, "scores": (YES,)}, "pass", ""),
        ({"passed": False, "scores": (YES, NO)}, "fail", "not held: includes"),
        ({"passed": False, "scores": None}, "fail", ""),
        ({"passed": False, "scores": (NO,), "reason": "too long"}, "fail", "too long"),
        ({}, "error", "not judged in the recording"),
        ({"error": "broke"}, "error", "broke"),
    ],
)
def test_a_trial_is_judged_as_the_recording_says(fields: dict[str, Any], outcome: str, reason: str) -> None:
    """Passed, failed with the checks that did not pass, or an error where nobody judged."""
    found = recording(ASKED, said("assistant", "3"), began=1.0, **fields)
    row = trial_of(found, events_of(found))
    assert (row.result["outcome"], row.result["reason"], row.result["run"], row.config) == (
        outcome,
        reason,
        "i0123456789abcdef",
        "toy",
    )
    assert row.result["status"] == ("FAILED" if fields.get("error") else "COMPLETE")


def test_metrics_have_only_what_the_recording_tells() -> None:
    """Tokens where every answer has them, clocks where times are known, and what it says itself stands
    before.
    """
    silent = recording(ASKED, said("assistant", "3"), began=1.0)
    assert {"token_usage", "tokens_in", "wall_time", "working_time"} & {
        *trial_of(silent, events_of(silent)).metrics
    } == set()
    timed = recording(
        ASKED,
        said("assistant", "3", tokens_in=4, tokens_out=1),
        began=1.0,
        seconds=3.0,
        metrics={"depth": 2.0},
    )
    metrics = trial_of(timed, events_of(timed)).metrics
    assert (metrics["tokens_in"], metrics["wall_time"], metrics["depth"], "working_time" in metrics) == (
        4,
        3.0,
        2.0,
        False,
    )
    metrics = trial_of(WHOLE, events_of(WHOLE)).metrics
    assert ("tokens_in" in metrics, metrics["wall_time"]) == (False, 20.0)


@pytest.mark.parametrize(
    ("args", "read", "problem"),
    [
        ({"a": 1}, {"a": 1}, ""),
        ('{"a": 1}', {"a": 1}, ""),
        ("", {}, ""),
        (None, {}, ""),
        ("[1]", {}, "its arguments are no JSON object"),
        ("{a}", {}, "its arguments are not JSON"),
    ],
)
def test_arguments_are_an_object_or_its_text(args: Any, read: dict[str, Any], problem: str) -> None:
    """What cannot be read is no argument, and the call says why."""
    found = read_call("t", args)
    assert (found.tool, found.args, found.id) == ("t", read, "")
    assert found.problem.startswith(problem)
    assert bool(found.problem) is bool(problem)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        ([{"type": "text", "text": "a"}, "b", {"type": "image_url"}, {}], "a\n\nb\n\n[image_url]\n\n[part]"),
        ([{"text": ""}], ""),
    ],
)
def test_parts_of_a_message_are_its_text(content: Any, text: str) -> None:
    """Parts that are no text are named."""
    assert read_content(content, "f", []).text == text


def test_times_and_tools_are_read_where_they_are() -> None:
    """ISO times become seconds; a tool without description or parameters has empty ones."""
    assert read_time("1970-01-01T00:01:00+00:00") == 60.0
    assert read_time("") is read_time(None) is None
    assert offered_tools([JsonFields({"name": "t"}, "f", [])]) == (
        {"name": "t", "description": "", "schema": {}},
    )


USER = {"role": "user", "content": "How many?"}
ANSWER = {"role": "assistant", "content": "3"}
USAGE = {"prompt_tokens": 4, "completion_tokens": 1}


@pytest.mark.parametrize(
    "value",
    [
        {
            "messages": [USER],
            "choices": [{"message": ANSWER}],
            "usage": USAGE,
            "model": "toy",
            "id": "7",
            "created": 9,
        },
        {
            "request": {"messages": [USER], "model": "asked"},
            "response": {
                "choices": [{"message": ANSWER}],
                "usage": USAGE,
                "model": "toy",
                "id": "7",
                "created": 9,
            },
        },
        {
            "custom_id": "7",
            "body": {"messages": [USER]},
            "response": {
                "body": {"choices": [{"message": ANSWER}], "usage": USAGE, "model": "toy", "created": 9}
            },
        },
    ],
    ids=["flat", "request", "batch"],
)
def test_a_chat_is_read_wherever_its_halves_stand(value: dict[str, Any]) -> None:
    """Messages, answer, usage, model, id and time at the top, under request and response, or in the form of a
    batch.
    """
    assert is_chat(value)
    found = chat_recording(value, "f", "s")
    assert [(one.role, one.text) for one in found.messages] == [("user", "How many?"), ("assistant", "3")]
    assert (found.model, found.id, found.scenario, found.began, found.answer) == ("toy", "7", "7", 9.0, "3")
    assert (found.messages[1].tokens_in, found.messages[1].tokens_out, found.messages[1].cost_usd) == (
        4,
        1,
        None,
    )


def test_every_kind_of_message_is_read() -> None:
    """System messages are put together, refusals are text, functions of the older form are calls, costs are
    money.
    """
    value = {
        "messages": [
            {"role": "system", "content": "A"},
            {"role": "developer", "content": "B"},
            USER,
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "count", "arguments": json.dumps({"of": "rows"})},
            },
            {"role": "function", "name": "count", "content": "3"},
            {"role": "assistant", "content": "3", "refusal": "no more", "tool_calls": None},
        ],
        "tools": [{"type": "function", "function": {"name": "count"}}, {"name": "list"}],
        "usage": USAGE | {"cost": 0},
        "metadata": {"scenario": "rows"},
    }
    found = chat_recording(value, "f", "s")
    assert (found.system, found.model, found.scenario, found.facts) == (
        "A\n\nB",
        "unknown",
        "rows",
        {"metadata": {"scenario": "rows"}},
    )
    assert [(one.role, one.text, [call.tool for call in one.calls]) for one in found.messages] == [
        ("user", "How many?", []),
        ("assistant", "", ["count"]),
        ("tool", "3", []),
        ("assistant", "3\n\nno more", []),
    ]
    assert (found.messages[1].tokens_in, found.messages[3].cost_usd) == (None, 0.0)
    assert [tool["name"] for tool in found.tools] == ["count", "list"]
    unmetered = chat_recording({"messages": [USER], "usage": USAGE}, "f", "s")
    assert (unmetered.messages[0].tokens_in, unmetered.began, unmetered.facts) == (None, None, {})
    strange = chat_recording({"messages": [USER, {"role": "critic"}, {}, {"role": "tool"}]}, "f", "s")
    assert [message.role for message in strange.messages] == ["user"]
    assert [str(one) for one in strange.left_out] == [
        "f messages[1]: left out: a message has the role 'critic'",
        "f messages[2]: left out: KeyError: 'role'",
        "f messages[3]: left out: it answers no call",
    ]
    assert not any(map(is_chat, ([USER], {"messages": "x"}, {"request": {}, "messages": []})))
