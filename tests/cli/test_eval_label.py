"""`kestrel eval label` and `kestrel eval judge` in a terminal."""

import asyncio
import io
import subprocess
from pathlib import Path

import in_process
import pytest
from rich.console import Console

from kestrel_lab.cli.label_keys import label_by_keys
from kestrel_lab.lab import Lab

SUITE = """\
name: work
grader: "scripted:judge.yaml"
configs: [{name: secret_config, model: "scripted:script.yaml"}]
scenarios:
"""
SCRIPT = """\
rules:
  - {when: ., turns: [[{tool: read_file, args: {path: a.txt}}], hello there]}
"""
JUDGE = """\
rules:
  - {when: ., turns: ['{"score": 0.8, "why": "so"}']}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite of five scenarios that was run."""
    place = tmp_path_factory.mktemp("suite")
    ask = (
        "  - {{id: s{0}, goal: talk {0}, tools: [read_file], workspace: {{files: {{a.txt: hi}}}}, checks: [{{answer_contains: hello}}, {{graded: \
{{rubric: It greets.}}}}]}}\n"
    )
    (place / "suite.yaml").write_text(SUITE + "".join(ask.format(n) for n in range(5)))
    (place / "script.yaml").write_text(SCRIPT)
    (place / "judge.yaml").write_text(JUDGE)
    lab = Lab(home=place / ".kestrel", env={})
    try:
        asyncio.run(lab.eval(place / "suite.yaml"))
    finally:
        lab.close()
    return place


@pytest.fixture
def lab(folder: Path):
    """Its lab."""
    made = Lab(home=folder / ".kestrel", env={})
    yield made
    made.close()


def typed(labelling, keys: str, *lines: str) -> str:
    """What a terminal shows of these keys; `lines` are typed where a line is asked for."""
    console, left, answers = Console(record=True, width=100, file=io.StringIO()), list(keys), [*lines]
    label_by_keys(console, labelling, lambda: left.pop(0) if left else "", lambda _: answers.pop(0))
    return console.export_text()


def test_keys_label_undo_note_and_skip(lab: Lab, folder: Path) -> None:
    """A session of keys: what is stored is what was meant, calls are folded until asked for, and no word of
    the configuration or the outcome is on the screen.
    """
    labelling = lab.evals.label(folder / "suite.yaml", who="ada", number=5)
    shown = typed(labelling, "x1utn0s1q", "not by name")
    labels = lab.evals.labels("work").labels
    assert [(one.said.value, one.said.note) for one in labels] == [(0, "not by name"), (None, ""), (1, "")]
    assert "secret_config" not in shown
    assert "pass" not in shown
    assert "▸ read_file" in shown
    assert "▾ read_file" in shown
    assert "everything is stored" in shown
    again = typed(lab.evals.label(folder / "suite.yaml", who="ada", number=5), "q")
    assert "4 of " in again


def test_a_new_rubric_marks_the_labels_before(lab: Lab, folder: Path) -> None:
    """`r` begins a version; the report counts what is left behind."""
    labelling = lab.evals.label(folder / "suite.yaml", who="bob", number=5)
    shown = typed(labelling, "1r1q", "It says hello to the person.")
    assert "labelled by an earlier rubric" in shown
    assert "by earlier versions of the rubric" in repr(lab.evals.labels("work"))


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as a person types it."""
    return in_process.kestrel(folder, "eval", *words)


def test_the_commands_from_label_to_judge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels by piped keys, CSV out and in, a judge asked and measured, and the errors that name what to do."""
    monkeypatch.setenv("KESTREL_HOME", str(folder / ".kestrel"))
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n0\n1\n1\n0\n1\n"))
    done = kestrel(
        folder,
        "label",
        "suite.yaml",
        "--who",
        "cyd",
        "-n",
        "5",
        "--rubric",
        "It greets.",
    )
    assert done.returncode == 0, done.stderr
    assert "Cohen" in done.stdout or "labelled by" in done.stdout
    assert kestrel(folder, "label", "work", "--csv", "out.csv").returncode == 0
    assert "0 labels read" in kestrel(folder, "label", "suite.yaml", "--read", "out.csv").stdout
    # The verdicts of the graded check are those of the same judge by the same rubric.
    graded = kestrel(folder, "judge", "suite.yaml").stdout
    assert "1 judge measured by 5 labels" in graded
    judged = kestrel(folder, "judge", "suite.yaml", "--model", "scripted:judge.yaml", "--rounds", "2")
    assert judged.returncode == 0, judged.stderr
    assert "sensitivity" in judged.stdout
    assert "5 verdicts asked for, 5 in the log" in judged.stdout
    gone = kestrel(folder, "label", "work.yaml")
    assert gone.returncode != 0
    assert "the log has labels of work (" in gone.stderr
