"""Claims about the notebooks that are shipped."""

import json
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest

from kestrel_lab.evals.notebooks.run import run_notebook_sync

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    """The parametrised tests below have something to test."""
    assert [path.name for path in NOTEBOOKS] == [
        "01_first_run.ipynb",
        "02_measure_a_suite.ipynb",
        "03_plans_and_workflows.ipynb",
        "04_approvals_and_policies.ipynb",
        "05_a_tool_of_your_own.ipynb",
        "06_compare_models.ipynb",
        "07_from_a_run_to_a_scenario.ipynb",
        "08_compare_commits.ipynb",
        "09_a_ci_report.ipynb",
        "10_answers_you_can_trust.ipynb",
    ]


@pytest.mark.slow
@pytest.mark.timeout(700)  # a model on this machine shares it with other tests
@pytest.mark.parametrize(
    "path", [NOTEBOOKS[0], *(pytest.param(path, marks=pytest.mark.long) for path in NOTEBOOKS[1:])], ids=lambda path: path.stem
)
def test_a_notebook_runs_headless(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every notebook runs to its end with nobody there and leaves output that needs no kernel."""
    monkeypatch.setenv("KESTREL_HOME", str(tmp_path / "home"))
    result = run_notebook_sync(path, tmp_path / path.name, cwd=ROOT, timeout=600)
    assert result.ok, result.headline
    done = nbformat.read(tmp_path / path.name, as_version=4)
    assert "widgets" not in done.metadata
    assert [cell.source for cell in done.cells if cell.cell_type == "code" and cell.execution_count is None] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_executed(path: Path) -> None:
    """Whoever opens a notebook without running it sees its outputs, and no path of the machine it ran on."""
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    failed = [cell for cell in cells if any(output["output_type"] == "error" for output in cell["outputs"])]
    assert all("raises-exception" in cell["metadata"].get("tags", []) for cell in failed)
    assert any(cell["outputs"] for cell in cells)
    assert str(ROOT) not in text
    assert sys.prefix not in text
    outputs = json.dumps([cell["outputs"] for cell in cells])
    assert [place for place in (tempfile.gettempdir(), str(Path.home())) if f"{place}/" in outputs] == []
