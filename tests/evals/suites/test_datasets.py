"""Tables as scenarios: each format, templates, samples, and mistakes told with file and row."""

import json
import sys
from decimal import Decimal
from importlib.util import find_spec

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.checks.behaviour import ToolAtMost
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.suites.datasets import Row, fill_template, read_rows, select_rows
from kestrel_lab.evals.suites.loader import load_suite

ROWS = [
    {"id": "q1", "question": "Capital of France?", "answer": "Paris", "most": "2"},
    {"id": "q2", "question": "2 + 2, {{x}}?", "answer": "4", "most": "3"},
]


def write(folder, name, rows=ROWS):
    """The rows as a file of the kind that the name says."""
    path, frame = folder / name, pd.DataFrame(rows)
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".tsv":
            frame.to_csv(path, index=False, sep="\t")
        case ".parquet":
            frame.to_parquet(path)
        case ".json":
            path.write_text(json.dumps(rows))
        case _:
            path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


def suite_of(folder, source, more=""):
    """A suite that takes its scenarios from `source`."""
    (folder / "s.yaml").write_text(f"{more}scenarios_from:\n  - {source}\n")
    return load_suite(folder / "s.yaml")


def refusal(folder, source):
    """What is said of it."""
    with pytest.raises(UsageError) as caught:
        suite_of(folder, source)
    return str(caught.value).replace(f"{folder}/", "")


NEEDS_PYARROW = pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="an extra that makes pandas larger by half, so CI is without it"
)


@pytest.mark.parametrize(
    "name",
    ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.ndjson", pytest.param("a.parquet", marks=NEEDS_PYARROW)],
)
def test_each_format_gives_the_same_scenarios(tmp_path, name):
    """Ids, goals, expected answers and checks are filled from columns; what a cell says is not read as a
    template again.
    """
    write(tmp_path, name)
    source = (
        f'{{file: {name}, id: "{{{{id}}}}", goal: "Answer: {{{{question}}}}", expected: '
        f'"{{{{answer}}}}", tags: [t, "{{{{id}}}}"], workspace: {{files: {{"a.txt": '
        f'"{{{{answer}}}}"}}}}, checks: [{{answer_contains: "{{{{answer}}}}"}}, {{tool_at_most: '
        f'{{name: grep, n: "{{{{most}}}}"}}}}]}}'
    )
    suite = suite_of(tmp_path, source, "defaults: {family: quiz, limits: {cycles: 3}}\n")
    first, second = suite.scenarios
    assert (first.id, first.goal, first.expected, first.family, first.limits, first.tags) == (
        "q1",
        "Answer: Capital of France?",
        "Paris",
        "quiz",
        {"cycles": 3},
        ("t", "q1"),
    )
    assert (first.checks, first.place) == (
        (AnswerContains(texts=("Paris",)), ToolAtMost(name="grep", n=2)),
        InlineFiles(files={"a.txt": "Paris"}),
    )
    assert (second.id, second.goal) == ("q2", "Answer: 2 + 2, {{x}}?")


def test_values_keep_their_type_where_there_is_one(tmp_path):
    """A number stays one as what is expected, and is text where a check wants text; names with blanks are
    reached with `_`.
    """
    write(
        tmp_path,
        "a.jsonl",
        [{"sum": 42, "the question": "6 × 7?", "deep": {"list": [1, {"a": "b"}]}, "row": None}],
    )
    suite = suite_of(
        tmp_path,
        '{file: a.jsonl, goal: "{{the_question}}", expected: ["{{sum}}", "{{deep.list[1].a}}", '
        '"{{row}}"], checks: [{answer_contains: "{{sum}}"}]}',
    )
    (only,) = suite.scenarios
    assert (only.id, only.goal, only.expected, only.checks) == (
        "a-1",
        "6 × 7?",
        [42, "b", None],
        (AnswerContains(texts=("42",)),),
    )


@NEEDS_PYARROW
def test_rows_of_parquet_become_json(tmp_path):
    """Dates and decimals are texts, what is missing is null."""
    frame = pd.DataFrame(
        {
            "at": [pd.Timestamp("2026-01-02"), pd.NaT],
            "n": [1.5, float("nan")],
            "d": [Decimal("1.10"), None],
            "t": ["NaN", ""],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    assert [row.values for row in read_rows(tmp_path / "a.parquet")] == [
        {"at": "2026-01-02 00:00:00", "n": 1.5, "d": "1.10", "t": "NaN"},
        {"at": None, "n": None, "d": None, "t": ""},
    ]


@pytest.mark.parametrize(
    ("name", "content", "source", "told"),
    [
        (
            "a.csv",
            "q,a\nx,1\n",
            '{file: a.csv, goal: "{{quest}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: {{quest}}: there is no column 'quest'; known: a, q, row_number",
        ),
        (
            "a.csv",
            'q,a\n"x\ny",1\n,2\n',
            '{file: a.csv, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv row 2 (line 4): goal: is empty",
        ),
        (
            "a.csv",
            "q,a\nx,1,2\n",
            '{file: a.csv, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv: row 1 (line 2) has 3 cells for 2 columns",
        ),
        (
            "a.csv",
            "q,q\nx,1\n",
            '{file: a.csv, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv: the first line names columns, and 'q' is there twice",
        ),
        (
            "a.csv",
            "q\nx\nx\n",
            '{file: a.csv, id: "{{q}}", goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv row 2 (line 3): the scenario name 'x' is used already at "
            "s.yaml:2: scenarios_from[0]: a.csv row 1 (line 2)",
        ),
        (
            "a.jsonl",
            '{"q": "x"}\n\n{"p": "y"}\n',
            '{file: a.jsonl, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.jsonl row 2 (line 3): 'q': there is no 'q'; known: p, row_number",
        ),
        (
            "a.jsonl",
            '{"q": "x"}\n{"q": \n',
            '{file: a.jsonl, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.jsonl: line 2: not JSON: Expecting value: line 2 column 1 "
            "(char 7)",
        ),
        (
            "a.jsonl",
            "[1]\n",
            '{file: a.jsonl, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.jsonl: row 1 (line 1): must be an object, not [1]",
        ),
        (
            "a.json",
            "{}",
            '{file: a.json, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.json: must be a list of objects; for one object per line call "
            "it .jsonl",
        ),
        (
            "a.csv",
            "",
            '{file: a.csv, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv: the first line names no columns",
        ),
        (
            "a.csv",
            "q\n",
            '{file: a.csv, goal: "{{q}}", checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv: has no rows",
        ),
        (
            "a.csv",
            "q\nx\n",
            "a.csv",
            "s.yaml:2: scenarios_from[0]: a table needs a template for its rows: goal and checks, or "
            "choices, in which {{column}} stands for a value",
        ),
        (
            "a.csv",
            "q\nx\n",
            '{file: a.csv, goal: "{{q}}", sample: 2, checks: [{answer_contains: x}]}',
            "s.yaml:2: scenarios_from[0]: a sample of 2 cannot be drawn from 1 row",
        ),
        (
            "a.csv",
            "q,w\nx,heavy\n",
            '{file: a.csv, goal: "{{q}}", weight: "{{w}}", checks: [{answer_contain: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv row 1 (line 2): weight: must be a number, not 'heavy'",
        ),
        (
            "a.csv",
            "q\nx\n",
            '{file: a.csv, goal: "{{q}}", checks: [{answer_contain: x}]}',
            "s.yaml:2: scenarios_from[0]: a.csv row 1 (line 2): checks[0]: 'answer_contain' is not a "
            "check; did you mean 'answer_contains'?",
        ),
    ],
)
def test_mistakes_name_file_and_row(tmp_path, monkeypatch, name, content, source, told):
    """Suite file, line, table, row and what is wrong; a wrong column is told once, not for every row."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    assert refusal(tmp_path, source).startswith(told)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    """Who needs it is told what to install; nobody else loads it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(
        UsageError, match=r"a.parquet: Parquet files need pyarrow: pip install 'kestrel-lab\[parquet\]'"
    ):
        read_rows(tmp_path / "a.parquet")


@NEEDS_PYARROW
def test_a_file_that_is_no_parquet(tmp_path):
    """What pyarrow says of it, with its name."""
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(UsageError, match=r"a.parquet: cannot be read: .*Parquet file size is 2 bytes"):
        read_rows(tmp_path / "a.parquet")


def test_of_many_wrong_rows_a_few_are_told(tmp_path, monkeypatch):
    """Five of them, and how many more there are."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.csv", [{"q": "x", "n": n} for n in range(20)])
    told = refusal(
        tmp_path, '{file: a.csv, goal: "{{q}}", checks: [{tool_at_most: {name: grep, n: x}}]}'
    ).splitlines()
    assert (len(told), told[-1]) == (
        6,
        "s.yaml:2: scenarios_from[0]: a.csv: … and 15 more mistakes in its rows",
    )


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers())
def test_a_sample_is_the_same_each_time(count, limit, sample, seed):
    """Of the first `limit` rows, in their order, none twice; the seed alone decides which."""
    rows = [Row(place="", number=n + 1, values={"n": n}) for n in range(count)]
    if sample > min(limit, count):
        with pytest.raises(UsageError, match="cannot be drawn"):
            select_rows(rows, limit=limit, sample=sample, seed=seed)
        return
    found = [row.number for row in select_rows(rows, limit=limit, sample=sample, seed=seed)]
    assert (
        found
        == sorted(set(found))
        == [row.number for row in select_rows(rows, limit=limit, sample=sample, seed=seed)]
    )
    assert (len(found), set(found) <= set(range(1, min(limit, count) + 1))) == (sample, True)


@given(st.dictionaries(st.sampled_from(["a", "b c"]), st.text() | st.integers() | st.none(), min_size=2))
def test_a_cell_cannot_bring_a_template(values):
    """Whatever a cell holds, references in it included, arrives as it is."""
    row = Row(place="row 1", number=1, values=values)
    assert fill_template({"x": ["{{a}}", "{{b_c}}"]}, row) == {"x": [values["a"], values["b c"]]}
