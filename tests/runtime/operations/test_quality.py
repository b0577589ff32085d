"""Judges that must cite and vote, the quality operation, and the checks of suites on what answers name and
claim.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import CheckError, ModelError, UsageError
from kestrel_lab.core.events.union import StepFinished, VerifierFinished
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.protocols import Claim, Evidence, Trial, Verification
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.scores import Score
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.operations.verifiers import ModelVerifier, Vote
from kestrel_lab.runtime.operations.verify_plan import with_verification
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, ScriptedVerifier, Turn
from kestrel_lab.views.rows import NoticeRow

PASS, FAIL = (
    Verification(passed=True, confidence=0.9),
    Verification(passed=False, confidence=0.5, issues=("wrong",)),
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with one file."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "roof.txt").write_text("The roof is red.\n")
    return tmp_path / "work"


def first(request: ModelRequest) -> str:
    """The first thing a user said."""
    return next(message.text for message in request.messages if message.role == "user")


def answers(answer: str, verdict: str = "") -> ScriptedModel:
    """Reads the file and answers; judges as told."""

    def says(request: ModelRequest) -> Turn:
        if first(request).startswith(("Judge", "Report")):
            return verdict
        return [("read_file", {"path": "roof.txt"})] if request.messages[-1].role == "user" else answer

    return ScriptedModel(says)


def judged(met: bool, *evidence: str) -> str:
    """A verdict on the one criterion."""
    return json.dumps(
        {
            "criteria": [{"criterion": 1, "met": met, "why": "so", "evidence": list(evidence)}],
            "confidence": 0.9,
        }
    )


def carry_out(tmp_path: Path, workspace: Path, model: ScriptedModel, **options: Any) -> Run:
    """A run to its end."""
    lab = Lab(tmp_path / "lab", env={}, models=options.pop("models", None))
    return asyncio.run(lab.run("what colour?", model=model, workspace=workspace, **options))


class Silent:
    """A judge that comes to no verdict."""

    name = "silent"

    async def __call__(self, claim: Claim) -> Verification:
        """None."""
        raise ModelError("no verdict")


@pytest.mark.parametrize(
    ("verdicts", "passed"),
    [
        ([PASS], True),
        ([PASS, FAIL], False),
        ([PASS, PASS, FAIL], True),
        ([PASS, FAIL, FAIL], False),
        ([PASS, None], True),
        ([FAIL, None, None], False),
    ],
)
def test_most_judges_must_pass(verdicts: list[Verification | None], passed: bool) -> None:
    """More than half of those that come to a verdict; a tie does not pass, and who comes to none has no
    vote.
    """
    judges = tuple(Silent() if one is None else ScriptedVerifier([one]) for one in verdicts)
    found = asyncio.run(Vote(judges)(Claim(goal="g", answer="a", criteria=("c",))))
    assert (found.passed, found.issues) == (passed, () if passed else ("wrong",))


@pytest.mark.parametrize(
    ("passed", "confidences", "confidence"),
    [
        ((True, True, False), (0.9, None, 0.5), 0.9 * 2 / 3),
        ((True, False, False), (0.9, 0.6, 0.4), 0.5 * 2 / 3),
        ((True, True), (0.6, 0.8), 0.7),
        ((True, False), (None, 0.8), 0.8 / 2),
        ((True, True, False), (None, None, 0.8), None),
    ],
)
def test_a_vote_is_as_sure_as_its_majority(
    passed: tuple[bool, ...], confidences: tuple[float | None, ...], confidence: float | None
) -> None:
    """The mean of those of the majority that say how sure they are, times the share of the majority; without
    any it says nothing.
    """
    verdicts = [
        Verification(passed=ok, confidence=sure) for ok, sure in zip(passed, confidences, strict=True)
    ]
    found = asyncio.run(
        Vote(tuple(ScriptedVerifier([one]) for one in verdicts))(Claim(goal="g", answer="a", criteria=("c",)))
    )
    assert found.confidence == (confidence if confidence is None else pytest.approx(confidence))


def test_no_verdict_at_all_is_no_pass() -> None:
    """When no judge comes to a verdict, that is an error."""
    with pytest.raises(ModelError, match="no verdict"):
        asyncio.run(Vote((Silent(), Silent()))(Claim(goal="g", answer="a", criteria=("c",))))


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (judged(True, "roof.txt:1"), "COMPLETE"),
        (judged(True), "FAILED"),
        (judged(True, "tower.txt:1"), "FAILED"),
    ],
)
def test_a_verdict_without_citations_is_void(
    tmp_path: Path, workspace: Path, verdict: str, status: str
) -> None:
    """A pass that names nothing, or what was not shown, is asked for again and then is none: the answer is
    never passed by it.
    """
    run = carry_out(tmp_path, workspace, answers("The roof is red [roof.txt:1].", verdict), verify="judge")
    assert run.status == status
    passed = [
        event.verifier for event in run.events() if isinstance(event, VerifierFinished) and event.passed
    ]
    assert passed == (["facts", "model"] if status == "COMPLETE" else ["facts"])
    assert ("could not be used after 3 attempts" in run.reason) is (status == "FAILED")


class Says:
    """A dialogue that has one answer."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    async def ask(self, text: str, check: Callable[[str], Any]) -> Any:
        """The answer, as it is checked."""
        return check(self.answer)


class Lenient(ModelVerifier):
    """The deliberate bug: a verdict is taken as it comes."""

    __slots__ = ()

    def _verdict(self, answer: str, claim: Claim) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(answer))


def test_a_verdict_taken_as_it_comes_would_be_seen() -> None:
    """Without the rule the bare verdict passes; with it there is none."""
    claim = Claim(goal="g", answer="a", criteria=("c",), evidence=(Evidence(call="1", tool="t", text="x"),))
    bare = cast("Any", Says(judged(True)))
    assert asyncio.run(Lenient(bare, lambda _: True)(claim)).passed
    with pytest.raises(UsageError, match="names the ids of what shows it"):
        asyncio.run(ModelVerifier(bare, lambda _: True)(claim))


def test_judges_do_not_hear_each_other(tmp_path: Path, workspace: Path) -> None:
    """Each judge of a vote has a conversation of its own and sees only the evidence that the answer cites."""
    seen: list[str] = []

    def judge(request: ModelRequest) -> Turn:
        seen.append("\n".join(message.text for message in request.messages))
        return judged(True, "roof.txt:1")

    models = {name: ScriptedModel(judge, name=name) for name in ("a", "b", "c")}
    step = {"answer": "{{draft}}", "criteria": ["it is true"], "judges": ["a", "b", "c"]}
    plan = Plan(
        steps=(
            Step(id="write", goal="write", produces=("draft",)),
            Step(id="check", operation="verify", args=cast("Any", step), consumes=("draft",)),
        )
    )
    run = carry_out(tmp_path, workspace, answers("The roof is red [roof.txt:1]."), plan=plan, models=models)
    assert (run.status, run.answer, len(seen)) == (RunStatus.COMPLETE, "The roof is red [roof.txt:1].", 3)
    assert len({text.count("Judge an answer") for text in seen}) == 1
    assert all("'span roof.txt:1 of read_file'" in text and "call write.1.1" not in text for text in seen)
    assert [
        (event.step, event.ok)
        for event in run.events()
        if isinstance(event, StepFinished) and "judge" in event.step
    ] == [
        ("check/judge#2", True),
        ("check/judge#3", True),
    ]


@pytest.mark.parametrize(
    ("repaired", "status"),
    [("I could not find its age.", "COMPLETE"), ("Zebras built it in spring.", "FAILED")],
)
def test_an_answer_without_support_had_better_abstain(
    tmp_path: Path, workspace: Path, repaired: str, status: str
) -> None:
    """Below the support asked for an answer is sent back; one that then says that it does not know may stand,
    another may not.
    """

    def says(request: ModelRequest) -> Turn:
        if first(request).startswith("Put an answer"):
            return repaired
        return (
            [("read_file", {"path": "roof.txt"})]
            if request.messages[-1].role == "user"
            else "Ancient zebras built it."
        )

    args: Any = {"answer": "{{draft}}", "judge": False, "rounds": 1, "support": 0.4}
    plan = Plan(
        steps=(
            Step(id="write", goal="write", produces=("draft",)),
            Step(id="check", operation="verify", args=args, consumes=("draft",)),
        )
    )
    run = carry_out(tmp_path, workspace, ScriptedModel(says), plan=plan)
    assert run.status == status
    assert run.answer == repaired or status == "FAILED"


def report(tmp_path: Path, workspace: Path, mind: ScriptedModel, **args: Any) -> dict[str, Any]:
    """What the quality operation says of the answer of a step."""
    step = Step(id="look", operation="quality", args={"answer": "{{draft}}", **args}, consumes=("draft",))
    run = carry_out(
        tmp_path,
        workspace,
        mind,
        plan=Plan(steps=(Step(id="write", goal="write", produces=("draft",)), step)),
    )
    assert len(run.plan.steps) == 2, "it makes no new work"
    return cast("dict[str, Any]", run._state.outputs["look"])


def test_quality_reports_and_makes_nothing(tmp_path: Path, workspace: Path) -> None:
    """The report has severity, place, fix and what has no evidence; no step is grown, and no model is asked
    unless told to.
    """
    found = report(tmp_path, workspace, answers("The roof is red [roof.txt:1]. See tower.txt. Zebras graze."))
    assert (found["pass"], [(one["severity"], one["place"], one["what"]) for one in found["issues"]]) == (
        False,
        [("critical", "See tower.txt.", "tower.txt does not exist")],
    )
    assert found["missing_evidence"] == ["See tower.txt.", "Zebras graze."]
    assert found["fixes"] == {"write": ["name a file that exists"]}


def test_a_model_may_add_to_the_report(tmp_path: Path, workspace: Path) -> None:
    """What a model reports is added, with the step it names; places that the answer does not have are not
    taken.
    """
    entry = {
        "severity": "minor",
        "place": "is red",
        "what": "which red?",
        "fix": "say which",
        "step": "write",
    }
    said = json.dumps({"issues": [entry], "missing_evidence": []})
    found = report(tmp_path, workspace, answers("The roof is red.", said), model=True)
    assert (found["pass"], found["issues"], found["fixes"]) == (
        True,
        [{**entry, "check": "model"}],
        {"write": ["say which"]},
    )


WRONG = {"severity": "critical", "place": "is blue", "what": "it is not", "fix": "say green", "step": "write"}
RIGHT = {"severity": "minor", "place": "is red", "what": "which red?", "fix": "say which", "step": "write"}


@pytest.mark.parametrize("place", ["the roof IS red", "“is red”", "is  red.", "The … red"])
def test_a_place_may_be_quoted_loosely(tmp_path: Path, workspace: Path, place: str) -> None:
    """Case, marks around it and what is left out of a quoted place make no difference."""
    said = json.dumps({"issues": [{**RIGHT, "place": place}], "missing_evidence": []})
    found = report(tmp_path, workspace, answers("The roof is red.", said), model=True)
    assert [(one["what"], one["place"]) for one in found["issues"]] == [
        ("which red?", " ".join(place.split()))
    ]


def test_one_wrong_place_drops_its_issue_alone(tmp_path: Path, workspace: Path) -> None:
    """An issue whose place the answer does not have is left out, and it is said that it was; the rest of the
    report is kept, at the first answer.
    """
    said = json.dumps(
        {"issues": [WRONG, RIGHT, {**WRONG, "place": "green"}], "missing_evidence": ["Nobody saw it."]}
    )
    found = report(tmp_path, workspace, answers("The roof is red.", said), model=True)
    assert found["pass"] is True
    assert [one["what"] for one in found["issues"]] == [
        "which red?",
        "2 issues of a model were left out: the answer does not have “is blue”, “green”",
    ]
    assert "Nobody saw it." in found["missing_evidence"]


NEW = '{"issues": [], "missing_evidence": [], "answer": "The roof is blue."}'
WRITES = [("write_file", {"path": "roof.txt", "content": "The roof is blue.\n"})]


@pytest.mark.parametrize(
    "said", [["The roof is blue."] * 3, [NEW] * 3, [WRITES] * 4, [WRITES, "The roof is blue.", NEW, "blue"]]
)
def test_a_report_cannot_make_work(tmp_path: Path, workspace: Path, said: list[Any]) -> None:
    """A model that answers anew, adds an answer or calls tools where it is to report changes nothing: neither
    answer, file nor plan.

    Also where the step names tools: without that rule of the operation the file would be written here.
    """
    turns = iter(said)

    def says(request: ModelRequest) -> Turn:
        return next(turns, "") if first(request).startswith("Report") else "The roof is red."

    args: Any = {"answer": "{{draft}}", "model": True}
    look = Step(id="look", operation="quality", args=args, consumes=("draft",), tools=("write_file",))
    plan = Plan(steps=(Step(id="write", goal="write", produces=("draft",), tools=()), look))
    run = carry_out(tmp_path, workspace, ScriptedModel(says), plan=plan, approve="auto")
    assert (run.status, run.answer, (workspace / "roof.txt").read_text()) == (
        RunStatus.COMPLETE,
        "The roof is red.",
        "The roof is red.\n",
    )
    assert (
        [step.id for step in run.plan.steps],
        run.usage.tool_calls - sum(turn is WRITES for turn in said),
    ) == (["write", "look"], 0)
    unusable = [] if NEW in said else [("minor", "model")]  # the key that a report does not have is left out
    assert [(one["severity"], one["check"]) for one in run.report.quality.issues] == unusable
    assert "blue" not in str(run.report.quality.fixes)


def test_a_run_is_reported_on_where_it_is_asked_for(tmp_path: Path, workspace: Path) -> None:
    """`verify="quality"` adds one step behind the plan; its table is in `run.report.quality`, the text, the
    page and the row that a panel shows.
    """
    entry = {"severity": "major", "place": "is red", "what": "<b>which</b> red?", "fix": "say which"}
    said = json.dumps({"issues": [entry], "missing_evidence": ["Nobody saw it."]})
    run = carry_out(tmp_path, workspace, answers("The roof is red [roof.txt:1].", said), verify="quality")
    assert (run.status, run.answer, [step.operation for step in run.plan.steps]) == (
        RunStatus.COMPLETE,
        "The roof is red [roof.txt:1].",
        ["", "quality"],
    )
    assert run.report.quality.frame[["severity", "place", "fix", "step"]].to_numpy().tolist() == [
        ["major", "is red", "say which", "answer"],
        ["no evidence", "Nobody saw it.", "cite what shows it, or say that it is unknown", ""],
    ]
    row = next(row for row in run.report.view().rows.values() if isinstance(row, NoticeRow) and row.table)
    assert (row.level, row.text, row.table[0][:4]) == (
        "bad",
        "quality: did not pass, 1 major, 1 claim without evidence",
        ["severity", "place", "what", "fix"],
    )
    page = run.report(tmp_path / "run.html").read_text()
    for text in (repr(run.report), page, repr(run.report.quality), run.report.quality._repr_html_()):
        assert "say which" in text and "Nobody saw it." in text
    assert "<b>which" not in page + run.report.quality._repr_html_()
    assert "--verify quality" in repr(
        carry_out(tmp_path, workspace, answers("The roof is red.")).report.quality
    )


def test_a_report_at_the_end_is_no_answer() -> None:
    """The end of a plan is what it reports on, also behind a verification and a form; a plan of reports alone
    ends in them.
    """
    plan = with_verification(Plan(steps=(Step(id="a", goal="a"),)), "g", "quality", "brief")
    assert plan is not None
    assert ([step.operation for step in plan.steps], [step.id for step in plan.ends()]) == (
        ["", "verify", "quality"],
        ["verify"],
    )
    assert with_verification(plan, "g", "quality") is plan
    auto = with_verification(None, "g", "quality", "auto")
    assert auto is not None
    assert [step.operation for step in auto.steps] == ["intake", "quality"]
    alone = Plan(steps=(Step(id="look", operation="quality", args={"answer": "The roof is red."}),))
    assert [step.id for step in alone.ends()] == ["look"]


def trial(workspace: Path, answer: str, run: Run, judge: ScriptedModel | None = None) -> Trial:
    """A trial with another answer, and a scripted judge."""
    grader = None if judge is None else lambda _: judge
    return Trial(
        goal="what colour?", answer=answer, records=tuple(run.records()), workspace=workspace, grader=grader
    )


def claim_of(request: ModelRequest) -> str:
    """The claim that a judge is asked about."""
    return request.messages[0].text.partition("<claim>")[2].partition("</claim>")[0]


def test_suites_check_what_answers_name_and_claim(tmp_path: Path, workspace: Path) -> None:
    """`grounded` fails an answer that names what is not there, `cited` one that cites too little, `faithful`
    one that a (scripted) judge refuses.
    """
    run = carry_out(tmp_path, workspace, answers("The roof is red."))
    grounded, cited, faithful = (
        parse_check({"grounded": {}}),
        parse_check({"cited": 0.9}),
        parse_check({"faithful": 0.9}),
    )
    judge = ScriptedModel(
        lambda request: json.dumps(
            {"verdict": "entailed" if "roof is red" in claim_of(request) else "contradicted"}
        )
    )
    good, bad, loose = (
        trial(workspace, text, run, judge)
        for text in ("The roof is red [roof.txt:1].", "See tower.txt.", "Zebras graze.")
    )
    for check in (grounded, cited, faithful):
        assert asyncio.run(check(good)) == Score(check=check.label, passed=True, value=1.0)
    assert (asyncio.run(grounded(bad)).passed, asyncio.run(grounded(bad)).reason) == (
        False,
        "tower.txt does not exist",
    )
    assert (asyncio.run(cited(loose)).passed, asyncio.run(cited(loose)).reason) == (
        False,
        "1 claim: 1 uncited",
    )
    assert (asyncio.run(faithful(loose)).passed, asyncio.run(faithful(loose)).reason) == (
        False,
        "0 of 1 supported; contradicted: Zebras graze.",
    )
    with pytest.raises(CheckError, match="give the suite a `grader`"):
        asyncio.run(faithful(trial(workspace, "So.", run)))
    with pytest.raises(UsageError, match="from 0 to 1"):
        parse_check({"faithful": 80})


def test_a_plan_is_verified_at_its_end() -> None:
    """The level adds one step, none where one verifies already, and asks for one end."""
    plan = with_verification(None, "g", "repair")
    assert plan is not None
    assert [(step.operation, step.args.get("judge")) for step in plan.steps] == [
        ("", None),
        ("verify", False),
    ]
    assert with_verification(plan, "g", "judge") is plan
    assert (with_verification(None, "g", "warn"), with_verification(None, "g", "off")) == (None, None)
    with pytest.raises(UsageError, match="ends in several steps"):
        with_verification(Plan(steps=(Step(id="a", goal="a"), Step(id="b", goal="b"))), "g", "judge")
    with pytest.raises(UsageError, match="not a level of verification; did you mean"):
        with_verification(None, "g", "juge")
