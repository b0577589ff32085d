"""What each check passes, and what it says when it does not."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from waits import until

from kestrel_lab.checks.answer import AnswerContains, AnswerEquals, AnswerMatches
from kestrel_lab.checks.behaviour import ToolNotUsed, ToolUsed, TurnsAtMost
from kestrel_lab.checks.commands import CommandSucceeds
from kestrel_lab.checks.files import FileAbsent, FileContains, FileEquals
from kestrel_lab.checks.parse import check_definition, parse_check
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.tool_kinds import KINDS, only_reads
from kestrel_lab.core.events.union import ModelCalled, Record, ToolAnswered, ToolCalled
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score


def judge(check, tmp_path, answer="", events=()):
    """The score of `check` for a finished run."""
    records = tuple(
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1)
    )
    return asyncio.run(check(Trial(goal="g", answer=answer, records=records, workspace=tmp_path)))


def test_answer_contains_ignores_case_and_white_space(tmp_path):
    """`all` needs every text, `any` one; the score is the share found."""
    answer = "The  Answer\nis forty-TWO."
    assert judge(AnswerContains(texts=("answer is FORTY",)), tmp_path, answer) == Score(
        check="answer contains 'answer is FORTY'", passed=True, value=1.0
    )
    assert judge(AnswerContains(texts=("forty", "fifty")), tmp_path, answer) == Score(
        check="answer contains all of 'forty', 'fifty'",
        passed=False,
        value=0.5,
        reason="missing 'fifty'; answered 'The Answer is forty-TWO.'",
    )
    assert judge(AnswerContains(texts=("forty", "fifty"), mode="any"), tmp_path, answer).passed
    assert judge(AnswerContains(texts=("x",)), tmp_path, " ").reason == "missing 'x'; there is no answer"


def test_answer_equals_compares_normalised(tmp_path):
    """Case, white space, compatibility characters and a final full stop do not matter; anything else does."""
    assert judge(AnswerEquals(text="12 files"), tmp_path, "\uff11\uff12\u00a0Files.\n").passed
    assert judge(AnswerEquals(text="12"), tmp_path, "12 files") == Score(
        check="answer equals '12'", passed=False, value=0.0, reason="answered '12 files'"
    )


def test_answer_matches_finds_a_place(tmp_path):
    """The pattern may match anywhere, in process for simple patterns and apart for the others."""
    assert judge(AnswerMatches(pattern=r"\b\d+ lines"), tmp_path, "It has 314 lines.").passed
    assert judge(AnswerMatches(pattern=r"(\d+)-(\d+)"), tmp_path, "pages 12-15").passed
    assert not judge(AnswerMatches(pattern=r"^(\d+)-(\d+)$"), tmp_path, "pages 12-15").passed


def test_a_long_answer_is_searched_at_both_ends(tmp_path):
    """Of a huge answer only the first and last part are searched."""
    answer = "first" + "x" * 1_000_000 + "last"
    assert judge(AnswerMatches(pattern="first"), tmp_path, answer).passed
    assert judge(AnswerMatches(pattern="last$"), tmp_path, answer).passed


def test_a_runaway_pattern_ends_as_a_broken_check(tmp_path, monkeypatch):
    """Exponential backtracking is stopped in time and reported as the check's fault, not the answer's; no
    process is started for it.
    """
    monkeypatch.setattr("kestrel_lab.checks.answer.MATCH_SECONDS", 0.5)
    monkeypatch.setattr("asyncio.create_subprocess_exec", None)
    with pytest.raises(CheckError, match=r"did not finish on this answer in 0\.5 s"):
        judge(AnswerMatches(pattern="(a|aa)+$"), tmp_path, "a" * 60 + "!")  # by itself it would take years
    assert not judge(AnswerMatches(pattern="(a+)+$"), tmp_path, "a" * 60 + "!").passed


def test_files_are_compared_inside_the_workspace(tmp_path):
    """Contains, equals and absent look at the workspace, and say what they found instead."""
    (tmp_path / "out.txt").write_text("one\r\ntwo\n\n", newline="")
    assert judge(FileContains(path="out.txt", text="two"), tmp_path).passed
    assert judge(FileEquals(path="out.txt", text="one\ntwo"), tmp_path).passed
    assert judge(FileEquals(path="out.txt", text="one"), tmp_path).reason == "it holds 'one two'"
    assert judge(FileContains(path="no.txt", text="x"), tmp_path).reason == "there is no no.txt"
    assert judge(FileAbsent(path="no.txt"), tmp_path).passed
    assert judge(FileAbsent(path="out.txt"), tmp_path) == Score(
        check="out.txt is absent", passed=False, value=0.0, reason="out.txt is there"
    )


def test_links_and_pipes_are_not_read(tmp_path):
    """A link out of the workspace is refused, and a named pipe does not block the check."""
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "secret").write_text("s")
    (inside / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(inside / "pipe")
    assert (
        judge(FileContains(path="link", text="s"), inside).reason
        == "link is a link that leads out of the workspace"
    )
    assert judge(FileContains(path="pipe", text="s"), inside).reason == "pipe is not a file"
    for path in ("../secret", str(tmp_path / "secret"), ""):
        with pytest.raises(UsageError, match=r"must be a relative path without '\.\.'"):
            FileContains(path=path, text="s")


def test_a_command_runs_in_the_workspace(tmp_path):
    """Exit code 0 passes; otherwise code and the end of the output are told."""
    (tmp_path / "a.py").write_text("print('hello')")
    assert judge(CommandSucceeds(argv=("python", "a.py")), tmp_path) == Score(
        check="python a.py succeeds", passed=True, value=1.0
    )
    failed = judge(
        CommandSucceeds(argv=(sys.executable, "-c", "print('no luck'); raise SystemExit(3)")), tmp_path
    )
    assert failed.reason == "exit code 3: no luck"
    with pytest.raises(CheckError, match="cannot start 'no-such-program'"):
        judge(CommandSucceeds(argv=("no-such-program",)), tmp_path)


def test_a_command_is_ended_with_its_children(tmp_path):
    """A command over its time does not pass, and nothing it started goes on."""
    mark = f"6100.{os.getpid()}"  # names the processes, whose numbers are others within a sandbox
    command = CommandSucceeds(argv=("sh", "-c", f"sleep {mark} & sleep {mark}"), timeout=1)
    assert judge(command, tmp_path).reason == "not finished after 1 s"
    until(
        lambda: (
            not any(
                mark in " ".join(process.info["cmdline"] or ())
                for process in psutil.process_iter(["cmdline"])
            )
        )
    )


def test_a_flood_of_output_is_bounded(tmp_path):
    """Megabytes of output do not stop or swell the check."""
    assert judge(CommandSucceeds(argv=("python", "-c", "print('x' * 20_000_000)")), tmp_path).passed


def test_conduct_is_read_from_events(tmp_path):
    """Used means one successful call; not used means none at all; turns are model calls."""
    failed = {"kind": "failed", "message": "no", "transient": False}
    events = [
        ModelCalled(call="m1", step="s", model="m", cycle=1, messages=1),
        ToolAnswered(call="t1", step="s", tool="grep", text="", error=failed),
        ModelCalled(call="m2", step="s", model="m", cycle=2, messages=3),
        ToolAnswered(call="t2", step="s", tool="tree", text="ok"),
    ]
    assert judge(ToolUsed(name="tree"), tmp_path, events=events).passed
    assert judge(ToolUsed(name="grep"), tmp_path, events=events).reason == "all 1 calls of grep failed"
    assert (
        judge(ToolUsed(name="glob"), tmp_path, events=events).reason
        == "glob was not called; called: grep, tree"
    )
    assert judge(ToolUsed(name="glob"), tmp_path).reason == "glob was not called; no tool was"
    assert judge(ToolNotUsed(name="glob"), tmp_path, events=events).passed
    assert judge(ToolNotUsed(name="grep"), tmp_path, events=events).reason == "grep was called 1 time"
    assert judge(TurnsAtMost(n=2), tmp_path, events=events).passed
    assert judge(TurnsAtMost(n=1), tmp_path, events=events) == Score(
        check="at most 1 turns", passed=False, value=0.5, reason="it took 2 turns"
    )


@pytest.mark.parametrize(
    ("tool", "args", "kind"),
    [
        ("bash", {"command": "grep -rn x ."}, "command"),
        ("Bash", {"command": "grep -rn x ."}, "command"),
        ("command_execution", {"command": "grep -rn x ."}, "command"),
        ("run_shell_command", {"command": "grep -rn x ."}, "command"),
        ("execute", {}, "command"),
        ("Read", {"file_path": "a"}, "read"),
        ("str_replace_editor", {"command": "view", "path": "a"}, "read"),
        ("str_replace_editor", {"command": "create", "path": "a"}, "edit"),
        ("replace", {"file_path": "a"}, "edit"),
        ("file_change", {}, "edit"),
        ("grep_search", {"pattern": "a"}, "search"),
        ("google_web_search", {"query": "a"}, "web"),
        ("AskUserQuestion", {}, "ask"),
        ("get_balance", {}, "read"),
        ("searchFlights", {}, "search"),
    ],
)
def test_a_kind_of_tools_is_used_whatever_its_name(
    tmp_path: Path, tool: str, args: dict[str, Any], kind: str
) -> None:
    """Every check of tools knows the kinds: it holds for the names of every agent, and for no other kind."""
    events = [
        ToolCalled(call="1", step="s", tool=tool, args=args),
        ToolAnswered(call="1", step="s", tool=tool, text="found"),
    ]
    for each in KINDS:
        fits = each == kind
        for name, given, passes in (
            ("tool_used", {"kind": each}, fits),
            ("tool_not_used", {"kind": each}, not fits),
            ("tool_at_most", {"kind": each, "n": 1}, True),
            ("tools_in_order", [{"kind": each}], fits),
            ("trajectory_match", {"calls": [{"kind": each, "args": args}]}, fits),
        ):
            assert judge(parse_check({name: given}), tmp_path, events=events).passed == passes, name


@pytest.mark.parametrize(
    "name", ["get_or_create_user", "read_and_delete", "mcp__shop__read_file", "send_money", "transfer", "get"]
)
def test_a_tool_that_may_act_is_no_reading_one(name: str) -> None:
    """Names with a word of acting, and tools of servers that name them as they like, are taken for no reader."""
    assert not only_reads(name)


def test_a_check_of_tools_names_one_thing() -> None:
    """A name or a kind: neither or both is an error that shows how to write it; a stored one keeps its fields."""
    for name in ("tool_used", "tool_not_used"):
        for wrong in ({}, {"name": "bash", "kind": "command"}):
            with pytest.raises(UsageError, match=f"{name}: \\{{kind: command"):
                parse_check({name: wrong})
    with pytest.raises(UsageError, match="kind is"):
        parse_check({"tool_used": {"kind": "shell"}})
    named = check_definition(parse_check({"tool_used": "bash"}))
    assert named == {"check": "ToolUsed", "label": "bash used", "name": "bash"}
