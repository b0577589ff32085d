"""Claims about tool calling in words."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ToolRequest, ToolSpec
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.models.prompted_tools import (
    AnswerText,
    TextToolModel,
    parse_reply,
    reply_schema,
    tool_prompt,
)

READ = ToolSpec(
    name="read_file",
    description="Read a text file.\nLong explanation.",
    schema={
        "type": "object",
        "properties": {"path": {"type": "string", "minLength": 1}, "start": {"type": "integer"}},
        "required": ["path"],
    },
)


class Says:
    """Says one thing in pieces of three characters and keeps what it was asked."""

    name = "test/says"
    kind: ModelKind = "scripted"

    def __init__(self, said: str, finish: str = "stop") -> None:
        self.said, self.finish = said, finish
        self.asked: list[ModelRequest] = []

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.asked.append(request)
        for at in range(0, len(self.said), 3):
            on_delta(self.said[at : at + 3])
        return ModelAnswer(text=self.said, finish=self.finish)


def ask(
    said: str, *, finish: str = "stop", thought: bool = False, **request: Any
) -> tuple[ModelAnswer, str, ModelRequest]:
    """The answer, what was streamed, and what the wrapped model was asked."""
    inner, streamed = Says(said, finish), list[str]()
    request = {"messages": [Message(role="user", text="go")], "tools": (READ,), **request}
    answer = asyncio.run(
        TextToolModel(inner, thought=thought, max_result_chars=20)(ModelRequest(**request), streamed.append)
    )
    return answer, "".join(streamed), inner.asked[0]


@pytest.mark.parametrize(
    "said",
    [
        '{"tool":"read_file","arguments":{"path":"a.txt"}}',
        'Sure!\n```json\n{ "tool": "read_file", "arguments": {"path": "a.txt"} }\n```',
        '{"name": "read_file", "parameters": {"path": "a.txt"}} {"answer": "done"}',
        '{"note": 1} {"action": "read_file", "action_input": {"path": "a.txt"}}',
    ],
)
def test_a_call_is_understood_in_the_forms_models_use(said: str) -> None:
    """Whatever stands around the first fitting JSON object, it becomes a tool request and nothing of it is
    streamed.
    """
    answer, streamed, _ = ask(said)
    assert (answer.calls, answer.finish) == (
        (ToolRequest(id="call_1", name="read_file", args={"path": "a.txt"}),),
        "tool_calls",
    )
    assert (answer.text, streamed) == ("", "")


@pytest.mark.parametrize(
    ("said", "thought"),
    [
        ('Thought: I should look.\nAction: read_file\nAction Input: {"path": "a.txt"}', "I should look."),
        ("Thought: I should look.\nAction: read_file\nAction Input: a.txt", "I should look."),
        ('Action: `Read_File`\nAction Input:\n```json\n{"path": "a.txt"}\n```', ""),
        ('**Thought:** look\n**Action:** read_file\n**Action Input:** {"path": "a.txt"}\n', "look"),
        (
            'Thought 1: a\nAction 1: read_file\nAction Input 1: "a.txt"\nObservation 1: red\nFinal '
            "Answer: red",
            "a",
        ),
        (
            'I look first.\n\nAction: read_file\nAction_Input: {"path": "a.txt"}\nObservation:',
            "I look first.",
        ),
    ],
)
def test_actions_of_react_are_calls(said: str, thought: str) -> None:
    """`Action:` with `Action Input:` is a call, in any case and marks; what the model made up behind
    `Observation:` is left out.
    """
    answer, streamed, _ = ask(said)
    assert [(call.name, call.args, call.problem) for call in answer.calls] == [
        ("read_file", {"path": "a.txt"}, "")
    ]
    assert (answer.text.strip("* "), streamed) == (thought, "")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("Answer: It is red.", "It is red."),
        ("Thought: I know.\nAnswer: It is red.\nAnd old.", "It is red.\nAnd old."),
        ("**Final Answer:** It is red.", "It is red."),
        ("Thought: done\nAction: Final Answer\nAction Input: It is red.", "It is red."),
        ('{"action": "Final Answer", "action_input": "It is red."}', "It is red."),
        ("Question: which?\nAnswer: red\nNext: none", "Question: which?\nAnswer: red\nNext: none"),
    ],
)
def test_answers_of_react_are_answers(said: str, text: str) -> None:
    """What `Answer:` or `Final Answer:` leads to is the answer; a line `Answer:` within other text is a part
    of it.
    """
    answer, _, _ = ask(said)
    assert (answer.text, answer.calls) == (text, ())


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            'Action: read_file\nAction Input: {"path": "a"}\nAction: read_file\nAction Input: {"path": "b"}',
            "it asks for several actions",
        ),
        (
            'Action: read_file\nAction Input: {"path": "a"}\nFinal Answer: red',
            "it asks for an action and gives an answer",
        ),
        ('Action: read_file\nAction Input: {"path": ', "must be a JSON object"),
    ],
)
def test_ambiguous_actions_are_refused_with_the_reason(said: str, problem: str) -> None:
    """Nobody can tell which of several actions is meant, or what an input that is cut off would have been."""
    answer, _, _ = ask(said)
    assert [(call.args, problem in call.problem) for call in answer.calls] == [({}, True)]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ('{"answer": "It says \\"hi\\" \\ud83e\\udd85\\n."}', 'It says "hi" 🦅\n.'),
        ("Plain words with {braces}.", "Plain words with {braces}."),
        ('{"answer": "cut o', "cut o"),
        ('{"answer": {"n": 1}}', '{"n":1}'),
        ('{"answer": ""}', ""),
        ("", ""),
    ],
)
def test_an_answer_is_its_text(said: str, text: str) -> None:
    """JSON around an answer is taken off, plain text is an answer, and exactly that text is streamed."""
    answer, streamed, _ = ask(said)
    assert (answer.text, answer.calls, streamed) == (text, (), text)


def test_unreadable_arguments_state_their_problem() -> None:
    """A call that was cut off, or whose arguments are no object, is a call with a problem the model can
    correct.
    """
    cut, _, _ = ask('{"tool": "read_file", "arguments": {"path": "a', finish="length")
    listed, _, _ = ask('{"tool": "read_file", "arguments": [1]}')
    assert cut.calls[0].name == "read_file"
    assert "cut off" in cut.calls[0].problem
    assert cut.finish == "length"
    assert listed.calls[0].problem == "the arguments of 'read_file' must be a JSON object, not [1]"


@pytest.mark.parametrize(
    "said",
    [
        "Thought: I should look.\nAction: read_file\nAction Input: [1]\n2",
        "Thought: I should look.\nAction: read_file[a.txt]",
        "**Action:** `read_file`\n**Action Input:** {path: a.txt}",
        "Action 1: open[a.txt]",
        "Action: search\nObservation: it is red\nFinal Answer: red",
        "{'thought': 'hm', 'tool': 'read_file', 'arguments': {'path': 'a.txt'}}",
        '{"tool": read_file, "arguments": {"path": "a.txt"}}',
        '{"tool": {"name": "read_file"}, "path": "a.txt"}',
        '{"thought": "hm", "action": "read_fil", "action_input": "a.txt"}',
        "<tool_call>read_file(path='a.txt')</tool_call>",
        "<function=read_file><parameter=path>a.txt</parameter></function>",
        "<|tool_call|> read a.txt",
        "[TOOL_CALLS] read a.txt",
        "Let me look.\n```python\nread_file('a.txt')\n```",
        "read_file {a.txt}",
    ],
)
@pytest.mark.parametrize("thought", [True, False])
def test_an_action_that_cannot_be_read_is_no_answer(said: str, thought: bool) -> None:
    """Whatever way of writing a call a model was trained to, one that cannot be read is told to it, and it
    sees its own words again.
    """
    answer, streamed, _ = ask(said, thought=thought)
    assert [
        (call.args, "neither a call that can be read nor an answer" in call.problem) for call in answer.calls
    ] == [({}, True)]
    assert (answer.finish, streamed) == ("tool_calls", "")
    history = [
        Message(role="assistant", text=answer.text, calls=answer.calls),
        Message(role="tool", text="error", call_id="call_1"),
    ]
    _, _, asked = ask("ok", thought=thought, messages=history)
    assert [message.text for message in asked.messages if message.role == "assistant"] == [said]


@pytest.mark.parametrize(
    "said",
    [
        "The action was taken: it is red.",
        "Use the tool read_file for that.",
        "A thought: is the final answer right?",
    ],
)
def test_words_about_tools_are_an_answer(said: str) -> None:
    """Prose is an answer, also where it speaks of tools: a mutant that takes every such word for a call is
    caught.
    """
    assert ask(said, thought=True)[0].calls == ()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("Thought: done.\nFinal Answer: 7 m", "7 m"),
        ("**Thought 2:** done\n**Final Answer:** 7 m\n\n- by the lake", "7 m\n\n- by the lake"),
        ("Final Answer: 6\nThought: no\nfinal answer: **größe** 7", "**größe** 7"),
    ],
)
def test_an_answer_in_the_notation_of_react_is_its_text(said: str, text: str) -> None:
    """Models that were trained to write thoughts, actions and a final answer are not shown with the words
    around it.
    """
    answer, streamed, _ = ask(said, thought=True)
    assert (answer.text, answer.calls, streamed) == (text, (), text)


def test_a_thought_alone_is_no_answer() -> None:
    """A model that stops after its thought is asked for the rest."""
    answer, streamed, _ = ask("Thought: I should look at the weather.", thought=True)
    assert ([call.name for call in answer.calls], streamed) == (["reply"], "")


def test_a_call_of_a_tool_that_does_not_exist_is_a_call() -> None:
    """A wrong name with arguments is a call like any other: the engine says which tools there are."""
    answer, _, _ = ask('{"name": "read_fil", "parameters": {"path": "a"}}')
    assert answer.calls == (ToolRequest(id="call_1", name="read_fil", args={"path": "a"}),)


def test_the_conversation_becomes_plain_text() -> None:
    """The model sees no tools and no tool messages: calls as the JSON it said, results as words, long ones
    shortened.
    """
    history = [
        Message(role="system", text="Be brief."),
        Message(role="user", text="go"),
        Message(
            role="assistant",
            text="Let me look.",
            calls=(ToolRequest(id="x", name="read_file", args={"path": "a"}),),
        ),
        Message(role="tool", call_id="x", name="read_file", text="0123456789" * 10),
        Message(role="assistant", text="Done."),
        Message(role="user", text="again"),
    ]
    answer, _, asked = ask(
        '{"thought":"hm","tool":"read_file","arguments":{"path":"b"}}', thought=True, messages=history
    )
    assert asked.tools == ()
    assert [message.role for message in asked.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert asked.messages[0].text.startswith("Be brief.\n\nReply with one JSON object.")
    assert [message.text for message in asked.messages[1:]] == [
        "go",
        '{"thought":"Let me look.","tool":"read_file","arguments":{"path":"a"}}',
        "Result of read_file: 0123456789012\n… 80 characters left out …\n3456789",
        '{"answer":"Done."}',
        "again",
    ]
    assert (answer.text, answer.calls[0].id) == ("hm", "call_2")


def test_earlier_words_are_not_escaped() -> None:
    """A model imitates what it sees: calls and answers of other languages come back as they were written."""
    call = ToolRequest(id="1", name="read_file", args={"path": "größe.txt"})
    said = [
        Message(role="assistant", calls=(call,)),
        Message(role="tool", name="read_file", text="53"),
        Message(role="assistant", text="東京"),
    ]
    _, _, asked = ask('{"answer":"x"}', messages=[Message(role="user", text="go"), *said])
    assert [message.text for message in asked.messages if message.role == "assistant"] == [
        '{"tool":"read_file","arguments":{"path":"größe.txt"}}',
        '{"answer":"東京"}',
    ]


def test_without_tools_nothing_is_added() -> None:
    """A request that offers no tools passes as it is."""
    answer, streamed, asked = ask("plain", tools=())
    assert (answer.text, streamed) == ("plain", "plain")
    assert asked == ModelRequest(messages=[Message(role="user", text="go")])


def test_the_prompt_is_one_line_per_tool() -> None:
    """Each tool is shown as the call to write, with its required arguments, its description and its other
    arguments.
    """
    assert tool_prompt((READ,), thought=False) == (
        "Reply with one JSON object. Use a tool to get what you need, then give the answer.\n"
        "Tools:\n"
        '{"tool":"read_file","arguments":{"path":"<path>"}} Read a text file. Long explanation. Also '
        "takes: start.\n"
        "When you know the answer:\n"
        '{"answer":"<answer>"}'
    )


def test_definitions_of_two_tools_do_not_collide() -> None:
    """References inside a tool's schema still mean that tool's own definition, also where two use the same
    name.
    """
    tools = [
        ToolSpec(
            name=name,
            description="",
            schema={
                "type": "object",
                "properties": {"x": {"$ref": "#/$defs/Item"}},
                "$defs": {"Item": {"type": kind, "format": "y"}},
            },
        )
        for name, kind in (("a", "string"), ("b", "integer"))
    ]
    schema = reply_schema(tools, thought=False)
    first = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a.Item"}}, "additionalProperties": False}
    assert schema["$defs"] == {"a.Item": {"type": "string"}, "b.Item": {"type": "integer"}}
    assert isinstance(choices := schema["anyOf"], list)
    assert choices[0] == {
        "type": "object",
        "properties": {"tool": {"const": "a"}, "arguments": first},
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }
    assert len(choices) == 3


JSONS: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), JSONS, max_size=4), st.booleans(), st.text(alphabet=" \n.,abc"))
def test_every_well_formed_call_is_read_back(args: dict[str, Json], escaped: bool, before: str) -> None:
    """Whatever the arguments are and whatever words stand before, a written call is the call that is read."""
    said = before + json.dumps({"tool": "t", "arguments": args}, ensure_ascii=escaped)
    assert parse_reply(said, tools=["t"], call_id="c") == ("", (ToolRequest(id="c", name="t", args=args),))


@given(st.text(), st.booleans(), st.lists(st.integers(1, 7), min_size=1))
def test_streaming_shows_the_answer_once(text: str, escaped: bool, sizes: list[int]) -> None:
    """However an answer is cut into pieces, the pieces that are shown add up to its text, and none holds half
    a character.
    """
    said = json.dumps({"answer": text}, ensure_ascii=escaped)
    shown: list[str] = []
    stream, at = AnswerText(shown.append), 0
    while at < len(said):
        size = sizes[at % len(sizes)]
        stream.add(said[at : at + size])
        at += size
    stream.finish(text)
    assert "".join(shown) == text
    assert all(piece.encode("utf-8") for piece in shown)


@given(st.text(alphabet='{}[]":,\\ antools1'))
def test_any_babble_is_read(said: str) -> None:
    """No output of a model makes reading it fail."""
    text, calls = parse_reply(said, tools=["t"], call_id="c")
    assert isinstance(text, str)
    assert len(calls) <= 1


def test_a_brief_prompt_is_all_a_small_model_reads() -> None:
    """Brief: the run's system message and optional arguments are left out, one worked example comes first,
    and the first reply must be a call.
    """
    tool = ToolSpec(
        name="grep",
        description="Search text. More words.",
        schema={
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "path": {"type": "string"}},
            "required": ["pattern"],
        },
    )
    inner = Says('{"tool": "grep", "arguments": {"pattern": "x"}}', "stop")
    conversation = [Message(role="system", text="A long story."), Message(role="user", text="Find x.")]
    answer = asyncio.run(
        TextToolModel(inner, brief=True)(ModelRequest(messages=conversation, tools=(tool,)), lambda _: None)
    )
    asked = inner.asked[0]
    assert [call.args for call in answer.calls] == [{"pattern": "x"}]
    assert (
        asked.messages[0].text
        == "Reply with one JSON object: call a tool, or give the answer.\nTools:\ngrep(pattern): Search text."
    )
    assert [message.role for message in asked.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert asked.schema is not None
    assert "answer" not in json.dumps(asked.schema)


def test_a_call_said_twice_has_to_be_followed_by_an_answer() -> None:
    """Brief: after the same call twice only an answer is allowed."""
    tool = ToolSpec(
        name="look",
        description="Look.",
        schema={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    )
    call = ToolRequest(id="1", name="look", args={"at": "box"})
    turn = [
        Message(role="assistant", calls=(call,)),
        Message(role="tool", text="a dog", call_id="1", name="look"),
    ]
    inner = Says('{"answer": "a dog"}', "stop")
    request = ModelRequest(messages=[Message(role="user", text="Look."), *turn, *turn], tools=(tool,))
    answer = asyncio.run(TextToolModel(inner, brief=True)(request, lambda _: None))
    assert answer.text == "a dog"
    assert "look" not in json.dumps(inner.asked[0].schema)
