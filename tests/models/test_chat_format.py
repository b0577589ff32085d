"""The chat-completions format: conversations and tools as servers take them, schemas of answers, and calls
that come in pieces.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.messages import ImagePart, Message, ThinkingPart, ToolRequest, ToolSpec
from kestrel_lab.models.chat_format import (
    CallPieces,
    Dialect,
    from_wire,
    messages_to_wire,
    object_schema,
    read_args,
    response_format,
    tools_to_wire,
    wire_name,
)

IMAGE = ImagePart.of(b"\x89PNG", "image/png")
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE.data}"}}
MARK = {"type": "ephemeral"}


def test_messages_have_their_role_text_and_calls() -> None:
    """A call without text has no content; an empty message has it empty."""
    call = ToolRequest(id="c1", name="time:now", args={"zone": "é"}, signature="sig")
    wire = messages_to_wire(
        [
            Message(role="system", text="s"),
            Message(role="assistant", text="", calls=(call,)),
            Message(role="tool", text="12", call_id="c1", name="time:now"),
            Message(role="assistant", text=""),
        ]
    )
    assert wire == [
        {"role": "system", "content": "s"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "time__now", "arguments": '{"zone":"é"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12"},
        {"role": "assistant", "content": ""},
    ]
    signed = messages_to_wire(
        [Message(role="assistant", text="", calls=(call,))], Dialect(call_signatures=True)
    )
    assert signed[0]["tool_calls"][0]["provider_specific_fields"] == {"thought_signature": "sig"}  # type: ignore[index,call-overload]
    plain = ToolRequest(id="c1", name="a", args={})
    assert "provider_specific_fields" not in str(
        messages_to_wire([Message(role="assistant", calls=(plain,))], Dialect(call_signatures=True))
    )


@pytest.mark.parametrize(
    ("dialect", "more"),
    [
        (Dialect(), {}),
        (
            Dialect(signed_thinking=True),
            {
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "a", "signature": "s"},
                    {"type": "redacted_thinking", "data": "r"},
                ]
            },
        ),
        (Dialect(reasoning_text=True), {"reasoning_content": "a\n\nb\n\n"}),
    ],
)
def test_thinking_goes_back_as_the_provider_takes_it(dialect: Dialect, more: dict[str, Any]) -> None:
    """Signed or redacted parts, or the text of all, or nothing."""
    thinking = (
        ThinkingPart(text="a", signature="s"),
        ThinkingPart(text="b"),
        ThinkingPart(text="", redacted="r"),
    )
    wire = messages_to_wire([Message(role="assistant", text="x", thinking=thinking)], dialect)
    assert wire == [{"role": "assistant", "content": "x", **more}]
    unsigned = Message(role="assistant", text="x", thinking=(ThinkingPart(text="b"),))
    assert "thinking_blocks" not in messages_to_wire([unsigned], dialect)[0]


def test_images_of_tools_follow_their_turn_unless_they_may_stand_in_it() -> None:
    """After all results of the turn, with the call that each is of; at the end of the conversation too."""
    user = Message(role="user", text="see", images=(IMAGE,))
    first, second = (
        Message(role="tool", text=f"t{n}", call_id=f"c{n}", name="shot", images=(IMAGE,)) for n in (1, 2)
    )
    answer = Message(role="assistant", text="so")
    for end in ([], [answer]):
        wire = messages_to_wire([user, first, second, *end])
        assert [one["role"] for one in wire] == [
            "user",
            "tool",
            "tool",
            "user",
            *(["assistant"] if end else []),
        ]
        assert wire[0]["content"] == [{"type": "text", "text": "see"}, PICTURE]
        assert wire[1]["content"] == "t1"
        said = {
            "type": "text",
            "text": "The images of these tool results, in this order: shot (c1), shot (c2)",
        }
        assert wire[3] == {"role": "user", "content": [said, PICTURE, PICTURE]}
    within = messages_to_wire([user, first, answer], Dialect(tool_images=True))
    assert [one["role"] for one in within] == ["user", "tool", "assistant"]
    assert within[1]["content"] == [{"type": "text", "text": "t1"}, PICTURE]
    bare = Message(role="user", images=(IMAGE,))
    assert messages_to_wire([bare]) == [{"role": "user", "content": [PICTURE]}]


@pytest.mark.parametrize(
    ("sees", "user_sent", "shown"),
    [(True, False, True), (None, True, True), (None, False, False), (False, True, False)],
)
def test_a_model_that_is_not_known_to_see_is_told_what_it_is_not_shown(
    sees: bool | None, user_sent: bool, shown: bool
) -> None:
    """Images of tools are sent to a model of which nothing is known once the user has sent one."""
    user = Message(role="user", text="go", images=(IMAGE,) if user_sent else ())
    wire = messages_to_wire(
        [user, Message(role="tool", text="t", call_id="c", name="n", images=(IMAGE,))], Dialect(sees=sees)
    )
    assert ("data:image" in str(wire)) is shown
    assert (
        wire[1]["content"] == "t\n[not shown, as this model is not known to see images: image/png]"
    ) is not shown


def test_the_prompt_is_marked_where_it_stays_the_same() -> None:
    """The system message and the ends of the last two requests; nothing that is empty or the model's own."""
    turns = [Message(role="system", text="s")]
    for number in range(3):
        turns += [
            Message(role="user", text=f"u{number}"),
            Message(role="user", text=f"v{number}"),
            Message(role="assistant", text="a"),
        ]
    turns += [Message(role="user", text="last", images=(IMAGE,))]
    wire = messages_to_wire(turns, Dialect(cache_marks=True))
    marked = [at for at, one in enumerate(wire) if "cache_control" in str(one)]
    assert marked == [0, 8, 10]
    assert wire[8]["content"] == [{"type": "text", "text": "v2", "cache_control": MARK}]
    assert wire[10]["content"] == [{"type": "text", "text": "last"}, {**PICTURE, "cache_control": MARK}]
    assert "cache_control" not in str(messages_to_wire(turns))
    empty = [
        Message(role="user", text=""),
        Message(role="assistant", text="a"),
        Message(role="user", text="u"),
    ]
    assert [
        at
        for at, one in enumerate(messages_to_wire(empty, Dialect(cache_marks=True)))
        if "cache_control" in str(one)
    ] == [2]
    tools = [ToolSpec(name=name, description=name, schema={"type": "object"}) for name in ("a", "b:c")]
    assert [one.get("cache_control") for one in tools_to_wire(tools, Dialect(cache_marks=True))] == [
        None,
        MARK,
    ]
    assert tools_to_wire([], Dialect(cache_marks=True)) == []
    assert tools_to_wire(tools)[1] == {
        "type": "function",
        "function": {"name": "b__c", "description": "b:c", "parameters": {"type": "object"}},
    }


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=90))
def test_every_tool_has_a_name_that_every_server_accepts(name: str) -> None:
    """Which leads back to its own; a plain name is itself."""
    wire = wire_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire)
    assert wire_name(wire) == wire
    spec = ToolSpec(name=name, description="", schema={})
    assert [one.name for one in from_wire([ToolRequest(id="c", name=wire, args={})], [spec])] == [name]


def test_tools_of_different_names_stay_apart() -> None:
    """Names that would become one by replacing what is not allowed end in a hash of the whole."""
    assert wire_name("time:now") == "time__now"
    assert len({wire_name(name) for name in ("a b", "a.b", "a_b", "é" * 70, "è" * 70)}) == 5


@pytest.mark.parametrize(
    ("schema", "wrapped", "strict"),
    [
        ({"type": "object", "properties": {}, "additionalProperties": False}, False, True),
        (
            {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
            False,
            True,
        ),
        (
            {"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": False},
            False,
            False,
        ),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False, False),
        ({"type": "object", "properties": 3, "additionalProperties": False}, False, False),
        ({"type": "object", "properties": {}, "required": "a", "additionalProperties": False}, False, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, False, False),
        ({"type": "integer"}, True, True),
        (
            {"type": "array", "items": {"anyOf": [{"type": "object"}]}, "$defs": {"B": {"type": "string"}}},
            True,
            False,
        ),
    ],
)
def test_answers_are_objects_and_strict_where_every_object_is_closed(
    schema: dict[str, Any], wrapped: bool, strict: bool
) -> None:
    """Any other value is that of the key `value`; definitions stay at the top."""
    outer = object_schema(schema)
    if wrapped:
        inner = {key: part for key, part in schema.items() if key != "$defs"}
        assert outer["properties"] == {"value": inner}
        assert outer.get("$defs") == schema.get("$defs")
        assert (outer["required"], outer["additionalProperties"]) == (["value"], False)
    else:
        assert outer is schema
    named = response_format(outer)["json_schema"]
    assert isinstance(named, dict)
    assert (named["schema"], named.get("strict", False)) == (outer, strict)


@pytest.mark.parametrize(
    ("text", "args", "problem"),
    [
        (" ", {}, ""),
        ('{"a": 1}', {"a": 1}, ""),
        ("[1]", {}, "the arguments of 'f' must be a JSON object, not [1]"),
        ("{a", {}, "the arguments of 'f' are not JSON ("),
    ],
)
def test_arguments_that_cannot_be_read_have_a_problem(text: str, args: dict[str, Any], problem: str) -> None:
    """Which is for the model that wrote them."""
    found, told = read_args("f", text)
    assert found == args
    assert told.startswith(problem) and bool(told) is bool(problem)


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        (
            [(0, "c1", "f", '{"a":'), (0, None, None, " 1}"), (1, "c2", "g", "{}")],
            [("c1", "f", {"a": 1}), ("c2", "g", {})],
        ),
        ([(0, "c1", "f", "{}"), (0, "c2", "g", "{}")], [("c1", "f", {}), ("c2", "g", {})]),
        ([(0, "c1", "f", '{"a"'), (0, "c1", "f", ": 1}")], [("c1", "f", {"a": 1})]),
        ([(0, None, "f", "{}"), (0, None, "f", "{}")], [("call_1", "f", {}), ("call_2", "f", {})]),
        ([(0, None, "f", ""), (0, None, "f", "{}")], [("call_1", "f", {})]),
        ([(None, "c1", None, None), (None, None, "f", None)], [("c1", "f", {})]),
        ([(0, None, "f", "{}"), (0, "c1", None, None)], [("c1", "f", {})]),
    ],
    ids=[
        "by index",
        "all numbered 0",
        "id again",
        "no ids",
        "name again before arguments",
        "no index",
        "late id",
    ],
)
def test_calls_are_put_together_from_pieces(
    pieces: list[tuple[Any, ...]], calls: list[tuple[str, str, dict[str, Any]]]
) -> None:
    """By index, by id, or where there are none by name, in the order in which they began."""
    made = CallPieces()
    for piece in pieces:
        made.add(*piece)
    assert [(one.id, one.name, one.args) for one in made.requests()] == calls
    made = CallPieces()
    made.add(0, "c", "f", "[", signature="s1")
    made.add(0, None, None, None, signature="s2")
    assert [(one.signature, bool(one.problem)) for one in made.requests()] == [("s1", True)]
