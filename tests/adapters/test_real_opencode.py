"""OpenCode itself, installed from its package registry, as a runner: both ways, with a local server in the
place of its model.
"""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from openai_server import OpenAIServer, Reply

from kestrel_lab import Lab
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    ModelAnswered,
    ToolAnswered,
    ToolCalled,
)

VERSION = "1.18.33"
COMMAND = {"command": "echo hi > made.txt && cat made.txt", "description": "make a file"}

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Answers(OpenAIServer):
    """Asks for a command, then says what came of it; a request without tools is one for a title."""

    def take(self, body: bytes, headers: dict[str, str]) -> Reply:
        """Answer by what the conversation has."""
        super().take(body, headers)
        asked = json.loads(body)
        if not asked.get("tools"):
            return Reply(text="A title")
        last = asked["messages"][-1]
        if last["role"] == "tool":
            return Reply(text=f"It says {str(last['content']).strip()}.", usage=(30, 5))
        return Reply(text="I make it.", calls=(("bash", json.dumps(COMMAND)),), usage=(20, 9))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed program; skipped where it cannot be installed."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which installs OpenCode")
    folder = tmp_path_factory.mktemp("opencode")
    words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"opencode-ai@{VERSION}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(
            f"OpenCode {VERSION} cannot be installed from the package registry: {done.stderr.strip()[-300:]}"
        )
    return folder / "node_modules" / ".bin"


@pytest.mark.parametrize("runner", ["opencode", "acp:opencode acp"])
def test_the_real_program_is_a_runner(programs: Path, tmp_path: Path, runner: str) -> None:
    """It asks our server, runs its command in our sandbox, and is shown, asked about and counted like our own
    agent.
    """
    work, home = tmp_path / "work", tmp_path / "user"
    work.mkdir()
    home.mkdir()
    asked: list[ApprovalAsked] = []

    async def approver(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        return ApprovalGiven(call=question.call, granted=True, by="ann", how="click")

    async def ran() -> tuple[Any, list[Any]]:
        env = {
            **os.environ,
            "HOME": str(home),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        }
        async with Lab(home=tmp_path / "home", env=env) as lab:
            run = await lab.start("Make the file", runner=runner, workspace=work, approver=approver).wait()
            return run, list(run.events())

    with Answers([Reply()]) as server:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "local",
            "options": {"baseURL": server.api_base, "apiKey": "k"},
        }
        provider["models"] = {
            "any": {"name": "any", "tool_call": True, "limit": {"context": 32_000, "output": 4_000}}
        }
        settings = {
            "share": "disabled",
            "autoupdate": False,
            "model": "local/any",
            "small_model": "local/any",
        }
        settings |= {"provider": {"local": provider}, "permission": {"bash": "ask"}}
        (work / "opencode.json").write_text(json.dumps(settings))
        run, events = asyncio.run(ran())
    assert run.status == "COMPLETE", run.reason
    assert (run.answer, (work / "made.txt").read_text()) == ("It says hi.", "hi\n")
    (call,) = [event for event in events if isinstance(event, ToolCalled)]
    assert (call.tool, call.args["command"]) == ("bash", COMMAND["command"]) and call.sandbox.startswith("S")
    assert [event.text for event in events if isinstance(event, ToolAnswered)] == ["hi\n"]
    assert [event.text for event in events if isinstance(event, ModelAnswered)] == [
        "I make it.",
        "It says hi.",
    ]
    assert run.usage.tokens_out >= 5 and [question.tool for question in asked] == [
        "bash" if runner.startswith("acp") else "opencode"
    ]
