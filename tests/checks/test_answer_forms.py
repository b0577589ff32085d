"""Checks of the form of an answer, checks made of checks, and what may stand beside any check."""

import asyncio

import pytest

from kestrel_lab.checks.composition import each_check
from kestrel_lab.checks.parse import check_definition, parse_check
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered, Record
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score


def score(item, answer, tmp_path, events=()) -> Score:
    """The score of a check as a suite writes it."""
    records = tuple(
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1)
    )
    return asyncio.run(parse_check(item)(Trial(goal="g", answer=answer, records=records, workspace=tmp_path)))


TABLE = [
    ({"starts_with": "Yes"}, ["yes, it does", "  YES."], ["well, yes", ""]),
    ({"starts_with": {"texts": ["a", "b"], "compare": "exact"}}, ["abc", "b"], ["Abc"]),
    ({"ends_with": "done"}, ["all is Done.", "done"], ["done it"]),
    ({"answer_contains": {"texts": "Ab", "compare": "exact"}}, ["xAbx"], ["xabx"]),
    ({"answer_contains": {"texts": "a b", "compare": "caseless"}}, ["A B"], ["a  b"]),
    ({"answer_equals": {"text": "Ab.", "compare": "exact"}}, ["Ab."], ["Ab", "ab."]),
    ({"number": 1234.5}, ["it is 1,234.5", "first 7, then 1234.50 m", "1.2345e3"], ["1,234.6", "none", ""]),
    ({"number": {"value": 1234.5, "thousands": "."}}, ["1.234,5"], ["1,234.5"]),
    ({"number": {"value": 10, "tolerance": 1}}, ["9", "11"], ["8.9", "11.1"]),
    ({"number": {"value": -200, "relative": 0.1}}, ["-181", "−220"], ["181", "-221"]),
    (
        {"number": {"value": 3, "units": {"km": 1, "m": 0.001}}},
        ["3 km", "3,000 m", "it was 3km, in 2 hours"],
        ["3", "3 miles", "3 m"],
    ),
    ({"number": {"value": 5, "units": {"$": 1, "": 1}}}, ["$5", "5"], ["5 km"]),
    ({"number": {"value": 2, "which": "first"}}, ["2 of 3"], ["3 of 2"]),
    ({"number": {"value": 2, "which": "only"}}, ["2 and again 2"], ["2 of 3"]),
    ({"number": 5}, ["x = 5."], ["version 1.2.5"]),
    (
        {"choice": "B"},
        ["ANSWER: B", "Not A. The answer is **B**.", "so\n(b)", "B) Canberra", r"\boxed{B}", "answer: b"],
        ["A", "The answer is a mystery", "Canberra", "ANSWER: B, C", "B or not"],
    ),
    ({"choice": ["A", "C"]}, ["ANSWER: C, A", "ANSWER: A and C"], ["ANSWER: A"]),
    ({"choice": {"right": "B", "options": ["Sydney", "Canberra"]}}, ["Canberra."], ["Sydney"]),
    ({"similar": "the quick brown fox"}, ["Quick, brown fox!"], ["a slow fox"]),
    ({"similar": {"texts": "kitten", "by": "letters", "at_least": 0.57}}, ["sitting"], ["string"]),
    ({"is_json": True}, ['{"a": 1}', " [1] "], ["here: [1]", "{'a': 1}", ""]),
    ({"is_json": {"alone": False}}, ["here: [1]"], ["nothing"]),
    ({"is_json": {"schema": {"type": "array"}}}, ["[1]"], ['{"a": 1}']),
    ({"is_xml": {"elements": ["a.b"]}}, ["<a><b/></a>"], ["<a/>", "<a><b></a>", "a.b"]),
    ({"is_xml": {"alone": False}}, ["see <a x='1'>1</a>."], ["1 < 2"]),
    ({"any_of": [{"starts_with": "a"}, {"ends_with": "z"}]}, ["a", "z"], ["b"]),
    ({"all_of": [{"starts_with": "a"}, {"not": {"answer_contains": "x"}}]}, ["ab"], ["ax", "b"]),
    ({"not": {"any_of": [{"answer_contains": "sorry"}, {"answer_contains": "cannot"}]}}, ["ok"], ["Sorry"]),
]


@pytest.mark.parametrize(("item", "right", "wrong"), TABLE)
def test_what_passes_and_what_does_not(item, right, wrong, tmp_path):
    """Answers that a person would call right pass, the others do not and say what was found."""
    for answer in right:
        assert score(item, answer, tmp_path).passed, answer
    for answer in wrong:
        found = score(item, answer, tmp_path)
        assert not found.passed, answer
        assert found.reason


def test_xml_that_would_grow_in_memory_is_refused(tmp_path):
    """Entities that are declared in an answer are never expanded."""
    bomb = '<!DOCTYPE a [<!ENTITY x "' + "y" * 100 + '"><!ENTITY z "&x;&x;">]><a>&z;</a>'
    assert "declares entities" in score({"is_xml": True}, bomb, tmp_path).reason


def test_sql_is_read_and_never_run(tmp_path):
    """A statement passes, a word does not, and tables can be limited."""
    pytest.importorskip("sqlglot")
    assert score({"is_sql": True}, "SELECT a FROM t WHERE b = 1", tmp_path).passed
    assert not score({"is_sql": True}, "hello", tmp_path).passed
    assert not score({"is_sql": True}, "SELECT FROM WHERE", tmp_path).passed
    assert score({"is_sql": {"alone": False}}, "Here:\n```sql\nSELECT 1\n```", tmp_path).passed
    assert score({"is_sql": {"tables": ["a"]}}, "SELECT * FROM b", tmp_path).reason == "it uses b"


def test_bounds_of_each_call(tmp_path):
    """The slowest and the most expensive call of a model, where the whole trial would break the bound."""
    calls = [
        ModelAnswered(call=str(n), step="s", model="m", seconds=2.0, cost_usd=0.01, tokens_in=1, tokens_out=1)
        for n in range(3)
    ]
    assert score({"cost_at_most": {"usd": 0.01, "per": "call"}}, "", tmp_path, calls).passed
    assert not score({"cost_at_most": 0.01}, "", tmp_path, calls).passed
    told = score({"seconds_at_most": {"seconds": 1, "per": "call"}}, "", tmp_path, calls)
    assert (told.passed, told.reason) == (False, "it took 2.00 s per call")


def test_name_weight_and_threshold_stand_beside_a_check(tmp_path):
    """They change how its value counts; what the check says stays."""
    item = {"answer_contains": ["a", "b", "c"], "at_least": 0.6, "name": "terms", "weight": 2}
    found = score(item, "a b", tmp_path)
    assert (found.passed, found.name, found.weight) == (True, "terms", 2)
    assert found.value == pytest.approx(2 / 3)
    assert found.check.startswith("terms: answer contains")
    assert "value 0.333, needed 0.6" in score(item, "a", tmp_path).reason


def test_checks_within_checks_are_found_and_defined(tmp_path):
    """Every check is known by what it is made of: graders and functions are loaded for inner ones too."""
    made = parse_check({"not": {"any_of": [{"graded": "r"}, {"number": 1}]}, "name": "n"})
    assert [type(one).__name__ for one in each_check((made,))] == [
        *("NamedCheck", "Not", "AnyOf", "ModelGraded", "AnswerNumber")
    ]
    assert made.needs == "a model"
    other = parse_check({"not": {"any_of": [{"graded": "r"}, {"number": 2}]}, "name": "n"})
    assert check_definition(made) != check_definition(other)
    assert check_definition(parse_check({"answer_equals": "x"})) == {
        "check": "AnswerEquals",
        "label": "answer equals 'x'",
        "text": "x",
    }


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"any_of": []}, "at least one check"),
        ({"any_of": [{"answer_contain": "x"}]}, "did you mean 'answer_contains'"),
        ({"not": "x"}, "a check is one name with a value"),
        ({"number": {"value": 1, "units": {"km": "x"}}}, "the factor of the unit 'km'"),
        ({"choice": "Canberra"}, "choice needs the right letters"),
        ({"similar": {"texts": "a", "at_least": 0}}, "at_least above 0"),
        ({"number": 1, "weight": -1}, "the weight of a check is 0 or more"),
        ({"number": 1, "at_least": 2}, "from 0 to 1, not 2"),
        ({"graded": {"rubric": "r", "model": "a", "models": ["b"]}}, "one model or several"),
        ({"name": "x"}, "a check is one name with a value"),
    ],
)
def test_mistakes_are_told(item, message):
    """What cannot be meant is refused where the suite is read."""
    with pytest.raises(UsageError, match=message):
        parse_check(item)
