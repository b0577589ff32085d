"""Recall among first results, and answers that say they do not know."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.answers.contracts import is_abstention
from kestrel_lab.checks.answer import AnswerAbstains
from kestrel_lab.checks.retrieval import RecallAt
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Record, RetrievalStep, StepFinished, ToolAnswered
from kestrel_lab.core.protocols import Trial


def trial(*events, answer=""):
    """A finished run with these events."""
    records = tuple(
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1)
    )
    return Trial(goal="g", answer=answer, records=records, workspace=Path())


def answered(text="", tool="search", **more):
    """What a tool answered."""
    return ToolAnswered(call="c", step="s", tool=tool, text=text, **more)


RANKED = answered("doc-1: one\ndoc-2: two\n\ndoc-2: two\ndoc-3: three\ndoc-10: ten")


@pytest.mark.parametrize(
    ("check", "events", "value"),
    [
        ({"items": ("doc-1", "doc-3")}, [RANKED], 1.0),
        ({"items": ("doc-1", "doc-3"), "k": 2}, [RANKED], 0.5),
        ({"items": ("doc-3",), "k": 3}, [RANKED], 1.0),  # an empty and a repeated line take no place
        ({"items": ("doc",)}, [RANKED], 1.0),
        ({"items": ("oc-1",)}, [RANKED], 0.0),  # inside a longer name
        ({"items": ("doc-4",)}, [RANKED], 0.0),
        ({"items": ("doc-1",)}, [answered("doc-1", error={"kind": "x"})], 0.0),
        ({"items": ("doc-1",), "tool": "search"}, [answered("doc-1", tool="grep")], 0.0),
        ({"items": ("doc-9",), "k": 1}, [answered("ignored", value=[{"id": "doc-9"}, {"id": "doc-8"}])], 1.0),
        ({"items": ("doc-8",), "k": 1}, [answered("ignored", value=[{"id": "doc-9"}, {"id": "doc-8"}])], 0.0),
        (
            {"items": ("a", "b"), "k": 3},
            [answered("a\nx"), answered("y\nb")],
            0.5,
        ),  # over all calls, in their order
    ],
    ids=str,
)
def test_recall_is_the_share_among_the_first_k(check, events, value):
    """Counted by hand: lines or elements, each once, over calls in order; failed calls and other tools give
    nothing.
    """
    score = asyncio.run(RecallAt(**check)(trial(*events)))
    assert (score.value, score.passed, bool(score.reason)) == (value, value == 1.0, value < 1.0)
    assert score.check.startswith(f"recall@{check.get('k', 10)}")


def looked_up(*paths, call="c"):
    """The end of a look-up that gave these files."""
    return RetrievalStep(
        step="s", call=call, hits=[{"path": path, "why": "imports web.py"} for path in paths], stopped="limit"
    )


@pytest.mark.parametrize(
    ("check", "events", "value"),
    [
        # the text of search_code shows lines of files: the files count, not the lines
        (
            {"items": ("b.py",), "k": 2},
            [looked_up("a.py", "b.py"), answered("a.py:1-9\n1  one\n2  two\n\nb.py:3-4")],
            1.0,
        ),
        (
            {"items": ("web.py",)},
            [looked_up("http/web.py"), answered("http/web.py")],
            0.0,
        ),  # another file of that name
        ({"items": ("a.py",)}, [looked_up("a.py", call="other"), answered("nothing")], 0.0),
        (
            {"items": ("x/a.py", "b.py"), "k": 2},
            [StepFinished(step="s", ok=True, output={"files": [{"path": "b.py"}, {"path": "x/a.py"}]})],
            1.0,
        ),
        (
            {"items": ("a.py",), "tool": "grep"},
            [StepFinished(step="s", ok=True, output={"files": [{"path": "a.py"}]})],
            0.0,
        ),
    ],
    ids=str,
)
def test_files_that_were_looked_up_count_by_their_whole_path(check, events, value):
    """Of look-ups and of operations files are counted, by path; what else is told of them does not count."""
    assert asyncio.run(RecallAt(**check)(trial(*events))).value == value


def test_recall_may_be_measured_without_a_bound():
    """With `at_least: 0` the value is known and nothing fails."""
    score = asyncio.run(RecallAt(items=("doc-4",), at_least=0)(trial(RANKED)))
    assert (score.value, score.passed, score.check) == (0.0, True, "recall@10: doc-4")


def test_part_of_the_items_may_do():
    """With `at_least` a share is enough; what is missing is named where it is not."""
    assert asyncio.run(RecallAt(items=("doc-1", "doc-4"), at_least=0.5)(trial(RANKED))).passed
    score = asyncio.run(RecallAt(items=("doc-1", "doc-4"))(trial(RANKED)))
    assert score.reason == "not in the first 10 of 4 results: doc-4"


@pytest.mark.parametrize(
    "wrong",
    [
        {"items": ()},
        {"items": (" ",)},
        {"items": ("a", "a")},
        {"items": ("a",), "k": 0},
        {"items": ("a",), "at_least": -0.1},
    ],
)
def test_impossible_recalls_are_refused(wrong):
    """Nothing to find, or nothing to look at, is a mistake in the suite."""
    with pytest.raises(UsageError):
        RecallAt(**wrong)


@pytest.mark.parametrize(
    "answer",
    [
        "I don't know.",
        "I do not know who wrote it.",
        "I’m sorry, but I could not find this in the files.",
        "The notes say much about cats. The birthday is not mentioned anywhere.",
        "There is not enough information to tell.",
        "This cannot be determined from the sources.",
        "**Unknown**",
        "The document does not say when it was built.",
        "It was not possible to determine the year.",
    ],
)
def test_not_knowing_is_recognised(answer):
    """Ways to say it, with typographic apostrophes and emphasis."""
    assert is_abstention(answer)
    assert asyncio.run(AnswerAbstains()(trial(answer=answer))).passed
    assert not asyncio.run(AnswerAbstains(expected=False)(trial(answer=answer))).passed


@pytest.mark.parametrize(
    "answer",
    [
        "It is 42.",
        "The function raises KeyError if the key is unknown.",
        "He does not know her; she wrote it in 1842.",
        "The capital is Paris. It lies on the Seine. I could not find a map.",
        "Paris is known for its towers.",
    ],
)
def test_an_answer_is_no_abstention(answer):
    """A third sentence about a search on the way, other people's ignorance, the word in another place."""
    assert not is_abstention(answer)
    assert asyncio.run(AnswerAbstains(expected=False)(trial(answer=answer))).passed


def test_silence_is_neither():
    """No answer is not to say that one does not know, nor an answer."""
    assert not asyncio.run(AnswerAbstains()(trial())).passed
    assert not asyncio.run(AnswerAbstains(expected=False)(trial())).passed
