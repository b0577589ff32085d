"""What a server says of its tools counts once a person has approved it: calls that only read or stay closed
send nothing out.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.cli.commands.mcp import CheckedText
from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.lab import Lab
from kestrel_lab.mcp.approvals import Definition
from kestrel_lab.mcp.config import read_server
from kestrel_lab.testing import ScriptedModel

SERVER = str(Path(__file__).with_name("mcp_annotated.py"))
HINTS: dict[str, Any] = {
    "list_directory": {"readOnlyHint": True},
    "read_text_file": {"readOnlyHint": True},
    "remember": {"openWorldHint": False},
    "wipe": {"openWorldHint": False, "destructiveHint": True},
    "send": {"openWorldHint": True},
    "plain": {},
}


@pytest.fixture
def hints(tmp_path: Path) -> Path:
    """The file of what the server says of its tools."""
    file = tmp_path / "server" / "hints.json"
    file.parent.mkdir()
    file.write_text(json.dumps(HINTS))
    return file


@pytest.fixture
def sessions(tmp_path: Path, hints: Path) -> Iterator[Any]:
    """Sessions with that server, with more keys in its table, and nobody to be asked."""
    opened: list[Lab] = []

    def open_session(**more: Any) -> Lab:
        table = {"command": sys.executable, "args": ["-S", SERVER, str(hints)], **more}
        env = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": os.environ["PATH"]}
        servers = {"files": read_server("files", table, "kestrel.toml")}
        opened.append(Lab(tmp_path / f"home{len(opened)}", env=env, mcp=servers, approve="auto"))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


def answered(session: Lab, workspace: Path, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """The end of each call, one a turn: `ok`, or the kind of its error."""
    model = ScriptedModel([*[[(f"files:{name}", args)] for name, args in calls], "done"])
    run = session.run_sync("look around", model=model, tools=["files:*"], workspace=workspace)
    return [
        "ok" if one.error is None else str(one.error["message"])
        for one in run.events()
        if isinstance(one, ToolAnswered)
    ]


def test_a_person_is_shown_what_tools_say_and_the_pin_covers_it(sessions: Any) -> None:
    """Check and approval name the tools that say they only read or stay closed, but not one that says it
    destroys.
    """
    session = sessions()
    shown = repr(CheckedText(asyncio.run(session.mcp.approve("files"))))
    said = {
        line.split()[0].partition(":")[2]: "says it" in line
        for line in shown.splitlines()
        if line.startswith("  files:")
    }

    assert said == {
        "list_directory": True,
        "read_text_file": True,
        "remember": True,
        "wipe": False,
        "send": False,
        "plain": False,
    }
    assert "files:read_text_file  MEDIUM, opaque, says it only reads" in shown
    assert "files:remember  MEDIUM, opaque, says it stays closed" in shown
    fields = {"name": "a", "annotations": {"readOnlyHint": True}}
    assert (
        Definition(name="a", fields=fields).pin
        != Definition(name="a", fields={**fields, "annotations": {"readOnlyHint": False}}).pin
    )


def test_a_read_after_a_read_needs_nobody_and_an_effect_does(sessions: Any, workspace: Path) -> None:
    """After one answer of the server its tools that only read or stay closed go on being called; what may
    reach others is denied.
    """
    session = sessions()
    asyncio.run(session.mcp.approve("files"))
    reads = (
        ("list_directory", {}),
        ("read_text_file", {"path": "b.txt"}),
        ("read_text_file", {"path": "secret 7c1e55d0"}),
        ("remember", {}),
    )
    ends = answered(session, workspace, *reads, ("wipe", {}), ("send", {}), ("plain", {}))

    assert ends[:4] == ["ok"] * 4
    assert all("three things met" in end for end in ends[4:]) and len(ends) == 7


def test_a_server_with_a_network_is_not_told_what_others_hold(sessions: Any, workspace: Path) -> None:
    """A reading call that carries private text of the workspace to it is denied; one without passes, and so
    does what it said itself.
    """
    (workspace / "keys.txt").write_text("the key is 5f1e0c7b9a77\n")
    session = sessions(network=True)
    asyncio.run(session.mcp.approve("files"))
    model = ScriptedModel(
        [
            [("files:list_directory", {})],
            [("read_file", {"path": "keys.txt"})],
            [("files:read_text_file", {"path": "5f1e0c7b9a77"})],
            [("files:read_text_file", {"path": "b.txt"})],
            "done",
        ]
    )
    run = session.run_sync("look around", model=model, tools=["files:*", "read_file"], workspace=workspace)
    ends = [one.error and str(one.error["message"]) for one in run.events() if isinstance(one, ToolAnswered)]

    assert ends[:2] == [None, None] and ends[3] is None
    assert "three things met" in str(ends[2])


@pytest.mark.parametrize("claim", [{}, {"readOnlyHint": True, "openWorldHint": False}])
def test_a_server_whose_annotations_change_is_asked_about_again(
    sessions: Any, hints: Path, workspace: Path, claim: dict[str, bool]
) -> None:
    """A tool that says something else than what was approved, more or less, is not called before it is
    approved as it is now.
    """
    asyncio.run(sessions().mcp.approve("files"))
    hints.write_text(json.dumps({**HINTS, "read_text_file": claim}))
    session = sessions()
    (end,) = answered(session, workspace, ("read_text_file", {"path": "a.txt"}))
    (change,) = asyncio.run(session.mcp.check("files")).changes

    assert "its definition has changed since it was approved" in end
    assert "Hint" in change
    asyncio.run(session.mcp.approve("files"))
    assert answered(session, workspace, ("read_text_file", {"path": "a.txt"})) == ["ok"]


def test_only_an_approved_claim_counts(sessions: Any) -> None:
    """Before approval nothing of the server is offered, whatever it says."""
    assert sessions().mcp.tools() == ()
