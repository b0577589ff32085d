"""Labelling by keys alone in a real JupyterLab, over a reload, a second tab and a restarted kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab_server import CHROMIUM, READY, JupyterLab, run_cell

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(600),
]
SETUP = """%load_ext kestrel_lab
from kestrel_lab import Lab, Scenario, Suite
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.testing import ScriptedModel
lab = Lab()
script = ScriptedModel([[("read_file", {"path": "refunds.md"})], "Orders can be returned within 30 days. \
The refund reaches the card within five working days; a parcel that was opened costs a fee of 10 %."])
ask = lambda n: Scenario(id=f"q{n}", goal=f"Customer {n} asks: how long can I return an order, and when is \
the money back? Answer in two sentences.", tools=("read_file",), checks=(AnswerContains(texts=("30 days",)),))
suite = Suite(name="refunds", scenarios=tuple(map(ask, range(8))))"""
RUN = 'result = await lab.eval(suite, configs={"secret_config": script})'
LABEL = """lab.evals.label(suite, who="ada", rubric="Every sentence follows from refunds.md, and the fee is \
named.")"""


def box_of(page: Page, number: int = 2) -> Locator:
    """The box below a cell."""
    return page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".ksl")


def test_keys_alone_label_over_reload_tab_and_restart(jupyterlab: JupyterLab, screens: Path) -> None:
    """No click is needed, JupyterLab takes none of the keys, and nothing that was labelled is lost."""
    with jupyterlab.opened("labels", [SETUP, RUN, LABEL]) as page:
        run_cell(page, 0)
        run_cell(page, 1)
        run_cell(page, 2)
        box = box_of(page)
        expect(box).to_be_focused()
        expect(box).to_contain_text("1 of 9")
        expect(box).not_to_contain_text("secret_config")
        first = box.locator(".ksl-part").nth(1).inner_text()
        calls = box.locator("details")
        expect(calls).to_have_count(1)
        expect(calls).not_to_have_attribute("open", "")
        page.keyboard.press("t")
        expect(calls).to_have_attribute("open", "")
        page.keyboard.press("n")
        page.keyboard.type("the fee is 0 for s1")
        page.keyboard.press("Enter")
        page.keyboard.press("1")
        expect(box).to_contain_text("2 of 9")
        page.keyboard.press("u")
        expect(box).to_contain_text("1 of 9")
        assert box.locator(".ksl-part").nth(1).inner_text() == first
        for number, key in enumerate("00s", 2):
            page.keyboard.press(key)
            expect(box).to_contain_text(f"{number} of ")
        pictures(page, box, screens)

        save(page)
        other = jupyterlab.browser.new_page()
        other.goto(page.url)
        other.wait_for_function(READY, timeout=150_000)
        expect(box_of(other)).to_contain_text("4 of ")
        box_of(other).focus()
        other.keyboard.press("1")
        expect(box_of(other)).to_contain_text("5 of ")
        expect(box).to_contain_text("5 of ")
        other.close()

        page.reload()
        page.wait_for_function(READY, timeout=150_000)
        expect(box_of(page)).to_contain_text("5 of ")
        page.evaluate(
            """async () => {
              const widget = [...window.jupyterapp.shell.widgets('main')].find(w => w.sessionContext);
              await widget.sessionContext.session.kernel.restart();
            }"""
        )
        page.wait_for_function(READY, timeout=150_000)
        run_cell(page, 0)
        run_cell(page, 2)
        expect(box_of(page)).to_contain_text("5 of ")
        expect(box_of(page)).to_be_focused()
        where = box_of(page).locator("header strong")
        while "labelled" not in (before := where.inner_text()):
            page.keyboard.press("1")
            expect(where).not_to_have_text(before)
        expect(box_of(page)).to_contain_text("labelled by 1 person")
        page.screenshot(path=screens / "labels-end.png")


def save(page: Page) -> None:
    """Save the notebook, from which a page that is opened later knows of the box."""
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")


def pictures(page: Page, box: Locator, screens: Path) -> None:
    """Screenshots for the eye: three widths, light and dark."""
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', { theme: name })", theme
        )
        page.wait_for_timeout(500)
        for width in (400, 900, 1600):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(300)
            box.scroll_into_view_if_needed()
            page.screenshot(path=screens / f"labels-{theme.split()[1].lower()}-{width}.png")
    page.set_viewport_size({"width": 1100, "height": 900})
