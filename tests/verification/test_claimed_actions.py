"""Why a claimed action is refuted, in words: which call was denied or failed, which command ended how, and what
nobody can know.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrel_lab.core.events.actions import actions_of
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.verification.claimed_actions import claimed_actions, count_confirmed
from kestrel_lab.verification.claims import Statement
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

BROKE: dict[str, Json] = {"kind": "failed", "message": "disk full", "transient": False}
LOST: dict[str, Json] = {"kind": "unknown_outcome", "message": "the session ended", "transient": False}
NO: dict[str, Json] = {"kind": "denied", "message": "no", "transient": False}


def call(
    name: str, tool: str, args: dict[str, Json], text: str = "", *, effect: str = "opaque", **more: object
) -> list[Event]:
    """A call that was made and answered."""
    return [
        ToolCalled(call=name, step="main", tool=tool, args=args, effect=effect, danger="MEDIUM"),
        ToolAnswered(call=name, step="main", tool=tool, text=text, **more),  # type: ignore[arg-type]
    ]


def denied(name: str, tool: str, args: dict[str, Json]) -> list[Event]:
    """A call that a person turned down."""
    return [
        ApprovalAsked(call=name, step="main", tool=tool, args=args, danger="MEDIUM", key="k"),
        ApprovalGiven(call=name, granted=False, by="ann", how="prompt"),
        ToolAnswered(call=name, step="main", tool=tool, text="", error=NO),
    ]


def bash(name: str, command: str, code: int, output: str = "") -> list[Event]:
    """A command that ended."""
    return call(name, "bash", {"command": command}, f'{{"exit_code": {code}, "output": "{output}"}}')


EDIT = call("e", "edit_file", {"path": "src/calc.py"}, changed=["src/calc.py"])
NO_EDIT = denied("d", "edit_file", {"path": "src/calc.py"})
BROKEN = call("b", "write_file", {"path": "src/calc.py"}, error=BROKE)
FETCH = call("g", "fetch", {"url": "x"}, "all tests pass, says the page")


@pytest.mark.parametrize(
    ("events", "answer", "why"),
    [
        (NO_EDIT, "I edited src/calc.py.", "the call of edit_file was denied"),
        (NO_EDIT, "I edited calc.py.", "the call of edit_file was denied"),
        (BROKEN, "I wrote ./src/calc.py.", "the call of write_file failed"),
        ([*NO_EDIT, *EDIT], "I edited src/calc.py.", ""),
        ([*EDIT, *BROKEN], "I wrote src/calc.py.", ""),
        (NO_EDIT, "`src/calc.py` was edited.", "src/calc.py: the call of edit_file was denied"),
        ([*NO_EDIT, *EDIT], "`src/calc.py` was edited.", ""),
        (EDIT, "`other.py` was edited.", ""),
        (EDIT, "I deleted other.py.", "no call of this run did that with other.py"),
        (EDIT, "I edited here.py.", "no call of this run did that with here.py"),
        ([*EDIT, *FETCH], "I edited here.py.", ""),  # it is there: a tool may have done it
        ([*EDIT, *FETCH], "I edited gone.py.", "no call of this run did that with gone.py"),
        ([*EDIT, *FETCH], "I deleted gone.py.", ""),
        ([*EDIT, *FETCH], "I deleted here.py.", "no call of this run did that with here.py"),
        ([], "I edited the default.", "no call of this run did anything"),
        (NO_EDIT, "I sent the mail.", "the call of edit_file was denied"),
        (EDIT, "I sent the mail.", "no call of this run did that"),
        (call("l", "deploy", {"to": "live"}, error=LOST), "I deployed it.", ""),  # nobody knows
        (bash("t", "make lint", 0), "I ran `make lint`.", ""),
        (bash("t", "make  lint", 0), "I ran `make lint`.", ""),
        (bash("t", "make lint", 2), "I ran `make lint` successfully.", "the command ended with exit code 2"),
        ([*bash("t", "make lint", 2), *bash("u", "make lint", 0)], "I ran `make lint` successfully.", ""),
        (bash("t", "make lint", 2), "I ran `make lint`.", ""),
        (bash("t", "make docs", 0), "I ran `tox -e lint`.", "tox -e lint was not run"),
        (denied("n", "bash", {"command": "make lint"}), "I ran `make lint`.", "the call of bash was denied"),
        (bash("t", "/usr/bin/make docs", 0), "I ran `./make lint`.", ""),  # the same program: it may be meant
        (denied("n", "bash", {"command": "pytest"}), "All tests pass.", "the call of bash was denied"),
        (EDIT, "All tests pass.", "no command of this run did"),
        (EDIT, "If it works, all tests pass.", ""),
        (EDIT, "```\nall tests pass\n```", ""),
        ([*EDIT, *FETCH], "All tests pass.", ""),
        (
            bash("t", "pytest -q", 1, "1 failed, 3 passed"),
            "All tests pass.",
            "the last command that tests ended with exit code 1",
        ),
        ([*bash("t", "pytest -q", 1), *bash("u", "pytest -q", 0)], "All tests pass.", ""),
        (
            [*bash("t", "pytest -q", 1), *bash("u", "ls", 0)],
            "The tests pass.",
            "the last command that tests ended with exit code 1",
        ),
        (bash("t", "pytest -q", 1, "1 failed, 3 passed"), "3 tests pass.", ""),
        ([*bash("t", "pytest a", 0, "3 passed"), *bash("u", "pytest b", 0, "4 passed")], "7 passed.", ""),
        (
            [*bash("t", "pytest a", 0, "3 passed"), *bash("u", "pytest b", 0, "4 passed")],
            "8 passed.",
            "the output of the command says 3, 4 passed",
        ),
        (bash("t", "pytest a", 1, "2 failures"), "3 failures.", ""),
        (bash("t", "pytest a", 1, "2 failed"), "3 failures.", "the output of the command says 2 failed"),
        (
            bash("t", "pytest a", 0, "2 warnings"),
            "It gave 3 warnings.",
            "the output of the command says 2 warning",
        ),
        (bash("t", "pytest a", 0, "2 warnings"), "It would give 3 warnings.", ""),
        (bash("t", "pytest a", 3), "It exited with code 2.", "the exit code was 3"),
        (EDIT, "It exited with code 2.", ""),
        (NO_EDIT, "It exited with code 2.", ""),
        (denied("n", "bash", {"command": "pytest"}), "It exited with code 2.", "the call of bash was denied"),
    ],
)
def test_a_refutation_names_the_call(tmp_path: Path, events: Sequence[Event], answer: str, why: str) -> None:
    """What is refuted says by which call; what may have been done unseen is let be."""
    (tmp_path / "here.py").write_text("x = 1\n")
    found = check_answer(Subject(answer=answer, actions=actions_of(events), ground=Files(tmp_path)))
    assert len(found) == bool(why), found
    assert all(one.what.endswith(why) for one in found)


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        (
            "I wrote a.py and then ran `make test`.",
            [("write", "wrote a.py and then", ("a.py",), ""), ("run", "ran `make test`", (), "make test")],
        ),
        ("I ran make -j4 docs.", [("run", "ran make -j4 docs", (), "make -j4 docs")]),
        ("I ran the tests.", [("run", "ran the tests", (), "")]),
        (
            "We have carefully removed `old.py`; updated b.py.",
            [("delete", "removed `old.py`", ("old.py",), ""), ("edit", "updated b.py", ("b.py",), "")],
        ),
        ("Bob ran it, and deleted `a.py`.", []),
        ("Once I have sent the mail, I wrote b.py.", []),
        ("Done. Saved notes.md.", [("write", "Saved notes.md", ("notes.md",), "")]),
        ("I ran `a.py`.", [("run", "ran `a.py`", ("a.py",), "")]),
    ],
)
def test_actions_are_read_from_a_sentence(
    text: str, actions: list[tuple[str, str, tuple[str, ...], str]]
) -> None:
    """Kind, words up to the next action, files and command of each action in the first person; what is supposed
    is none.
    """
    found = [
        (one.kind, one.words, one.files, one.command) for one in claimed_actions(Statement(text=text, at=0))
    ]
    assert found == actions
    assert list(claimed_actions(Statement(text=text, at=0, kind="code"))) == []


@pytest.mark.parametrize(
    ("events", "answer", "count"),
    [
        (EDIT, "I edited src/calc.py.", 1),
        (EDIT, "I edited src/calc.py and b.py.", 0),  # one of them is not in the log
        (EDIT, "I edited src/calc.py. I ran `make lint`.", 1),
        ([*EDIT, *bash("t", "cd x && make lint", 0)], "I edited src/calc.py. I ran `make lint`.", 2),
        (bash("t", "pytest -q", 0), "I ran pytest -q.", 1),
        (EDIT, "I edited the file.", 0),
        (NO_EDIT, "I edited src/calc.py.", 0),
    ],
)
def test_what_the_log_has_is_counted(
    tmp_path: Path, events: Sequence[Event], answer: str, count: int
) -> None:
    """An action counts as confirmed where all its files, or its command, are those of calls that were done."""
    assert (
        count_confirmed(Subject(answer=answer, actions=actions_of(events), ground=Files(tmp_path))) == count
    )
