"""Spans, citations, claims, support, and what a run shows of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.citations import answered, citations, digest, resolve, standing
from kestrel_lab.core.events.union import RunFinished, VerifierFinished
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.runtime.session import Session
from kestrel_lab.testing import ScriptedEntailment, ScriptedModel, Turn
from kestrel_lab.verification.claims import claims_of, pieces
from kestrel_lab.verification.evidence import evidence_of, summary, with_entailment
from kestrel_lab.verification.subject import Ground, Subject
from kestrel_lab.verification.support import THRESHOLD, absent_numbers, score

ROOF = "The roof is red.\nThe roof is 7 m high.\nThe door is green.\n"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session over a log of its own."""
    return Session(tmp_path / "lab", env={})


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with one file."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "roof.txt").write_text(ROOF)
    return tmp_path / "work"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[src/app.py:12-20]", [("src/app.py", 12, 20)]),
        ("`src/app.py:12`", [("src/app.py", 12, 12)]),
        ("src/app.py#L12-L20 and b.py:3", [("src/app.py", 12, 20), ("b.py", 3, 3)]),
        ("lines 12 to 20 of `src/app.py`", [("src/app.py", 12, 20)]),
        ("src/app.py, line 12", [("src/app.py", 12, 12)]),
        ("(src/app.py, lines 12–20)", [("src/app.py", 12, 20)]),
        ("at 12:30 on port 8080, ratio 3:4", []),
    ],
)
def test_places_are_read_as_models_write_them(text: str, found: list[tuple[str, int, int]]) -> None:
    """The forms that are natural are citations, times and ratios are not."""
    assert [(one.path, one.first, one.last) for one in citations(text)] == found


def test_calls_and_pages_are_cited_too() -> None:
    """A call by its id in brackets, a page by its address."""
    assert [(one.call, one.page) for one in citations("It is so [main.2.1], see https://a.test/x.")] == [
        ("main.2.1", ""),
        ("", "https://a.test/x"),
    ]


def test_a_citation_resolves_to_what_the_run_saw(tmp_path: Path) -> None:
    """Lines come from what was read at the time, and are stale, moved or gone when the file is not the same any more."""
    spans = answered("main.1.1", "read_file", {"path": "roof.txt", "offset": 1}, f"{ROOF}[lines 1 to 3 of 9, go on with offset=4]")
    assert [(span.id, span.text.strip()) for span in spans[1:]] == [("roof.txt:1-3", ROOF.strip())]
    (cited,) = citations("see roof.txt:2")
    span = resolve(cited, spans, lambda _: None)
    assert span is not None
    assert (span.id, span.text, spans[0].text[span.start : span.end], span.digest) == (
        "roof.txt:2", "The roof is 7 m high.", "The roof is 7 m high.", digest("The roof is 7 m high."),
    )  # fmt: skip
    now = {"same": ROOF, "moved": f"A line.\n{ROOF}", "stale": ROOF.replace("7", "8"), "gone": None}
    assert [standing(span, lambda _, text=text: text) for text in now.values()] == ["current", "moved", "stale", "gone"]


def test_grep_and_several_files_give_lines() -> None:
    """Each line that grep found, and each file of several that were read, is a span of its own in the answer's text."""
    text = "a.py:3: x = 1\nsub/b.py:10: y = 2"
    found = answered("c", "grep", {"pattern": "="}, text)
    assert [(span.id, text[span.start : span.end]) for span in found[1:]] == [("a.py:3", "x = 1"), ("sub/b.py:10", "y = 2")]
    text = "=== a.py ===\nx = 1\n=== b.py ===\n[not read: no such file]"
    assert [span.id for span in answered("c", "batch_read", {}, text)[1:]] == ["a.py:1"]


def test_an_answer_is_split_where_its_claims_end() -> None:
    """Sentences end at full stops but not in paths, code, numbers and abbreviations; lists, tables and blocks have pieces of their own; a label is none."""
    answer = (
        "# Title\nSee `a.b.c` in x.py, e.g. line 3. It is 2.5 m. Is it?\n\n- one. Two\n- three\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "Then:\n```python\nx = 1. \n# no. Yes\n```\n> said so\n"
    )
    assert [(said.kind, said.text) for said in claims_of(answer)] == [
        ("sentence", "See `a.b.c` in x.py, e.g. line 3."),
        ("sentence", "It is 2.5 m."),
        ("sentence", "Is it?"),
        ("sentence", "one."),
        ("sentence", "Two"),
        ("sentence", "three"),
        ("row", "| 1 | 2 |"),
        ("code", "x = 1. \n# no. Yes\n"),
        ("quote", "said so"),
    ]
    assert claims_of(answer)[7].lead == "Then:"


@given(st.text(alphabet='ab .`\n-|#>~1\t"“”[](', max_size=120))
def test_pieces_stand_where_they_say(answer: str) -> None:
    """Every piece begins where it says in the answer, in order, whatever the answer is."""
    found = list(pieces(answer))
    starts = [said.at for said in found]
    assert starts == sorted(starts)
    for said in found:
        if said.kind in ("sentence", "code"):
            assert answer[said.at :].startswith(said.text)


def test_support_is_told_in_honest_words(workspace: Path) -> None:
    """What words hold up is supported, what they do not is weak, absent numbers are named; without evidence nothing is supported."""
    spans = answered("m", "read_file", {"path": "roof.txt"}, ROOF)
    answer = "The roof is red. The roof is 9 m high. The cellar floods every spring, they told me."
    backed = evidence_of(Subject(answer=answer, spans=spans, ground=Ground(workspace)))
    assert [(one.support.word, one.support.warnings) for one in backed] == [("supported", ()), ("weak", ("9",)), ("weak", ())]
    assert [span.id for span in backed[0].support.spans] == ["roof.txt:1-3"]
    assert summary(backed) == "3 claims: 1 supported, 2 weak"
    bare = evidence_of(Subject(answer=answer, ground=Ground(workspace)))
    assert [(one.support.word, one.support.score, one.support.spans) for one in bare] == [("weak", 0.0, ())] * 3


def test_only_a_port_says_contradicted(workspace: Path) -> None:
    """Words alone never say that something is contradicted, or is not; what understands sentences may."""
    spans = answered("m", "read_file", {"path": "roof.txt"}, ROOF)
    backed = evidence_of(Subject(answer="The roof is red. The roof is not red. The door is green.", spans=spans, ground=Ground(workspace)))
    assert {one.support.word for one in backed} <= {"supported", "weak"}
    port = ScriptedEntailment({"The roof is red.": "entailed", "The roof is not red.": "contradicted"})
    judged = asyncio.run(with_entailment(backed, port))
    assert [one.support.word for one in judged] == ["supported", "contradicted", "not contradicted"]
    assert port.asked[0] == ("The roof is red.", (ROOF,))


@given(st.lists(st.sampled_from(["the", "roof", "is", "red", "door", "green", "7", "high", "a"]), min_size=1, max_size=12).map(" ".join))
def test_the_score_is_a_share(claim: str) -> None:
    """From 0 to 1, 0 without evidence; a sentence holds itself up better than nothing of it does."""
    assert score(claim, []) == score(claim, [" "]) == 0.0
    assert 0.0 < score(claim, ["zebras eat grass"]) <= score(claim, [claim]) < 1.0
    assert absent_numbers(claim, [claim]) == ()


def test_a_gate_that_needs_no_evidence_would_be_seen() -> None:
    """The deliberate bug: where there is no evidence the claim is held against itself, and passes."""

    def mutant(claim: str, evidence: list[str]) -> float:
        return score(claim, evidence or [claim])

    assert mutant("The roof is red.", []) >= THRESHOLD > score("The roof is red.", [])


def reads(*answers: str) -> ScriptedModel:
    """Reads the file, then answers; told to put an answer right, gives the next one."""

    def says(request: ModelRequest) -> Turn:
        first = next(message.text for message in request.messages if message.role == "user")
        repairs = first.startswith("Put an answer")
        if not repairs and request.messages[-1].role == "user":
            return [("read_file", {"path": "roof.txt"})]
        return answers[-1] if repairs else answers[0]

    return ScriptedModel(says)


def test_a_run_has_its_evidence(session: Session, workspace: Path) -> None:
    """Claims and spans of a run are there as a frame, as HTML without scripts, and change with the workspace."""
    run = asyncio.run(
        session.run(
            "how high?",
            model=reads("The roof is 7 m high [roof.txt:2]. It is made of <b>gold</b>, so the cellar says."),
            workspace=workspace,
        )
    )
    frame = run.report.evidence.frame
    assert frame[["claim", "support", "span", "standing"]].to_numpy().tolist()[0] == [1, "supported", "roof.txt:2", "current"]
    assert frame["support"].tolist()[-1] == "weak"
    (workspace / "roof.txt").write_text(ROOF.replace("7", "8"))
    assert run.report.evidence.frame["standing"].tolist()[0] == "stale"
    page = run.report.evidence._repr_html_()
    assert ("<b>gold</b>" in page, "&lt;b&gt;gold" in page, "<details" in page) == (False, True, True)
    assert "The roof is 7 m high." in run._repr_html_().partition("<code>roof.txt:2</code>")[2]
    assert run.report.claims[0].text == "The roof is 7 m high [roof.txt:2]."


def test_a_look_at_the_answer_blocks_nothing(session: Session, workspace: Path) -> None:
    """By default what is made up is said beside the answer, in the log and in every view; with `off` nobody looks."""
    model = reads("It is in `tower.txt`.")
    run = asyncio.run(session.run("where?", model=model, workspace=workspace))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "It is in `tower.txt`.")
    assert [(one["severity"], one["what"]) for one in run.report.concerns] == [("critical", "tower.txt does not exist")]
    assert "tower.txt does not exist" in repr(run.report)
    assert "tower.txt does not exist" in run._repr_html_()
    off = asyncio.run(session.run("where?", model=reads("It is in `tower.txt`."), workspace=workspace, verify="off"))
    assert (off.answer, off.report.concerns) == (run.answer, [])


def test_verify_repairs_and_never_passes_what_is_made_up(session: Session, workspace: Path) -> None:
    """With `repair` a made-up file is repaired; where the repair makes up another the run fails and says why."""
    run = asyncio.run(
        session.run("where?", model=reads("It is in `tower.txt`.", "It is in `roof.txt`."), workspace=workspace, verify="repair")
    )
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "It is in `roof.txt`.")
    verdicts = [(event.verifier, event.passed) for event in run.events() if isinstance(event, VerifierFinished)]
    assert verdicts == [("facts", False), ("facts", True)]
    run = asyncio.run(
        session.run("where?", model=reads("It is in `tower.txt`.", "It is in `castle.txt`."), workspace=workspace, verify="repair")
    )
    assert (run.status, run.outcome, "castle.txt does not exist" in run.reason) == (RunStatus.FAILED, "unmet", True)
    assert all(event.outcome != "complete" for event in run.events() if isinstance(event, RunFinished))
