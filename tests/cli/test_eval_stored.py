"""`kestrel eval rescore` and `summary`, made of their real processes: nothing is run again."""

import subprocess
import sys
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main

SUITE = """\
name: demo
epochs: 2
configs: [{name: script, model: "scripted:script.yaml"}]
scenarios:
  - {id: a, family: talk, goal: talk, checks: [{answer_contains: bye}]}
  - {id: b, family: find, tags: [slow], goal: find, tools: [grep], workspace: {files: {a.py: "def one(): pass"}}, checks: [{recall_at: [a.py, b.py]}]}
"""
SCRIPT = """\
rules:
  - {when: talk, turns: [hello]}
  - {when: find, turns: [[{tool: grep, args: {pattern: def}}], found]}
"""


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`."""
    command = [sys.executable, "-m", "kestrel_lab", "eval", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=170, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite that was run once, and whose script is gone since: a model that is asked would fail."""
    place = tmp_path_factory.mktemp("suite")
    (place / "suite.yaml").write_text(SUITE)
    (place / "script.yaml").write_text(SCRIPT)
    done = kestrel(place, "run", "suite.yaml")
    assert done.returncode == 0
    assert "pass@2" in done.stdout
    assert "pass^2" in done.stdout
    (place / "script.yaml").unlink()
    return place


def test_rescore_judges_without_running(folder: Path) -> None:
    """With the check put right the stored answers pass, and the report is of the new scores."""
    (folder / "right.yaml").write_text(SUITE.replace("bye", "hello"))
    done = kestrel(folder, "rescore", "right.yaml", "--report", "out/r.html")
    assert (done.returncode, done.stderr.strip().splitlines()[-1:]) == (0, [])
    assert "4 trials judged again" in done.stdout
    assert "2 outcomes changed" in done.stdout
    assert "a [script] epoch 1: fail → pass" in done.stdout
    assert "✓ answer contains" in (folder / "out" / "r.html").read_text()


def test_summary_is_by_family(folder: Path) -> None:
    """Families with rates and recall@10, a plot, and a file with every metric and its interval."""
    done = kestrel(folder, "summary", "suite.yaml", "--by", "family", "-m", "recall@10", "--plot", "f.png", "--csv", "f.csv")
    assert done.returncode == 0
    assert [line.split()[2:4] for line in done.stdout.split("\n\n")[0].splitlines()[2:]] == [["talk", "2"], ["find", "2"]]
    assert "b.py (first 10)" in done.stdout, "what was wanted and not found stands below"
    assert "50 % (" in done.stdout
    assert (folder / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "recall@10_low" in (folder / "f.csv").read_text().splitlines()[0]


def here(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The same command in this process, which is quicker; exit code, output and errors."""
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(["eval", *words])
    return (int(end.value.code or 0), *capsys.readouterr())


def test_parts_are_chosen_with_the_words_of_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`summary` and `rescore` take --family, --tag and --scenario as `run` does, and leave the other trials alone."""
    _, out, _ = here(folder, monkeypatch, capsys, "summary", "suite.yaml", "--by", "scenario", "--tag", "slow")
    assert [line.split()[2:4] for line in out.split("\n\n")[0].splitlines()[2:]] == [["b", "2"]]
    (folder / "part.yaml").write_text(SUITE.replace("bye", "hello"))
    _, out, _ = here(folder, monkeypatch, capsys, "rescore", "part.yaml", "--family", "talk")
    assert "2 trials judged again" in out
    assert "no such scenario" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("summary", "suite.yaml", "--family", "tlk"), "no family 'tlk'; did you mean 'talk'?"),
        (("compare", "suite.yaml", "a", "b", "--suite", "suite.yaml"), "the suite is named twice"),
        (("compare", "main"), "name the suite file first, or with --suite"),
        (("compare", "suite.yaml", "a", "b", "c"), "two commits are compared, not 3"),
        (("compare", "suite.yaml", "a", "b"), "is not in a git repository"),
        (("compare", "a", "b", "-s", "suite.yaml"), "is not in a git repository"),
    ],
)
def test_wrong_parts_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    """What fits nothing, a suite named twice or not at all, and too many commits; both places of the suite are understood."""
    code, out, told = here(folder, monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    assert message in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("summary", "suite.yaml", "--by", "famly"), "trials are grouped by config, family, scenario, not by 'famly'"),
        (("summary", "suite.yaml", "-m", "recal@10"), "did you mean 'recall@10'?"),
        (("summary", "suite.yaml", "--commit", "abc"), "no trials of suite 'demo' at commit 'abc' are stored"),
        (("rescore", "missing.yaml"), "missing.yaml"),
        (("rescore", "suite.yaml", "--config", "other"), "no configuration 'other'"),
    ],
)
def test_mistakes_are_told(folder: Path, words: tuple[str, ...], message: str) -> None:
    """What is not there is said, and nothing else is printed."""
    done = kestrel(folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
