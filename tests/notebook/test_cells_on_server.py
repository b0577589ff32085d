"""Cells of a notebook through the contents API of a real Jupyter server, where no page gives access to
them.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from lab_server import serve, write_notebook
from waits import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]
SETUP = """%load_ext kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.notebook import page_document
page_document.HERE_S = .1  # nobody shows the panel
def lab_of(*turns):
    return Lab(model=ScriptedModel([*([turn] for turn in turns), "done"]), approve="auto", rules=[{"tool": \
"run_cell", "verdict": "allow"}])
def said(run): return [event.text for event in run.events() if event.type == "tool_answered"]
items = []
"""
WORK = """lab = lab_of(('read_notebook', {}), ('edit_cell', {'cell': 'c2', 'old': 'one', 'new': 'two'}), \
('run_cell', {'cell': 'c2'}),
             ('delete_cell', {'cell': 'c3'}), ('insert_cell', {'source': '# End', 'cell_type': 'markdown'}))
%kestrel run 'see to it' --as r"""
UNDO = "%kestrel undo answer.2.1"
CELLS = [SETUP, WORK, "items.append('one')\nprint(items)", "gone = 1", UNDO]


class Kernel:
    """A kernel that the server started for a notebook, and its file."""

    def __init__(self, url: str, file: Path, client: BlockingKernelClient) -> None:
        self.url, self.file, self._client = url, file, client

    def run(self, code: str) -> str:
        """What a cell prints or raises."""
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            printed.append(
                content.get("text")
                or content.get("evalue")
                or content.get("data", {}).get("text/plain")
                or ""
            )

        self._client.execute_interactive(
            code,
            allow_stdin=True,
            timeout=200,
            output_hook=hook,
            stdin_hook=lambda _: self._client.input("n"),
        )
        return "".join(printed)

    def cells(self) -> list[dict[str, Any]]:
        """The cells in the file."""
        cells: list[dict[str, Any]] = json.loads(self.file.read_text())["cells"]
        return [{**cell, "source": "".join(cell["source"])} for cell in cells]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A notebook of a server, and somebody who runs its cells without a page that shows them."""
    root, config = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("config")
    write_notebook(root / "t.ipynb", CELLS)
    with serve(root, config) as url:
        body = {"path": "t.ipynb", "name": "t.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        request = urllib.request.Request(
            f"{url}/api/sessions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            ident = json.load(answer)["kernel"]["id"]
        client = BlockingKernelClient(connection_file=str(config / "runtime" / f"kernel-{ident}.json"))
        client.load_connection_file()
        client.hb_channel.time_to_dead = (
            PATIENCE_S  # a kernel that imports on a busy machine misses beats, and is not dead
        )
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE_S)
        yield Kernel(url, root / "t.ipynb", client)
        client.stop_channels()


def test_saved_cells_are_changed_and_undone(kernel: Kernel) -> None:
    """Read, edit, run, delete and insert in the file, with a word about the reload; undo from the first
    change on restores all of it.
    """
    before = kernel.cells()
    kernel.run(SETUP)
    kernel.run(WORK)
    left, told = kernel.cells(), kernel.run("print(said(r)); print(items)")
    undone = kernel.run(UNDO)

    assert [cell["source"] for cell in left] == [
        SETUP,
        WORK,
        "items.append('two')\nprint(items)",
        UNDO,
        "# End",
    ]
    assert left[2]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["['two']\n"]}]
    assert "the editor asks at its next save" in told
    assert told.rstrip().endswith("['two']")
    assert "restored items" in undone
    assert "cell c2" in undone
    assert "could not" not in undone
    assert [(cell["id"], cell["source"]) for cell in kernel.cells()] == [
        (cell["id"], cell["source"]) for cell in before
    ]
    assert kernel.run("print(items)") == "[]\n"


def test_a_notebook_with_unsaved_changes_is_left_alone(kernel: Kernel) -> None:
    """The cell that runs is not in the file: the person typed it after the last save."""
    before = kernel.file.read_text()
    kernel.run("lab = lab_of(('insert_cell', {'source': 'x = 1'}))\n%kestrel run 'insert' --as u")
    told = kernel.run("print(said(u))")

    assert "changes that are not saved" in told
    assert kernel.file.read_text() == before


def test_the_doctor_names_the_way(kernel: Kernel) -> None:
    """`kestrel doctor` says how cells can be reached in this notebook."""
    assert "the contents API of the Jupyter server" in kernel.run("%kestrel doctor")
