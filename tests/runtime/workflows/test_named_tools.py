"""Tools that agents and workflows name: a missing one warns, those of the workflow's own servers are there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from in_process import kestrel
from test_mcp import HOSTILE

from kestrel_lab import Lab, LLMAgent, Plan, Step, UsageError
from kestrel_lab.agents import MakesPlan
from kestrel_lab.core.events.union import BudgetWarned, ModelCalled
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.runtime.workflows.loader import workflow_servers
from kestrel_lab.testing import ScriptedModel


def warnings_of(lab: Lab, plan: MakesPlan | Plan | Path, workspace: Path, model: ScriptedModel) -> list[str]:
    """Carry out a plan; return the warnings about tools."""
    run = lab.run_sync("go", plan=plan, model=model, workspace=workspace)
    assert run.status is RunStatus.COMPLETE, run.reason
    return [
        event.message for event in run.events() if isinstance(event, BudgetWarned) and event.limit == "tools"
    ]


@pytest.mark.parametrize("form", ["agent", "step", "file", "loop", "team"])
def test_an_agent_that_names_a_missing_tool_is_warned_about(
    form: str, session: Lab, workspace: Path, tmp_path: Path
) -> None:
    """The run goes on without the tool, and its log has a warning with the agent, the tool and the nearest
    name, wherever the agent is named.
    """
    names = ["read_file", "raed_file"]
    step = {"id": "a", "goal": "go", "tools": names}
    files = {
        "file": {"kind": "plan", "steps": [step]},
        "loop": {"kind": "loop", "steps": [step], "until": "a == 'done'", "limit": 2},
    }
    model = ScriptedModel(lambda _: "done")
    plan: MakesPlan | Plan | Path
    if form in files:
        plan = tmp_path / "w.yaml"
        plan.write_text(json.dumps(files[form]))
    elif form == "team":
        plan = LLMAgent("lead", team=[LLMAgent("a", tools=names)])
        model = ScriptedModel(
            lambda request: (
                [("delegate", {"agent": "a", "goal": "look"})]
                if len(request.messages) == 2 and request.tools and "delegate" in str(request.tools)
                else "done"
            )
        )
    else:
        plan = LLMAgent("a", tools=names) if form == "agent" else Plan(steps=(Step(**step),))  # type: ignore[arg-type]
    told = warnings_of(session, plan, workspace, model)
    assert len(told) == 1
    assert "without the tool 'raed_file', which does not exist: did you mean 'read_file'" in told[0]


def test_the_other_tools_are_offered(session: Lab, workspace: Path) -> None:
    """The agent has what there is of its tools, and no more."""
    plan = LLMAgent("a", tools=["grep", "nosuch", "read_file"])
    run = session.run_sync("go", plan=plan, model=ScriptedModel(["done"]), workspace=workspace)
    assert [event.tools for event in run.events() if isinstance(event, ModelCalled)] == [2]


def with_server(folder: Path, name: str = "h") -> Path:
    """Write a workflow that calls a tool of a server of its own."""
    server = {"name": name, "command": sys.executable, "args": ["-S", HOSTILE]}
    step = {"id": "said", "tool": f"{name}:echo", "args": {"text": "hello"}}
    (folder / "w.yaml").write_text(
        json.dumps({"kind": "sequential", "mcp_servers": [server], "steps": [step]})
    )
    return folder / "w.yaml"


def test_a_workflow_brings_its_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server under `mcp_servers` is started only after somebody approved it, by the way that the error
    shows; then its tools are called as SERVER:TOOL.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with_server(tmp_path)
    words = ("run", "go", "--plan", "w.yaml", "--model", "none", "--approve", "auto:critical")
    refused = kestrel(tmp_path, *words)
    assert refused.returncode == 2
    assert "kestrel mcp approve h --plan w.yaml" in refused.stderr
    assert "w.yaml" in kestrel(tmp_path, "mcp", "check", "h", "--plan", "w.yaml").stderr + refused.stderr
    approved = kestrel(tmp_path, "mcp", "approve", "h", "--plan", "w.yaml")
    assert approved.returncode == 0, approved.stderr
    done = kestrel(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello" in done.stdout


def test_a_server_of_a_workflow_is_read_with_care(tmp_path: Path) -> None:
    """A name that is missing or taken is refused with its place, and what the file says of its tools does not
    make them less dangerous.
    """
    server = {"name": "h", "command": "x", "danger": "safe", "effect": "pure"}
    flow = {"kind": "plan", "mcp_servers": [server], "steps": [{"id": "a", "goal": "go"}]}
    (tmp_path / "w.yaml").write_text(json.dumps(flow))
    (config,) = workflow_servers(tmp_path / "w.yaml")
    assert (config.trust.danger.name, config.trust.effect) == ("MEDIUM", "opaque")
    for wrong in ([server, server], [{"command": "x"}], [{**server, "comand": "x"}]):
        (tmp_path / "w.yaml").write_text(json.dumps({**flow, "mcp_servers": wrong}))
        with pytest.raises(UsageError, match=r"w\.yaml"):
            workflow_servers(tmp_path / "w.yaml")
