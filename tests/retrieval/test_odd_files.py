"""Files that are hard to find or to read: what a search gives of them, and what it says of those it leaves
out.
"""

import os
from pathlib import Path

import pytest

from kestrel_lab.retrieval.cascade import Cascade
from kestrel_lab.retrieval.explain import explain_rank
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.workspace_indexes import WorkspaceIndexes
from kestrel_lab.runtime.workspace.search import WorkspaceSearch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    made = tmp_path / "work"
    made.mkdir()
    return made


def test_a_word_that_every_file_has_finds_none(folder: Path) -> None:
    """Only the file that is meant is given, not those that share half of its name; the explanation and the
    trace say so.
    """
    for number in range(60):
        (folder / f"quagga{number}.md").write_text(f"# quagga{number}\n\nSome text.\n")
    index = CodeIndex(folder, folder.parent / "home")
    index.refresh()
    found = Cascade(index)("quagga37", 5)
    assert found.paths == ("quagga37.md",)
    said = explain_rank(index, "quagga37", "quagga5.md", found, 5)
    assert (said.state, "under 0.5% of the best score" in said.reason) == ("dropped", True)
    assert "quagga5.md" in found.steps[0].dropped
    index.close()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_text_with_a_byte_order_mark_is_found(folder: Path, encoding: str) -> None:
    """Windows tools write UTF-16: it is text like any other, and the place that is shown is readable."""
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    (folder / "notes.txt").write_bytes(mark + "first\nthe wombats dig".encode(encoding))
    index = CodeIndex(folder, folder.parent / "home")
    index.refresh()
    (hit,) = Cascade(index)("wombats", 5)
    assert (hit.path, hit.text) == ("notes.txt", "first\nthe wombats dig")
    index.close()


def test_what_cannot_be_indexed_is_named(folder: Path) -> None:
    """A file whose name is not UTF-8 is told among those that are not read."""
    (folder / "a.py").write_text("wombat = 1\n")
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_text("wombat\n")
    searching = WorkspaceSearch(WorkspaceIndexes(folder.parent / "home", None), folder)
    assert len(searching.search("wombat").retrieval.hits) == 1
    assert searching.status().left_out[0][0] == "caf\\xe9.txt"
    assert "its name is not UTF-8" in repr(searching.status())


def test_a_folder_that_may_not_be_read_is_said_to_be_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explanation names the folder and what to do, whoever runs the tests: permissions do not stop root,
    so the system is made to refuse.
    """
    (folder / "locked").mkdir()
    (folder / "a.py").write_text("wombat = 1\n")
    index = CodeIndex(folder, folder.parent / "home")
    index.refresh()
    listed = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    said = explain_rank(index, "wombat", "locked/b.py")
    assert (said.state, "the folder locked may not be read by you" in said.reason) == ("unread", True)
    index.close()


def test_what_is_missing_is_told_in_a_sentence(folder: Path) -> None:
    """Which words of the question no file has, as words of the question."""
    (folder / "a.py").write_text("wombat = 1\n")
    searching = WorkspaceSearch(WorkspaceIndexes(folder.parent / "home", None), folder)
    assert "1 file found" in (said := searching.search("wombat burrows").summary())
    assert said.endswith("none of them has the word 'burrows', which the question has")
    assert (
        searching.search("burrows").summary() == "nothing has to do with that: no file has the word 'burrows'"
    )
