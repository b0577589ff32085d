"""What a run leaves in a notebook, in a real JupyterLab: answer first, output below its call, one notice for
one end; and the help at hand.
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
    pytest.mark.timeout(400),
]
SETUP = """%load_ext kestrel_lab
import time, logging, matplotlib.pyplot as plt
logging.basicConfig()
plt.figure(); plt.close()
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
rows = list(range(300))
"""


def scene(*turns: str) -> str:
    """The first cell, with a model that runs these codes and then answers."""
    calls = [f'[("run_python", {{"code": {code!r}}})]' for code in turns]
    return f"{SETUP}lab = Lab(model=ScriptedModel([{', '.join([*calls, repr('It is **done**.')])}]))"


def output(page: Page, number: int) -> Locator:
    """What a cell of the notebook, counted from 0, has put out."""
    return page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")


def approve(page: Page) -> None:
    """Allow the call that waits."""
    page.get_by_role("button", name="Approve", exact=True).click(timeout=PATIENCE_MS)


def test_a_finished_panel_is_answer_first_also_after_a_reload(jupyterlab: JupyterLab, screens: Path) -> None:
    """The answer stands above the calls; code has its lines, output and figure are below their call and
    nowhere else; the pasted variable is folded; an undone call looks undone. A page that is loaded anew has
    the line to go on with and its buttons.
    """
    plot = "rows.append(1)\nplt.plot([1, 2, 3])\nprint('drawn it')"
    cells = [scene("total = 0\nraise ValueError('no')", plot), "%%kestrel\nPlot @rows, please."]
    with jupyterlab.opened("finished", cells) as page:
        run_cell(page, 0)
        run_cell(page, 1)
        expect(page.locator(".kst-ask")).to_contain_text("rows:")
        approve(page)
        run = output(page, 1).locator("section")
        expect(run).to_contain_text("It is done.")
        text = run.inner_text()
        parts = ("Plot @rows, please.", "It is done.", "What it did", "ValueError: no", "drawn it")
        places = [text.index(part) for part in parts]
        assert places == sorted(places)
        assert "2 calls · 1 failed" in text
        assert not any(
            word in text for word in ("limits:", "that it names are right", "next, if you like", "297, 298")
        )
        assert (
            "raise ValueError('no')\n" in run.locator("pre[data-language=python]").first.inner_text() + "\n"
        )
        figure = run.locator("details", has_text="drawn it").locator("img")
        assert figure.evaluate("image => image.naturalWidth") > 100
        assert output(page, 1).locator(".jp-OutputArea-child").count() == 1, "nothing is told below the panel"
        page.screenshot(path=screens / "panel-finished.png")
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        page.reload()
        expect(page.get_by_label("Go on with the conversation")).to_be_visible()
        expect(page.get_by_role("button", name="Step through")).to_be_visible()
        page.locator(".kst-undo").last.click()
        expect(page.locator("details", has_text="drawn it").locator("summary").first).to_contain_text(
            "undone"
        )
        expect(page.locator("details[data-call]")).to_have_count(0)


def test_output_streams_and_one_notice_says_that_it_was_stopped(
    jupyterlab: JupyterLab, screens: Path
) -> None:
    """Prints and logs stand below the call while it runs; after Stop the call is grey, and one line, which
    the cell needs, says what happened.
    """
    slow = "for n in range(100):\n    print('step', n)\n    logging.warning('loss %d', n)\n    time.sleep(.1)"
    with jupyterlab.opened("streams", [scene(slow), "r = %kestrel run be slow"]) as page:
        run_cell(page, 0)
        run_cell(page, 1)
        approve(page)
        call = page.locator('.kst-call[data-state="running"]')
        expect(call).to_contain_text("step 2")
        expect(call).to_contain_text("WARNING:root:loss 2")
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
        expect(output(page, 1)).to_contain_text("RunCancelled")
        expect(output(page, 1)).to_contain_text("stopped run_python")
        text = output(page, 1).inner_text()
        page.screenshot(path=screens / "panel-stopped.png")
        assert (text.count("RunCancelled"), "KeyboardInterrupt" in text, "how it went on" in text) == (
            1,
            False,
            False,
        )
        assert output(page, 1).locator(".jp-OutputArea-child").count() == 2


def test_a_slow_preview_does_not_keep_the_question(jupyterlab: JupyterLab, screens: Path) -> None:
    """The card is there within a second of the model's answer, the preview fills in, and what it says at five
    seconds is how to go on.
    """
    code = "time.sleep(6.5)\nrows.append(5)"
    timed = (
        "at = {x.event.type: x.at for x in r.records()}\n"
        "print('ASKED', at['approval_asked'] - at['model_answered'] < 1.5, 'WORKED', r.report.view().meter.working_s < 4)"
    )
    turns = f'[[("run_python", {{"code": {code!r}}})], "done"]'
    first = f"{SETUP}lab = Lab(model=ScriptedModel({turns}))"
    with jupyterlab.opened("slow", [first, "r = %kestrel run wait --as r", timed]) as page:
        run_cell(page, 0)
        run_cell(page, 1)
        card = page.locator(".kst-ask:not(.kst-together)")
        expect(card).to_contain_text("running in a copy of your kernel")
        expect(card).to_contain_text("You need not wait")
        page.screenshot(path=screens / "panel-slow-preview.png")
        expect(card).to_contain_text("301 items")
        expect(card.locator(".kst-previewing")).to_be_hidden()
        page.get_by_role("button", name="Deny", exact=True).click()
        expect(output(page, 1)).to_contain_text("done")
        run_cell(page, 2)
        expect(output(page, 2)).to_contain_text("ASKED True")


def test_help_is_at_hand(jupyterlab: JupyterLab, screens: Path) -> None:
    """A completion has its kind beside it, not over it, and a cell that failed is handed over by one short
    line.
    """
    cells = [scene(), "rows[1000]", "", "%kestrel fix"]
    with jupyterlab.opened("help", cells) as page:
        for cell in (0, 1):
            run_cell(page, cell)
        expect(output(page, 1)).to_contain_text("IndexError")
        page.locator(".jp-Notebook .jp-Cell .cm-content").nth(2).click()
        page.keyboard.type("%kestrel run --c")
        page.keyboard.press("Tab")
        expect(page.locator(".jp-Completer")).to_contain_text("--cost")
        expect(page.locator(".jp-Completer .jp-Completer-typeExtended").first).to_have_text("option")
        for item in page.locator(".jp-Completer-item").all():
            word, kind = item.locator(".jp-Completer-match"), item.locator(".jp-Completer-typeExtended")
            word_box, kind_box = word.bounding_box(), kind.bounding_box()
            assert word_box is not None
            assert kind_box is not None
            assert word_box["x"] + word_box["width"] <= kind_box["x"]
        expect(page.locator(".jp-Completer")).not_to_contain_text("<unknown>")
        page.screenshot(path=screens / "panel-completion.png")
        page.keyboard.press("Escape")
        run_cell(page, 3)
        expect(output(page, 3)).to_contain_text("Fix the cell that failed with IndexError")
        expect(output(page, 3)).to_contain_text("It is done.")
        button = output(page, 1).get_by_role("button", name="Fix with kestrel")
        page.screenshot(path=screens / "panel-fix-button.png")
        button.click()
        expect(output(page, 1)).to_contain_text("Fix the cell that failed with IndexError")
        expect(output(page, 1)).to_contain_text("It is done.")
        expect(button).to_have_count(0)
        page.screenshot(path=screens / "panel-fixed.png")
