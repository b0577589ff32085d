"""Checks at their bounds: what is exactly enough passes, one more or less does not, and what is shown is what
was found.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.checks.answer import (
    MAX_MATCHED,
    MAX_PATTERN,
    AnswerAbstains,
    AnswerContains,
    AnswerForm,
    AnswerMatches,
    AnswerSchema,
)
from kestrel_lab.checks.behaviour import CostAtMost, SecondsAtMost, TokensAtMost
from kestrel_lab.checks.commands import CommandSucceeds
from kestrel_lab.checks.grounding import AnswerCites, CitesWhatIsThere, Faithful, Grounded
from kestrel_lab.checks.retrieval import RecallAt, Recalled
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.union import ModelAnswered, Record, ToolAnswered
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.testing import ScriptedModel

FAILED = {"kind": "failed", "message": "no", "transient": False}


def judge(check: Any, folder: Path, answer: str = "", *events: Any, grader: Any = None) -> Score:
    """The score of a finished run."""
    records = tuple(
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1)
    )
    return asyncio.run(
        check(Trial(goal="g", answer=answer, records=records, workspace=folder, grader=grader))
    )


@pytest.mark.parametrize(
    ("check", "label"),
    [
        (SecondsAtMost(seconds=30), "at most 30 s"),
        (TokensAtMost(n=50), "at most 50 tokens"),
        (AnswerAbstains(), "answer says that it does not know"),
        (AnswerAbstains(expected=False), "answer does not say that it does not know"),
        (AnswerSchema(schema={"title": "Report"}), "answer fits Report"),
        (Grounded(), "what the answer names is there"),
        (Grounded(most=2), "what the answer names is there, but for 2"),
        (CitesWhatIsThere(share=0.7), "70% of the claims are cited"),
        (AnswerCites(sources=("a.py",)), "answer cites a.py"),
        (
            AnswerCites(sources=("a.py", "b.py"), mode="any", seen=True),
            "answer cites any of a.py, b.py as seen",
        ),
        (Recalled(notes=("tax",)), "recall@5 of notes: tax"),
        (Recalled(notes=("tax",), never=("port",)), "recall@5 of notes: tax; never recalled: port"),
    ],
)
def test_a_check_is_named_in_words(check: Any, label: str) -> None:
    """What stands in every report."""
    assert check.label == label


def test_nothing_found_is_no_pass_of_any(tmp_path: Path) -> None:
    """`any` needs one, for texts as for sources."""
    assert judge(AnswerContains(texts=("x", "y"), mode="any"), tmp_path, "z").value == 0.0
    assert not judge(AnswerContains(texts=("x", "y"), mode="any"), tmp_path, "z").passed
    assert not judge(AnswerCites(sources=("a.py", "b.py"), mode="any"), tmp_path, "z").passed


def test_a_pattern_has_a_longest_length() -> None:
    """It is allowed, and one more character is not."""
    AnswerMatches(pattern="x" * MAX_PATTERN)
    with pytest.raises(UsageError, match="longer than 1,000 characters"):
        AnswerMatches(pattern="x" * (MAX_PATTERN + 1))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("a" * (MAX_MATCHED - 4) + "MARK", True),
        ("a" * (MAX_MATCHED // 2 - 4) + "MARK" + "a" * MAX_MATCHED, True),
        ("a" * (MAX_MATCHED // 2 - 3) + "MARK" + "a" * MAX_MATCHED, False),
        ("a" * MAX_MATCHED + "MARK" + "a" * (MAX_MATCHED // 2 - 4), True),
        ("a" * MAX_MATCHED + "MARK" + "a" * (MAX_MATCHED // 2 - 3), False),
        ("a" * (MAX_MATCHED // 2 - 2) + "MARK" + "a" * (MAX_MATCHED // 2 - 2), True),
    ],
)
def test_the_first_and_the_last_half_are_searched(tmp_path: Path, answer: str, found: bool) -> None:
    """Of a longer answer what lies between is not; one of the largest length is searched whole."""
    score = judge(AnswerMatches(pattern="MARK"), tmp_path, answer)
    assert score.passed is found
    assert bool(score.reason) is not found


def test_abstaining_is_explained_where_it_is_wrong(tmp_path: Path) -> None:
    """The answer is shown where the check fails, and only there."""
    assert judge(AnswerAbstains(), tmp_path, "I do not know.").reason == ""
    assert judge(AnswerAbstains(), tmp_path, "It is 4.").reason == "answered 'It is 4.'"
    assert judge(AnswerAbstains(expected=False), tmp_path, " ").reason == "there is no answer"


def test_the_form_is_worth_less_with_each_issue(tmp_path: Path) -> None:
    """One issue is half, two are a third."""
    one, two = ("word " * 61).strip(), ("word " * 151).strip()
    assert [judge(AnswerForm(contract="brief"), tmp_path, answer).value for answer in (one, two)] == [
        1 / 2,
        1 / 3,
    ]


def test_spending_exactly_the_bound_is_within(tmp_path: Path) -> None:
    """The bound itself is allowed, also where the price of another call is not known: nobody can tell, so
    that is said.
    """
    paid = ModelAnswered(call="m", step="s", model="m", cost_usd=0.25)
    assert judge(CostAtMost(usd=0.25), tmp_path, "", paid).passed
    with pytest.raises(CheckError, match="price of 1 of 2"):
        judge(CostAtMost(usd=0.25), tmp_path, "", paid, ModelAnswered(call="n", step="s", model="m"))


@pytest.mark.parametrize("argv", [(), ("",)])
def test_a_command_names_a_program(argv: tuple[str, ...]) -> None:
    """No words, and an empty first one, are no command."""
    with pytest.raises(UsageError, match="command_succeeds"):
        CommandSucceeds(argv=argv)


def test_what_an_answer_names_is_looked_for(tmp_path: Path) -> None:
    """Each thing that is not there counts, up to what is allowed; no answer names nothing and fails all the
    same.
    """
    (tmp_path / "a.py").write_text("x = 1\n")
    assert judge(Grounded(), tmp_path, " ") == Score(
        check=Grounded().label, passed=False, value=0.0, reason="there is no answer"
    )
    assert judge(Grounded(), tmp_path, "It is in `a.py:1`.").value == 1.0
    lost = "It is in `gone.py:3`."
    missing = judge(Grounded(), tmp_path, lost)
    assert (missing.passed, missing.value) == (False, 1 / 2)
    assert "gone.py" in missing.reason
    assert (
        judge(Grounded(most=1), tmp_path, lost).passed,
        judge(Grounded(most=1), tmp_path, lost).reason,
    ) == (True, "")


def test_the_share_of_cited_claims_may_be_exactly_enough(tmp_path: Path) -> None:
    """Half of the claims is half."""
    (tmp_path / "a.py").write_text("MAX = 20\n")
    answer = "The limit MAX is 20 (a.py:1). The server restarts every night at three."
    half = judge(CitesWhatIsThere(share=0.5), tmp_path, answer)
    assert (half.value, half.passed) == (0.5, True)
    assert not judge(CitesWhatIsThere(share=0.6), tmp_path, answer).passed


def test_a_judge_is_asked_about_every_claim(tmp_path: Path) -> None:
    """Exactly the share is enough; an answer that claims nothing fails, and without a judge there is no
    opinion.
    """
    seen = ToolAnswered(call="t", step="s", tool="grep", text="The limit is 20. The port is 80.")
    answer = "The limit of requests is twenty.\n\nThe port of the server is eighty-one."

    def verdict(request: ModelRequest) -> str:
        word = "entailed" if "requests is twenty" in request.messages[-1].text else "neither"
        return f'{{"verdict": "{word}", "why": "w"}}'

    def by(share: float) -> Score:
        return judge(
            Faithful(share=share),
            tmp_path,
            answer,
            seen,
            grader=lambda _: ScriptedModel(verdict, name="judge"),
        )

    assert (by(0.5).value, by(0.5).passed) == (0.5, True)
    assert by(0.6).reason.startswith("1 of 2 supported; neither: The port of the server")
    silent = judge(Faithful(), tmp_path, "", grader=lambda _: ScriptedModel([], name="judge"))
    assert (silent.passed, silent.value, silent.reason) == (False, 0.0, "the answer claims nothing")
    with pytest.raises(CheckError, match="give the suite a `grader`"):
        judge(Faithful(), tmp_path, answer)


def test_a_source_of_a_call_that_failed_was_not_seen(tmp_path: Path) -> None:
    """Only what a call without an error was made with, or told of, counts; the value leaves out what is
    missing and what is unseen.
    """
    asked = ModelAnswered(
        call="m", step="s", model="m", calls=[{"id": "1", "name": "read_file", "args": {"path": "a.py"}}]
    )
    failed = ToolAnswered(call="1", step="s", tool="read_file", text="a.py", error=FAILED)
    score = judge(
        AnswerCites(sources=("a.py", "b.py", "c.py"), seen=True), tmp_path, "a.py and b.py", asked, failed
    )
    assert (score.value, score.reason) == (0.0, "not cited: c.py; cited, but in no call: a.py, b.py")
    other = judge(
        AnswerCites(sources=("z.py",), seen=True),
        tmp_path,
        "z.py",
        asked,
        ToolAnswered(call="1", step="s", tool="t", text=""),
    )
    assert not other.passed


def test_recall_of_exactly_the_share_passes(tmp_path: Path) -> None:
    """One of two is half."""
    found = ToolAnswered(call="t", step="s", tool="grep", text="a.py")
    half = judge(RecallAt(items=("a.py", "b.py"), at_least=0.5), tmp_path, "", found)
    assert (half.value, half.passed) == (0.5, True)
    assert not judge(RecallAt(items=("a.py", "b.py"), at_least=0.51), tmp_path, "", found).passed
