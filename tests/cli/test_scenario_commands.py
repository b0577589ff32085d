"""`kestrel scenario from-run`: from a run to a scenario that a suite takes in, by commands alone."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main

SCRIPT = """
rules:
  - when: .
    turns:
      - - {tool: read_file, args: {path: a.txt}}
      - "It says `[bold]hello[/bold]`, and then a very long line follows that no terminal of eighty columns \
can hold without breaking it."
"""

Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in a folder with a script and a workspace; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("hello\n")
    os.utime(tmp_path / "work" / "a.txt", (0, 0))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def test_a_run_becomes_a_scenario_of_a_suite(kestrel: Kestrel, tmp_path: Path) -> None:
    """Run, draft, look, take in, run the suite: each with a command, and what is printed is the file."""
    assert (
        kestrel("run", "What does a.txt say?", "--model", "scripted:script.yaml", "--workspace", "work")[0]
        == 0
    )
    run = next(word for word in kestrel("runs")[1].split() if word.startswith("r") and "-" in word)
    code, out, _ = kestrel("scenario", "from-run", run)
    assert (code, kestrel("scenario", "from-run", run, "--out", "evals/found.yaml")[:2]) == (
        0,
        (0, "evals/found.yaml\n"),
    )
    assert out == (tmp_path / "evals" / "found.yaml").read_text()
    assert 'a.txt: "hello\\n"' in out
    (tmp_path / "evals" / "suite.yaml").write_text(
        'configs: [{name: c, model: "scripted:../script.yaml"}]\nscenarios_from: [found.yaml]\n'
    )
    code, out, _ = kestrel("eval", "run", "evals/suite.yaml")
    assert (code, "100 %" in out) == (0, True)


def test_mistakes_are_told(kestrel: Kestrel, tmp_path: Path) -> None:
    """A run that never was and a file that is there are refused with exit code 2; the file stays."""
    kestrel("run", "What does a.txt say?", "--model", "scripted:script.yaml", "--workspace", "work")
    run = next(word for word in kestrel("runs")[1].split() if word.startswith("r") and "-" in word)
    (tmp_path / "mine.yaml").write_text("mine")
    code, _, err = kestrel("scenario", "from-run", run, "--out", "mine.yaml")
    assert (code, "mine.yaml is there already" in err, (tmp_path / "mine.yaml").read_text()) == (
        2,
        True,
        "mine",
    )
    assert kestrel("scenario", "from-run", "r-none")[0] == 2
