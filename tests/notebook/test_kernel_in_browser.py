"""Python in the live kernel, in a real JupyterLab: a question typed into a new notebook, its card with a
figure, the figure itself, undo.
"""

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
    pytest.mark.long,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(400),
]
CODE = (
    'df["month"] = df["day"].dt.month_name().str[:3]\\n'
    'monthly = df.groupby("month", sort=False)["sales"].sum()\\n'
    'monthly.plot(kind="bar", title="Sales by month", figsize=(6, 3))\\n'
    "monthly"
)
SETUP = f"""%load_ext kestrel_lab
import numpy as np, pandas as pd, matplotlib.pyplot as plt
plt.figure(); plt.close()
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
df = pd.DataFrame({{"day": pd.date_range("2025-01-01", periods=180), "sales": np.arange(180.0)}})
lab = Lab(model=ScriptedModel([[("run_python", {{"code": '''{CODE}'''}})], "Sales grow every month."]))"""


def output(page: Page, number: int) -> Locator:
    """What a cell of the notebook, counted from 0, has put out."""
    return page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")


def test_plot_by_month_with_card_figure_and_undo(jupyterlab: JupyterLab, screens: Path) -> None:
    """The card shows what would change and the figure; approved, the figure is below the panel, the values
    are there, and undo takes them back.
    """
    cells = [
        SETUP,
        "",
        "print(sorted(r.value.index), r.value is monthly, list(df.columns), r.answer)",
        "%kestrel undo",
        "print(list(df.columns), 'monthly' in dir())",
    ]
    with jupyterlab.opened("kernel", cells) as page:
        run_cell(page, 0)
        page.locator(".jp-Notebook .jp-Cell .cm-content").nth(1).click()
        page.keyboard.type("r = %kestrel run plot df by month")
        run_cell(page, 1)
        card = page.locator(".kst-ask:not(.kst-together)")
        expect(card).to_contain_text("df: + column month", timeout=PATIENCE_MS)
        expect(card).to_contain_text("monthly: new Series, 6 values of float64")
        expect(card).to_contain_text("runs in your kernel")
        figure = card.locator(".kst-figures img")
        expect(figure).to_be_visible()
        assert figure.evaluate("image => image.naturalWidth") > 200
        card.scroll_into_view_if_needed()
        page.screenshot(path=screens / "kernel-card.png")
        page.get_by_role("button", name="Approve", exact=True).click()
        expect(output(page, 1)).to_contain_text("Sales grow every month.", timeout=PATIENCE_MS)
        expect(output(page, 1).locator("img").first).to_be_visible()
        page.screenshot(path=screens / "kernel-figure.png")
        run_cell(page, 2)
        expect(output(page, 2)).to_contain_text(
            "['Apr', 'Feb', 'Jan', 'Jun', 'Mar', 'May'] True ['day', 'sales', 'month'] Sales grow "
            "every month.",
            timeout=PATIENCE_MS,
        )
        run_cell(page, 3)
        expect(output(page, 3)).to_contain_text("restored df, monthly", timeout=PATIENCE_MS)
        run_cell(page, 4)
        expect(output(page, 4)).to_contain_text("['day', 'sales'] False", timeout=PATIENCE_MS)


# A preview runs in another process: there this code ends at once. The panel says that a call runs a moment
# before the code does: the code itself says when it has begun.
ENDLESS = r"""%load_ext kestrel_lab
import os, pathlib, time
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
items, here = [1], os.getpid()
def wait_in_this_kernel():
    if os.getpid() == here:
        pathlib.Path("begun").touch()
    while os.getpid() == here:
        time.sleep(.01)
code = "items.append(2)\nwait_in_this_kernel()"
lab = Lab(model=ScriptedModel([[("run_python", {"code": code})], "never asked"]))"""
STATE = (
    "print('STATE', r.status, r.report.interrupted, items, len([e for e in r.events() if e.type == "
    "'model_called']))"
)


def test_stop_after_approve_ends_the_run(jupyterlab: JupyterLab, screens: Path) -> None:
    """One press of Stop while approved code runs ends the code, the run and the cell; the row says stopped,
    and the run can be resumed.
    """
    with jupyterlab.opened("stop", [ENDLESS, "r = %kestrel run loop --as r", STATE]) as page:
        run_cell(page, 0)
        run_cell(page, 1)
        card = page.locator(".kst-ask:not(.kst-together)")
        expect(card).to_contain_text("runs in your kernel", timeout=PATIENCE_MS)
        page.get_by_role("button", name="Approve", exact=True).click()
        expect(page.locator('.kst-call[data-state="running"]')).to_be_visible(timeout=PATIENCE_MS)
        until((jupyterlab.root / "stop" / "begun").exists, "the code to begin")
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
        expect(output(page, 1)).to_contain_text("RunCancelled", timeout=PATIENCE_MS)
        expect(output(page, 1)).to_contain_text("INTERRUPTED")
        expect(output(page, 1)).to_contain_text("stopped")
        expect(output(page, 1)).not_to_contain_text("never asked")
        page.screenshot(path=screens / "kernel-stopped.png")
        run_cell(page, 2)
        expect(output(page, 2)).to_contain_text("STATE EXECUTING True [1, 2] 1", timeout=PATIENCE_MS)
