"""Documents of notebooks: a change is made where the cell is as expected, is undone by its reverse, and loses
nothing of others.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import ConflictError, ToolError
from kestrel_lab.tools.kernel import documents
from kestrel_lab.tools.kernel.documents import (
    NextInput,
    NotebookFile,
    Saved,
    SavedNotebook,
    Swap,
    cell_of,
    output_text,
    swap_cell,
)

RUNNING = "%kestrel run 'x'"


def notebook(path: Path, *sources: str, minor: int = 5) -> Path:
    """A notebook file of code cells c0, c1 and so on."""
    cells = [cell_of(source, "code", f"c{number}") for number, source in enumerate(sources)]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": minor, "metadata": {}, "cells": cells}))
    return path


def sources(path: Path) -> list[str]:
    """The sources in a notebook file."""
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def shell(code: str = RUNNING, began: datetime | None = None) -> Any:
    """A shell whose kernel runs a cell with this code."""
    request = {
        "content": {"code": code},
        "header": {"date": began or datetime.now(UTC) + timedelta(hours=1)},
        "metadata": {},
    }
    return SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda _: request), user_ns={})


def edit(path: Path, number: int, source: str) -> Swap:
    """The change of a cell's source, as the cell is now."""
    cell = json.loads(path.read_text())["cells"][number]
    return Swap(cell, {**cell, "source": source})


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6), st.data())
def test_a_change_and_its_reverse_leave_everything_as_it_was(texts: list[str], data: st.DataObject) -> None:
    """Insertions, edits and deletions at any place."""
    cells = [cell_of(text, "code", f"c{number}") for number, text in enumerate(texts)]
    place = data.draw(st.integers(0, len(cells) - 1))
    above = cells[place - 1]["id"] if place else ""
    swap = data.draw(
        st.sampled_from(
            [
                Swap(None, cell_of("new", "markdown", "n"), above),
                Swap(cells[place], None, above),
                Swap(cells[place], {**cells[place], "source": "other"}),
            ]
        )
    )
    left = swap_cell(cells, swap)

    assert left != cells or texts[place] == "other"
    assert swap_cell(left, Swap.from_json(json.loads(json.dumps(swap.undone().as_json())))) == cells


def test_what_is_not_as_expected_is_not_changed() -> None:
    """A cell with another source, one that is gone, one that is there already, a place that is gone; by force
    only where there is one.
    """
    cells = [cell_of("a", "code", "c0"), cell_of("b", "code", "c1")]
    other = Swap(cell_of("before", "code", "c0"), cell_of("after", "code", "c0"))
    for swap, why in (
        (other, "was changed since"),
        (Swap(cell_of("a", "code", "c9"), None), "is not there any more"),
        (Swap(None, cell_of("a", "code", "c0")), "there is a cell c0 already"),
        (Swap(None, cell_of("a", "code", "n"), "c9"), "the cell c9 above is not there"),
    ):
        with pytest.raises(ConflictError, match=why):
            swap_cell(cells, swap)

    assert [cell["source"] for cell in swap_cell(cells, other, force=True)] == ["after", "b"]
    with pytest.raises(ConflictError, match="is not there any more"):
        swap_cell(cells, Swap(cell_of("a", "code", "c9"), None), force=True)


def test_a_saved_notebook_is_changed_and_says_how_that_is_seen(tmp_path: Path) -> None:
    """Beside an editor without a server, as VS Code is; the note tells the person about the reload."""
    path = notebook(tmp_path / "t.ipynb", RUNNING, "b")
    saved = SavedNotebook(NotebookFile(path), shell())

    assert "reload" in saved.swap(edit(path, 1, "changed"))
    assert sources(path) == [RUNNING, "changed"]
    assert [cell["id"] for cell in saved.read()] == ["c0", "c1"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_saved_notebook_keeps_its_encoding_and_line_ends(
    tmp_path: Path, encoding: str, last: bool, end: str
) -> None:
    """What another editor wrote stays in its form, also without a line end at the end, and a lone surrogate
    is no reason to fail.
    """
    path = notebook(tmp_path / "t.ipynb", RUNNING, "b")
    text = json.dumps(json.loads(path.read_text()), indent=1).replace("\n", end)
    swap = edit(path, 1, "é \ud800")
    path.write_bytes((text + end * last).encode(encoding))

    SavedNotebook(NotebookFile(path), shell()).swap(swap)
    after = path.read_bytes()
    assert after[:4] == (text + end * last).encode(encoding)[:4]
    changed = after.decode(encoding)
    assert changed.count("\n") == changed.count(end) > 20
    assert changed.endswith("}" + end * last)
    assert json.loads(changed)["cells"][1]["source"] == "é \ud800"


def test_unsaved_changes_of_a_person_are_respected(tmp_path: Path) -> None:
    """The cell that runs is not in the file: it was typed after the last save, so the file is refused until
    it is saved.
    """
    path = notebook(tmp_path / "t.ipynb", "older", "b")
    before = path.read_text()

    with pytest.raises(ConflictError, match=r"not saved.*Ctrl\+S"):
        SavedNotebook(NotebookFile(path), shell()).swap(edit(path, 1, "changed"))
    assert path.read_text() == before
    began = datetime.now(UTC) - timedelta(hours=1)
    SavedNotebook(NotebookFile(path), shell(began=began)).swap(
        edit(path, 1, "changed")
    )  # saved since it began
    assert sources(path)[1] == "changed"


class Hurried(NotebookFile):
    """A file that a person saves between reading and writing."""

    def store(self, notebook: dict[str, Any], version: str) -> None:
        """Somebody was faster."""
        mine = json.loads(self.path.read_text())
        mine["cells"][0]["source"] = "mine"
        self.path.write_text(json.dumps(mine))
        super().store(notebook, version)


def test_mutant_without_compare_and_swap_loses_what_a_person_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save between reading and writing is noticed; the mutant for which all versions are equal overwrites
    it.
    """
    path = notebook(tmp_path / "t.ipynb", RUNNING, "b")
    saved = SavedNotebook(Hurried(path), shell())

    with pytest.raises(ConflictError, match="changed by something else meanwhile"):
        saved.swap(edit(path, 1, "changed"))
    assert sources(path) == ["mine", "b"]

    class Same(str):
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = str.__hash__

    path = notebook(tmp_path / "t.ipynb", RUNNING, "b")
    monkeypatch.setattr(documents, "Saved", lambda nb, version, modified: Saved(nb, Same(version), modified))
    saved.swap(edit(path, 1, "changed"))
    assert sources(path) == [RUNNING, "changed"]


def test_a_notebook_without_ids_says_what_to_do(tmp_path: Path) -> None:
    """Before nbformat 4.5 cells have no ids to go by."""
    path = notebook(tmp_path / "t.ipynb", "a", minor=4)

    with pytest.raises(ToolError, match=r"have no ids.*4\.5"):
        SavedNotebook(NotebookFile(path), shell()).read()


def test_without_a_document_one_cell_is_proposed(tmp_path: Path) -> None:
    """The first of an execution; what ran before is known from `In` and `Out`."""
    from ipykernel.zmqshell import ZMQInteractiveShell
    from IPython.core.interactiveshell import InteractiveShell

    plain: Any = InteractiveShell()
    plain.set_next_input = MethodType(ZMQInteractiveShell.set_next_input, plain)
    plain.kernel = SimpleNamespace(get_parent=lambda _: {"content": {"allow_stdin": True}})
    plain.run_cell("1 + 1", store_history=True)
    document = NextInput(plain)
    document.swap(Swap(None, cell_of("new", "code", "n")))

    assert [(cell["id"], cell["source"], output_text(cell)) for cell in document.read()] == [
        ("In[1]", "1 + 1", "2")
    ]
    assert plain.payload_manager.read_payload()[0]["text"] == "new"
    with pytest.raises(ConflictError, match="one of each execution"):
        document.swap(Swap(None, cell_of("second", "code", "m")))
    with pytest.raises(ToolError, match="only new cells can be proposed"):
        document.swap(Swap(cell_of("1 + 1", "code", "c"), None))


def test_outputs_are_told_as_text() -> None:
    """Streams, results, errors and images."""
    cell = cell_of("x", "code", "c")
    cell["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
        {"output_type": "execute_result", "data": {"text/plain": "3"}},
        {"output_type": "display_data", "data": {"image/png": "…", "text/plain": "<Figure>"}},
        {"output_type": "error", "ename": "KeyError", "evalue": "'k'", "traceback": []},
    ]

    assert output_text(cell) == "a\nb\n3\n<Figure>\n[image/png]\nKeyError: 'k'"
