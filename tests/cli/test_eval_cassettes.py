"""`kestrel eval run --cassette …` and the choice of scenarios."""

import asyncio
import csv
import subprocess
import sys
from pathlib import Path

import in_process
import pytest
from waits import PATIENCE_S

from kestrel_lab.core.messages import ModelAnswer
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suites.json_schemas import schema_text
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab

SUITE = """\
name: demo
configs: [{name: one, model: openai/any}]
gates: [{success_rate: {at_least: 0.1}}]
scenarios:
  - {id: a, goal: talk, family: near, checks: [{answer_contains: hello}]}
  - {id: b, goal: talk, tags: [quick], checks: [{answer_contains: hello}]}
"""


class Hello:
    """Passes for a real model."""

    name, kind = "openai/any", "real"

    async def __call__(self, request, on_delta):
        return ModelAnswer(text="hello")


@pytest.fixture
def folder(tmp_path):
    """A suite and its recordings."""
    (tmp_path / "demo.yaml").write_text(SUITE)
    lab = Lab(tmp_path / "recording", models={"openai/any": Hello()}, env={})
    asyncio.run(
        run_suite(lab, load_suite(tmp_path / "demo.yaml"), cassette="record", cassettes=tmp_path / "taped")
    )
    lab.close()
    return tmp_path


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `kestrel eval` in `folder`."""
    return in_process.kestrel(folder, "eval", *words)


def test_a_replay_in_a_terminal(folder):
    """Without a key; what answered is said, and only what is asked for is run."""
    done = kestrel(
        folder,
        "run",
        "demo.yaml",
        "--cassette",
        "replay",
        "--cassettes",
        "taped",
        "--tag",
        "quick",
        "--csv",
        "out.csv",
    )
    assert (done.returncode, done.stderr.count("error")) == (0, 0)
    assert "one (replay)" in done.stdout
    assert (
        "Replayed from recordings: one (replay). Tokens and cost are those of the recording, times "
        "those of the replay." in done.stdout
    )
    with (folder / "out.csv").open(newline="") as file:
        assert [row["scenario"] for row in csv.DictReader(file)] == ["b"]


def test_a_gate_on_a_replay(folder):
    """Decided like any other; a prompt that changed leaves it undecided (3)."""
    assert (
        kestrel(folder, "gate", "demo.yaml", "--cassette", "replay", "--cassettes", "taped").returncode == 0
    )
    (folder / "demo.yaml").write_text(SUITE.replace("talk", "speak"))
    done = kestrel(
        folder, "gate", "demo.yaml", "--cassette", "replay", "--cassettes", "taped", "--markdown", "m.md"
    )
    assert done.returncode == 3
    assert "message 2 (user) changed" in (folder / "m.md").read_text()


def test_a_schema_is_json_as_it_is_printed(tmp_path):
    """Long lines are not broken at some width, so that the output can go to a file."""
    command = [sys.executable, "-m", "kestrel_lab", "schema", "suite"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == schema_text("suite")
