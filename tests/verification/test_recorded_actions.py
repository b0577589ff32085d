"""What an answer says was done is compared with what the log says was done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrel_lab.core.events import actions as folded
from kestrel_lab.core.events.actions import action_lines, actions_of
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

DENIED: dict[str, Json] = {"kind": "denied", "message": "not that", "transient": False}
BROKE: dict[str, Json] = {"kind": "failed", "message": "disk full", "transient": False}
DIFF = "replaced 1 place\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1,2 @@\n-x = 1\n+x = 2\n+y = 3\n"


def call(name: str, tool: str, args: dict[str, Json], text: str, **more: object) -> list[Event]:
    """A call that was made and answered."""
    effect = str(more.pop("effect", "opaque"))
    return [
        ToolCalled(call=name, step="main", tool=tool, args=args, effect=effect, danger="MEDIUM"),
        ToolAnswered(call=name, step="main", tool=tool, text=text, **more),  # type: ignore[arg-type]
    ]


def denied(name: str, tool: str, args: dict[str, Json]) -> list[Event]:
    """A call that a person turned down."""
    return [
        ApprovalAsked(call=name, step="main", tool=tool, args=args, danger="MEDIUM", key="k"),
        ApprovalGiven(call=name, granted=False, by="ann", how="prompt"),
        ToolAnswered(call=name, step="main", tool=tool, text="", error=DENIED),
    ]


READ = call("r", "read_file", {"path": "calc.py"}, "x = 1", effect="pure")
EDIT = call("e", "edit_file", {"path": "calc.py"}, DIFF, changed=["calc.py"])
TESTS = call(
    "t",
    "bash",
    {"command": "python -m pytest -q"},
    '{"exit_code": 1, "output": "2 failed, 10 passed in 0.10s"}',
)
GREEN = call(
    "g", "bash", {"command": "python -m pytest -q"}, '{"exit_code": 0, "output": "12 passed in 0.10s"}'
)
NO_SUMMARY = denied("d", "write_file", {"path": "SUMMARY.md", "content": "# Summary"})
NO_MAIL = denied("m", "send_mail", {"to": "bob"})
MAIL = call("s", "send_mail", {"to": "bob"}, "sent")
FULL = call("f", "write_file", {"path": "notes.md"}, "", error=BROKE)


@pytest.mark.parametrize(
    ("events", "answer", "true"),
    [
        (NO_SUMMARY, "I fixed it and wrote SUMMARY.md.", False),
        (NO_SUMMARY, "I have written `SUMMARY.md` with the findings.", False),
        (NO_SUMMARY, "I could not write SUMMARY.md: you denied it.", True),
        (NO_SUMMARY, "I wanted to write `SUMMARY.md`, but was not allowed to.", True),
        (NO_SUMMARY, "Once I have written SUMMARY.md, you can read it.", True),
        (NO_SUMMARY, "Executed `rm -rf build` successfully.", False),
        (NO_SUMMARY, "executed rm -rf build successfully", False),
        (FULL, "I created `notes.md`.", False),
        (READ, "I updated the default.", False),
        (READ, "I read the file; the default was updated in `calc.py` and removed later.", True),
        (READ, "Added in 2.0 by `calc.py`, it holds the value.", True),
        (EDIT, "I edited calc.py.", True),
        (EDIT, "I edited calc.py and created `notes.md` too.", False),
        (EDIT, "I edited calc.py and ran `make lint`.", False),
        ([*EDIT, *TESTS], "I updated `calc.py` and ran `python -m pytest -q`.", True),
        ([*EDIT, *TESTS], "I edited calc.py, and wrote a note into a file.", True),
        ([*EDIT, *TESTS], "I deleted old.py.", True),
        ([*EDIT, *TESTS], "I deleted calc.py.", True),
        (TESTS, "I ran `python -m pytest -q` and it passed.", False),
        (TESTS, "I ran `python -m pytest -q`; 2 tests failed.", True),
        (TESTS, "All done: 12 passed.", False),
        (TESTS, "All 12 tests pass.", False),
        (TESTS, "10 passed and 2 failed.", True),
        (TESTS, "3 tests failed.", False),
        (TESTS, "It exited with code 0.", False),
        (TESTS, "It exited with code 1.", True),
        (GREEN, "All 12 tests pass.", True),
        (MAIL, "I have sent the mail and scheduled the rest.", True),
        (NO_MAIL, "I have sent the mail.", False),
        ([*NO_MAIL, *EDIT], "I have sent the mail.", False),
        ([*NO_MAIL, *MAIL], "I've sent the mail.", True),
        ([], "I sent the mail to Bob.", False),
        ([], "You sent the mail, and Bob deleted it.", True),
    ],
)
def test_a_claimed_action_is_in_the_log(
    tmp_path: Path, events: Sequence[Event], answer: str, *, true: bool
) -> None:
    """What was denied, failed or never happened cannot be claimed; where a command may have done it unseen,
    nothing is said.
    """
    (tmp_path / "calc.py").write_text("x = 1\n")
    subject = Subject(answer=answer, actions=actions_of(events), ground=Files(tmp_path))
    found = check_answer(subject)
    assert bool(found) is not true
    assert {one.severity for one in found} <= {"critical"}


def test_without_a_log_nothing_is_said(tmp_path: Path) -> None:
    """Where nobody knows what was called, no action is doubted."""
    assert check_answer(Subject(answer="I wrote SUMMARY.md.", ground=Files(tmp_path))) == ()


def test_actions_are_reported_in_lines() -> None:
    """Files with lines added and removed, commands with exit codes, other acts, what was denied and what
    failed; reading is not an action.
    """
    again = call("e2", "edit_file", {"path": "calc.py"}, DIFF, changed=["calc.py"])
    lost = call(
        "u",
        "deploy",
        {"to": "live"},
        "",
        error={"kind": "unknown_outcome", "message": "the session ended", "transient": False},
    )
    events = [*READ, *EDIT, *again, *TESTS, *MAIL, *NO_SUMMARY, *FULL, *lost]
    assert list(action_lines(actions_of(events))) == [
        "changed calc.py (+4 −2 lines)",
        "ran `python -m pytest -q`: exit code 1",
        'called send_mail(to="bob")',
        'denied: called write_file(path="SUMMARY.md", content="# Summary")',
        'failed: called write_file(path="notes.md")',
        'outcome unknown: called deploy(to="live")',
    ]
    assert list(action_lines(actions_of(READ))) == []


def test_a_fold_that_forgets_refusals_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that takes a denied call for a done one lets the claim pass."""
    monkeypatch.setattr(folded.ActionLog, "_outcome", lambda *_: "done")
    assert check_answer(Subject(answer="I wrote SUMMARY.md.", actions=actions_of(NO_SUMMARY))) == ()
