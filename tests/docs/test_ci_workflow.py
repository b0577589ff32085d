"""The workflow of docs/howto/ci.md, run step by step as a server runs it: read from the page, in fresh
clones, with bash.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
import yaml
from markdown_it import MarkdownIt

from kestrel_lab.core.messages import ModelAnswer
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.gate_needs import perfect_trials, undecided_change
from kestrel_lab.evals.stats.difference import compare_scenarios, judge_alike
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]

ROOT = Path(__file__).parents[2]
SUITE = """\
name: sums
instructions_from: prompt.md
configs: [{name: small, model: openai/gpt-5-mini}]
gates: [{success_rate: {at_least: 0.8}}]
scenarios:
""" + "".join(
    f"  - {{id: s{n}, goal: What is {n} + 1?, checks: [{{answer_equals: '{n + 1}'}}]}}\n" for n in range(20)
)


class Adds:
    """A real model, as far as recordings know."""

    name, kind = "openai/gpt-5-mini", "real"

    async def __call__(self, request, on_delta):
        return ModelAnswer(text=str(int(request.messages[-1].text.split()[2]) + 1))


class Job(NamedTuple):
    """What a job did."""

    codes: dict[str, int]
    """Exit codes of the steps that ran, by name."""
    said: str
    folder: Path
    summary: str


def git(folder: Path, *words: str) -> str:
    """Run git with a fixed identity."""
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "commit.gpgsign=false",
        *words,
    ]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def steps_of_the_page() -> list[Mapping[str, Any]]:
    """Return the steps of the one workflow on the page."""
    page = MarkdownIt().parse((ROOT / "docs" / "howto" / "ci.md").read_text(encoding="utf-8"))
    (text,) = [token.content for token in page if token.type == "fence" and token.info.strip() == "yaml"]
    (job,) = yaml.safe_load(text)["jobs"].values()
    return list(job["steps"])


def run_job(origin: Path, place: Path, ref: str) -> Job:
    """Run the workflow for a commit of `origin` in the new folder `place`.

    The checkout is as deep as the page says. The step that installs the package is replaced by the package of
    this environment, which is in no index; there is no key, so no model could be asked. A step that fails
    ends the job, save for those with `if: always()`, as on the server.
    """
    place.mkdir()
    tools, summary, clone = place / "bin", place / "summary.md", place / "clone"
    tools.mkdir()
    (tools / "kestrel").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kestrel_lab "$@"\n')
    (tools / "kestrel").chmod(0o755)
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KESTREL", "OPENAI", "ANTHROPIC"))
    }
    env |= {
        "PATH": f"{tools}{os.pathsep}{env['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(summary),
        "CI": "true",
    }
    codes: dict[str, int] = {}
    said = ""
    for step in steps_of_the_page():
        if any(codes.values()) and step.get("if") != "always()":
            continue
        if str(step.get("uses", "")).startswith("actions/checkout@"):
            depth = step.get("with", {}).get("fetch-depth", 1)
            # The action fetches branches as origin/NAME and checks a commit out, on no branch.
            git(
                place,
                "clone",
                "-q",
                "--no-checkout",
                *([f"--depth={depth}"] if depth else []),
                f"file://{origin}",
                str(clone),
            )
            git(clone, "checkout", "-q", "--detach", git(origin, "rev-parse", ref).strip())
            git(
                clone,
                "branch",
                "-q",
                "-D",
                *git(clone, "branch", "--format=%(refname:short)", "--list", "[a-z]*").split(),
            )
        if "run" in step and step["name"] != "install":
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=clone,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            codes[step["name"]] = done.returncode
            said += done.stdout + done.stderr
    return Job(codes, " ".join(said.split()), clone, summary.read_text() if summary.exists() else "")


def test_the_numbers_of_the_page() -> None:
    """How many trials a bound takes, and how many scenarios a margin."""
    text = (ROOT / "docs" / "howto" / "ci.md").read_text(encoding="utf-8")
    assert [
        perfect_trials(Gate(metric="success_rate", at_least=bound)) for bound in (0.5, 0.8, 0.9, 0.95)
    ] == [4, 16, 35, 73]
    assert "| 4 | 16 | 35 | 73 |" in text
    for needed, margin in ((72, 0.05), (36, 0.1), (17, 0.2), (11, 0.3)):
        sides = [{f"s{n}": [1.0] for n in range(count)} for count in (needed, needed - 1)]
        found = [compare_scenarios(side, side, weights={}, bounded=True) for side in sides]
        verdicts = [
            one.verdict
            for each in found
            for one in judge_alike([each], better=["higher"], margin=margin, relative=False)
        ]
        assert verdicts == ["stable", "inconclusive"]
        assert f"it takes {needed} that do not" in undecided_change(found[1], margin)
    assert "| 72 | 36 | 17 | 11 |" in text


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository with a suite and its recordings, made as the page says, in one commit."""
    folder = tmp_path / "origin"
    (folder / "evals").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text(".kestrel/\n")
    (folder / "evals" / "sums.yaml").write_text(SUITE)
    change(folder, "Answer with a number.", "Suite and recordings")
    return folder


def change(folder: Path, prompt: str, name: str, *, record: bool = True) -> None:
    """Commit another prompt, with or without recordings of it."""
    (folder / "evals" / "prompt.md").write_text(prompt)
    if record:
        session = Lab(folder / ".kestrel", models={"openai/gpt-5-mini": Adds()}, env={})
        asyncio.run(run_suite(session, load_suite(folder / "evals" / "sums.yaml"), cassette="record"))
        session.close()
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", name)


def test_the_workflow_of_the_page(origin: Path, tmp_path: Path) -> None:
    """The first push and one that changes nothing are green; a pull request with a new prompt is red until it
    is recorded, and then compared.
    """
    first = run_job(origin, tmp_path / "first", "main")
    assert first.codes == {"gate": 0, "summary": 0}, first.said
    assert "HEAD is the first commit" in first.summary
    assert (first.folder / "out" / "report.html").exists()

    (origin / "README.md").write_text("Sums.\n")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "Readme")
    second = run_job(origin, tmp_path / "second", "main")
    assert second.codes == {"gate": 0, "summary": 0}, second.said
    assert "### ➖ No difference" in second.summary

    git(origin, "switch", "-qc", "topic")
    change(origin, "Answer with one number.", "New prompt", record=False)
    git(origin, "switch", "-q", "--detach", "main")
    git(
        origin, "merge", "-q", "--no-ff", "topic", "-m", "Merge topic into main"
    )  # what the server checks out of a pull request
    git(origin, "branch", "-q", "merged")
    git(origin, "switch", "-q", "main")
    forgotten = run_job(origin, tmp_path / "forgotten", "merged")
    assert forgotten.codes == {"gate": 3, "summary": 0}, forgotten.said
    assert "scenario s0, epoch 1: not recorded: message 1 (system) changed" in forgotten.said
    assert "kestrel eval run evals/sums.yaml --cassette record" in forgotten.summary
    assert len(ET.parse(forgotten.folder / "out" / "junit.xml").getroot().findall(".//testcase[error]")) > 20

    git(origin, "switch", "-q", "topic")
    change(origin, "Answer with one number.\n", "Recorded")
    git(origin, "switch", "-q", "main")
    recorded = run_job(origin, tmp_path / "recorded", "topic")
    assert "not recorded" not in recorded.said
    assert recorded.codes == {"gate": 0, "summary": 0}, recorded.said
    assert "### ➖ No difference" in recorded.summary


def test_a_checkout_of_one_commit_would_not_do(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the page's `fetch-depth: 0` the job is red and says how to get the commits: the line is there
    for a reason.
    """
    (origin / "README.md").write_text("Sums.\n")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "Readme")
    steps = [{name: value for name, value in step.items() if name != "with"} for step in steps_of_the_page()]
    monkeypatch.setattr(sys.modules[__name__], "steps_of_the_page", lambda: steps)
    job = run_job(origin, tmp_path / "job", "main")
    assert job.codes == {"gate": 3, "summary": 0}
    assert "fetch-depth: 0" in job.said
