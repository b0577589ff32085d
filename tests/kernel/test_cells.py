"""The tools for cells, as a model uses them: what it reads, what it changes, what is asked about, and what is
refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import pytest
from shells import quiet_shell

from kestrel_lab.core.calls import IN_KERNEL, Danger
from kestrel_lab.core.errors import ConflictError, ToolError
from kestrel_lab.core.events.union import CellsChanged, KernelChanged, KernelPreviewed
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.tools.files.versions import Versions
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.kernel.cells import cell_tools
from kestrel_lab.tools.kernel.documents import cell_of
from kestrel_lab.tools.tool import CodeContext, ToolContext

TOOLS = {made.name: made for made in cell_tools()}
STARTS = "%kestrel run 'see to it'"


class Notebook:
    """A notebook file whose second cell runs, in a kernel beside an editor; what tools record."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "t.ipynb"
        cells = [
            cell_of("# Title", "markdown", "text"),
            cell_of(STARTS, "code", "agent"),
            cell_of("x = 1\nx + 1", "code", "work1"),
            cell_of("other", "code", "work2"),
        ]
        cells[2] |= {
            "execution_count": 7,
            "outputs": [{"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}}],
        }
        self.save(cells)
        self.shell = quiet_shell()
        self.request = {
            "content": {"code": STARTS, "allow_stdin": True},
            "header": {"date": datetime.now(UTC) + timedelta(hours=1)},
            "metadata": {"cellId": "agent"},
        }
        self.shell.kernel = SimpleNamespace(get_parent=lambda _: self.request)
        self.shell.user_ns["__vsc_ipynb_file__"] = str(self.path)
        self.events: list[Any] = []
        self.redactor = Redactor()
        self.versions = Versions()

    def save(self, cells: list[dict[str, Any]]) -> None:
        """Write the file."""
        self.path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}))

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells in the file."""
        return list(json.loads(self.path.read_text())["cells"])

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Id and source of each cell in the file."""
        return [(cell["id"], cell["source"]) for cell in self.cells]

    def context(self, sandbox: str = "", call: str = "s.1.1") -> ToolContext:
        """What a call is given."""

        def emit(event: object, _: Sequence[tuple[str, bytes]]) -> None:
            self.events.append(event)

        code = CodeContext(emit=emit, step="s", sandbox=sandbox, danger=Danger.MEDIUM, live=True)
        workspace = Workspace(self.folder)
        return ToolContext(
            workspace=workspace,
            run_id="r",
            call_id=call,
            code=code,
            redactor=self.redactor,
            versions=self.versions,
        )

    def use(self, name: str, sandbox: str = "", call: str = "s.1.1", **args: Any) -> str:
        """Validate and run a tool."""
        made = TOOLS[name]
        return str(asyncio.run(made.run(made.validate(args), self.context(sandbox, call))))

    def preview(self, name: str, **args: Any) -> str:
        """What a person is shown before."""
        made = TOOLS[name]
        assert made.preview is not None
        return made.preview(made.validate(args), self.context())


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """A notebook of four cells."""
    made = Notebook(tmp_path)
    monkeypatch.setattr(IPython, "get_ipython", lambda: made.shell)
    return made


def test_all_cells_are_read_with_ids_states_and_outputs(notebook: Notebook) -> None:
    """A line says which cell it is and whether it ran; the output follows the source."""
    assert notebook.use("read_notebook") == (
        "[1] id text · markdown\n# Title\n\n"
        f"[2] id agent · code · runs now\n{STARTS}\n\n"
        "[3] id work1 · code · run as [7]\nx = 1\nx + 1\n→ 2\n\n"
        "[4] id work2 · code · not run\nother"
    )
    assert (
        notebook.use("read_notebook", cell="work1") == "[3] id work1 · code · run as [7]\nx = 1\nx + 1\n→ 2"
    )
    assert notebook.use("read_notebook", cell="tex").startswith("[1] id text")
    notebook.save([])
    assert notebook.use("read_notebook") == "[the notebook is empty]"


def test_long_cells_are_shortened_unless_read_alone(notebook: Notebook) -> None:
    """All cells share what one answer holds; the more there are the less of each."""
    notebook.save([cell_of("a" * 10_000, "code", "long")])
    assert 1_000 < len(notebook.use("read_notebook")) < 2_000
    assert len(notebook.use("read_notebook", cell="long")) > 10_000
    notebook.save([cell_of("a" * 1_000, "code", f"c{number}") for number in range(30)])
    assert 8_000 < len(notebook.use("read_notebook")) < 15_000


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("gone", "there is no cell 'gone'; the cells are: text, agent, work1, work2"),
        ("work", "several cells begin with 'work'; the cells are"),
    ],
)
def test_a_cell_that_is_not_the_only_one_meant_is_named_as_such(
    notebook: Notebook, wanted: str, said: str
) -> None:
    """The ids that there are come with the error; nothing is changed."""
    before = notebook.sources
    for name, args in (
        ("read_notebook", {}),
        ("edit_cell", {"old": "x", "new": "y"}),
        ("delete_cell", {}),
        ("run_cell", {}),
    ):
        with pytest.raises(ToolError, match=said):
            notebook.use(name, cell=wanted, **args)
    assert notebook.sources == before
    notebook.save([])
    with pytest.raises(ToolError, match="the cells are: none"):
        notebook.use("read_notebook", cell=wanted)


def test_a_cell_is_inserted_below_another_or_the_running_one(notebook: Notebook) -> None:
    """Code or text; the event holds what undoes it, and the answer says how the person sees it."""
    told = notebook.use("insert_cell", source="new", below="text")
    assert told.startswith("inserted cell ") and "asks at its next save" in told
    assert [source for _, source in notebook.sources] == ["# Title", "new", STARTS, "x = 1\nx + 1", "other"]
    notebook.use("insert_cell", source="note", cell_type="markdown")
    assert [(cell["cell_type"], cell["source"]) for cell in notebook.cells][3] == ("markdown", "note")
    inserted = notebook.cells[1]["id"]
    assert told.startswith(f"inserted cell {inserted} (")
    event = notebook.events[0]
    assert isinstance(event, CellsChanged)
    assert (event.call, event.step, event.how) == ("s.1.1", "s", "the notebook file")
    assert event.changes == [{"before": None, "after": cell_of("new", "code", inserted), "below": "text"}]
    notebook.request["metadata"] = {}
    notebook.use("insert_cell", source="end")
    assert notebook.sources[-1][1] == "end"


def test_a_cell_is_edited_and_deleted(notebook: Notebook) -> None:
    """An edit keeps what the cell put out and returns the change; a deletion knows the place, for undo."""
    told = notebook.use("edit_cell", cell="work1", old="x = 1", new="x = 2")
    assert told.startswith("edited cell work1 (") and told.endswith("@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n x + 1")
    assert notebook.cells[2]["source"] == "x = 2\nx + 1" and notebook.cells[2]["execution_count"] == 7
    told = notebook.use("delete_cell", cell="work2")
    assert told.startswith("deleted cell work2 (")
    notebook.use("delete_cell", cell="text")
    assert [ident for ident, _ in notebook.sources] == ["agent", "work1"]
    assert [change["below"] for event in notebook.events for change in event.changes] == ["", "work1", ""]
    with pytest.raises(ToolError, match="the notebook was not changed: old was not found"):
        notebook.use("edit_cell", cell="work1", old="nowhere", new="y")
    with pytest.raises(ToolError, match="this cell runs just now"):
        notebook.use("delete_cell", cell="agent")


def test_what_is_shown_before_a_change(notebook: Notebook) -> None:
    """A person sees the change as a diff, with the place of the cell, or why it would fail; nothing is
    changed.
    """
    before = notebook.sources
    shown = notebook.preview("insert_cell", source="new", below="text")
    assert (
        shown == "--- new code cell below cell 1 (text)\n+++ new code cell below cell 1 (text)\n@@ -0,0 "
        "+1,1 @@\n+new"
    )
    assert notebook.preview("edit_cell", cell="work2", old="other", new="it").splitlines()[::4] == [
        "--- cell 4 (work2)",
        "+it",
    ]
    assert notebook.preview("delete_cell", cell="work2").endswith("@@ -1,1 +0,0 @@\n-other")
    assert notebook.preview("edit_cell", cell="work2", old="no", new="it").startswith(
        "this edit would fail: old was not found"
    )
    assert notebook.sources == before
    notebook.save([])
    assert notebook.preview("insert_cell", source="new").startswith("--- new code cell at the top\n")


def test_what_a_person_was_shown_is_checked_before_the_change(notebook: Notebook) -> None:
    """The approval was for a certain change: where that is another one now, nothing happens."""

    def refuse() -> None:
        raise ConflictError("not what was shown")

    before, notebook.versions = notebook.sources, Versions(as_shown=refuse)
    with pytest.raises(ConflictError, match="not what was shown"):
        notebook.use("insert_cell", source="new")
    assert (notebook.sources, notebook.events) == (before, [])


def test_a_cell_is_run_and_its_output_becomes_its_own(notebook: Notebook) -> None:
    """The code has its effect in the kernel, the file has the new output, and the log both changes."""
    told = notebook.use("run_cell", sandbox=IN_KERNEL, cell="work1")
    assert told.startswith("2\n[x: new int, 1]\n[written into the saved file")
    assert notebook.shell.user_ns["x"] == 1
    ran = notebook.cells[2]
    assert (ran["source"], ran["execution_count"], ran["outputs"][0]["data"]) == (
        "x = 1\nx + 1",
        None,
        {"text/plain": "2"},
    )
    kernel, cells = notebook.events
    assert isinstance(kernel, KernelChanged) and (kernel.how, kernel.code, kernel.error) == (
        "executed",
        "x = 1\nx + 1",
        "",
    )
    assert isinstance(cells, CellsChanged) and [change["after"] for change in cells.changes] == [ran]
    with pytest.raises(ToolError, match="not approved to run"):
        notebook.use("run_cell", cell="work1")


def test_output_of_a_cell_that_cannot_be_changed_is_shown_instead(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    """The person has changes that are not saved: what came of the cell is not lost, and the file is not
    written.
    """
    cells = notebook.cells
    cells[1]["source"], cells[3]["source"] = "older", "print('seen')"
    notebook.save(cells)
    told = notebook.use("run_cell", sandbox=IN_KERNEL, cell="work2")
    assert "its output is below the running cell instead: the notebook has changes that are not saved" in told
    assert capsys.readouterr().out == "seen\n"
    assert notebook.cells == cells
    assert [event.type for event in notebook.events] == ["kernel_changed"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("%%kestrel run x", "starts an agent"),
        ("a = 1\nr = %kestrel run x", "starts an agent"),
        (STARTS, "starts an agent"),
    ],
)
def test_an_agent_does_not_start_another_by_a_cell(notebook: Notebook, source: str, said: str) -> None:
    """Neither the cell that runs nor one with the magic; nor text."""
    cells = notebook.cells
    cells[3]["source"] = source
    notebook.save(cells)
    for ident in ("work2", "agent"):
        with pytest.raises(ToolError, match=said):
            notebook.use("run_cell", sandbox=IN_KERNEL, cell=ident)
    with pytest.raises(ToolError, match="cell text is markdown: only code can be run"):
        notebook.use("run_cell", sandbox=IN_KERNEL, cell="text")
    assert "a" not in notebook.shell.user_ns


def test_the_log_holds_no_secret_and_no_huge_output(notebook: Notebook) -> None:
    """An output that is too large or secret is left out; a source that holds a secret is not logged at
    all.
    """
    notebook.redactor = Redactor(frozenset({"s3cr3t-s3cr3t"}))
    cells = notebook.cells
    cells[2]["outputs"][0]["data"]["text/plain"] = "s3cr3t-s3cr3t"
    cells[3]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "a" * 300_000}]
    notebook.save(cells)
    notebook.use("delete_cell", cell="work1")
    notebook.use("delete_cell", cell="work2")
    notebook.use("insert_cell", source="key = 's3cr3t-s3cr3t'")
    assert [[change["before"]["outputs"] for change in event.changes] for event in notebook.events] == [
        [[]],
        [[]],
        [],
    ]


def test_off_a_notebook_there_are_no_cells(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tool says so, and so does its preview."""
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    for name, args in (
        ("read_notebook", {}),
        ("insert_cell", {"source": "a"}),
        ("delete_cell", {"cell": "text"}),
        ("run_cell", {"cell": "work1"}),
    ):
        with pytest.raises(ToolError, match="there is no notebook here"):
            notebook.use(name, **args)
    with pytest.raises(ToolError, match="there is no notebook here"):
        notebook.preview("insert_cell", source="a")
    run_cell = TOOLS["run_cell"]
    assert run_cell.dry_run is not None
    assert asyncio.run(run_cell.dry_run({"cell": "work1"}, notebook.context())) is None


def test_without_any_document_what_ran_is_read_and_one_cell_proposed(notebook: Notebook) -> None:
    """Nothing but the kernel: the cells are those of `In`, and a proposal is no change that could be
    undone.
    """
    del notebook.shell.user_ns["__vsc_ipynb_file__"]
    notebook.shell.user_ns["In"][:] = ["", "1 + 1"]
    proposed: list[str] = []
    notebook.shell.set_next_input = proposed.append
    assert notebook.use("read_notebook") == (
        "[what ran in this kernel; the notebook itself cannot be read here]\n[1] id In[1] · code · run "
        "as [1]\n1 + 1"
    )
    assert "only the user can take it away" in notebook.use("insert_cell", source="new")
    assert (proposed, notebook.events) == (["new"], [])


def test_a_program_that_executes_the_notebook_drops_proposals_so_none_is_made(notebook: Notebook) -> None:
    """Under nbclient the agent is told that no cell came of it."""
    del notebook.shell.user_ns["__vsc_ipynb_file__"]
    notebook.request["content"]["allow_stdin"] = False
    notebook.shell.set_next_input = pytest.fail
    with pytest.raises(
        ToolError,
        match="a program executes this notebook, so no cell can be added to it: nothing was changed",
    ):
        notebook.use("insert_cell", source="new")


def test_inserted_cells_keep_the_order_in_which_they_were_asked_for(notebook: Notebook) -> None:
    """In one turn below a named cell, and over a run below the one that runs; the cards of a turn stay as
    they were shown.
    """
    for place, source in enumerate(("a", "b", "c"), 1):
        notebook.use("insert_cell", call=f"s.1.{place}", source=source)
    notebook.use("insert_cell", call="s.2.1", source="d")
    before = notebook.preview("insert_cell", source="f", below="work1")
    notebook.use("insert_cell", call="s.3.1", source="e", below="work1")
    after = notebook.preview("insert_cell", source="f", below="work1")
    notebook.use("insert_cell", call="s.3.2", source="f", below="work1")
    notebook.use("insert_cell", call="s.4.1", source="later, named", below="work1")

    found = [source for _, source in notebook.sources]
    assert found == ["# Title", STARTS, "a", "b", "c", "d", "x = 1\nx + 1", "later, named", "e", "f", "other"]
    assert before == after


def test_a_late_preview_says_which_cell_runs_and_its_code(notebook: Notebook) -> None:
    """The event of a preview, which fills a card that is shown already, has the cell and its code like the
    question that waits for the preview.
    """
    run_cell = TOOLS["run_cell"]
    assert run_cell.dry_run is not None
    found = asyncio.run(run_cell.dry_run({"cell": "work1"}, notebook.context()))
    assert found is not None
    [previewed] = [event for event in notebook.events if isinstance(event, KernelPreviewed)]
    assert previewed.text == found.text
    assert found.text.startswith("runs cell 3 (work1):\nx = 1\nx + 1\n\n")
