"""Small promises that a change of one comparison broke without any other test of the module noticing."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path

import psutil
import pytest
from waits import PATIENCE_S

from kestrel_lab.core.calls import Call
from kestrel_lab.core.events.union import (
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
    StageFinished,
    StepRetried,
    ToolAnswered,
    ToolCalled,
    ToolsShown,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.stats.change_points import find_steps
from kestrel_lab.evals.suites.datasets import _plain_json
from kestrel_lab.eventlog.connection import process_name
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.run_status import alive_elsewhere, cancel_in_log
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.mcp.approvals import Definition, check_definitions, definition_diff, problem_of
from kestrel_lab.mcp.config import read_server
from kestrel_lab.mcp.registry.catalogue import Entry, Package
from kestrel_lab.mcp.registry.install import _hashes
from kestrel_lab.mcp.registry.scoring import score_entry
from kestrel_lab.mcp.sandboxing import sandboxed_server
from kestrel_lab.permissions.command_patterns import CommandPattern, Match, offered_pattern, pattern_covers
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.server.controller import AttendingClients
from kestrel_lab.tools.data_flow import Flow
from kestrel_lab.tools.sandbox.levels import Sandbox

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("line", "covered"),
    [
        ("git diff HEAD", True),
        ("git diff && git diff x", True),
        ("git diff && rm x", False),
        ("git push", False),
        ("git diff $(x)", False),
        ("", False),
    ],
)
def test_a_pattern_covers_a_line_only_when_it_allows_each_command_in_it(line: str, covered: bool) -> None:
    """Both ways: what was allowed for the run is not asked about again, and nothing else goes with it."""
    assert (
        pattern_covers(
            CommandPattern.parse("git diff ..."),
            Call(id="c", kind="tool", target="bash", args={"command": line}),
        )
        is covered
    )


@pytest.mark.parametrize(
    ("line", "pattern"),
    [("git diff HEAD", "git diff ..."), ("git diff; ls", ""), ("rm x", ""), ("git -C x diff", "")],
)
def test_a_pattern_is_offered_for_one_plain_command_with_a_subcommand(line: str, pattern: str) -> None:
    """Nothing is offered for a line of several commands, or a program whose first word says nothing."""
    assert offered_pattern(Call(id="c", kind="tool", target="bash", args={"command": line})) == pattern


@pytest.mark.parametrize(
    "line", ["gadget push", "gadget --odd push", "gadget --odd x push", "gadget --odd=1 push"]
)
def test_the_value_of_an_option_that_nobody_knows_hides_no_forbidden_word(line: str) -> None:
    """What stands behind such an option may be its value or not: the rule is held against both readings."""
    assert CommandPattern.parse("gadget push").concerns(tuple(line.split())) is Match.YES


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ({"name": "good"}, ""),
        ({"name": "new\nline"}, "its name has other characters"),
        ({"name": "..up"}, "its name has other characters"),
        ({"name": "big", "description": "x" * 100_000}, "characters, more than"),
        ({"name": "odd", "inputSchema": {"type": "array"}}, "its arguments are not an object"),
        (
            {"name": "odd", "inputSchema": {"type": "object", "required": [1]}},
            "required is not a list of names",
        ),
    ],
)
def test_a_definition_that_is_not_offered_says_why(definition: dict[str, object], problem: str) -> None:
    """The reason is a sentence; a good definition has none."""
    found = problem_of(Definition(name=str(definition["name"]), fields=definition))  # type: ignore[arg-type]  # as JSON has it
    assert (problem in found, bool(found)) == (True, bool(problem))


@pytest.mark.parametrize(
    ("reads", "source"), [({"untrusted"}, "files that fetch may have written"), (set(), "")]
)
def test_files_count_as_written_by_others_once_a_tool_that_reads_others_reached_anything(
    reads: set[str], source: str
) -> None:
    """Such a tool may have put what it read into any file; one that reads nothing of others leaves the files
    alone.
    """
    flows = {
        "fetch": Flow(frozenset(reads), "anything"),
        "read_file": Flow(frozenset({"workspace"}), "nothing"),
    }
    taint = Taint(known=lambda tool: flows[tool])
    for call, tool in (("1", "fetch"), ("2", "read_file")):
        taint.apply(ToolCalled(call=call, step=f"s{call}", tool=tool, args={"path": "a.txt"}))
        taint.apply(ToolAnswered(call=call, step=f"s{call}", tool=tool, text="something"))
    untrusted = taint.context(Call(id="3", kind="tool", target="read_file", step="s2")).untrusted
    assert [source in one for one in untrusted] == ([True] if source else [])


def test_only_the_version_that_is_asked_for_counts_as_the_package() -> None:
    """A lock with another version of the package has no hash for it: what is installed is what was
    approved.
    """
    package = Package(kind="pypi", name="mcp-echo", version="1.0.0")
    lines = f"mcp_echo==0.9.0 --hash=sha256:{A}\nother==2 --hash=sha256:{B}\n"
    assert _hashes(package, "uv", lines) == {"other": [B]}
    assert _hashes(package, "uv", lines.replace("0.9.0", "1.0.0")) == {"mcp-echo": [A], "other": [B]}
    lock = '{"packages": {"": {}, "node_modules/mcp-echo": {"version": "VERSION", "integrity": "sha512-x"}}}'
    assert "mcp-echo" not in _hashes(package, "npm", lock.replace("VERSION", "0.9.0"))
    assert _hashes(package, "npm", lock.replace("VERSION", "1.0.0")) == {"mcp-echo": ["sha512-x"]}


def test_of_two_tools_of_one_name_the_first_counts() -> None:
    """The second is refused with its reason, and does not take the place of the one that was approved."""
    first, second = (
        Definition(name="t", fields={"name": "t"}),
        Definition(name="t", fields={"name": "t", "description": "another"}),
    )
    kept, refused = check_definitions([first, second])
    assert (kept, refused) == (
        {"t": first},
        {"t": "the server has two tools of that name; the first one counts"},
    )


def test_a_difference_is_one_of_content_and_shown_as_it_reads() -> None:
    """The order of keys is none; letters of other languages are letters."""
    old, new = (
        Definition(name="t", fields={"a": 1, "b": "x"}),
        Definition(name="t", fields={"b": "é", "a": 1}),
    )
    assert definition_diff("t", old, Definition(name="t", fields={"b": "x", "a": 1})) == ""
    assert '+ "b": "é"' in definition_diff("t", old, new)


@pytest.mark.parametrize(
    ("kind", "why"), [("pypi", "pypi: wheels only"), ("npm", "npm: scripts of packages are not run")]
)
def test_the_rubric_says_how_a_package_is_installed(kind: str, why: str) -> None:
    """Each installer has its own safeguard."""
    entry = Entry(name="io.github.a/b", package=Package(kind=kind, name="b", version="1"))  # type: ignore[arg-type]  # one of two words
    (said,) = [point.why for point in score_entry(entry, "b").points if point.criterion == "package"]
    assert said.startswith(why)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("git push -f", Match.YES),
        ("git push -v", Match.NO),
        ("git push -vf", Match.YES),
        ("git push", Match.NO),
        ("git push --force", Match.YES),
    ],
)
def test_a_forbidden_option_is_found_by_its_letter_and_by_no_other(line: str, match: Match) -> None:
    """`--force` is forbidden as `-f` too, and other letters stay allowed."""
    assert CommandPattern.parse("git push --force").concerns(tuple(line.split())) is match


def test_the_probability_of_a_certain_step_is_the_smallest_that_shuffling_can_show() -> None:
    """No probability is below one in the number of shuffles and the history itself, however certain the
    step.
    """
    (step,) = find_steps([[0.0]] * 12 + [[1.0]] * 12)
    assert (step.at, step.p) == (12, pytest.approx(1 / 1000))


def test_a_run_is_interrupted_until_somebody_resumes_it() -> None:
    """A new run is not interrupted, an interrupted one is, and after it was resumed it is not any more."""
    state, seen = RunState(), []
    for event in (None, RunInterrupted(), RunResumed()):
        if event is not None:
            state.apply(event, 0.0)
        seen.append(state.interrupted)
    assert seen == [False, True, False]


def test_attempts_before_a_failed_checkpoint_count_as_earlier_ones() -> None:
    """A stage that has failed and is tried again in a resumed run has all its attempts once more."""
    state = RunState()
    state.apply(StageFinished(stage="s", task="s", attempt=3, status="failed"), 0.0)
    state.apply(StepRetried(step="s", attempt=4, error_class="transient", reason="busy", wait_s=2.0), 0.0)
    assert (state.conversation("s").earlier, state.conversation("s").waited_s) == (3, 2.0)


def test_tools_that_the_model_asked_for_are_not_counted_as_chosen_for_its_questions() -> None:
    """Only tools chosen for a question note how many questions there were."""
    state = RunState()
    state.apply(ToolsShown(tools=["a"], step="s"), 0.0)
    assert state.questions_shown == {}
    state.apply(ToolsShown(tools=["b"], step="s", messages=2), 0.0)
    assert state.questions_shown == {"s": 2}


def test_a_process_of_another_user_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not say since when a process works, it may be the one that owns the run."""

    def denied(*_: object) -> None:
        raise psutil.AccessDenied(1)

    monkeypatch.setattr(psutil, "Process", denied)
    assert alive_elsewhere(f"{process_name().rpartition(':')[0]}:1")


@pytest.mark.parametrize(("by", "reason"), [("", "stopped on request"), ("Ada", "stopped on request by Ada")])
def test_a_run_that_nobody_works_on_is_ended_in_the_log(tmp_path: Path, by: str, reason: str) -> None:
    """It is CANCELLED with who did it, and ending it again changes nothing."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace=".", model="m", model_kind="scripted"))
    store.append("r", RunInterrupted()).result()
    assert cancel_in_log(store, "r", by) is True
    assert cancel_in_log(store, "r", "somebody else") is True
    finished = [record.event for record in store.records("r") if isinstance(record.event, RunFinished)]
    assert (store.run("r").status, [event.reason for event in finished]) == (RunStatus.CANCELLED, [reason])
    store.close()


def test_a_server_starts_in_the_folder_of_its_table(tmp_path: Path) -> None:
    """`cwd` is where the program starts; without it the program starts in the present folder."""
    env = {"PATH": os.environ["PATH"]}
    for table, folder in (({"cwd": str(tmp_path)}, tmp_path), ({}, Path.cwd())):
        server = read_server("one", {"command": sys.executable, "sandbox": "S0", **table})
        launch, _ = sandboxed_server(server, env, Sandbox())
        assert launch.cwd == str(folder)


def test_nobody_is_waited_for_once_a_server_has_ended() -> None:
    """Also where clients might have come at any time, and when one that was there leaves afterwards."""

    async def body() -> None:
        attendance = AttendingClients(always=True)
        attendance.end()
        await attendance.over()
        attendance.came()
        attendance.left()
        await asyncio.wait_for(attendance.over(), PATIENCE_S)

    asyncio.run(body())


def test_a_number_of_a_table_stays_and_what_is_not_a_number_becomes_null() -> None:
    """A cell that holds no number is not taken for one, and the others are as they were."""
    assert _plain_json([1.5, math.nan, math.inf, "x", None, True]) == [1.5, None, None, "x", None, True]
