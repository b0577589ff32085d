"""MCP servers in a real kernel, whose event loop runs while cells run."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from typist import typist
from waits import until

pytestmark = pytest.mark.timeout(120)

HOSTILE = Path(__file__).parents[1] / "runtime" / "mcp" / "mcp_hostile.py"
SETUP = """import os
os.environ["XDG_CONFIG_HOME"] = {config!r}
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
model = ScriptedModel([[("h:echo", {{"text": "x"}})], "done"])
lab = Lab(model=model, approve="auto", mcp={{"h": {{"command": {python!r}, "args": ["-S", {server!r}, \
{ids!r}], "sandbox": "S0"}}}})"""


def test_cells_await_block_and_leave_nothing_behind(tmp_path: Path) -> None:
    """Awaited, blocking and magic runs share one connection; a kernel that shuts down takes even a stubborn
    server along.
    """
    ids = tmp_path / "ids"
    with typist(tmp_path) as person:
        person.run(
            SETUP.format(
                config=str(tmp_path / "config"),
                python=sys.executable,
                server=str(HOSTILE),
                ids=f"stubborn={ids}",
            )
        )
        answers = [
            person.run("print((await lab.run('go', tools=['h:*'])).answer)"),
            person.run("print(lab.run_sync('go', tools=['h:*']).answer)"),
            person.run("%load_ext kestrel_lab\n%kestrel mcp serve"),
            person.run("print([row.state for row in lab.mcp.table()])"),
        ]
        server = int(ids.read_text().split()[0])
        alive = psutil.pid_exists(server)
    assert answers[:2] == ["done\n", "done\n"]
    assert "serve works only in a terminal" in answers[2]
    assert answers[3] == "['ready']\n"
    assert alive
    until(lambda: not psutil.pid_exists(server))
