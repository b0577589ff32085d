"""Stop in a real JupyterLab: the panel's button and the toolbar's end a run alike, whatever it is at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab_server import CHROMIUM, JupyterLab, run_cell
from waits import PATIENCE_MS, until

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(400),
]
# A preview runs in another process: there the code ends at once.
SETUP = r"""%load_ext kestrel_lab
import asyncio, os, pathlib, time
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
here = os.getpid()
def work_in_this_kernel():
    if os.getpid() != here:
        return
    print("half done", flush=True)
    pathlib.Path("begun").touch()
    while not pathlib.Path("release").exists():
        time.sleep(.01)
    pathlib.Path("late").touch()
class Thinks(ScriptedModel):
    async def __call__(self, request, on_delta):
        if "think" in request.messages[-1].text:
            on_delta("I have begun to think")
            pathlib.Path("begun").touch()
            await asyncio.Event().wait()
        return await super().__call__(request, on_delta)
items = [1]
code = "items.append(2)\nwork_in_this_kernel()"
lab = Lab(model=Thinks([[("run_python", {"code": code})], "never asked"]))"""
STATE = "print('STATE', r.report.status.word, r.report.interrupted, items)"
BUSY = "import time\nwhile not pathlib.Path('release').exists():\n    time.sleep(.01)\nprint('not ended')"


def output(page: Page, number: int) -> Locator:
    """What a cell of the notebook, counted from 0, has put out."""
    return page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")


def press(page: Page, button: str) -> None:
    """Press Stop: the panel's, or the one of the notebook's toolbar."""
    if button == "panel":
        page.get_by_role("button", name="Stop run").click()
    else:
        page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="interrupt"]').click()


def begin(page: Page, goal: str) -> None:
    """Run the first cell and the one with the run, until the run is at what it is to be stopped at."""
    run_cell(page, 0)
    run_cell(page, 1)
    if goal != "think":
        expect(page.locator(".kst-ask:not(.kst-together)")).to_be_visible(timeout=PATIENCE_MS)


def check_ended(page: Page, folder: Path) -> None:
    """The cell and the run have ended, nothing goes on in the kernel, and the run can be resumed."""
    expect(output(page, 1)).to_contain_text("RunCancelled: stopped run", timeout=PATIENCE_MS)
    expect(output(page, 1)).to_contain_text("%kestrel run --resume")
    expect(output(page, 1)).to_contain_text("INTERRUPTED")
    expect(output(page, 1).locator(".kst")).to_have_count(0, timeout=PATIENCE_MS)
    expect(output(page, 1)).not_to_contain_text("never asked")
    expect(output(page, 1)).not_to_contain_text("WAITING")
    (folder / "release").touch()
    run_cell(page, 2)
    expect(output(page, 2)).to_contain_text("STATE INTERRUPTED True", timeout=PATIENCE_MS)
    assert not (folder / "late").exists()


@pytest.mark.parametrize("button", ["panel", pytest.param("toolbar", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "goal",
    ["code", pytest.param("ask", marks=pytest.mark.long), pytest.param("think", marks=pytest.mark.long)],
)
def test_stop_ends_whatever_the_run_is_at(
    jupyterlab: JupyterLab, screens: Path, goal: str, button: str
) -> None:
    """Code that runs, a question that waits, a model that thinks: by either button the run is INTERRUPTED, can
    be resumed, and shows what it had done.
    """
    name = f"stop-{goal}-{button}"
    folder = jupyterlab.root / name
    with jupyterlab.opened(name, [SETUP, f"r = %kestrel run {goal} --as r", STATE]) as page:
        begin(page, goal)
        if goal == "code":
            page.get_by_role("button", name="Approve", exact=True).click()
        if goal != "ask":
            until((folder / "begun").exists, "the work to begin")
        press(page, button)
        check_ended(page, folder)
        page.screenshot(path=screens / f"{name}.png")
        told = output(page, 1)
        if goal == "code":
            told.locator("details", has_text="run_python").last.evaluate("row => { row.open = true }")
            expect(told).to_contain_text("half done")
            expect(told).to_contain_text("stopped")
            expect(output(page, 2)).to_contain_text("True [1, 2]")
        if goal == "think":
            expect(told).to_contain_text("I have begun to think")


@pytest.mark.long
@pytest.mark.parametrize("button", ["panel", "toolbar"])
def test_stop_in_a_second_tab(jupyterlab: JupyterLab, screens: Path, button: str) -> None:
    """Another page with the same notebook stops code that was approved in the first one."""
    name = f"stop-tab-{button}"
    folder = jupyterlab.root / name
    with jupyterlab.opened(name, [SETUP, "r = %kestrel run code --as r", STATE]) as page:
        begin(page, "code")
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        second = jupyterlab.browser.new_page(viewport={"width": 1100, "height": 900})
        second.goto(page.url)
        expect(second.locator(".kst-ask")).to_contain_text("run_python", timeout=PATIENCE_MS)
        page.get_by_role("button", name="Approve", exact=True).click()
        until((folder / "begun").exists, "the code to begin")
        press(second, button)
        check_ended(page, folder)
        expect(second.locator(".jp-Notebook .jp-Cell").nth(1)).to_contain_text(
            "INTERRUPTED", timeout=PATIENCE_MS
        )
        second.screenshot(path=screens / f"{name}.png")
        second.close()


@pytest.mark.long
def test_a_run_in_the_background_is_stopped_without_another_cell(jupyterlab: JupyterLab) -> None:
    """No cell waits for it. A cell that keeps the kernel busy is not interrupted for it: the panel says that it
    waits, and the run stops then.
    """
    folder = jupyterlab.root / "stop-bg"
    cells = [SETUP, "%kestrel run ask --bg --as r", BUSY, STATE]
    with jupyterlab.opened("stop-bg", cells) as page:
        begin(page, "ask")
        run_cell(page, 2)
        expect(page.locator(".jp-Notebook .jp-Cell").nth(2)).to_contain_text("[*]", timeout=PATIENCE_MS)
        press(page, "panel")
        expect(page.locator(".kst-bar")).to_contain_text("Another cell keeps the kernel busy")
        (folder / "release").touch()
        expect(output(page, 2)).to_contain_text("not ended", timeout=PATIENCE_MS)
        expect(output(page, 1)).to_contain_text("INTERRUPTED", timeout=PATIENCE_MS)
        run_cell(page, 3)
        expect(output(page, 3)).to_contain_text("STATE INTERRUPTED True", timeout=PATIENCE_MS)


CARELESS = (
    "import kestrel_lab.notebook.panel as p\nw = p._widget_class()\nw._esm = "
    "w._esm.replace('await kernel.interrupt();', '')"
)


@pytest.mark.long
def test_a_button_that_does_not_interrupt_the_kernel_is_noticed(jupyterlab: JupyterLab) -> None:
    """With a message alone, which waits for the busy kernel, the code goes on to its end."""
    folder = jupyterlab.root / "stop-careless"
    with jupyterlab.opened("stop-careless", [f"{SETUP}\n{CARELESS}", "r = %kestrel run code --as r"]) as page:
        begin(page, "code")
        page.get_by_role("button", name="Approve", exact=True).click()
        until((folder / "begun").exists, "the code to begin")
        press(page, "panel")
        (folder / "release").touch()
        until((folder / "late").exists, "the end of the code")


OUT_OF_REACH = (
    "import kestrel_lab.notebook.panel as p\nw = p._widget_class()\nw._esm = "
    "w._esm.replace('widget_manager?.context', 'no_such_front_end?.context')"
)


@pytest.mark.long
def test_where_the_page_cannot_reach_the_kernel_the_text_names_the_notebooks_own_button(
    jupyterlab: JupyterLab,
) -> None:
    """As in VS Code, whose widgets get no notebook: no button that would not end running code."""
    with jupyterlab.opened(
        "stop-no-reach", [f"{SETUP}\n{OUT_OF_REACH}", "r = %kestrel run ask --as r", STATE]
    ) as page:
        begin(page, "ask")
        expect(page.locator(".kst-bar")).to_contain_text("the notebook's own Stop (Interrupt) button")
        expect(page.get_by_role("button", name="Stop run")).to_be_hidden()
        press(page, "toolbar")
        check_ended(page, jupyterlab.root / "stop-no-reach")


@pytest.mark.long
def test_code_of_a_run_in_the_background_is_stopped(jupyterlab: JupyterLab) -> None:
    """In the background, too, the button ends code that keeps the kernel busy."""
    folder = jupyterlab.root / "stop-bg-code"
    with jupyterlab.opened("stop-bg-code", [SETUP, "%kestrel run code --bg --as r", STATE]) as page:
        begin(page, "code")
        page.get_by_role("button", name="Approve", exact=True).click()
        until((folder / "begun").exists, "the code to begin")
        press(page, "panel")
        expect(output(page, 1)).to_contain_text("INTERRUPTED", timeout=PATIENCE_MS)
        (folder / "release").touch()
        run_cell(page, 2)
        expect(output(page, 2)).to_contain_text("STATE INTERRUPTED True [1, 2]", timeout=PATIENCE_MS)
        assert not (folder / "late").exists()
