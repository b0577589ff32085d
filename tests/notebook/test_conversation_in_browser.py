"""A conversation in a real JupyterLab: it goes on, survives a reload and a second tab, and says when its
kernel is gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab_server import CHROMIUM, READY, JupyterLab, command, run_cell
from waits import PATIENCE_MS, until

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(400),
]
SETUP = """%load_ext kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel

def turn(request):
    own = [m for m in request.messages if not m.earlier and m.role != "system"]
    said = [m.text for m in request.messages if m.role == "user"]
    if "write" in said[-1] and not any(m.role == "assistant" for m in own):
        return [("write_file", {"path": f"{len(said)}.txt", "content": "hello"})]
    return "# Heard\\n\\n" + "\\n".join(f"- {text}" for text in said) + "\\n\\n```python\\nprint(6 * 7)\\n```"

lab = Lab(model=ScriptedModel(turn))"""


def approve(page: Page) -> Locator:
    """The button that allows the call that waits."""
    return page.get_by_role("button", name="Approve", exact=True)


def save(page: Page) -> None:
    """Save the notebook and wait until that is done."""
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")


def go_on(page: Page, text: str) -> None:
    """Type into the line below the last run."""
    line = page.get_by_label("Go on with the conversation")
    expect(line).to_have_count(1, timeout=PATIENCE_MS)
    line.fill(text)
    line.press("Enter")


def test_a_conversation_goes_on_below_the_panel_and_after_a_reload(jupyterlab: JupyterLab) -> None:
    """The second magic and the line below it go on; the page is reloaded while an approval waits, and the
    button still works.

    The saved notebook holds no widget, and the code of an answer becomes a cell.
    """
    cells = [SETUP, '%kestrel run "one"', '%kestrel run "two"']
    with jupyterlab.opened("talk", cells) as page:
        command(page, "notebook:run-all-cells")
        expect(page.locator(".jp-Notebook .jp-Cell").nth(2).locator("h3", has_text="Heard")).to_be_visible(
            timeout=PATIENCE_MS
        )
        expect(page.locator(".jp-Notebook .jp-Cell").nth(2).locator("li", has_text="one")).to_be_visible(
            timeout=PATIENCE_MS
        )
        go_on(page, "write three")
        expect(approve(page)).to_be_enabled(timeout=PATIENCE_MS)
        save(page)
        page.reload()
        expect(approve(page)).to_be_enabled(timeout=PATIENCE_MS)
        assert not (jupyterlab.root / "talk" / "3.txt").exists()
        approve(page).click()
        go_on(page, "four")
        heard = page.locator(".jp-Notebook .jp-Cell").nth(2).locator("section").last
        for word in ("one", "two", "write three", "four"):
            expect(heard.locator("li", has_text=word)).to_be_visible(timeout=PATIENCE_MS)
        heard.get_by_role("button", name="Insert as cell").click(force=True)
        expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(4, timeout=PATIENCE_MS)
        save(page)
        saved = json.loads((jupyterlab.root / "talk" / "t.ipynb").read_text())

    kinds = {
        kind
        for cell in saved["cells"]
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
    }
    assert (jupyterlab.root / "talk" / "3.txt").read_text() == "hello"
    assert (kinds, "widgets" in saved["metadata"]) == ({"text/html", "text/plain"}, False)
    assert any("print(6 * 7)" in "".join(cell["source"]) for cell in saved["cells"][1:])


def test_commands_in_the_line_are_answered_without_a_model(jupyterlab: JupyterLab) -> None:
    """Their answers stand below the line; a mistake is explained there, a goal that begins with a path is a
    goal.
    """
    cells = [SETUP, "r = %kestrel run one", "print('GOALS', [*lab.runs().goal])"]
    with jupyterlab.opened("slash", cells) as page:
        run_cell(page, 0)
        run_cell(page, 1)
        box = page.locator(".kst-goon")
        for typed, told in (
            ("/help", "/orchestrate: "),
            ("/time 2030-12-31 20:15 --zone Europe/Vienna", "2030-12-31T20:15:00+01:00"),
            ("/memory add Tests are run with make.", "Tests are run with make."),
            ("/memory", "Tests are run with make."),
            ("/time flies", "cannot read 'flies' as a time"),
            ("/hlep", "did you mean /help?"),
        ):
            go_on(page, typed)
            expect(box).to_contain_text(told, timeout=PATIENCE_MS)
        go_on(page, "/home/ada is full")
        expect(page.locator("li", has_text="/home/ada is full")).to_be_visible(timeout=PATIENCE_MS)
        run_cell(page, 2)
        expect(page.locator(".jp-Notebook .jp-Cell").nth(2)).to_contain_text(
            "GOALS ['/home/ada is full', 'one']", timeout=PATIENCE_MS
        )


def test_after_a_reload_a_queued_cell_says_that_it_waits(jupyterlab: JupyterLab) -> None:
    """The page does not know any more which cells it ran: the panel that waits tells of those behind it, and
    they run after it.
    """
    cells = [SETUP, '%kestrel run "write it"', "_ = open('after.txt', 'w').write('ran')", "1"]
    with jupyterlab.opened("queued", cells) as page:
        command(page, "notebook:run-all-cells")
        expect(approve(page)).to_be_enabled(timeout=PATIENCE_MS)
        expect(page.locator('[data-queued="2"]')).to_have_count(1, timeout=PATIENCE_MS)
        expect(page.locator(".jp-Notebook")).not_to_contain_text("behind this one")
        save(page)
        page.reload()
        expect(approve(page)).to_be_enabled(timeout=PATIENCE_MS)
        expect(page.locator(".jp-Notebook")).to_contain_text(
            "2 cells wait behind this one", timeout=PATIENCE_MS
        )
        assert not (jupyterlab.root / "queued" / "after.txt").exists()
        approve(page).click()
        until((jupyterlab.root / "queued" / "after.txt").exists, "the queued cell to run")
        expect(page.locator(".jp-Notebook")).not_to_contain_text("behind this one")


def test_two_tabs_show_the_same_run_and_either_can_decide(jupyterlab: JupyterLab) -> None:
    """A second tab shows what the first one shows, its click counts, and the first tab sees that; `lab.run`
    asks in the panel.
    """
    with jupyterlab.opened(
        "tabs", [SETUP, 'r = await lab.run("write it")\nprint(r.status, r.answer[:7])']
    ) as page:
        command(page, "notebook:run-all-cells")
        expect(approve(page)).to_be_enabled(timeout=PATIENCE_MS)
        save(page)
        other = jupyterlab.browser.new_page()
        try:
            other.goto(page.url)
            expect(approve(other)).to_be_enabled(timeout=PATIENCE_MS)
            approve(other).click()
            expect(approve(page)).to_have_count(0, timeout=PATIENCE_MS)
            for tab in (page, other):
                expect(
                    tab.locator(".jp-Notebook .jp-Cell").nth(1).locator("h3", has_text="Heard")
                ).to_be_visible(timeout=PATIENCE_MS)
        finally:
            other.close()
        expect(page.locator(".jp-Notebook .jp-Cell").nth(1)).to_contain_text(
            "COMPLETE # Heard", timeout=PATIENCE_MS
        )

    assert (jupyterlab.root / "tabs" / "1.txt").read_text() == "hello"


def test_a_panel_whose_kernel_was_restarted_says_so_and_offers_to_resume(jupyterlab: JupyterLab) -> None:
    """The clock stands still, the buttons that reach nobody are gone, and the cell that is offered goes on
    with the run.
    """
    named = f"{SETUP.replace('ScriptedModel(turn)', 'ScriptedModel(turn, name=chr(115))')}"
    with jupyterlab.opened("restart", [named, '%kestrel run "write it"']) as page:
        command(page, "notebook:run-all-cells")
        expect(approve(page)).to_be_enabled(timeout=PATIENCE_MS)
        page.evaluate(
            "() => { [...window.jupyterapp.shell.widgets('main')].find(w => "
            "w.sessionContext).sessionContext.session.kernel.restart() }"
        )
        expect(page.locator(".kst-notice", has_text="nobody works on this run")).to_be_visible(
            timeout=PATIENCE_MS
        )
        expect(approve(page)).to_have_count(0)
        expect(page.locator(".kst-pill").first).to_have_text("interrupted")
        page.get_by_role("button", name="Resume in a new cell").click()
        expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(3)
        page.wait_for_function(READY, timeout=PATIENCE_MS)
        run_cell(page, 0)
        page.wait_for_function(READY, timeout=PATIENCE_MS)
        run_cell(page, 2)
        resumed = page.locator(".jp-Notebook .jp-Cell").nth(2)
        resumed.get_by_role("button", name="Approve", exact=True).click(timeout=PATIENCE_MS)
        expect(resumed.locator("h3", has_text="Heard")).to_be_visible(timeout=PATIENCE_MS)
