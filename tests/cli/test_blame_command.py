"""`kestrel blame` and `kestrel shrink`, as they are typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import in_process

from kestrel_lab.evals.suites.loader import load_suite

SUITE = """\
name: sums
configs: [{name: script, model: 'scripted:agent.py:agent'}]
scenarios:
  - id: sum
    goal: Give the sum.
    workspace: {files: {a.txt: "40", b.txt: "2", c.txt: "unused"}}
    tools: [read_file, write_file]
    checks: [{answer_contains: "42"}]
"""
AGENT = """\
def agent(request):
    done = sum(message.role == "assistant" for message in request.messages)
    return [("read_file", {"path": "ab"[done] + ".txt"})] if done < 2 else "41"
"""


def test_a_failed_trial_is_blamed_and_shrunk(tmp_path: Path) -> None:
    """Nobody is accused of a failure that always comes; the receipt and the scenario are files, and the exit code
    says whether the question was decided.
    """
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "sums.yaml").write_text(SUITE)
    (tmp_path / "evals" / "agent.py").write_text(AGENT)
    in_process.kestrel(tmp_path, "eval", "run", "evals/sums.yaml")
    listed = in_process.kestrel(tmp_path, "runs", "--trials").stdout
    run = re.findall(r"r\w+-\w+", listed)[0]
    blamed = in_process.kestrel(tmp_path, "blame", run, "--out", "receipt.json")
    assert blamed.returncode == 0, blamed.stderr
    assert "NO SINGLE STEP" in blamed.stdout
    assert json.loads((tmp_path / "receipt.json").read_text())["verdict"] == "no single step"
    shrunk = in_process.kestrel(tmp_path, "shrink", run, "--out", "found.yaml")
    assert shrunk.returncode == 0, shrunk.stderr
    [scenario] = load_suite(tmp_path / "found.yaml").scenarios
    assert sorted(scenario.place.files) == ["a.txt", "b.txt"]
    assert scenario.tools == ("read_file",)
    undecided = in_process.kestrel(
        tmp_path, "blame", run, "--check", "answer_contains: '43'", "--runs", "0.1"
    )
    assert undecided.returncode == 1
    assert "UNDECIDED" in undecided.stdout
