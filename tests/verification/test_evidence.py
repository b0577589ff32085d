"""Spans, citations, claims, support, and what a run shows of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.citations import answer_spans, citations_in, is_current, resolve_citation, text_digest
from kestrel_lab.core.events.union import RunFinished, VerifierFinished
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.claims import answer_pieces, claims_of
from kestrel_lab.verification.evidence import cited_share, evidence_of, states_summary, wrong_citations
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

ROOF = "The roof is red.\nThe roof is 7 m high.\nThe door is green.\n"


@pytest.fixture
def session(tmp_path: Path) -> Lab:
    """A session over a log of its own."""
    return Lab(tmp_path / "lab", env={})


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
    assert [(one.path, one.first, one.last) for one in citations_in(text)] == found


def test_calls_and_pages_are_cited_too() -> None:
    """A call by its id in brackets, a page by its address."""
    assert [(one.call, one.page) for one in citations_in("It is so [main.2.1], see https://a.test/x.")] == [
        ("main.2.1", ""),
        ("", "https://a.test/x"),
    ]


def test_a_citation_resolves_to_what_the_run_saw(tmp_path: Path) -> None:
    """Lines come from what was read at the time, and are stale, moved or gone when the file is not the same
    any more.
    """
    spans = answer_spans(
        "main.1.1",
        "read_file",
        {"path": "roof.txt", "offset": 1},
        f"{ROOF}[lines 1 to 3 of 9, go on with offset=4]",
    )
    assert [(span.id, span.text.strip()) for span in spans[1:]] == [("roof.txt:1-3", ROOF.strip())]
    (cited,) = citations_in("see roof.txt:2")
    span = resolve_citation(cited, spans, lambda _: None)
    assert span is not None
    assert (span.id, span.text, spans[0].text[span.start : span.end], span.digest) == (
        "roof.txt:2",
        "The roof is 7 m high.",
        "The roof is 7 m high.",
        text_digest("The roof is 7 m high."),
    )
    now = {"same": ROOF, "moved": f"A line.\n{ROOF}", "stale": ROOF.replace("7", "8"), "gone": None}
    assert [is_current(span, lambda _, text=text: text) for text in now.values()] == [
        "current",
        "moved",
        "stale",
        "gone",
    ]


def test_grep_and_several_files_give_lines() -> None:
    """Each line that grep found, and each file of several that were read, is a span of its own in the
    answer's text.
    """
    text = "a.py:3: x = 1\nsub/b.py:10: y = 2"
    found = answer_spans("c", "grep", {"pattern": "="}, text)
    assert [(span.id, text[span.start : span.end]) for span in found[1:]] == [
        ("a.py:3", "x = 1"),
        ("sub/b.py:10", "y = 2"),
    ]
    text = "=== a.py ===\nx = 1\n=== b.py ===\n[not read: no such file]"
    assert [span.id for span in answer_spans("c", "batch_read", {}, text)[1:]] == ["a.py:1"]


def test_an_answer_is_split_where_its_claims_end() -> None:
    """Sentences end at full stops but not in paths, code, numbers and abbreviations; lists, tables and blocks
    have pieces of their own; a label is none.
    """
    answer = (
        "# Title\nSee `a.b.c` in x.py, e.g. line 3. It is 2.5 m. Is it?\n\n- one. Two\n- three\n\n| a "
        "| b |\n|---|---|\n| 1 | 2 |\n\n"
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
    found = list(answer_pieces(answer))
    starts = [said.at for said in found]
    assert starts == sorted(starts)
    for said in found:
        if said.kind in ("sentence", "code"):
            assert answer[said.at :].startswith(said.text)


def entry(place: str = "", quote: str = "", call: str = "", address: str = "") -> dict[str, str]:
    """A citation of a claim."""
    return {"place": place, "quote": quote, "call": call, "address": address}


@pytest.mark.parametrize(
    ("cites", "state", "why"),
    [
        ([], "uncited", ""),
        ([entry("roof.txt:2")], "cited", ""),
        ([entry("roof.txt:2", "The roof is  7 m high")], "cited", ""),
        ([entry("work/roof.txt:1-2"), entry("./roof.txt:3")], "cited", ""),
        ([entry("roof.txt:1", "is 7 m")], "wrong", "“is 7 m” is not at roof.txt:1; it is at roof.txt:2"),
        ([entry("roof.txt:9")], "wrong", "roof.txt:9 is not there: the file has 3 lines"),
        ([entry("tower.txt:1")], "wrong", "tower.txt does not exist"),
        ([entry("roof.txt:2"), entry("tower.txt:1")], "wrong", "tower.txt does not exist"),
        ([entry("logo.png:1")], "unknown", "logo.png cannot be read as text here"),
        ([entry(call="m.1.1")], "cited", ""),
        ([entry(call="m.1.1", quote="door is green")], "cited", ""),
        ([entry(call="m.1.1", quote="door is blue")], "wrong", "“door is blue” is not in m.1.1"),
        ([entry(call="m.9.9")], "wrong", "there was no tool call m.9.9"),
        ([entry(address="https://a.test/x")], "unknown", "https://a.test/x was not read in this run"),
        ([entry("old.txt:1")], "changed", "old.txt was there when it was read"),
        ([entry("new.txt:1", "first")], "changed", "new.txt:1 is not as it was when it was read"),
        ([entry("new.txt:1", "second")], "cited", ""),
    ],
)
def test_citations_are_resolved_exactly(
    workspace: Path, cites: list[dict[str, str]], state: str, why: str
) -> None:
    """By the files as they are now, whatever was read before; a claim is as good as its worst citation."""
    (workspace / "logo.png").write_bytes(b"\0\1")
    (workspace / "new.txt").write_text("second\n")
    read = [
        answer_spans("m.1.1", "read_file", {"path": "roof.txt"}, ROOF),
        answer_spans("m.1.2", "read_file", {"path": "old.txt"}, "x\n"),
    ]
    read.append(answer_spans("m.1.3", "read_file", {"path": "new.txt"}, "first\n"))
    calls = [
        AnsweredCall(call=f"m.1.{number}", tool="read_file", args={}, ok=True, text="x")
        for number in (1, 2, 3)
    ]
    subject = Subject(
        answer="", spans=[span for spans in read for span in spans], calls=calls, ground=Files(workspace)
    )
    (claim,) = evidence_of(subject, [{"text": "So it is.", "citations": cites}])
    assert (claim.state, next((one.why for one in claim.cited if one.why), "")) == (state, why)
    assert bool([*wrong_citations([claim])]) == (state in ("wrong", "changed"))


def test_prose_has_claims_too(workspace: Path) -> None:
    """Each sentence with what it cites in brackets; blocks of code are none."""
    subject = Subject(
        answer="It is red [roof.txt:1]. It is high.\n\n```py\nx = 1\n```\n", ground=Files(workspace)
    )
    backed = evidence_of(subject)
    assert states_summary([one.state for one in backed]) == "2 claims: 1 cited, 1 uncited"
    assert cited_share(backed) == 0.5


def test_a_cited_quote_that_is_changed_is_wrong(workspace: Path) -> None:
    """A place that is there does not make a changed quote beside it cited; an exact one is, and a citation
    behind the full stop counts.
    """
    answer = (
        '"The roof is 9 m high" [roof.txt:2]. It says "The roof is 7 m high". [roof.txt:2] The door is green.'
    )
    found = evidence_of(Subject(answer=answer, ground=Files(workspace)))

    assert [one.state for one in found] == ["wrong", "cited", "uncited"]
    assert "is not exact" in found[0].cited[0].why


def test_a_resolver_that_believes_would_be_seen(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: where any quote is anywhere, a made-up one is cited."""
    claims = [{"text": "So it is.", "citations": [entry("roof.txt:1", "is gold")]}]
    assert evidence_of(Subject(answer="", ground=Files(workspace)), claims)[0].state == "wrong"
    monkeypatch.setattr("kestrel_lab.verification.evidence._contains_quote", lambda *_: True)
    assert evidence_of(Subject(answer="", ground=Files(workspace)), claims)[0].state == "cited"


def reads(*answers: str) -> ScriptedModel:
    """Reads the file, then answers; told to put an answer right, gives the next one."""

    def says(request: ModelRequest) -> Turn:
        first = next(message.text for message in request.messages if message.role == "user")
        repairs = first.startswith("Put an answer")
        if not repairs and request.messages[-1].role == "user":
            return [("read_file", {"path": "roof.txt"})]
        return answers[-1] if repairs else answers[0]

    return ScriptedModel(says)


def test_a_run_has_its_evidence(session: Lab, workspace: Path) -> None:
    """Claims and spans of a run are there as a frame, as HTML without scripts, and change with the
    workspace.
    """
    run = asyncio.run(
        session.run(
            "how high?",
            model=reads("The roof is 7 m high [roof.txt:2]. It is made of <b>gold</b>, so the cellar says."),
            workspace=workspace,
        )
    )
    frame = run.report.evidence.frame
    assert frame[["claim", "state", "cites", "status"]].to_numpy().tolist()[0] == [
        1,
        "cited",
        "roof.txt:2",
        "current",
    ]
    assert frame["state"].tolist()[-1] == "uncited"
    (workspace / "roof.txt").write_text(ROOF.replace("7", "8"))
    assert run.report.evidence.frame["status"].tolist()[0] == "stale"
    page = run.report.evidence._repr_html_()
    assert ("<b>gold</b>" in page, "&lt;b&gt;gold" in page, "<details" in page) == (False, True, True)
    assert "The roof is 7 m high." in run._repr_html_().partition("<code>roof.txt:2</code>")[2]
    assert run.report.claims[0].text == "The roof is 7 m high [roof.txt:2]."


def test_a_look_at_the_answer_blocks_nothing(session: Lab, workspace: Path) -> None:
    """By default what is made up is said beside the answer, in the log and in every view; with `off` nobody
    looks.
    """
    model = reads("It is in `tower.txt`.")
    run = asyncio.run(session.run("where?", model=model, workspace=workspace))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "It is in `tower.txt`.")
    assert [(one["severity"], one["what"]) for one in run.report.concerns] == [
        ("critical", "tower.txt does not exist")
    ]
    assert "tower.txt does not exist" in repr(run.report)
    assert "tower.txt does not exist" in run._repr_html_()
    off = asyncio.run(
        session.run("where?", model=reads("It is in `tower.txt`."), workspace=workspace, verify="off")
    )
    assert (off.answer, off.report.concerns) == (run.answer, [])


def test_verify_repairs_and_never_passes_what_is_made_up(session: Lab, workspace: Path) -> None:
    """With `repair` a made-up file is repaired; where the repair makes up another the run fails and says
    why.
    """
    run = asyncio.run(
        session.run(
            "where?",
            model=reads("It is in `tower.txt`.", "It is in `roof.txt`."),
            workspace=workspace,
            verify="repair",
        )
    )
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "It is in `roof.txt`.")
    verdicts = [
        (event.verifier, event.passed) for event in run.events() if isinstance(event, VerifierFinished)
    ]
    assert verdicts == [("facts", False), ("facts", True)]
    run = asyncio.run(
        session.run(
            "where?",
            model=reads("It is in `tower.txt`.", "It is in `castle.txt`."),
            workspace=workspace,
            verify="repair",
        )
    )
    assert (run.status, run.outcome, "castle.txt does not exist" in run.reason) == (
        RunStatus.FAILED,
        "unmet",
        True,
    )
    assert all(event.outcome != "complete" for event in run.events() if isinstance(event, RunFinished))
