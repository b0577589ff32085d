"""recall@k: what counts as an item of an answer, which come first, and what share of the relevant ones is there."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.checks.recall import RecallAtK, listed
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import ModelAnswered, Record, ToolAnswered
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score


def judge(check, folder, answer="", events=()):
    """The score of `check` for a finished run."""
    records = tuple(Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1))
    return asyncio.run(check(Trial(goal="g", answer=answer, records=records, workspace=folder)))


@pytest.mark.parametrize(
    ("answer", "items"),
    [
        ('Found: ["a.py", "b.py", "a.py"]. That is all.', ["a.py", "b.py"]),
        ('[{"file": "a.py", "line": 3}]', ["a.py 3"]),
        ("These:\n- a.py: the app\n2. b.py\n* c.py\nBye.", ["a.py: the app", "b.py", "c.py"]),
        ("a.py, b.py,a.py", ["a.py", "b.py"]),
        ("a.py\n\nb.py\n", ["a.py", "b.py"]),
        ("[1, 2]", ["[1", "2]"]),
        ("", []),
    ],
)
def test_what_an_answer_lists(answer, items):
    """A JSON list, else bullets and numbers, else lines, else what stands between commas."""
    assert listed(answer) == items


def test_only_the_first_k_count(tmp_path):
    """The value is the recall, the reason names what is missing, and enough is what `at_least` says."""
    answer = "1. a.py\n2. x.py\n3. src/b.py\n4. c.py (again)"
    check = RecallAtK(relevant=("a.py", "c.py"), k=4)
    assert judge(check, tmp_path, answer) == Score(check="recall@4 of 2 in answer", passed=True, value=1.0)
    three = judge(RecallAtK(relevant=("a.py", "c.py"), k=3), tmp_path, answer)
    assert three == Score(check="recall@3 of 2 in answer", passed=False, value=0.5, reason="not among the first 3 of 4: c.py")
    assert judge(RecallAtK(relevant=("a.py", "b.py"), k=4, at_least=0.5), tmp_path, answer).passed
    assert judge(RecallAtK(relevant=("b.py",), k=4), tmp_path, answer).value == 0.0
    assert judge(check, tmp_path).reason == "nothing was listed or read"


def test_files_that_were_read(tmp_path):
    """Of the calls that succeeded the files count, in order, however their paths are written."""

    def call(name, tool, args, error=None):
        asked = ModelAnswered(call="m", step="s", model="m", calls=[{"id": name, "name": tool, "args": args}])
        return asked, ToolAnswered(call=name, step="s", tool=tool, text="", error=error)

    events = [
        *call("1", "read_file", {"path": f"{tmp_path}/a.py"}), *call("2", "read_file", {"path": "no.py"}, {"kind": "failed", "message": "", "transient": False}),
        *call("3", "batch_read", {"paths": ["./b.py", "a.py"]}), *call("4", "grep", {"path": "c.py"}), *call("5", "read_file", {"path": "d.py"}),
    ]  # fmt: skip
    values = {
        name: judge(RecallAtK(relevant=(name,), k=2, of="files"), tmp_path, events=events).value
        for name in ("a.py", "b.py", "c.py", "d.py", "no.py")
    }
    assert values == {"a.py": 1.0, "b.py": 1.0, "c.py": 0.0, "d.py": 0.0, "no.py": 0.0}
    assert judge(RecallAtK(relevant=("d.py",), k=3, of="files"), tmp_path, events=events).passed


@given(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), st.sets(st.sampled_from("abcdefgh"), min_size=1), st.integers(1, 9))
def test_recall_is_what_its_definition_says(tmp_path_factory, items, relevant, k):
    """The share of the relevant among the first k items, which never falls as k grows."""
    folder = tmp_path_factory.getbasetemp()
    answer = "\n".join(f"- {item}" for item in items)
    found = [judge(RecallAtK(relevant=tuple(sorted(relevant)), k=n), folder, answer).value for n in (k, k + 1)]
    assert found[0] == pytest.approx(len(relevant & set(items[:k])) / len(relevant))
    assert found[0] <= found[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"relevant": (), "k": 1},
        {"relevant": ("a", "a"), "k": 1},
        {"relevant": ("a",), "k": 0},
        {"relevant": (" ",), "k": 1},
        {"relevant": ("a",), "k": 1, "at_least": 0},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    """Nothing relevant, something twice, no k."""
    with pytest.raises(UsageError, match="recall_at_k needs"):
        RecallAtK(**wrong)
