"""Cells of the notebook in a real JupyterLab: an agent reads, inserts, edits, runs and deletes them, each
asked about and undone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab_server import CHROMIUM, JupyterLab, run_cell
from waits import PATIENCE_MS

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(500),
]
SETUP = """%load_ext kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
def lab_of(*turns):
    return Lab(model=ScriptedModel([*([turn] for turn in turns), "done"]))
def said(run): return [event.text for event in run.events() if event.type == "tool_answered"]
total, totals = 1, []"""
SOURCES = """() => {
  const { cells } = [...window.jupyterapp.shell.widgets('main')].find(w => \
w.sessionContext).context.model.sharedModel;
  return cells.map(cell => cell.getSource());
}"""


def output(page: Page, number: int) -> Locator:
    """What a cell of the notebook, counted from 0, has put out."""
    return page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")


def approve(page: Page, text: str) -> None:
    """Wait for the card that says `text`, and allow the call."""
    card = page.locator(".kst-ask:not(.kst-together)").filter(has_text=text)
    expect(card).to_be_visible(timeout=PATIENCE_MS)
    card.get_by_role("button", name="Approve", exact=True).click()


_COUNT = """() => {
  const { cells } = [...window.jupyterapp.shell.widgets('main')].find(w => \
w.sessionContext).content.model;
  return cells.get(cells.length - 1).executionCount;
}"""
"""The number of execution of the last cell."""
_ENDED = f"before => ({_COUNT})() > before"


def run_last_to_its_end(page: Page, before: int) -> int:
    """Run the last cell, whose number of execution is above `before` then, and wait for its reply; returns
    that number.

    Its output of the time before says nothing, and until the reply came its place may change: what it runs
    adds and removes cells above it.
    """
    run_cell(page, len(page.evaluate(SOURCES)) - 1)
    page.wait_for_function(_ENDED, arg=before, timeout=PATIENCE_MS)
    return int(page.evaluate(_COUNT))


def test_cells_are_read_inserted_edited_run_and_undone(jupyterlab: JupyterLab, screens: Path) -> None:
    """Each change is a diff on a card, is done in the page with its unsaved cells, and `%kestrel undo` takes
    all of them back in order.
    """
    cells = [
        SETUP,
        "lab = lab_of(('read_notebook', {}), ('edit_cell', {'cell': 'c2', 'old': '1 + 1', 'new': "
        "'total + 41'}),\n"
        "             ('run_cell', {'cell': 'c2'}), ('insert_cell', {'source': '# Total', 'cell_type': "
        "'markdown', 'below': 'c0'}),\n"
        "             ('delete_cell', {'cell': 'c4'}))\n%kestrel run 'see to the total' --as r",
        "totals.append(1 + 1)\nprint('the answer is', totals[-1])",
        "print(said(r)[0]); print(totals)",
        "'away with it'",
        "%kestrel undo",
    ]
    with jupyterlab.opened("cells", cells) as page:
        before = page.evaluate(SOURCES)
        page.locator(".jp-Notebook .jp-Cell .cm-content").nth(3).click()
        run_cell(page, 0)
        run_cell(page, 1)
        card = page.locator(".kst-ask:not(.kst-together)")
        expect(card).to_contain_text("totals.append(total + 41)", timeout=PATIENCE_MS)
        card.scroll_into_view_if_needed()
        page.screenshot(path=screens / "cells-edit-card.png")
        approve(page, "totals.append(total + 41)")
        approve(page, "runs cell 3 (c2)")
        approve(page, "new markdown cell below cell 1 (c0)")
        approve(page, "away with it")
        expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(
            len(before), timeout=PATIENCE_MS
        )  # one more, one less
        expect(output(page, 2).locator("p", has_text="done")).to_be_visible(timeout=PATIENCE_MS)
        expect(output(page, 3)).to_contain_text("the answer is 42", timeout=PATIENCE_MS)
        left = page.evaluate(SOURCES)
        page.screenshot(path=screens / "cells-done.png")
        run_cell(page, 4)
        expect(output(page, 4)).to_contain_text(
            "[3] id c2 · code · not run\ntotals.append(1 + 1)", timeout=PATIENCE_MS
        )
        count = 0
        for restored in (
            "restored cell c4",
            "restored cell ",
            "restored totals, cell c2",
            "restored cell c2",
        ):
            count = run_last_to_its_end(page, count)
            expect(page.locator(".jp-Notebook .jp-Cell").last).to_contain_text(
                f"({restored}", timeout=PATIENCE_MS
            )
        run_cell(page, 3)
        expect(output(page, 3)).to_contain_text("[]", timeout=PATIENCE_MS)
        expect(output(page, 2)).not_to_contain_text("the answer is")
        after = page.evaluate(SOURCES)
        page.screenshot(path=screens / "cells-undone.png")

    assert left == [
        before[0],
        "# Total",
        before[1],
        before[2].replace("1 + 1", "total + 41"),
        before[3],
        before[5],
    ]
    assert after == before


def test_a_call_is_undone_by_its_button(jupyterlab: JupyterLab, screens: Path) -> None:
    """The picture of a finished run has a button on the call; it undoes, says so, and a cell that the user
    changed since stays.
    """
    insert = "%kestrel run --as r insert"
    cells = [
        SETUP,
        f"lab = lab_of(('insert_cell', {{'source': 'x = 1'}}))\n{insert}",
        f"lab = lab_of(('insert_cell', {{'source': 'y = 1'}}))\n{insert}",
    ]
    with jupyterlab.opened("buttons", cells) as page:
        before = page.evaluate(SOURCES)
        run_cell(page, 0)
        run_cell(page, 1)
        approve(page, "x = 1")
        panel = output(page, 1).locator(".kst-still")
        button = panel.get_by_role("button", name="Undo", exact=True)
        expect(button).to_be_visible(timeout=PATIENCE_MS)
        page.screenshot(path=screens / "undo-button.png")
        button.click()
        expect(panel).to_contain_text("undone answer", timeout=PATIENCE_MS)
        expect(button).to_have_count(0)
        expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(len(before), timeout=PATIENCE_MS)
        assert page.evaluate(SOURCES) == before
        run_cell(page, 2)
        approve(page, "y = 1")
        expect(output(page, 2).locator(".kst-still")).to_be_visible(timeout=PATIENCE_MS)
        page.evaluate(
            "() => [...window.jupyterapp.shell.widgets('main')].find(w => "
            "w.sessionContext).context.model.sharedModel.cells[3].setSource('mine')"
        )
        output(page, 2).get_by_role("button", name="Undo", exact=True).click()
        expect(output(page, 2)).to_contain_text("changed since, by something else", timeout=PATIENCE_MS)
        page.screenshot(path=screens / "undo-refused.png")
        assert page.evaluate(SOURCES) == [*before, "mine"]
