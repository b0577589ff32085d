"""Answers as claims with citations, under `--verify repair` and `judge`: nothing with a wrong citation
passes. All models here are scripted.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.answers.claim_markdown import TITLE
from kestrel_lab.core.events.union import RunFinished, VerifierFinished
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.views.rows import NoticeRow

ROOF = "The roof is red.\nThe roof is 7 m high.\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with one file."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "roof.txt").write_text(ROOF)
    return tmp_path / "work"


def claimed(*claims: tuple[str, str, str]) -> str:
    """An answer in the form: text, place and quote of each claim."""
    made = [
        {
            "text": text,
            "citations": [{"place": place, "quote": quote, "call": "", "address": ""}] if place else [],
        }
        for text, place, quote in claims
    ]
    return json.dumps({"claims": made})


RIGHT = claimed(("The roof is 7 m high.", "roof.txt:2", "7 m high"), ("I like it.", "", ""))
WRONG = claimed(("The roof is gold.", "roof.txt:1", "is gold"), ("I like it.", "", ""))


def answers(first: str, *repaired: str, verdicts: tuple[str, ...] = ()) -> ScriptedModel:
    """Answers, and told to put it right gives the next one; judges by the verdict for the claim."""
    asked: list[ModelRequest] = []

    def says(request: ModelRequest) -> str:
        text = next(message.text for message in request.messages if message.role == "user")
        if "<claim>" in text:
            return json.dumps({"verdict": verdicts[0] if "7 m" in text else verdicts[-1], "confidence": 0.9})
        if text.startswith("Judge an answer"):
            entry = {"criterion": 1, "met": True, "why": "so", "evidence": ["roof.txt:2"]}
            return json.dumps({"criteria": [entry], "confidence": 0.8})
        if text.startswith("Put an answer"):
            asked.append(request)
            return repaired[min(len(asked), len(repaired)) - 1]
        return first

    return ScriptedModel(says)


def carry_out(session: Lab, workspace: Path, model: ScriptedModel, **options: Any) -> Run:
    """A run to its end."""
    return asyncio.run(
        session.run(
            "what about the roof?", model=model, workspace=workspace, **{"verify": "repair", **options}
        )
    )


def verdicts(run: Run) -> list[tuple[str, bool]]:
    """Who judged, and how."""
    return [(event.verifier, event.passed) for event in run.events() if isinstance(event, VerifierFinished)]


def test_an_answer_is_asked_for_as_claims(session: Lab, workspace: Path) -> None:
    """It is Markdown with its places in brackets; each claim with its state is in the log, the text, the page
    and what a panel shows.
    """
    run = carry_out(session, workspace, answers(RIGHT))
    assert run.plan.steps[0].schema is not None
    assert run.plan.steps[0].schema["title"] == TITLE
    assert (run.status, run.answer) == (
        RunStatus.COMPLETE,
        "The roof is 7 m high. [roof.txt:2]\n\nI like it.",
    )
    end = next(event for event in run.events() if isinstance(event, RunFinished))
    assert [claim["state"] for claim in end.claims] == ["cited", "uncited"]
    right = "1 of 1 places, quotes and actions that it names are right"
    assert str(run.report.confidence) == f"{right} · 1 of 2 claims cited"
    for view in (repr(run.report), run._repr_html_(), run.report(workspace / "run.html").read_text()):
        assert "2 claims: 1 cited, 1 uncited" in view
        assert "○ uncited: I like it." in view
    row = next(
        row for row in run.report.view().rows.values() if isinstance(row, NoticeRow) and "uncited" in row.text
    )
    assert row.items[0] == "✓ cited: The roof is 7 m high. — roof.txt:2"
    (workspace / "roof.txt").write_text("gone\n")
    assert run.report.evidence.claims[0].state == "wrong"


def test_a_wrong_citation_never_passes(session: Lab, workspace: Path) -> None:
    """It is repaired in the same form; where it is not put right the run fails and says why."""
    run = carry_out(session, workspace, answers(WRONG, RIGHT))
    assert (run.status, verdicts(run)[0]) == (RunStatus.COMPLETE, ("citations", False))
    assert run.plan.steps[-2].schema == run.plan.steps[0].schema
    failed = carry_out(session, workspace, answers(WRONG, WRONG))
    assert (failed.status, failed.outcome) == (RunStatus.FAILED, "unmet")
    assert "“is gold” is not at roof.txt:1" in failed.reason
    assert all(event.outcome != "complete" for event in failed.events() if isinstance(event, RunFinished))


def test_a_check_that_believes_citations_would_be_seen(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: without the resolver the made-up quote passes."""
    monkeypatch.setattr("kestrel_lab.runtime.operations.verifiers.wrong_citations", lambda _: ())
    assert carry_out(session, workspace, answers(WRONG, WRONG)).status is RunStatus.COMPLETE


def test_what_was_changed_since_is_judged_as_it_is(session: Lab, workspace: Path) -> None:
    """A line that the run read and then changed is cited as it is now."""
    turns = [
        [("read_file", {"path": "roof.txt"})],
        [("edit_file", {"path": "roof.txt", "old": "7 m", "new": "8 m"})],
        claimed(("It is 8 m high.", "roof.txt:2", "8 m high")),
    ]
    run = carry_out(session, workspace, ScriptedModel([*turns]), approve="auto")
    assert run.status is RunStatus.COMPLETE
    stale = ScriptedModel(lambda request: claimed(("It is 7 m high.", "roof.txt:2", "7 m high")))
    assert carry_out(session, workspace, stale).status is RunStatus.FAILED


def test_prose_is_read_sentence_by_sentence(session: Lab, workspace: Path) -> None:
    """A model that keeps to prose is asked three times; then what it wrote is checked as prose, and nothing
    in it counts as cited unseen.
    """
    prose = "The roof is red [roof.txt:1]. I like it."
    run = carry_out(session, workspace, ScriptedModel([prose] * 3))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, prose)
    assert [one.state for one in run.report.evidence] == ["cited", "uncited"]
    assert (
        carry_out(session, workspace, ScriptedModel(lambda _: "It is in `tower.txt`.")).status
        is RunStatus.FAILED
    )


@pytest.mark.parametrize(
    ("verdict", "status"), [("entailed", "COMPLETE"), ("contradicted", "FAILED"), ("neither", "FAILED")]
)
def test_a_judge_is_asked_claim_by_claim(session: Lab, workspace: Path, verdict: str, status: str) -> None:
    """With `judge`, what is cited is put to a model with what it cites; what is uncited is not."""
    run = carry_out(session, workspace, answers(RIGHT, RIGHT, verdicts=(verdict,)), verify="judge")
    assert run.status == status
    assert ("claims", verdict == "entailed") in verdicts(run)
    if status == "COMPLETE":
        assert str(run.report.confidence).endswith("1 of 2 claims cited · passed by a model judge")


def test_a_typed_answer_and_a_form_are_left_as_they_are(session: Lab, workspace: Path) -> None:
    """A value and an answer with a form of its own are not asked for as claims."""
    run = carry_out(session, workspace, ScriptedModel(["3"]), output=int)
    assert (run.status, run.value) == (RunStatus.COMPLETE, 3)
    formed = carry_out(session, workspace, ScriptedModel(["The roof is red [roof.txt:1]."]), form="brief")
    assert (formed.status, formed.plan.steps[0].schema) == (RunStatus.COMPLETE, None)


def bare(*claims: tuple[str, dict[str, str]]) -> str:
    """An answer of a model that no strict schema binds: each citation has only what it needs."""
    return json.dumps(
        {"claims": [{"text": text, "citations": [place] if place else []} for text, place in claims]}
    )


def test_citations_may_leave_out_what_does_not_apply(session: Lab, workspace: Path) -> None:
    """They are asked for as four texts, and taken with one: nothing is asked again, and what is wrong in them
    does not pass.
    """
    right = bare(("The roof is 7 m high.", {"place": "roof.txt:2"}), ("I like it.", {}))
    run = carry_out(session, workspace, ScriptedModel([right]))
    assert (run.status, run.answer, run.usage.model_calls) == (
        RunStatus.COMPLETE,
        "The roof is 7 m high. [roof.txt:2]\n\nI like it.",
        1,
    )
    wrong = bare(("The roof is gold.", {"place": "gold.txt:1"}))
    failed = carry_out(session, workspace, answers(wrong, wrong))
    assert (failed.status, "gold.txt" in failed.reason) == (RunStatus.FAILED, True)


@pytest.mark.parametrize(
    "said", ['{"claims": []}', bare(("The roof is gold.", {"path": "gold.txt"})), 'Here: {"claims": "gold"}']
)
def test_claims_in_another_form_are_no_prose(session: Lab, workspace: Path, said: str) -> None:
    """A model that insists on a form of its own fails the run: nothing in it could be looked up."""
    run = carry_out(session, workspace, ScriptedModel([said] * 3))
    assert (run.status, "could not be used after 3 attempts" in run.reason) == (RunStatus.FAILED, True), (
        run.reason
    )
