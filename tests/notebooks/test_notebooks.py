"""Claims about the notebooks that are shipped."""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kestrel_lab.evals.notebooks.run import run_notebook_sync

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 300_000
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)[^)]*\)")


def cells_of(path: Path, kind: str) -> list[dict[str, Any]]:
    """The cells of a kind as they are stored, each with its source as one text."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == kind]


def test_notebooks_are_in_reading_order() -> None:
    """They are numbered without a gap, and each names the one after it as the next; the last one names a page
    to go on with.
    """
    assert len(NOTEBOOKS) > 10
    assert [int(path.name[:2]) for path in NOTEBOOKS] == list(range(1, len(NOTEBOOKS) + 1))
    following = [
        LINK.findall(cells_of(path, "markdown")[-1]["source"].partition("**Next:**")[2])[0]
        for path in NOTEBOOKS
    ]
    assert following[:-1] == [path.name for path in NOTEBOOKS[1:]]
    assert following[-1].startswith("../docs/")


def test_the_site_lists_them() -> None:
    """The page of notebooks names each with its heading and what the reader will be able to do."""
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        opening = cells_of(path, "markdown")[0]["source"]
        heading, able = re.match(
            r"# (.*)\n\nAfter this notebook you will be able to (.*)\.\n", opening
        ).groups()  # type: ignore[union-attr]
        assert re.search(
            rf"\| \[{re.escape(heading)}\]\(\S+/notebooks/{path.name}\) \| {re.escape(able)} \|", page
        ), path.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_it_is_for_and_where_to_go_on(path: Path) -> None:
    """It opens with a heading and what the reader will be able to do; its last cell leads on; its links lead
    to files.
    """
    everything = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first, last = ("".join(everything[number]["source"]) for number in (0, -1))
    assert re.match(r"# \S.*\n\nAfter this notebook you will be able to ", first)
    assert last.startswith("**Next:** ")
    links = [
        link
        for cell in cells_of(path, "markdown")
        for link in LINK.findall(cell["source"])
        if not link.startswith("http")
    ]
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(700)  # a model on this machine shares it with other tests
@pytest.mark.parametrize(
    "path",
    [NOTEBOOKS[0], *(pytest.param(path, marks=pytest.mark.long) for path in NOTEBOOKS[1:])],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_headless(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every notebook runs to its end with nobody there and leaves output that needs no kernel."""
    monkeypatch.setenv("KESTREL_HOME", str(tmp_path / "home"))
    result = run_notebook_sync(path, tmp_path / path.name, cwd=path.parent, timeout=600)
    assert result.ok, result.headline
    done = nbformat.read(tmp_path / path.name, as_version=4)
    assert "widgets" not in done.metadata
    assert [
        cell.source for cell in done.cells if cell.cell_type == "code" and cell.execution_count is None
    ] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_executed(path: Path) -> None:
    """Whoever opens a notebook without running it sees its outputs, no error that is not meant, and no path
    of the machine it ran on.
    """
    text = path.read_text(encoding="utf-8")
    cells = cells_of(path, "code")
    assert len(text.encode()) < MOST_BYTES
    assert all(cell["execution_count"] for cell in cells)
    failed = [cell for cell in cells if any(output["output_type"] == "error" for output in cell["outputs"])]
    assert all("raises-exception" in cell["metadata"].get("tags", []) for cell in failed)
    assert any(cell["outputs"] for cell in cells)
    assert str(ROOT) not in text
    assert sys.prefix not in text
    outputs = json.dumps([cell["outputs"] for cell in cells])
    places = (tempfile.gettempdir(), str(Path.home()), "/tmp", "/root", "/home")
    assert [place for place in places if f"{place}/" in outputs] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_seen_without_a_kernel(path: Path) -> None:
    """Everything that is shown has a form that GitHub and nbviewer draw: no widget, no script, and text
    beside HTML and images.
    """
    for cell in cells_of(path, "code"):
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": ""})
            assert not any("widget" in media or "javascript" in media for media in data)
            assert "text/plain" in data or set(data) <= {"image/png"}
            assert "<script" not in "".join(data.get("text/html", ""))
