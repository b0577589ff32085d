"""What worked at commit 8b1bb7c works now: a log that was written then, its recordings, and the code blocks
of its README.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from in_process import kestrel
from openai_server import OpenAIServer, Reply

from kestrel_lab import Lab
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.testing import ScriptedModel

HERE = Path(__file__).parent
WORK = Path("/tmp/kestrel-8b1bb7c/work")
"""Where the runs of the log worked: those that wait go on there."""
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (HERE / "readme.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the log as it was written then, and the folder that its runs worked in."""
    home = tmp_path / ".kestrel"
    home.mkdir(mode=0o700)
    shutil.copy(HERE / "kestrel.db", home / "kestrel.db")
    for name in ("suite.yaml", "script.yaml", "taped.yaml"):
        shutil.copy(HERE / name, tmp_path / name)
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "a.txt").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def lab(home: Path) -> Iterator[Lab]:
    """A lab over that log."""
    with closing(Lab(home, env={}, model=ScriptedModel(["never asked"]))) as opened:
        yield opened


def run_of(lab: Lab, goal: str, *, forked: bool = False) -> Any:
    """The run with this goal."""
    (row,) = [row for row in lab.store.runs() if row.goal == goal and (row.parent is not None) is forked]
    return lab.get(row.id)


def test_each_run_is_read_as_it_was_written(lab: Lab) -> None:
    """Runs, fork, plan and trials are there with their answers; each folds to its state, and its chain is
    whole.
    """
    assert len(lab.store.runs(limit=100)) == 11
    done, fork, planned = (
        run_of(lab, "write a file"),
        run_of(lab, "write a file", forked=True),
        run_of(lab, "sum up the file"),
    )
    assert [(run.status, run.answer) for run in (done, fork, planned)] == [
        (RunStatus.COMPLETE, "written and read"),
        (RunStatus.COMPLETE, "said otherwise"),
        (RunStatus.COMPLETE, "one line"),
    ]
    assert [step.id for step in planned.plan.steps] == ["read", "sum"]
    for run in (done, fork, planned):
        assert fold(run.records()) == run._state
        assert run._repr_html_()
    assert [event.tool for event in done.events() if event.type == "tool_called"] == [
        "write_file",
        "read_file",
    ]


def test_the_commands_show_it(home: Path) -> None:
    """`kestrel runs`, `show` and `eval summary` print what was stored; `eval rescore` judges the stored
    answers again.
    """
    listed = kestrel(home.parent, "runs")
    assert (listed.returncode, "write another" in listed.stdout) == (0, True)
    with closing(Lab(home, env={})) as lab:
        done = run_of(lab, "write a file").id
    shown = kestrel(home.parent, "show", done)
    assert (shown.returncode, "write_file" in shown.stdout, "written and read" in shown.stdout) == (
        0,
        True,
        True,
    )
    summed = kestrel(home.parent, "eval", "summary", "suite.yaml", "--by", "scenario")
    assert (summed.returncode, [word in summed.stdout for word in ("says", "finds", "fails")]) == (
        0,
        [True] * 3,
    ), summed.stderr
    (home.parent / "suite.yaml").write_text((HERE / "suite.yaml").read_text().replace("goodbye", "hello"))
    judged = kestrel(home.parent, "eval", "rescore", "suite.yaml")
    assert (judged.returncode, "2 outcomes changed" in judged.stdout) == (0, True), judged.stderr


def test_a_run_that_waited_goes_on(home: Path) -> None:
    """Its question is decided and it is resumed, by this version, to its end."""
    (WORK / "b.txt").unlink(missing_ok=True)
    script = ScriptedModel([[("write_file", {"path": "b.txt", "content": "two\n"})], "done"])
    with closing(Lab(home, env={})) as lab:
        waiting = run_of(lab, "write another")
        assert (waiting.status, [asked.tool for asked in waiting.questions]) == (
            RunStatus.WAITING_APPROVAL,
            ["write_file"],
        )
        lab.decide(waiting.id, granted=True, by="ann", how="command")
        resumed = asyncio.run(lab.resume(waiting.id, model=script))
        assert (resumed.status, resumed.answer, (WORK / "b.txt").read_text()) == (
            RunStatus.COMPLETE,
            "done",
            "two\n",
        )
        assert fold(resumed.records()) == resumed._state


def test_a_run_of_then_is_forked_now(lab: Lab) -> None:
    """A fork at a place of the old log goes on from there."""
    done = run_of(lab, "write a file")
    place = next(record.seq for record in done.records() if record.event.type == "tool_answered")
    fork = asyncio.run(lab.fork(done.id, at=place, model=ScriptedModel(["played already", "another end"])))
    assert (fork.status, fork.answer) == (RunStatus.COMPLETE, "another end")


def test_notes_are_recalled(lab: Lab) -> None:
    """What was noted is found, with its kind and tags, and can be forgotten."""
    memory = lab.memory.at(WORK)
    (note,) = [note for note in memory.recall("how are the tests run") if "make test" in note.text]
    assert (note.kind, note.tags) == ("procedure", ("tests",))
    memory.forget(note.id)
    assert [note.text for note in memory.recall("how are the tests run")] == []


def test_a_suite_goes_on_where_it_was(lab: Lab) -> None:
    """Stored trials count: a suite that is resumed makes only the epoch that is missing."""
    result = asyncio.run(lab.eval("suite.yaml", epochs=3, resume=True))
    assert len(result.rows) == 9
    assert {row.scenario: row.result["outcome"] for row in result.rows} == {
        "says": "pass",
        "finds": "pass",
        "fails": "fail",
    }
    assert sum(1 for row in lab.store.runs(limit=100)) == 14


def test_a_recording_is_replayed(home: Path) -> None:
    """The cassette of then answers the suite of then, without a key."""
    told = kestrel(
        home.parent, "eval", "run", "taped.yaml", "--cassette", "replay", "--cassettes", str(HERE / "taped")
    )
    assert (told.returncode, "one (replay)" in told.stdout) == (0, True), told.stderr


# The README of then


def block(kind: str, word: str) -> str:
    """The one block of this kind with this word."""
    (found,) = [text for name, text in BLOCKS if name == kind and word in text]
    return found


def test_every_block_is_run_here() -> None:
    """None is left out."""
    assert [kind for kind, _ in BLOCKS] == ["python", "", "python", "toml", "python", "yaml"]


@pytest.fixture
def project(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository with a suite, on a machine where a server answers for OpenAI's."""
    folder = home.parent
    (folder / "evals").mkdir()
    (folder / "evals" / "smoke.yaml").write_text(
        (HERE / "suite.yaml").read_text().replace("scripted:script.yaml", "scripted:../script.yaml")
    )
    (folder / "server.log").write_text("stopped\n")
    (folder / ".gitignore").write_text(".kestrel/\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-qm", "one"],
        ["switch", "-qc", "work"],
        ["commit", "-qm", "two", "--allow-empty"],
    ):
        subprocess.run([*git, *words], cwd=folder, check=True)
    with OpenAIServer([Reply(text="It is up.")] * 9) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.api_base)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield folder


_KERNEL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from kestrel_lab import ApprovalRequired

shell = InteractiveShell.instance()


def cell(code):
    with capture_output():
        result = shell.run_cell(code)
    result.raise_error()


extension, lab, plan, first = json.load(sys.stdin)
cell(extension)
cell(lab)
known = shell.user_ns
told = [known["run"].answer, known["run"].reason, len(known["result"].rows), \
bool(known["comparison"].verdict)]
try:
    cell(plan)
except ApprovalRequired as error:
    told.append(str(error))
cell(first)
told.append(known["run"].answer)
known["lab"].close()
print(json.dumps(told))
"""


def test_the_blocks_in_python_and_the_first_cell(project: Path) -> None:
    """In a kernel of its own a lab with a tool runs, evaluates and compares; a plan is followed up to the
    step that asks; the first cell gives a run.
    """
    blocks = [
        block("python", "load_ext"),
        block("python", "def restart"),
        block("python", "Plan("),
        block("", "%%kestrel"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", _KERNEL],
        input=json.dumps(blocks),
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer, reason, rows, verdict, asks, second = json.loads(done.stdout.splitlines()[-1])
    assert (answer, reason, rows, verdict, second) == ("It is up.", "", 9, True, "It is up.")
    assert "to begin step repair" in asks


def test_the_rules_and_the_workflow(home: Path) -> None:
    """Both files are read as they stand."""
    (home.parent / "kestrel.toml").write_text(block("toml", "rules"))
    told = kestrel(home.parent, "rules", "try", "bash", "git diff HEAD")
    assert (told.returncode, "allow" in told.stdout) == (0, True), told.stderr
    told = kestrel(home.parent, "rules", "try", "bash", "git push --force")
    assert "allow" not in told.stdout.splitlines()[0]
    (home.parent / "review.yaml").write_text(block("yaml", "kind: loop"))
    told = kestrel(home.parent, "plan", "how bees dance", "--plan", "review.yaml")
    assert (told.returncode, "draft" in told.stdout) == (0, True), told.stderr
