"""Checks as data: what is understood, and what a reader is told who mistyped."""

import pytest
from jsonschema import Draft202012Validator

from kestrel_lab.checks.answer import (
    AnswerAbstains,
    AnswerContains,
    AnswerEquals,
    AnswerForm,
    AnswerMatches,
    AnswerSchema,
)
from kestrel_lab.checks.answer_forms import (
    AnswerNumber,
    Choice,
    EndsWith,
    IsJson,
    IsSql,
    IsXml,
    Similar,
    StartsWith,
)
from kestrel_lab.checks.behaviour import (
    CostAtMost,
    SecondsAtMost,
    TokensAtMost,
    ToolAtMost,
    ToolNotUsed,
    ToolUsed,
    TurnsAtMost,
)
from kestrel_lab.checks.commands import CommandSucceeds
from kestrel_lab.checks.composition import AllOf, AnyOf, Not
from kestrel_lab.checks.files import FileAbsent, FileContains, FileEquals
from kestrel_lab.checks.grounding import AnswerCites, CitesWhatIsThere, Faithful, Grounded
from kestrel_lab.checks.llm_judge import ModelGraded
from kestrel_lab.checks.parse import CHECKS, check_definition, checks_schema, parse_check
from kestrel_lab.checks.python_function import PythonCheck
from kestrel_lab.checks.retrieval import RecallAt, Recalled
from kestrel_lab.checks.trajectory import ToolsInOrder, TrajectoryMatch
from kestrel_lab.core.errors import UsageError

WRITTEN = [
    ({"all_of": [{"starts_with": "a"}]}, AllOf(checks=(StartsWith(texts=("a",)),))),
    ({"any_of": [{"ends_with": "a"}]}, AnyOf(checks=(EndsWith(texts=("a",)),))),
    ({"choice": "B"}, Choice(right=("B",))),
    ({"is_json": True}, IsJson()),
    ({"is_sql": {"dialect": "sqlite"}}, IsSql(dialect="sqlite")),
    ({"is_xml": {"alone": False, "elements": "a"}}, IsXml(alone=False, elements=("a",))),
    ({"not": {"number": 1}}, Not(inner=AnswerNumber(value=1))),
    ({"number": {"value": 1, "tolerance": 0.5}}, AnswerNumber(value=1, tolerance=0.5)),
    ({"similar": "x"}, Similar(texts=("x",))),
    ({"ends_with": ["a"]}, EndsWith(texts=("a",))),
    ({"starts_with": ["a"]}, StartsWith(texts=("a",))),
    ({"answer_abstains": True}, AnswerAbstains()),
    ({"answer_abstains": False}, AnswerAbstains(expected=False)),
    ({"answer_cites": ["a.py", "b.py"]}, AnswerCites(sources=("a.py", "b.py"))),
    ({"answer_cites": {"sources": "a.py", "seen": True}}, AnswerCites(sources=("a.py",), seen=True)),
    ({"answer_contains": "42"}, AnswerContains(texts=("42",))),
    ({"answer_contains": {"texts": ["a", "b"], "mode": "any"}}, AnswerContains(texts=("a", "b"), mode="any")),
    ({"answer_equals": "42"}, AnswerEquals(text="42")),
    ({"answer_form": "brief"}, AnswerForm(contract="brief")),
    ({"answer_matches": r"\d+"}, AnswerMatches(pattern=r"\d+")),
    ({"answer_schema": {"schema": {"type": "array"}}}, AnswerSchema(schema={"type": "array"})),
    ({"command_succeeds": ["python", "-m", "pytest"]}, CommandSucceeds(argv=("python", "-m", "pytest"))),
    ({"command_succeeds": {"argv": ["make"], "timeout": 5}}, CommandSucceeds(argv=("make",), timeout=5)),
    ({"cost_at_most": 0.05}, CostAtMost(usd=0.05)),
    ({"file_absent": "old.txt"}, FileAbsent(path="old.txt")),
    ({"file_contains": {"path": "out.txt", "text": "hi"}}, FileContains(path="out.txt", text="hi")),
    ({"file_equals": {"path": "out.txt", "text": "hi"}}, FileEquals(path="out.txt", text="hi")),
    ({"cited": 0.7}, CitesWhatIsThere(share=0.7)),
    ({"cited": 0.7}, CitesWhatIsThere(share=0.7)),
    ({"faithful": 0.7}, Faithful(share=0.7)),
    ({"grounded": {"most": 2}}, Grounded(most=2)),
    ({"graded": "names the cause"}, ModelGraded(rubric="names the cause")),
    (
        {"graded": {"rubric": "r", "at_least": 0.8, "model": "m"}},
        ModelGraded(rubric="r", at_least=0.8, model="m"),
    ),
    ({"python_check": "checks:sorted_rows"}, PythonCheck(function="checks:sorted_rows")),
    ({"recall_at": ["a.py", "b.py"]}, RecallAt(items=("a.py", "b.py"))),
    (
        {"recall_at": {"items": "a.py", "k": 5, "tool": "grep", "at_least": 0.5}},
        RecallAt(items=("a.py",), k=5, tool="grep", at_least=0.5),
    ),
    ({"recalled": ["tax", "port"]}, Recalled(notes=("tax", "port"))),
    ({"recalled": {"notes": "new", "never": ["old"], "k": 3}}, Recalled(notes=("new",), never=("old",), k=3)),
    ({"seconds_at_most": 30}, SecondsAtMost(seconds=30)),
    ({"tokens_at_most": 5000}, TokensAtMost(n=5000)),
    ({"tool_at_most": {"name": "grep", "n": 3}}, ToolAtMost(name="grep", n=3)),
    ({"tool_not_used": "bash"}, ToolNotUsed(name="bash")),
    ({"tool_used": "grep"}, ToolUsed(name="grep")),
    ({"tools_in_order": ["tree", "read_file"]}, ToolsInOrder(names=("tree", "read_file"))),
    ({"trajectory_match": ["tree", {"tool": "grep"}]}, TrajectoryMatch(calls=("tree", {"tool": "grep"}))),
    (
        {
            "trajectory_match": {
                "calls": [{"tool": "grep", "args": {"pattern": "x"}}],
                "mode": "recall",
                "at_least": 0.5,
            }
        },
        TrajectoryMatch(calls=({"tool": "grep", "args": {"pattern": "x"}},), mode="recall", at_least=0.5),
    ),
    ({"turns_at_most": 5}, TurnsAtMost(n=5)),
]


def test_every_check_can_be_written():
    """Each known check has a short or a full form."""
    assert [parse_check(item) for item, _ in WRITTEN] == [check for _, check in WRITTEN]
    assert {name for item, _ in WRITTEN for name in item} == set(CHECKS)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"answer_contain": "x"}, "'answer_contain' is not a check; did you mean 'answer_contains'?"),
        ("answer", "a check is one name with a value, such as answer_contains: \"42\", not 'answer'"),
        ({"file_contains": {"path": "a", "txt": "b"}}, "file_contains has no 'txt'; did you mean 'text'?"),
        ({"file_contains": "a"}, "file_contains needs text: write file_contains: {text: …}"),
        ({"answer_contains": 42}, "answer_contains.texts is text, not 42; put it in quotes"),
        ({"answer_contains": []}, "answer_contains needs at least one text, and none of them empty"),
        (
            {"answer_contains": {"texts": "x", "mode": "some"}},
            "answer_contains.mode is all or any, not 'some'",
        ),
        ({"turns_at_most": "5"}, "turns_at_most.n is a whole number, not '5'"),
        ({"turns_at_most": True}, "turns_at_most.n is a whole number, not True"),
        ({"turns_at_most": 0}, "turns_at_most must be at least 1, not 0"),
        (
            {"command_succeeds": {"argv": ["x"], "timeout": 0}},
            "the timeout of command_succeeds must be positive, not 0",
        ),
        (
            {"answer_matches": "("},
            "answer_matches: '(' is not a regular expression: missing ), unterminated subpattern at "
            "position 0",
        ),
        ({"tool_used": None}, "tool_used.name is text, not None"),
        (
            {"tool_at_most": {"name": "grep", "n": 0}},
            "tool_at_most allows at least 1 call, not 0: for none at all, write tool_not_used: grep",
        ),
        ({"tools_in_order": []}, "tools_in_order needs at least one tool"),
        (
            {"trajectory_match": [3]},
            "trajectory_match: a call is a tool's name, {tool: …, args: {…}} or "
            "{kind: command|read|edit|search|web|ask}, not 3",
        ),
        (
            {"trajectory_match": {"calls": "a", "at_least": 0}},
            "trajectory_match needs calls, and at_least above 0 up to 1, not 0",
        ),
        (
            {"answer_schema": {"schema": {"type": "lisst"}}},
            "answer_schema: not a JSON Schema at type: 'lisst' is not valid under any of the given schemas",
        ),
        ({"answer_schema": {"schema": "x"}}, "answer_schema.schema is a mapping, not 'x'"),
        ({"answer_cites": {"sources": "a", "seen": 1}}, "answer_cites.seen is true or false, not 1"),
        ({"answer_cites": " "}, "answer_cites needs at least one source, and none of them empty"),
        ({"cost_at_most": -1}, "cost_at_most must be a positive number, not -1"),
        (
            {"graded": {"rubric": "r", "at_least": 2}},
            "graded needs a rubric, and at_least above 0 up to 1, not 2",
        ),
        (
            {"python_check": "../evil.py:run"},
            "python_check names a function as module:function, such as checks:is_sorted, not "
            "'../evil.py:run'",
        ),
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
    assert check_definition(CommandSucceeds(argv=("a",))) != check_definition(
        CommandSucceeds(argv=("a",), timeout=1)
    )


def test_the_schema_agrees_with_the_parser():
    """What can be written fits the editors' schema; unknown checks, missing and misspelt fields and wrong
    types do not.
    """
    validator = Draft202012Validator(checks_schema())
    assert [item for item, _ in WRITTEN if not validator.is_valid(item)] == []
    wrong = [
        {"answer_contain": "x"},
        "answer",
        {},
        {"tool_used": "a", "answer_equals": "b"},
        {"file_contains": {"path": "a", "txt": "b"}},
        {"file_contains": "a"},
        {"answer_contains": 42},
        {"turns_at_most": "5"},
        {"answer_contains": {"texts": "x", "mode": "some"}},
    ]
    assert [item for item in wrong if validator.is_valid(item)] == []
