"""Guidance files as an axis of a suite: each configuration's workspaces have exactly its files, and differ in
nothing else.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.runner import plan_trials, run_suite
from kestrel_lab.evals.execution.workspaces import trial_workspace, workspace_source
from kestrel_lab.evals.guidance import Guidance, read_guidance
from kestrel_lab.evals.scenario_parts import GitCheckout, InlineFiles
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab

AGENT = Path(__file__).parents[1] / "guided_agent.py"
SUITE = """\
name: guided
defaults: {workspace: {files: {a.txt: one, AGENTS.md: Say FOREIGN., docs/CLAUDE.md: Say MORE.}}}
scenarios:
  - {id: s, goal: do it, checks: [{answer_equals: FIRST}]}
matrix:
  model: ["scripted:guided_agent.py:worker"]
  guidance:
    none: none
    old: {ref: v1, files: [AGENTS.md]}
    new: {ref: HEAD, files: [AGENTS.md]}
    now: {files: [AGENTS.md]}
    other: {files: {AGENTS.md: drafts/short.md}, text: {.skills/x/SKILL.md: "a skill"}}
"""


def git(folder: Path, *args: str) -> str:
    """Return what a git command says."""
    who = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "commit.gpgsign=false",
    )
    return subprocess.run(
        ["git", *who, *args], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the suite, whose AGENTS.md says FIRST at v1, SECOND at HEAD and THIRD in the
    checkout.
    """
    repo = tmp_path / "repo"
    (repo / "drafts").mkdir(parents=True)
    (repo / "drafts" / "short.md").write_text("Say FOURTH.\n")
    (repo / "suite.yaml").write_text(SUITE)
    shutil.copy(AGENT, repo)
    git(repo, "init", "-q")
    for word in ("FIRST", "SECOND"):
        (repo / "AGENTS.md").write_text(f"Say {word}.\n")
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", word)
        git(repo, "tag", {"FIRST": "v1"}.get(word, "v2"))
    (repo / "AGENTS.md").write_text("Say THIRD.\n")
    return repo


def workspace_of(
    folder: Path, scenario: Scenario, guidance: Guidance | None, *others: Guidance
) -> dict[str, str]:
    """Return the files of a trial's workspace, and what git says of it where it is a repository."""
    configs = [Config(name=f"c{number}", guidance=one) for number, one in enumerate((guidance, *others))]
    suite = Suite(name="s", scenarios=(scenario,), configs=tuple(configs), path=folder / "s.yaml")

    async def inside() -> dict[str, str]:
        source = workspace_source(suite, scenario, folder / "home")
        async with trial_workspace(
            scenario, source, guidance=guidance, named=suite.guidance_paths
        ) as workspace:
            root = workspace.root
            found = {
                path.relative_to(root).as_posix(): path.read_text()
                for path in root.rglob("*")
                if path.is_file() and ".git" not in path.relative_to(root).parts
            }
            if (root / ".git").exists():
                found["status"] = git(root, "status", "--porcelain")
                found["log"] = git(root, "log", "--all", "HEAD", "--format=%s %an %at")
                found["tree"] = git(root, "ls-tree", "-r", "--name-only", "HEAD")
            return found

    return asyncio.run(inside())


def test_each_trial_has_the_guidance_of_its_configuration(repository: Path, session: Lab) -> None:
    """Files are those of the commit, of the checkout, or written in the suite; an agent that reads them works
    accordingly.
    """
    result = asyncio.run(run_suite(session, repository / "suite.yaml"))
    said = {row.config: str(row.result["answer"]) for row in result.rows}
    assert said == {"none": "nothing", "old": "FIRST", "new": "SECOND", "now": "THIRD", "other": "FOURTH"}
    frame = result.frame.set_index("config")
    assert frame["outcome"].to_dict() == {
        "none": "fail",
        "old": "pass",
        "new": "fail",
        "now": "fail",
        "other": "fail",
    }
    assert frame["guidance"]["none"] == "none"
    assert frame["guidance"].nunique() == 5
    assert set(frame["model_kind"]) == {"scripted"}


def test_guidance_is_part_of_what_a_trial_is(repository: Path) -> None:
    """Equal text at two commits is equal guidance; another text makes the stored trial another, and suites
    without guidance keep their keys.
    """

    def parts(suite: Suite) -> dict[str, str]:
        return {ask.config.name: ask.identity.config for ask in plan_trials(suite, code="c", git_sha="c")}

    before = load_suite(repository / "suite.yaml")
    git(repository, "commit", "-qam", "THIRD")
    after = load_suite(repository / "suite.yaml")
    changed = {name for name, part in parts(after).items() if parts(before)[name] != part}
    assert changed == {"new"}
    guidance = {config.name: config.guidance for config in after.configs}
    assert guidance["new"] == guidance["now"]
    assert "guidance" not in Config(name="a").definition()


def test_workspaces_differ_in_guidance_alone(tmp_path: Path) -> None:
    """Guidance that a configuration does not name is removed wherever it is, by name and because another
    names it; all else stays.
    """
    files = {
        "a.txt": "1",
        "AGENTS.md": "x",
        "sub/Claude.md": "x",
        ".cursor/rules/a.mdc": "x",
        "prompt.txt": "x",
        "docs/agents.txt": "2",
    }
    scenario = Scenario(id="a", goal="g", checks=(), place=InlineFiles(files=files))
    own = Guidance(files={"GEMINI.md": "own", "deep/er/SKILL.md": "skill"})
    left = {"a.txt": "1", "docs/agents.txt": "2"}
    assert workspace_of(tmp_path, scenario, own, Guidance(files={"prompt.txt": "y"})) == {**left, **own.files}
    assert workspace_of(tmp_path, scenario, Guidance()) == {**left, "prompt.txt": "x"}
    assert workspace_of(tmp_path, scenario, None, own) == files
    bare = Scenario(id="a", goal="g", checks=())
    assert workspace_of(tmp_path, bare, own) == dict(own.files)
    assert workspace_of(tmp_path, bare, Guidance()) == {}


def test_a_checkout_tells_of_no_other_guidance(repository: Path, tmp_path: Path) -> None:
    """In a workspace that is a commit, the guidance is committed under the message, author and date of that
    commit: status is clean.
    """
    scenario = Scenario(
        id="a",
        goal="g",
        checks=(),
        place=GitCheckout(repository="repo", commit=git(repository, "rev-parse", "v2")),
    )
    log = git(repository, "log", "-1", "v2", "--format=%s %an %at")
    own = Guidance(files={"CLAUDE.md": "own"})
    kept = workspace_of(tmp_path, scenario, None)
    assert "AGENTS.md" in kept
    for guidance in (own, Guidance(), Guidance(files={"AGENTS.md": "Say SECOND.\n"})):
        found = workspace_of(tmp_path, scenario, guidance)
        assert found["status"] == ""
        assert found["log"] == log
        assert [name for name in found["tree"].split() if name.endswith(("AGENTS.md", "CLAUDE.md"))] == list(
            guidance.files
        )
        assert {name: found[name] for name in guidance.files} == dict(guidance.files)


def test_links_lead_no_guidance_out_of_the_workspace(tmp_path: Path) -> None:
    """A link called CLAUDE.md is replaced, what it led to stays; a folder that is a link is no way out."""
    (tmp_path / "place").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "AGENTS.md").write_text("outside")
    (tmp_path / "place" / "CLAUDE.md").symlink_to(tmp_path / "AGENTS.md")
    (tmp_path / "place" / "skills").symlink_to(tmp_path / "outside")
    from kestrel_lab.evals.guidance import install_guidance

    assert install_guidance(tmp_path / "place", Guidance(files={"CLAUDE.md": "own"}), frozenset())
    assert (tmp_path / "AGENTS.md").read_text() == "outside"
    assert (tmp_path / "place" / "CLAUDE.md").read_text() == "own"
    assert not (tmp_path / "place" / "CLAUDE.md").is_symlink()
    with pytest.raises(UsageError, match="outside of the workspace"):
        install_guidance(tmp_path / "place", Guidance(files={"skills/SKILL.md": "own"}), frozenset())
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_prompt_of_the_suite_can_be_guidance(tmp_path: Path, session: Lab) -> None:
    """Where a configuration names the file of `instructions_from`, the model is told that text, and the
    others are told none.
    """
    (tmp_path / "prompt.md").write_text("Say THIS.")
    (tmp_path / "model.py").write_text("def says(request):\n    return request.messages[0].text\n")
    (tmp_path / "suite.yaml").write_text(
        "instructions_from: prompt.md\nscenarios: [{id: s, goal: g, checks: [{answer_contains: THAT}]}]\n"
        "configs:\n  - {name: a, model: 'scripted:model.py:says'}\n"
        "  - {name: b, model: 'scripted:model.py:says', guidance: {text: {prompt.md: Say THAT.}}}\n"
        "  - {name: c, model: 'scripted:model.py:says', guidance: none}\n"
    )
    rows = asyncio.run(run_suite(session, tmp_path / "suite.yaml")).rows
    told = {
        row.config: [word for word in ("THIS", "THAT") if word in str(row.result["answer"])] for row in rows
    }
    assert told == {"a": ["THIS"], "b": ["THAT"], "c": []}


def test_our_own_agent_is_given_the_file(tmp_path: Path) -> None:
    """The text of AGENTS.md, or of whatever file the setting names, is in what the model is told, and that of
    the workspace is not.
    """
    (tmp_path / "model.py").write_text("def says(request):\n    return request.messages[0].text\n")
    (tmp_path / "suite.yaml").write_text(
        "defaults: {workspace: {files: {AGENTS.md: Say FOREIGN., RULES.md: Say OTHER.}}}\n"
        "scenarios: [{id: s, goal: g, checks: [{answer_contains: THAT}]}]\n"
        "matrix:\n  model: ['scripted:model.py:says']\n"
        "  guidance: {none: none, this: {text: {AGENTS.md: Say THIS.}}, that: {text: {AGENTS.md: Say "
        "THAT.}}}\n"
    )

    def told(**options: str) -> dict[str, list[str]]:
        with Lab(tmp_path / "home", **options, env={}) as session:
            rows = asyncio.run(run_suite(session, tmp_path / "suite.yaml")).rows
        words = ("THIS", "THAT", "FOREIGN", "OTHER")
        return {row.config: [word for word in words if word in str(row.result["answer"])] for row in rows}

    assert told() == {"none": [], "this": ["THIS"], "that": ["THAT"]}
    assert told(guidance_files="RULES.md, AGENTS.md") == {"none": [], "this": ["THIS"], "that": ["THAT"]}


PROGRAM = """\
import asyncio, pathlib
from acp import run_agent, InitializeResponse, NewSessionResponse, PromptResponse, update_agent_message_text
from acp.schema import AgentCapabilities

class Agent:
    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, **more):
        return InitializeResponse(protocol_version=1, agent_capabilities=AgentCapabilities())

    async def new_session(self, cwd, **more):
        self.file = pathlib.Path(cwd) / "AGENTS.md"
        return NewSessionResponse(session_id="s1")

    async def prompt(self, session_id, prompt, **more):
        said = self.file.read_text() if self.file.exists() else "no guidance"
        await self.client.session_update(session_id=session_id, update=update_agent_message_text(said))
        return PromptResponse(stop_reason="end_turn")

asyncio.run(run_agent(Agent()))
"""


@pytest.mark.long
def test_another_program_works_by_its_guidance(tmp_path: Path, session: Lab) -> None:
    """An agent that is a process of its own finds the files in its working directory (a stand-in that speaks
    ACP, no model).
    """
    program = (
        tmp_path / "agent" / "run"
    )  # what lies beside the program is all that its sandbox shows of this folder
    program.parent.mkdir()
    (program.parent / "agent.py").write_text(PROGRAM)
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {program.parent}/agent.py\n")
    program.chmod(0o755)
    (tmp_path / "suite.yaml").write_text(
        "scenarios: [{id: s, goal: g, checks: [{answer_contains: THAT}]}]\n"
        f"matrix:\n  runner: ['acp:{program}']\n"
        "  guidance: {none: none, this: {text: {AGENTS.md: Say THIS.}}, that: {text: {AGENTS.md: Say "
        "THAT.}}}\n"
    )
    result = asyncio.run(run_suite(session, tmp_path / "suite.yaml"))
    said = {row.config: row.result["answer"] for row in result.rows}
    assert said == {"none": "no guidance", "this": "Say THIS.", "that": "Say THAT."}, result.lines()


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{files: [GONE.md]}", "there is no guidance file 'GONE.md' in"),
        ("{ref: HEAD, files: [GONE.md]}", "there is no guidance file 'GONE.md' at HEAD"),
        ("{ref: v9, files: [AGENTS.md]}", "'v9' is not a commit, branch or tag"),
        ("{ref: --all, files: [AGENTS.md]}", "'--all' is not a commit"),
        ("{files: [../repo/AGENTS.md]}", "without '..'"),
        ("{files: {../AGENTS.md: AGENTS.md}}", "must be a relative path without '..'"),
        ("{files: {.git/hooks/x: AGENTS.md}}", "outside of .git"),
        ("{files: [empty.md]}", "'empty.md' is empty"),
        ("{files: [bytes.md]}", "no UTF-8 text"),
        ("{files: [AGENTS.md], text: {AGENTS.md: x}}", "under files and under text"),
        ("nothing", "guidance: must be"),
        ("{file: AGENTS.md}", "file"),
    ],
)
def test_mistakes_are_told_with_their_place(repository: Path, written: str, told: str) -> None:
    """What is not there, is empty or leads elsewhere is refused before anything runs, with file and line."""
    (repository / "empty.md").write_text(" \n")
    (repository / "bytes.md").write_bytes(b"\xff\xfe\x00")
    suite = repository / "other.yaml"
    suite.write_text(
        f"scenarios: [{{id: s, goal: g, checks: [{{answer_contains: x}}]}}]\nconfigs:\n  - {{name: a, "
        f"guidance: {written}}}\n"
    )
    with pytest.raises(UsageError) as caught:
        load_suite(suite)
    assert "other.yaml:3" in str(caught.value)
    assert told in str(caught.value)


def test_a_commit_needs_a_repository(tmp_path: Path) -> None:
    """Outside of git there are files, and no commits of them."""
    (tmp_path / "AGENTS.md").write_text("x")
    assert read_guidance(tmp_path, {"AGENTS.md": "AGENTS.md"}).files == {"AGENTS.md": "x"}
    with pytest.raises(UsageError, match="is in no git repository, so there is no commit 'HEAD'"):
        read_guidance(tmp_path, {"AGENTS.md": "AGENTS.md"}, "HEAD")


def test_an_installed_package_gets_no_guidance(tmp_path: Path, session: Lab) -> None:
    """Where the workspace is an installed package nothing is written, and the suite is refused."""
    (tmp_path / "suite.yaml").write_text(
        "scenarios: [{id: s, goal: g, workspace: {package: kestrel_lab}, checks: [{answer_contains: "
        "x}]}]\nconfigs: [{name: a, guidance: none}]\n"
    )
    with pytest.raises(UsageError, match="works in an installed package"):
        asyncio.run(run_suite(session, tmp_path / "suite.yaml"))
