"""What the pages show ends as they say: each suite and workflow is run to green, each command line as shown.

A local server with scripted models (`page_models.py`) stands for the provider: no real model answers here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pandas as pd
import pytest
import yaml
from in_process import kestrel
from test_pages import BLOCKS, PAGES, Block, project, repository

from kestrel_lab import Lab
from kestrel_lab.evals.execution.prepare import checks_out_of_reach, prepare_suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.workflows.loader import plan_for

__all__ = ["project", "repository"]  # fixtures

SUITES = [block for block in BLOCKS if block.kind == "yaml" and "scenarios:" in block.text]
WORKFLOWS = [
    block
    for block in BLOCKS
    if block.kind == "yaml"
    and re.search(r"^kind: ", block.text, re.MULTILINE)
    and "mcp_servers:" not in block.text  # needs a server of one's own: tests/runtime/workflows
]
OTHER_PROGRAMS: Final = {"docs/howto/runners.md": "ours"}
"""Pages whose suite also has agents that are other programs, and the configuration that is not."""


def page_of(block: Block) -> str:
    """Name a block by its page."""
    return block.page


@pytest.mark.parametrize("block", SUITES, ids=page_of)
def test_no_check_of_a_page_is_out_of_reach(block: Block, project: Path) -> None:
    """Each check of a suite on a page takes only tools that the agent is offered there."""
    file = project / "evals" / "shown.yaml"
    file.write_text(block.text)
    suite = load_suite(file)
    if name := OTHER_PROGRAMS.get(block.page):
        kept = tuple(config for config in suite.configs if config.name == name)
        suite = suite.model_copy(update={"configs": kept})
    with Lab() as lab:
        assert checks_out_of_reach(prepare_suite(lab, suite)) == []


@pytest.mark.slow
@pytest.mark.parametrize("block", SUITES, ids=page_of)
def test_a_suite_of_a_page_runs_to_green(block: Block, project: Path) -> None:
    """A suite that a page shows is run as it stands: every trial of a good agent passes, and its gates hold."""
    (project / "evals" / "shown.yaml").write_text(block.text)
    words = ["eval", "run", "evals/shown.yaml", "--csv", "trials.csv"]
    if name := OTHER_PROGRAMS.get(block.page):
        words += ["--config", name]
    done = kestrel(project, *words)
    assert done.returncode == 0, done.stderr
    trials = pd.read_csv(project / "trials.csv")
    assert trials["outcome"].eq("pass").all(), done.stdout
    if "gates" in yaml.safe_load(block.text):
        assert kestrel(project, "eval", "gate", "evals/shown.yaml").returncode == 0


@pytest.mark.parametrize("block", WORKFLOWS, ids=page_of)
def test_a_workflow_of_a_page_runs_to_its_answer(block: Block, project: Path) -> None:
    """A workflow that a page shows is carried out as it stands, and has an answer."""
    (project / "shown.yaml").write_text(block.text)
    assert plan_for(project / "shown.yaml", "how bees dance") is not None
    done = kestrel(project, "run", "how bees dance", "--plan", "shown.yaml")
    assert done.returncode == 0, done.stderr
    assert "COMPLETE" in kestrel(project, "show").stdout


Prepare = Callable[[Path], None]


def write_workflow(folder: Path) -> None:
    """Put the workflow of the page where its commands look for it."""
    block = next(one for one in WORKFLOWS if one.page == "docs/howto/plans.md")
    (folder / "review.yaml").write_text(block.text)


def run_inbox(folder: Path) -> None:
    """Run the suite whose trials the page looks through."""
    block = next(one for one in SUITES if one.page == "docs/howto/scanners.md")
    (folder / "evals" / "inbox.yaml").write_text(block.text)
    assert kestrel(folder, "eval", "run", "evals/inbox.yaml").returncode == 0


def write_results(folder: Path) -> None:
    """Write a file of results as the page describes a line of it."""
    page = PAGES["docs/howto/router.md"].read_text(encoding="utf-8")
    found = re.search(r'`(\{"prompt".*?\}\})`', page)
    assert found is not None
    shown = json.loads(found[1])
    lines = []
    for number in range(60):
        scores = {name: (number + place) % 2 for place, name in enumerate(shown["scores"])}
        lines.append(json.dumps({**shown, "prompt": f"task {number} of {number * 7}", "scores": scores}))
    (folder / "results.jsonl").write_text("\n".join(lines))


def write_skill(folder: Path) -> None:
    """Make the skill that the Python code of the page makes."""
    skill = folder / ".agents" / "skills" / "csv-tools"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: csv-tools\ndescription: Summarises CSV files.\n---\nCount.\n")


PREPARED: Final[dict[str, Prepare]] = {
    "docs/howto/plans.md": write_workflow,
    "docs/howto/scanners.md": run_inbox,
    "docs/howto/router.md": write_results,
    "docs/howto/skills.md": write_skill,
}
"""What a page supposes to be there."""
NOT_RUN: Final = {
    "eval view": "serves until somebody stops it: tests/evals/stored",
    "acp": "serves an editor: tests/server",
    "mcp ": "needs a server of one's own: tests/runtime/mcp and tests/runtime/workflows",
    'run "When is noon': "needs a server of one's own: tests/runtime/mcp",
    "eval push": "needs PostgreSQL: tests/evals/shared",
    "eval pull": "needs PostgreSQL: tests/evals/shared",
    "eval site": "after pull: tests/evals/stored",
    "websearch": "needs the network: tests/runtime/operations/test_websearch.py",
    'eval run "bfcl': "needs another package: tests/evals/benchmarks",
    'eval run "agentdojo': "needs another package: tests/evals/benchmarks",
    "eval injection": "needs another package: tests/evals/benchmarks",
    "eval run evals/sums.yaml --batch": "needs a provider's batches: tests/evals/execution/test_batches.py",
    "eval batches": "needs a provider's batches: tests/evals/execution/test_batches.py",
    'run "Why do the tests fail?" --runner': "needs another program: tests/adapters",
    'run "Which open issues': "needs GitHub: tests/tools",
    "import": "needs files of another tool: tests/evals/importers",
    "eval import-suite": "needs files of another tool: tests/evals/importers",
    "eval run evals/prompts.yaml": "needs an imported suite: tests/evals/importers",
    "show RUN --otlp http": "needs a collector: tests/telemetry",
    "notebook run": "runs a notebook of the checkout: tests/notebooks",
    'run "Tidy the README" --control': "talks to a program: tests/server",
    "eval label": "asks a person: tests/evals/labels",
    "eval judge": "needs labels: tests/evals/labels",
    "eval run evals/support.yaml": "needs the reader's own suite: tests/evals/labels",
    "eval scan 3f2a9c81b0de": "names runs of the reader: tests/evals/scanners",
    "align": "names runs of the reader: tests/evals/reports",
    "blame": "needs a run that failed: tests/evals/blame",
    "shrink": "needs a run that failed: tests/evals/blame",
    "router fit evals/smoke.yaml": "needs trials of several models: tests/evals/studies",
    "fork RUN": "names a run of the reader: tests/runtime/test_fork.py",
    "diff RUN": "names a run of the reader: tests/runtime/test_diff.py",
    "apply FORK": "names a run of the reader: tests/runtime/test_fork_files.py",
    "show RUN": "names a run of the reader: tests/telemetry",
    "notebook from-run": "names a run of the reader: tests/evals/stored",
    "notebook recompute": "names a run of the reader: tests/runtime",
    'run "What is the mean': "runs code in a kernel: tests/kernel",
    "eval compare evals/sums.yaml main HEAD --from-divergence": "needs recordings: tests/evals/blame",
    "eval compare evals/sums.yaml main HEAD --budget 360trials --matters": "makes hundreds of trials",
    "eval compare evals/sums.yaml small planned --arms": "makes hundreds of trials",
    "eval run evals/sums.yaml --cluster": "needs a cluster: test_cluster_page.py",
    "eval clusters": "needs trials that failed: tests/evals/reports",
    "eval ablate": "makes hundreds of trials: tests/evals/studies",
}
"""Commands that are not run here, by how they begin, and why; `test_a_command_is_one` reads their options."""


def commands_of(page: str) -> list[str]:
    """Return the commands of a page, in their order."""
    lines = [
        line
        for block in BLOCKS
        if (block.page, block.kind) == (page, "console")
        for line in block.text.splitlines()
    ]
    return [line.removeprefix("$ kestrel ") for line in lines if line.startswith("$ kestrel ")]


def left_out(command: str) -> str:
    """Return why a command is not run here; empty for one that is."""
    return next((reason for begin, reason in NOT_RUN.items() if command.startswith(begin)), "")


RUN_PAGES = sorted(page for page in PAGES if any(not left_out(command) for command in commands_of(page)))


def test_what_is_not_run_is_still_on_a_page() -> None:
    """The list of exceptions has no entry that no page needs any more."""
    commands = [command for page in PAGES for command in commands_of(page)]
    unneeded = [begin for begin in NOT_RUN if not any(command.startswith(begin) for command in commands)]
    assert unneeded == []


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_PAGES)
def test_the_commands_of_a_page_run(page: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a page are typed as they stand, one after the other, and each ends well."""
    for key, value in {"HOME": project / "user", "XDG_STATE_HOME": project / "state"}.items():
        monkeypatch.setenv(key, str(value))
    block = next((one for one in SUITES if one.page == page), None)
    if block is not None:
        (project / "evals" / f"{yaml.safe_load(block.text)['name']}.yaml").write_text(block.text)
    if page in PREPARED:
        PREPARED[page](project)
    for command in commands_of(page):
        if left_out(command):
            continue
        done = kestrel(project, *shlex.split(command))
        assert done.returncode == 0, f"kestrel {command}\n{done.stdout[-500:]}{done.stderr[-500:]}"
