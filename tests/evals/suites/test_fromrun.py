"""Scenarios from runs: drafts that load, run and pass with the model that made them, and fail with
another.
"""

import asyncio
import os
import subprocess
import time

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.checks.behaviour import TurnsAtMost
from kestrel_lab.checks.files import FileContains
from kestrel_lab.checks.trajectory import ToolsInOrder
from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.evals.scenario_parts import FolderCopy, InlineFiles
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

GOAL = "Count the lines: of a.txt,\nand write them [down] to 'out.txt' # now"
TURNS = [
    [("list_directory", {}), ("read_file", {"path": "a.txt"})],
    [("read_file", {"path": "missing.txt"})],
    [("write_file", {"path": "out.txt", "content": "\n3 lines: *all* of them\nmore"})],
    'There are 3 lines, written to `out.txt`; "quite" sure, 99 % or 7.',
]


@pytest.fixture
def work(tmp_path):
    """A workspace with files from before the run, one of them hidden."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name, text in (("a.txt", "one\n  two: x\n\nthree\n"), (".env", "SECRET=1"), ("deep/b.txt", "")):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, (time.time() - 100,) * 2)
    return folder


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A lab in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    made = Lab(tmp_path / "home", approve="auto", env={})
    yield made
    made.close()


def drafted(lab, run, tmp_path, **options):
    """The scenario of the draft, loaded by a suite that takes the file in."""
    lab.evals.scenario_from(run, **options).write(tmp_path / "found.yaml")
    (tmp_path / "suite.yaml").write_text("scenarios_from: [found.yaml]\n")
    return load_suite(tmp_path / "suite.yaml").scenarios[0]


def test_a_draft_says_what_the_run_did(lab, work, tmp_path):
    """Goal, tools, limits, files as they were before, the answer, and checks that held; hidden files stay
    out.
    """
    run = lab.run_sync(
        GOAL, model=ScriptedModel(TURNS), workspace=work, limits=Limits(cycles=7, cost_usd=None)
    )
    scenario = drafted(lab, run, tmp_path)
    assert (scenario.id, scenario.goal) == ("count-the-lines-of-a-txt-and-write-them", GOAL)
    assert scenario.place == InlineFiles(files={"a.txt": "one\n  two: x\n\nthree\n", "deep/b.txt": ""})
    assert scenario.tools == ("list_directory", "read_file", "write_file")
    assert scenario.limits == {"cycles": 7, "cost_usd": None, "seconds": 300.0, "tokens": None}
    assert scenario.expected == run.answer
    assert scenario.checks == (
        ToolsInOrder(names=("list_directory", "read_file", "write_file")),
        AnswerContains(texts=("3", "out.txt", "quite")),
        FileContains(path="out.txt", text="3 lines: *all* of them"),
    )
    text = (tmp_path / "found.yaml").read_text()
    assert "# EDIT: left out, because they changed after the run began: out.txt" in text
    assert "SECRET" not in text


def test_it_passes_where_the_run_did_and_fails_where_it_did_not(lab, work, tmp_path):
    """The draft runs as a suite: the model that made it passes its checks, one that does nothing fails
    them.
    """
    run = lab.run_sync(GOAL, model=ScriptedModel(TURNS), workspace=work)
    lab.evals.scenario_from(run.id).write(tmp_path / "found.yaml")
    result = lab.eval_sync(
        tmp_path / "found.yaml", configs={"same": ScriptedModel(TURNS), "idle": ScriptedModel(["I cannot."])}
    )
    assert [(row.config, row.result["outcome"]) for row in result.rows] == [
        ("same", "pass"),
        ("idle", "fail"),
    ]
    assert [score["passed"] for score in result.rows[1].result["scores"]] == [False, False, False]


def test_a_large_workspace_is_named(lab, tmp_path):
    """A folder of the repository is named from its top; one outside is left to the reader; neither is written
    out.
    """
    repository, outside = tmp_path / "repo", tmp_path / "outside"
    for folder in (repository / "sub" / "data", outside):
        folder.mkdir(parents=True)
        for number in range(30):
            (folder / f"{number}.txt").write_text("x")
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    inside = lab.run_sync("look", model=ScriptedModel(["seen"]), workspace=repository / "sub" / "data")
    assert drafted(lab, inside, repository / "sub", beside=repository / "sub").place == FolderCopy(
        folder="sub/data"
    )
    other = lab.evals.scenario_from(
        lab.run_sync("look", model=ScriptedModel(["seen"]), workspace=outside), beside=repository
    )
    assert "workspace: {folder" in other.text
    assert drafted(lab, lab.get(other.text.split()[4]), tmp_path, beside=repository).place == InlineFiles()


def test_binary_files_and_gone_folders(lab, work, tmp_path):
    """What is not text is not written out; of a folder that is gone the draft says so and still loads."""
    (work / "a.bin").write_bytes(b"\xff\xfe\x00")
    os.utime(work / "a.bin", (0, 0))
    run = lab.run_sync("look", model=ScriptedModel(["seen"]), workspace=work)
    assert "workspace: {folder: work}" in lab.evals.scenario_from(run).text
    work.rename(tmp_path / "moved")
    assert "the run's workspace is gone" in lab.evals.scenario_from(run).text
    assert drafted(lab, run, tmp_path).place == InlineFiles()


def test_there_is_always_a_check(lab, work, tmp_path):
    """Of an answer without code, quotation or number its beginning is taken; of none at all the turns are."""
    run = lab.run_sync("Why?", model=ScriptedModel(["It rained\nall day"]), workspace=work)
    assert drafted(lab, run, tmp_path).checks == (AnswerContains(texts=("It rained",)),)
    silent = lab.run_sync("¿?", model=ScriptedModel([""]), workspace=work)
    (tmp_path / "found.yaml").unlink()
    scenario = drafted(lab, silent, tmp_path)
    assert (scenario.id, scenario.tools, scenario.expected) == ("from-run", (), None)
    assert scenario.checks == (TurnsAtMost(n=max(1, int(silent.usage.model_calls))),)


def test_edited_files_are_not_written_over(lab, work, tmp_path):
    """A file that is there stays as it is."""
    run = lab.run_sync("Why?", model=ScriptedModel(["x"]), workspace=work)
    target = tmp_path / "mine.yaml"
    target.write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.yaml is there already"):
        lab.evals.scenario_from(run).write(target)
    assert target.read_text() == "mine"


def test_only_runs_that_ended(lab, work):
    """A run that waits for somebody is refused, and so is one that never was."""
    with pytest.raises(ApprovalRequired) as waits:
        asyncio.run(lab.run("go", model=ScriptedModel(TURNS), workspace=work, approve="ask"))
    with pytest.raises(UsageError, match="a scenario is made from a run that has ended"):
        lab.evals.scenario_from(waits.value.run_id)
    with pytest.raises(UsageError):
        lab.evals.scenario_from("r-none")
