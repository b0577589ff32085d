"""Everything a user holds, drawn by a real JupyterLab in both themes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from holdings import TRAP
from lab_server import CHROMIUM, JupyterLab, command
from waits import PATIENCE_MS

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(400),
]
SETUP = f"""import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from IPython.display import HTML, Markdown, display
from holdings import hold
holding = hold(Path("held"))
held = holding.__enter__().objects
%load_ext kestrel_lab
lab = held["lab"]"""
# JupyterLab folds the outputs of a cell from the fiftieth on.
SHOWN = [
    f"for name, value in list(held.items())[{begin}:{begin + 15}]:\n    "
    f"display(Markdown(f'**{{name}}**'), value)\nprint('all', 'shown')"
    for begin in range(0, 75, 15)
]
TYPED = ["%kestrel plans", "%kestrel config", "%kestrel doctor", "%kestrel help run"]
TYPESET = (
    "[...document.querySelectorAll('.jp-OutputArea-output mjx-container')].map(e => "
    "e.closest('.jp-OutputArea-output').innerText)"
)
WIDE = """[...document.querySelectorAll('.jp-OutputArea-output table')].filter(e => {
  const box = e.closest('.jp-OutputArea-output');
  return e.getBoundingClientRect().right > box.getBoundingClientRect().right + 1 && \
getComputedStyle(box).overflowX === 'visible';
}).length"""


def pictures(page: Page, screens: Path, name: str) -> None:
    """Screenshot of each cell that shows something."""
    for number in range(1, 2 + len(SHOWN) + len(TYPED)):
        area = page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")
        area.screenshot(path=str(screens / f"objects-{number}-{name}.png"))


def test_everything_is_drawn_in_light_and_dark(jupyterlab: JupyterLab, screens: Path) -> None:
    """No object is an empty output or a formula, none is wider than its output shows; a formula of the user's
    own still is one.
    """
    with jupyterlab.opened("objects", [SETUP, *SHOWN, f"HTML('<p>{TRAP}</p>')", *TYPED]) as page:
        command(page, "notebook:run-all-cells")
        cells = page.locator(".jp-Notebook .jp-Cell")
        expect(cells.nth(len(SHOWN))).to_contain_text("all shown", timeout=PATIENCE_MS)
        expect(cells.last).to_contain_text("--approve", timeout=PATIENCE_MS)
        page.set_viewport_size(
            {"width": 1100, "height": 5_000}
        )  # what is scrolled away would be grey in pictures
        for theme in ("JupyterLab Light", "JupyterLab Dark"):
            name = theme.split()[1].lower()
            page.evaluate(
                "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme
            )
            page.wait_for_function(
                "light => document.body.dataset.jpThemeLight === light", arg=str(name == "light").lower()
            )
            page.wait_for_function(f"{TYPESET}.length > 0", timeout=PATIENCE_MS)
            page.wait_for_timeout(500)
            pictures(page, screens, name)
        typeset = page.evaluate(TYPESET)
        heights = page.evaluate(
            "[...document.querySelectorAll('.jp-OutputArea-output')].map(e => "
            "e.getBoundingClientRect().height)"
        )
        wide = page.evaluate(WIDE)
    assert len(heights) > 150
    assert len(typeset) == 1, typeset
    assert min(heights) > 8
    assert wide == 0
