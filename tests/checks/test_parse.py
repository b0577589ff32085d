"""Checks as data: what is understood, and what a reader is told who mistyped."""

import pytest

from kestrel_lab.checks.answer import AnswerContains, AnswerEquals, AnswerMatches
from kestrel_lab.checks.commands import CommandSucceeds
from kestrel_lab.checks.conduct import ToolNotUsed, ToolUsed, TurnsAtMost
from kestrel_lab.checks.files import FileAbsent, FileContains, FileEquals
from kestrel_lab.checks.parse import CHECKS, check_definition, parse_check, parse_checks
from kestrel_lab.core.errors import UsageError


def test_every_check_can_be_written():
    """Each known check has a short or a full form."""
    written = [
        {"answer_contains": "42"},
        {"answer_contains": {"texts": ["a", "b"], "mode": "any"}},
        {"answer_equals": "42"},
        {"answer_matches": r"\d+"},
        {"command_succeeds": ["python", "-m", "pytest"]},
        {"command_succeeds": {"argv": ["make"], "timeout": 5}},
        {"file_absent": "old.txt"},
        {"file_contains": {"path": "out.txt", "text": "hi"}},
        {"file_equals": {"path": "out.txt", "text": "hi"}},
        {"tool_not_used": "bash"},
        {"tool_used": "grep"},
        {"turns_at_most": 5},
    ]
    assert parse_checks(written) == (
        AnswerContains(texts=("42",)),
        AnswerContains(texts=("a", "b"), mode="any"),
        AnswerEquals(text="42"),
        AnswerMatches(pattern=r"\d+"),
        CommandSucceeds(argv=("python", "-m", "pytest")),
        CommandSucceeds(argv=("make",), timeout=5),
        FileAbsent(path="old.txt"),
        FileContains(path="out.txt", text="hi"),
        FileEquals(path="out.txt", text="hi"),
        ToolNotUsed(name="bash"),
        ToolUsed(name="grep"),
        TurnsAtMost(n=5),
    )
    assert {name for item in written for name in item} == set(CHECKS)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"answer_contain": "x"}, "'answer_contain' is no check; did you mean 'answer_contains'?"),
        ("answer", "a check is one name with a value, such as answer_contains: \"42\", not 'answer'"),
        ({"file_contains": {"path": "a", "txt": "b"}}, "file_contains has no 'txt'; did you mean 'text'?"),
        ({"file_contains": "a"}, "file_contains needs text: write file_contains: {text: …}"),
        ({"answer_contains": 42}, "answer_contains.texts is text, not 42; put it in quotes"),
        ({"answer_contains": []}, "answer_contains needs at least one text, and none of them empty"),
        ({"answer_contains": {"texts": "x", "mode": "some"}}, "answer_contains.mode is all or any, not 'some'"),
        ({"turns_at_most": "5"}, "turns_at_most.n is a whole number, not '5'"),
        ({"turns_at_most": True}, "turns_at_most.n is a whole number, not True"),
        ({"turns_at_most": 0}, "turns_at_most must be at least 1, not 0"),
        ({"command_succeeds": {"argv": ["x"], "timeout": 0}}, "the timeout of command_succeeds must be positive, not 0"),
        ({"answer_matches": "("}, "answer_matches: '(' is not a regular expression: missing ), unterminated subpattern at position 0"),
        ({"tool_used": None}, "tool_used.name is text, not None"),
    ],
)
def test_mistakes_are_named(item, message):
    """Every mistake is answered with what is wrong and what would be right."""
    with pytest.raises(UsageError) as caught:
        parse_check(item)
    assert str(caught.value) == message


def test_definitions_differ_where_checks_differ():
    """A definition holds every field, so results of changed checks are not taken for the same."""
    assert check_definition(TurnsAtMost(n=5)) == {"check": "TurnsAtMost", "label": "at most 5 turns", "n": 5}
    assert check_definition(CommandSucceeds(argv=("a",))) != check_definition(CommandSucceeds(argv=("a",), timeout=1))
