"""The provider of a model is named where the model is: for a run, an agent, a workflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import kestrel
from openai_server import OpenAIServer, Reply

from kestrel_lab import Lab, LLMAgent, Step, UsageError
from kestrel_lab.models.resolve import choose_model
from kestrel_lab.runtime.workflows.loader import load_plan

KEYS = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "OPENROUTER_API_KEY": "k"}


@pytest.mark.parametrize(
    ("provider", "model", "name"),
    [
        ("openai", "gpt-5", "openai/gpt-5"),
        ("openai", "openai/gpt-5", "openai/gpt-5"),
        ("openai", "", "openai/"),
        ("openai", "gpt-5 > gpt-5-mini", "openai/gpt-5 > openai/gpt-5-mini"),
        ("ollama", "qwen3:8b", "ollama/qwen3:8b"),
        ("openrouter", "anthropic/claude-sonnet-4", "openrouter/anthropic/claude-sonnet-4"),
        ("", "gpt-5", "gpt-5"),
    ],
)
def test_a_step_and_an_agent_have_their_provider_in_the_model(provider: str, model: str, name: str) -> None:
    """The plan names the whole model, so the log and a run that goes on have it, too."""
    step = Step(id="a", goal="go", provider=provider, model=model)
    assert (step.model, step.provider) == (name, "")
    assert LLMAgent("a", provider=provider, model=model).step("a", "go").model == name
    assert Step.from_json(step.as_json()) == step


def test_a_provider_alone_is_its_usual_model() -> None:
    """`openai/` is what the provider alone would be; a second provider in the name is refused."""
    assert choose_model("openai/", env=KEYS).name == choose_model(None, env=KEYS, provider="openai").name
    with pytest.raises(UsageError, match=r"the provider is 'openai'.*names 'anthropic'"):
        choose_model("openai/anthropic/claude-sonnet-4", env=KEYS)
    assert "claude" in choose_model("openrouter/anthropic/claude-sonnet-4", env=KEYS).name


WORKFLOW = """\
kind: sequential
provider: openai
steps:
  - {id: plain, goal: "go {{goal}}"}
  - {id: named, goal: go, model: gpt-5}
  - {id: other, goal: go, model: anthropic/claude-sonnet-4}
  - {id: own, goal: go, agent: {provider: anthropic, model: claude-sonnet-4}}
  - {id: played, goal: go, model: "scripted:s.yaml"}
  - {id: read, tool: read_file, args: {path: a}}
  - id: inner
    workflow: {kind: sequential, steps: [{id: deep, goal: go, model: gpt-5}]}
"""


def test_a_workflow_names_the_provider_of_its_agents(tmp_path: Path) -> None:
    """It holds for steps whose model does not say where it is, also in a workflow within; an agent's own goes
    before it.
    """
    (tmp_path / "w.yaml").write_text(WORKFLOW)
    steps = load_plan(tmp_path / "w.yaml", "g").steps
    assert {step.id: step.model for step in steps} == {
        "plain": "openai/",
        "named": "openai/gpt-5",
        "other": "anthropic/claude-sonnet-4",
        "own": "anthropic/claude-sonnet-4",
        "played": "scripted:s.yaml",
        "read": "",
        "inner": "",
    }
    assert "openai/gpt-5" in str(steps[-1].args)


def test_a_run_names_its_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--provider` and `provider=` stand beside the model: the request goes to that provider, and the run has
    the whole name.
    """
    for key in ("MODEL_PROVIDER", "OPENAI_BASE_URL"):
        monkeypatch.delenv(key, raising=False)
    with OpenAIServer([Reply(text="fine")]) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.api_base)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        done = kestrel(tmp_path, "run", "go", "--provider", "openai", "--model", "odd-name")
        assert done.returncode == 0, done.stderr
        assert server.requests()[-1]["model"] == "odd-name"
        with Lab(tmp_path / "home") as lab:
            run = lab.run_sync("go", provider="openai", model="odd-name", workspace=tmp_path)
            again = lab.run_sync("go", provider="openai", workspace=tmp_path)
        assert run.report.model == "openai/odd-name"
        assert again.report.model == choose_model(None, env=KEYS, provider="openai").name


def test_what_does_not_go_with_a_provider_is_refused(session: Lab, workspace: Path) -> None:
    """A model object and a runner bring their own model."""
    from kestrel_lab.testing import ScriptedModel

    with pytest.raises(UsageError, match="provider='openai' is for the name of a model"):
        session.run_sync("go", model=ScriptedModel(["x"]), provider="openai", workspace=workspace)
    with pytest.raises(UsageError, match="leave the provider 'openai' out"):
        session.run_sync("go", runner="codex", provider="openai", workspace=workspace)
    with pytest.raises(UsageError, match="unknown model provider 'opanai'"):
        session.run_sync("go", model="gpt-5", provider="opanai", workspace=workspace)
