"""Calls that start commands: at which sandbox level, where it is shown, and what is asked when there is
none.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.cli.commands.doctor import run_diagnostics
from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ToolAnswered, ToolCalled
from kestrel_lab.lab import Lab
from kestrel_lab.notebook.cell_interrupt import question_text
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedApprover, ScriptedModel
from kestrel_lab.tools.sandbox import select as choosing
from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.command_lines import bwrap_path
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.select import choose_level
from kestrel_lab.views.run_text import run_text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


def of(run: Run, kind: type) -> list[Any]:
    """Its events of a kind."""
    return [event for event in run.events() if isinstance(event, kind)]


def model(command: str) -> ScriptedModel:
    """Runs one command and is done."""
    return ScriptedModel([[("bash", {"command": command})], "done"])


@pytest.fixture
def bare(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace that nothing can hold a command in: no bubblewrap, and what S1 could not hide lies in
    it.
    """
    (tmp_path / "none").mkdir()
    (workspace / "runtime").mkdir()
    (tmp_path / "none/bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(workspace / "runtime"))
    monkeypatch.setattr(choosing, "_VERDICTS", {})
    bwrap_path.cache_clear()
    yield workspace
    monkeypatch.undo()
    bwrap_path.cache_clear()


def test_the_level_is_recorded_and_shown(session: Lab, workspace: Path) -> None:
    """The event, the row of the call and the question about it say the level that the command ran at."""
    level = choose_level(Sandbox(), workspace).level.name
    approver = ScriptedApprover([True])
    run = asyncio.run(session.run("go", model=model("echo hi"), workspace=workspace, approver=approver))
    (called,), (asked,) = of(run, ToolCalled), approver.asked
    assert (called.sandbox, called.danger, asked.sandbox) == (level, "HIGH", level)
    assert question_text(asked).startswith(f"bash (HIGH, sandbox {level}) asks for approval")
    assert f"sandbox {level}" in run_text(run.report.view())


def test_without_a_sandbox_it_is_critical_and_asked(session: Lab, bare: Path) -> None:
    """Where nothing holds, `auto` does not let it pass; the question says that there is no sandbox, why, and
    what to install.
    """
    with pytest.raises(ApprovalRequired):
        asyncio.run(session.run("go", model=model("echo hi"), workspace=bare, approve="auto"))
    approver = ScriptedApprover([True])
    run = asyncio.run(
        session.run("go", model=model("echo hi"), workspace=bare, approve="auto", approver=approver)
    )
    (asked,) = approver.asked
    assert (asked.danger, asked.sandbox.split(";")[0]) == ("CRITICAL", "S0: no sandbox")
    assert "apt install bubblewrap" in asked.sandbox
    assert "S0: no sandbox" in question_text(asked)
    assert [event.error for event in of(run, ToolAnswered)] == [None]


def test_no_sandbox_that_was_asked_for_is_not_asked_about(tmp_path: Path, bare: Path) -> None:
    """Somebody who sets S0 has decided: the call is as dangerous as before."""
    session = Lab(tmp_path / "home", env={}, sandbox="S0")
    run = asyncio.run(session.run("go", model=model("echo hi"), workspace=bare, approve="auto"))
    assert [(event.sandbox, event.danger) for event in of(run, ToolCalled)] == [("S0", "HIGH")]
    assert of(run, ApprovalAsked) == []
    session.close()


def test_leave_in_a_sandbox_is_no_leave_without_one(
    session: Lab, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was approved while a level held is asked about anew when a later session has none."""
    if probe_level(Level.S1, Sandbox()):
        pytest.skip("no level without bubblewrap")
    with monkeypatch.context() as held:
        held.delenv("JUPYTER_RUNTIME_DIR")
        with pytest.raises(ApprovalRequired) as caught:
            asyncio.run(session.run("go", model=model("echo hi"), workspace=bare))
    run_id = caught.value.run_id
    session.history.decide(run_id, granted=True, by="me", how="command")
    silent = ScriptedApprover([False])
    run = asyncio.run(session.resume(run_id, model=model("echo hi"), approver=silent))
    assert [asked.danger for asked in silent.asked] == ["CRITICAL"]
    assert of(run, ToolCalled) == []


def test_a_level_that_cannot_be_had_is_refused_at_once(tmp_path: Path, bare: Path) -> None:
    """The run does not begin, nothing is in the log, and the message says what to install; without bash it is
    no matter.
    """
    session = Lab(tmp_path / "home", env={}, sandbox="S3")
    with pytest.raises(
        UsageError,
        match=r"sandbox level S3 is not available: bubblewrap is not installed \(apt install bubblewrap",
    ):
        asyncio.run(session.run("go", model=model("true"), workspace=bare))
    assert session.store.runs() == []
    run = asyncio.run(session.run("go", model=ScriptedModel(["done"]), tools=["read_file"], workspace=bare))
    assert run.answer == "done"
    session.close()


@pytest.mark.parametrize("name", [".kestrel", "elsewhere"])
def test_commands_do_not_see_the_log(workspace: Path, name: str) -> None:
    """The log of the session, under whatever name it lies in the workspace, is neither read nor written by a
    command.
    """
    if probe_level(Level.S3, Sandbox()):
        pytest.skip("no bubblewrap")
    session = Lab(workspace / name, env={}, sandbox="S3")
    command = f"ls -A {name}; echo x > {name}/y; rm -rf {name}; echo end"
    run = asyncio.run(session.run("go", model=model(command), workspace=workspace, approve="auto"))
    (answer,) = of(run, ToolAnswered)
    assert isinstance(answer.value, dict)
    assert answer.value["stdout"] == "end\n"
    assert not (workspace / name / "y").exists()
    session.store.flush()
    assert session.store.runs()[0].id == run.id
    session.close()


def test_the_doctor_tells_level_and_canary(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The level that commands here run at, and for each level what its canary says."""
    monkeypatch.chdir(workspace)
    lab = Lab(workspace / "home", env={})
    rows = {finding.what.strip(): finding for finding in run_diagnostics(lab).findings}
    level = choose_level(lab.sandbox, workspace).level
    assert [name for name in rows if name.startswith("barrier")] == [
        "barrier: secrets",
        "barrier: web tools",
        "barrier: paths",
        "barrier: log's disk",
    ]
    assert rows["sandbox (auto)"].found == f"{level.name}: {level.meaning}"
    for one in (Level.S3, Level.S2, Level.S1):
        problem = probe_level(one, Sandbox())
        assert (
            rows[one.name].ok,
            rows[one.name].advice,
            rows[one.name].found.startswith("canary passed (read outside"),
        ) == (
            not problem,
            problem,
            not problem,
        )
    lab.close()
