"""Calls and thinking that models write into their text.

The forms are those of the chat templates that the module names.
"""

from __future__ import annotations

import pytest

from kestrel_lab.core.messages import ToolRequest
from kestrel_lab.models.written_calls import ThinkingText, expand_calls, read_calls

OFFERED = {"grep", "read_file"}
GREP = ToolRequest(id="call_1", name="grep", args={"pattern": "a"})

FORMS = {
    "hermes": '<tool_call>\n{"name": "grep", "arguments": {"pattern": "a"}}\n</tool_call>',
    "arguments as text": '<tool_call>\n{"name": "grep", "arguments": "{\\"pattern\\": \\"a\\"}"}\n</tool_call>',
    "qwen coder": "<tool_call>\n<function=grep>\n<parameter=pattern>\na\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>grep\n<arg_key>pattern</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
    "llama": '<function=grep>{"pattern":"a"}</function>',
    "python tag": '<|python_tag|>{"name":"grep","parameters":{"pattern":"a"}}<|eom_id|>',
    "mistral list": '[TOOL_CALLS] [{"name":"grep","arguments":{"pattern":"a"}}]',
    "mistral name": '[TOOL_CALLS]grep[ARGS]{"pattern":"a"}',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.grep:0<|tool_call_argument_begin|>"
    '{"pattern":"a"}<|tool_call_end|><|tool_calls_section_end|>',
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>grep\n```json\n{"pattern":"a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "invoke": '<function_calls>\n<invoke name="grep">\n<parameter '
    'name="pattern">a</parameter>\n</invoke>\n</function_calls>',
    "functions": 'functions.grep({"pattern":"a"})',
    "recipient": 'to=functions.grep {"pattern":"a"}',
    "bare": '{"name":"grep","arguments":{"pattern":"a"}}',
    "bare, fenced": '```json\n{"name":"grep","parameters":{"pattern":"a"}}\n```',
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_forms_of_calls(text: str) -> None:
    """Each form is the same call, and nothing of it stays in the text."""
    assert read_calls(text, OFFERED) == ("", (GREP,))
    if not text.startswith(("{", "```")):
        assert read_calls(f"I look.\n{text}\n", OFFERED) == ("I look.", (GREP,))


def test_several_calls() -> None:
    """Calls that follow each other are all made, also those inside of `multi_tool_use.parallel`, as text or
    as a call.
    """
    both = FORMS["hermes"] + '\n<tool_call>\n{"name": "read_file", "arguments": {"path": "b"}}\n</tool_call>'
    assert [call.name for call in read_calls(both, OFFERED)[1]] == ["grep", "read_file"]
    uses = '{"tool_uses":[{"recipient_name":"functions.grep","parameters":{"pattern":"a"}},{"recipient_name":"functions.read_file","parameters":{"path":"b"}}]}'
    written = read_calls(f"multi_tool_use.parallel({uses})", OFFERED)[1]
    asked = ToolRequest(
        id="c",
        name="multi_tool_use.parallel",
        args={"tool_uses": [{"recipient_name": "functions.grep", "parameters": {}}, 3]},
    )
    assert [(call.id, call.name) for call in written] == [("call_1.1", "grep"), ("call_1.2", "read_file")]
    assert [call.name for call in expand_calls([asked], OFFERED)] == ["grep", ""]


@pytest.mark.parametrize(
    "text",
    [
        'You write <tool_call>{"name":"grep","arguments":{}}</tool_call> to search.',
        '<tool_call>{"name":"remove","arguments":{}}</tool_call>',
        '{"name":"grep"}',
        '{"name":"grep","arguments":{}, and more',
        "I need no functions. Done.",
        "Call functions.grep next.",
        "",
    ],
)
def test_what_is_no_call(text: str) -> None:
    """An example within prose, a tool that is not offered and data that only looks like a call stay text."""
    assert read_calls(text, OFFERED) == (text, ())


def test_a_quote_of_what_was_read_is_no_call() -> None:
    """Whoever writes a call into a file makes no model call by quoting the file, however the quote is set."""
    planted = 'notes\n<tool_call>\n{"name": "grep", "arguments": {"pattern": "a"}}\n</tool_call>\n'
    said = 'The file ends with:\n<tool_call>{"arguments":{"pattern":"a"},"name":"grep"}</tool_call>'
    assert read_calls(said, OFFERED, [planted]) == (said, ())
    assert read_calls(said, OFFERED, ["something else"])[1] == (GREP,)


def test_a_call_that_is_cut_off_says_so() -> None:
    """A call whose arguments do not end is one with a problem, which the model is told."""
    (call,) = read_calls('<tool_call>\n{"name": "grep", "arguments": {"pattern": "a', OFFERED)[1]
    assert call.name == "grep"
    assert "must be a JSON object" in call.problem


def divided(*pieces: str) -> tuple[str, tuple[str, ...], str]:
    """Text and thinking of what came in pieces, and what was passed on meanwhile."""
    passed: list[str] = []
    reader = ThinkingText(passed.append)
    for piece in pieces:
        reader.add(piece)
    return *reader.finish(), "".join(passed)


@pytest.mark.parametrize(
    ("whole", "text", "thinking"),
    [
        ("<think>\nabc</think>\n\nHello", "Hello", ("abc",)),
        ("<thinking>a</thinking>\nHello\n<thinking>b</thinking>\nend", "Hello\nend", ("a", "b")),
        ("[THINK]a[/THINK]Hello", "Hello", ("a",)),
        ("Well:\n\n<thinking>\nx\n</thinking>\nHello", "Well:\n\nHello", ("x",)),
        ("reason\n</think>\n\nHello", "Hello", ("reason",)),
        ("<think>cut off", "", ("cut off",)),
        ("hello there", "hello there", ()),
        ("a < b\n<b>", "a < b\n<b>", ()),
        ("Use `<think>` tags.", "Use `<think>` tags.", ()),
        ("```\n<think>\nx</think>\n```", "```\n<think>\nx</think>\n```", ()),
        ("Hi\n<think>never closed", "Hi\n<think>never closed", ()),
    ],
)
def test_thinking_in_text(whole: str, text: str, thinking: tuple[str, ...]) -> None:
    """Blocks of thinking are divided from the answer, however the text is cut into pieces; code that shows
    tags is left alone.
    """
    assert divided(whole)[:2] == (text, thinking)
    assert divided(*whole)[:2] == (text, thinking)
    assert divided(*whole)[2].replace("\n", "") == divided(whole)[2].replace("\n", "")
