"""`kestrel orchestrate` and `kestrel run --resume` for sessions in stages."""

from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import home_of

from kestrel_lab import Lab
from kestrel_lab.cli.main import main

RULES = """
rules:
  - when: ^Make a plan
    turns:
      - '{"steps": [{"id": "look", "goal": "Look around."}], "acceptance_criteria": ["it says something"]}'
  - when: ^Look around
    turns: [There is nothing.]
  - when: ^Judge
    turns: ['{"criteria": [{"criterion": 1, "met": MET, "why": "see above", "evidence": []}], "confidence": \
1}']
  - when: ^Put an answer
    turns: [Still nothing.]
  - when: ^A run has
    turns: ['{"notes": []}']
"""

Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in a folder with two scripts; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    for name, met in (("good", "true"), ("bad", "false")):
        (tmp_path / f"{name}.yaml").write_text(RULES.replace("MET", met))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def newest(folder: Path) -> str:
    """The id of the newest run."""
    lab = Lab(home=home_of(folder))
    try:
        return lab.store.runs(limit=1)[0].id
    finally:
        lab.close()


def test_orchestrate_is_run_with_the_plan_standard(kestrel: Kestrel, tmp_path: Path) -> None:
    """Both words do the same; the run shows its stages."""
    code, out, _ = kestrel("orchestrate", "What", "is", "here?", "--model", "scripted:good.yaml")
    assert (code, "There is nothing." in out) == (0, True)
    code, out, _ = kestrel("show", newest(tmp_path))
    assert "goal: What is here?" in out
    stages = [line for line in out.splitlines() if line.startswith("stage ")]
    assert stages == [
        "stage bootstrap: done",
        "stage gather: done",
        "stage plan: done",
        "stage execute: done",
        "stage verify: done",
        "stage commit: done",
    ]
    code, out, _ = kestrel("run", "What is here?", "--plan", "standard", "--model", "scripted:good.yaml")
    assert (code, "There is nothing." in out) == (0, True)


def test_a_failed_session_is_resumed_in_a_new_run(kestrel: Kestrel, tmp_path: Path) -> None:
    """A failed session ends with exit code 1 and its criterion; resumed with another model it says where it
    goes on, and completes.
    """
    code, out, _ = kestrel(
        "orchestrate", "What is here?", "--model", "scripted:bad.yaml", "--rounds", "0", "--steps", "3"
    )
    assert (code, "not met: it says something: see above" in out) == (1, True)
    failed = newest(tmp_path)
    code, out, _ = kestrel("run", "--resume", failed, "--model", "scripted:good.yaml")
    assert (code, "COMPLETE" in out) == (0, True)
    assert f"goes on with {failed}, which had ended, behind its last completed stage 'execute'" in out
    assert (newest(tmp_path) == failed, newest(tmp_path) in out) == (False, True)


def test_a_resumed_run_follows_its_own_plan(kestrel: Kestrel) -> None:
    """A plan or an input beside --resume is refused."""
    code, _, err = kestrel("run", "--resume", "r1", "--plan", "standard", "--input", "a=b")
    assert (code, "a run that is resumed keeps its plan, inputs: leave --plan, --input out" in err) == (
        2,
        True,
    )
