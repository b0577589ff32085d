"""What README and the documentation show works: Python and cells run, files are read, commands are parsed,
links lead somewhere.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import typer
import yaml
from markdown_it import MarkdownIt
from page_models import PageServer

from kestrel_lab import Lab
from kestrel_lab.cli.app import app
from kestrel_lab.evals.reports.gate_needs import gates_out_of_reach
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.workflows.loader import load_plan

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.parent.name not in {"reference", "decisions"}
}
RUN = {"python", "ipython"}
KNOWN = RUN | {"yaml", "toml", "console", "diff"}  # diffs: see test_contributor_pages.py


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    kind: str
    text: str


def blocks_of(name: str) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    tokens = MarkdownIt().parse(PAGES[name].read_text(encoding="utf-8"))
    return [Block(name, token.info.strip(), token.content) for token in tokens if token.type == "fence"]


BLOCKS = [block for name in PAGES for block in blocks_of(name)]
COMMANDS = [
    line.removeprefix("$ ")
    for block in BLOCKS
    if block.kind == "console"
    for line in block.text.splitlines()
    if line.startswith("$ kestrel")
]


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    """No block is left out: each kind has its test below."""
    assert {block.kind for block in BLOCKS} <= KNOWN
    assert {block.kind for block in BLOCKS if block.page == "README.md"} == KNOWN - {"toml", "diff"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the suites of all pages, to be copied."""
    place = tmp_path_factory.mktemp("repository")
    (place / "evals").mkdir()
    for block in BLOCKS:
        if block.kind == "yaml" and "scenarios:" in block.text:
            (place / "evals" / f"{yaml.safe_load(block.text)['name']}.yaml").write_text(block.text)
    (place / "server.log").write_text("stopped\n")
    (place / "a.py").write_text("def f(): ...\n")
    (place / "AGENTS.md").write_text("Write a test first.\n")
    (place / ".gitignore").write_text(".kestrel/\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for words in (
        "init -q -b main",
        "add -A",
        "commit -qm one",
        "switch -qc work",
        "commit -qm two --allow-empty",
    ):
        subprocess.run([*git, *words.split()], cwd=place, check=True)
    return place


@pytest.fixture
def project(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that repository, on a machine where a local server answers for a provider."""
    shutil.copytree(repository, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with PageServer() as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.api_base)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield tmp_path


@pytest.fixture(scope="module")
def shell_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python that has imported what pages need, once for all of them: litellm alone takes seconds."""
    from warm_python import warm_python  # not there where a page for contributors is tried

    with warm_python(tmp_path_factory.mktemp("shell"), "page_shell") as program:
        yield program


@pytest.mark.long
@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.kind in RUN}))
def test_the_code_of_a_page_runs(
    project: Path,
    page: str,
    shell_program: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Python blocks and cells of a page run from top to bottom in one shell without an error."""
    if page.endswith("sharing.md"):
        monkeypatch.setenv("RESULTS_URL", request.getfixturevalue("postgres").database("results"))
    codes = [block.text for block in blocks_of(page) if block.kind in RUN]
    done = subprocess.run(
        [shell_program, "-m", "page_shell"],
        input=json.dumps(codes),
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.count("ran\n")) == (0, len(codes)), done.stderr


@pytest.mark.parametrize(
    "block", [each for each in BLOCKS if each.kind == "toml"], ids=lambda block: block.page
)
def test_settings_are_read(block: Block, project: Path) -> None:
    """A block of settings is a `kestrel.toml` without a mistake, and each line of it counts."""
    (project / "kestrel.toml").write_text(block.text)
    told = tomllib.loads(block.text)
    with Lab(env={"KESTREL_TRUST": "all"}) as lab:
        counted = {setting.key for setting in lab.settings if setting.source == "kestrel.toml"}
        assert set(told) - {"rules", "mcp"} <= counted
        assert len(lab.settings.rules.rules) == len(told.get("rules", []))


@pytest.mark.parametrize(
    "block", [each for each in BLOCKS if each.kind == "yaml"], ids=lambda block: block.page
)
def test_files_are_read(block: Block, project: Path) -> None:
    """A block of YAML is a suite that can pass its own gates, a workflow, a file of routes or one of CI
    without a mistake.
    """
    data = yaml.safe_load(block.text)
    file = project / "evals" / "shown.yaml"
    file.write_text(block.text)
    if "scenarios" in data:
        suite = load_suite(file)
        assert len(suite.scenarios) == len(data["scenarios"])
        assert gates_out_of_reach(suite) == []
    elif "kind" in data:
        assert load_plan(file, "how bees dance").steps
    elif "jobs" in data:
        assert block.page == "docs/howto/ci.md"  # its steps are run in test_ci_workflow.py
    else:
        assert set(data) == {"routes"}


@pytest.fixture(scope="module")
def kestrel() -> click.Command:
    """The command line: making its commands of functions takes a tenth of a second."""
    return typer.main.get_command(app)


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_a_command_is_one(line: str, kestrel: click.Command, project: Path) -> None:
    """Each command that a page shows exists, with these options."""
    words, command = shlex.split(line)[1:], kestrel
    context = click.Context(command, info_name="kestrel")
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_lead_somewhere(name: str) -> None:
    """Each relative link and picture of a page is a file of the repository."""
    inline = [
        child
        for token in MarkdownIt().enable("table").parse(PAGES[name].read_text(encoding="utf-8"))
        for child in token.children or []
    ]
    links = [
        str(child.attrs.get("href", child.attrs.get("src")))
        for child in inline
        if child.type in {"link_open", "image"}
    ]
    gone = [
        link
        for link in links
        if not link.startswith(("http:", "https:", "#"))
        and not (PAGES[name].parent / link.split("#")[0]).exists()
        and "reference/" not in link
    ]
    assert gone == []
