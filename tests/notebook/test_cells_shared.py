"""Cells in the shared document of jupyter-collaboration, on a real server; needs the extra `collab` and
jupyter-collaboration.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from lab_server import serve, write_notebook

from kestrel_lab.core.errors import ConflictError
from kestrel_lab.tools.kernel.documents import Document, JupyterServer, Swap, cell_of, shared_document

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]
# Not among the development dependencies: where it is installed every server has shared documents, which the
# other tests are not about.
pytest.importorskip("jupyter_nbmodel_client", reason="the extra collab is not installed")
pytest.importorskip("jupyter_server_ydoc", reason="jupyter-collaboration is not installed")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Document]:
    """The document of a notebook with three cells."""
    root, config = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("config")
    write_notebook(root / "t.ipynb", ["a = 1", "b", "c"])
    with (
        chdir(config),
        serve(root, config) as url,
    ):  # its store of documents lies where the server was started
        made = shared_document(JupyterServer(f"{url}/", "", "t.ipynb"))
        assert made is not None
        yield made


def listed(document: Document) -> list[tuple[str, str]]:
    """Id and source of each cell."""
    return [(cell["id"], cell["source"]) for cell in document.read()]


def test_cells_are_changed_for_everybody_and_back(document: Document) -> None:
    """Edit, insert and delete; the reverse of each restores what was there."""
    before, cells = listed(document), document.read()
    swaps = [
        Swap(cells[1], {**cells[1], "source": "new"}),
        Swap(None, cell_of("# x", "markdown", "m1"), "c0"),
        Swap(cells[2], None, "c1"),
    ]
    for swap in swaps:
        assert document.swap(swap) == ""
    left = listed(document)
    for swap in reversed(swaps):
        document.swap(swap.undone())

    assert left == [("c0", "a = 1"), ("m1", "# x"), ("c1", "new")]
    assert listed(document) == before


def test_a_cell_that_others_changed_is_left_alone(document: Document) -> None:
    """The comparison is with what everybody sees."""
    cell = document.read()[0]
    with pytest.raises(ConflictError, match="was changed since"):
        document.swap(Swap({**cell, "source": "older"}, None))
    assert cell in document.read()


def test_a_server_without_collaboration_has_none(tmp_path: Path) -> None:
    """Nobody answers there."""
    assert shared_document(JupyterServer("http://127.0.0.1:9/", "", "t.ipynb")) is None
