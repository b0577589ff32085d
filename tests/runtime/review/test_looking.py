"""What stands beside an answer: what was checked, and what can be done next; nothing of it where nobody
looks.
"""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kestrel_lab.core.events.union import RunFinished
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.review.answer_review import claims_nothing, full_review
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.verification import engine

ANSWER = "The constant MAX in `limits.py` is 30 now.\n\n```sh\npython limits.py\npython -m compileall .\n```"
NEXT = [
    ("test", "tests/test_limits.py"),
    ("command", "python -m pytest tests/test_limits.py"),
    ("command", "python -m compileall ."),
    ("file", "limits.py"),
]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A project with a module and its test."""
    folder = tmp_path / "work"
    (folder / "tests").mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    (folder / "tests" / "test_limits.py").touch()
    (folder / "limits.py").write_text("MAX = 20\n")
    return folder


def changes(request: ModelRequest) -> Turn:
    """Reads, changes, runs, answers."""
    turns: list[Turn] = [
        [("read_file", {"path": "limits.py"})],
        [
            ("edit_file", {"path": "limits.py", "old": "20", "new": "30"}),
            ("edit_file", {"path": "pyproject.toml", "old": "x", "new": "y"}),
        ],
        [("bash", {"command": "python  limits.py"})],
        ANSWER,
    ]
    return turns[sum(message.role == "assistant" for message in request.messages)]


def carry_out(session: Lab, workspace: Path, model: ScriptedModel, **options: str) -> Run:
    """A run to its end, asking nobody."""
    return asyncio.run(
        session.run(
            "raise it", model=model, workspace=workspace, approve="auto", containment="off", **options
        )
    )


def test_it_is_said_in_every_view(session: Lab, workspace: Path) -> None:
    """What was changed (not what failed to be) with its test, commands that were not run yet; as text, with
    the confidence and why.
    """
    run = carry_out(session, workspace, ScriptedModel(changes))
    finished = next(event for event in run.events() if isinstance(event, RunFinished))
    assert [(one["kind"], one["text"]) for one in finished.actions] == NEXT
    assert [(one.kind, one.text) for one in run.report.next_actions] == NEXT
    badge = run.report.confidence
    assert (badge.value, badge.calibrated, str(badge)) == (
        None,
        None,
        "1 of 1 places, quotes and actions that it names are right",
    )
    lines = ("python -m pytest tests/test_limits.py  # runs tests/test_limits.py", str(badge))
    for view in (repr(run.report), run._repr_html_()):
        assert [line in view for line in lines] == [True, True]
    assert "<a " not in run._repr_html_()
    assert str(badge) in badge._repr_html_()

    (workspace / "tests" / "test_limits.py").unlink()
    assert [one.text for one in run.report.next_actions] == ["python -m compileall .", "limits.py"]


def claimed(*claims: tuple[str, str]) -> str:
    """An answer as claims, each with the place that it cites."""
    cites = {
        place: [{"place": place, "quote": "", "call": "", "address": ""}] if place else []
        for _, place in claims
    }
    return json.dumps({"claims": [{"text": text, "citations": cites[place]} for text, place in claims]})


@pytest.mark.parametrize(
    ("asked", "answer", "status"),
    [
        (None, claimed(("Zebras graze.", "")), "COMPLETE"),
        (0.5, claimed(("Zebras graze.", ""), ("They sleep.", ""), ("MAX is 20.", "limits.py:1")), "FAILED"),
        (0.5, claimed(("MAX is 20.", "limits.py:1")), "COMPLETE"),
        (0.5, claimed(("I could not find it.", "")), "COMPLETE"),
    ],
)
def test_less_sure_than_asked_for_is_no_answer(
    tmp_path: Path, workspace: Path, asked: float | None, answer: str, status: str
) -> None:
    """A run whose answer states less confidence than `abstain` fails and says so: here by the share of its
    claims that are cited.
    """
    lab = Lab(tmp_path / "lab", env={}, abstain=asked)
    run = carry_out(
        lab, workspace, ScriptedModel([[("read_file", {"path": "limits.py"})], answer]), verify="repair"
    )
    lab.close()
    assert run.status == status
    assert run.outcome == ("complete" if status == "COMPLETE" else "unmet")
    assert ("it abstains: its confidence is .33, 0.5 is asked for" in run.reason) == (status == "FAILED")


def test_where_no_confidence_is_stated_nothing_is_held_back(tmp_path: Path, workspace: Path) -> None:
    """An answer that nothing speaks for or against is given, and so is one that nobody looks at."""
    lab = Lab(tmp_path / "lab", env={}, abstain=1.0)
    assert carry_out(lab, workspace, ScriptedModel(["It is 30."])).status == RunStatus.COMPLETE
    read = ScriptedModel([[("read_file", {"path": "limits.py"})], "Zebras graze."])
    assert carry_out(lab, workspace, read, verify="off").status == RunStatus.COMPLETE
    lab.close()


@pytest.mark.parametrize(("answer", "verify"), [("It is 30.", "warn"), (ANSWER, "off")])
def test_where_there_is_nothing_nothing_is_said(
    session: Lab, workspace: Path, answer: str, verify: str
) -> None:
    """An answer without tools and files, and one that nobody looks at, as in trials: no view differs, and the
    log only tells whether somebody looked. No view says of a check that it checked nothing.
    """
    run = carry_out(session, workspace, ScriptedModel([answer]), verify=verify)
    assert next(event for event in run.events() if isinstance(event, RunFinished)) == RunFinished(
        outcome="complete", answer=answer, looked=verify != "off", checked=0 if verify == "warn" else None
    )
    told = {
        "warn": "not checked: it names no place, quote or action that can be compared",
        "off": "not checked",
    }[verify]
    assert (run.report.confidence.value, str(run.report.confidence)) == (None, told)
    assert (told in repr(run.report), "next, if you like" in repr(run.report)) == (False, False)


def test_hostile_answers_bring_no_markup(session: Lab, workspace: Path) -> None:
    """What an answer proposes is text in every view, and hidden characters are no command."""
    hostile = "`git <img src=x onerror=alert(1)>` and `git status\u202e x`"
    run = carry_out(session, workspace, ScriptedModel([hostile]))
    assert [one.text for one in run.report.next_actions] == ["git <img src=x onerror=alert(1)>"]
    for page in (run._repr_html_(), run.report.next_actions._repr_html_()):
        assert ("<img" in page, "&lt;img" in page) == (False, True)


@pytest.mark.parametrize(("level", "status"), [("warn", RunStatus.COMPLETE), ("repair", RunStatus.FAILED)])
def test_a_check_that_breaks_passes_nothing(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch, level: str, status: RunStatus
) -> None:
    """Beside an answer it is told that nobody looked; where the answer has to pass, it does not."""

    def broken(*_: object) -> tuple[()]:
        msg = "a defect"
        raise ZeroDivisionError(msg)

    monkeypatch.setattr(engine, "check_answer", broken)
    run = session.run_sync(
        "go", model=ScriptedModel(lambda _: "It is in `gone.py`."), workspace=workspace, verify=level
    )
    assert run.status is status
    told = run.reason if status is RunStatus.FAILED else str(run.report.concerns)
    assert "the check of the answer failed: ZeroDivisionError: a defect" in told


def test_what_was_done_stands_beside_the_answer(session: Lab, workspace: Path) -> None:
    """Changes with their lines, commands with exit codes and failures are shown in every view, also where the
    answer is silent about them.
    """
    run = carry_out(session, workspace, ScriptedModel(changes))
    assert [str(action) for action in run.report.actions] == [
        "changed limits.py (+1 −1 lines)",
        'failed: called edit_file(path="pyproject.toml", old="x", new="y", replace_all=false)',
        "ran `python limits.py`: exit code 0",
    ]
    for view in (repr(run.report), run._repr_html_()):
        assert "what it did" in view.lower()
        assert "changed limits.py (+1 −1 lines)" in view
        assert "ran `python limits.py`: exit code 0" in view


def test_a_claim_that_a_person_denied_is_no_green_complete(session: Lab, workspace: Path) -> None:
    """The answer says what the log does not: it is marked as critical, and with `repair` it does not pass."""
    turns = [
        [("write_file", {"path": "SUMMARY.md", "content": "# Summary\n"})],
        "I fixed it and wrote SUMMARY.md.",
    ]
    run = session.run_sync("sum it up", model=ScriptedModel([*turns]), workspace=workspace, approve="deny")
    assert [(one["severity"], one["check"]) for one in run.report.concerns] == [
        ("critical", "deeds_were_done")
    ] * 2  # fixed, and wrote
    assert all("the call of write_file was denied" in str(one["what"]) for one in run.report.concerns)
    model = ScriptedModel([*turns, *["I wrote SUMMARY.md."] * 6])
    assert (
        session.run_sync("again", model=model, workspace=workspace, approve="deny", verify="repair").status
        is RunStatus.FAILED
    )


_PIECES = st.sampled_from(
    [
        "done",
        "Make",
        "Makefile",
        "It is",
        "a.py",
        "src/",
        ".",
        ". ",
        " ",
        "\n",
        "\n\n",
        "- ",
        "1. ",
        "    ",
        "`x`",
    ]
    + [
        '"the words of a file"',
        "> ",
        ">>> ",
        "# ",
        "|",
        "line 3 of ",
        ":12",
        "[a.1.1]",
        "e.g. ",
        "See",
        "(",
        ")",
    ]
)


@given(st.lists(_PIECES, max_size=12).map("".join) | st.text(max_size=40))
def test_an_answer_that_claims_nothing_ends_with_the_same_event(answer: str) -> None:
    """Where the review ends at once, the full review finds nothing either: in files, quotes, citations, code
    and next actions.
    """
    assume(claims_nothing(RunState(), answer))
    end = RunFinished(outcome="complete", answer=answer)
    looked = msgspec.structs.replace(end, looked=True, checked=0)
    assert full_review(end, RunState(), Path("/"), None) == (looked, ())


@pytest.mark.parametrize(
    "answer",
    [
        "See LICENSE.",
        "in a.py",
        "`x`",
        '"four words of it"',
        "a\n\n    code",
        "> as it says",
        "see src/app",
        "a\n| b |",
    ],
)
def test_an_answer_that_may_claim_something_is_reviewed_in_full(answer: str) -> None:
    """One mark that a check looks for is enough."""
    assert not claims_nothing(RunState(), answer)


def test_plain_words_about_a_changed_file_are_reviewed_in_full(session: Lab, workspace: Path) -> None:
    """The file that the run changed is a next action, also where the answer does not name it."""
    turns: list[Turn] = [[("write_file", {"path": "new.md", "content": "x"})], "All is well."]
    model = ScriptedModel(turns)
    run = session.run_sync("go", model=model, workspace=workspace, approve="auto")
    assert [one.text for one in run.report.next_actions] == ["new.md"]
    ended = next(event for event in run.events() if isinstance(event, RunFinished))
    assert (ended.looked, [one["text"] for one in ended.actions]) == (True, ["new.md"])


def test_a_short_answer_ends_with_the_event_of_a_review(session: Lab, workspace: Path) -> None:
    """It is marked as looked at, with nothing to compare."""
    run = session.run_sync("go", model=ScriptedModel(["All is well."]), workspace=workspace)
    ended = next(event for event in run.events() if isinstance(event, RunFinished))
    assert ended == RunFinished(outcome="complete", answer="All is well.", looked=True, checked=0)
