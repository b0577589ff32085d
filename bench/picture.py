"""The pictures of README.md and docs, of a run in a real JupyterLab and of the page of a suite: `python -m
bench.picture`, which needs Chromium.

The scene is scripted, and the panel says so in the picture. The folder, the calls, the diff and the plan are
real. The suite is that of `make demo`, replayed from its recordings.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.environments import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

_FILES = {
    "shop/__init__.py": "",
    "shop/cart.py": (
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Line:\n    name: str\n    price: "
        "float\n    quantity: int = 1\n\n\n"
        "def total(lines: list[Line]) -> float:\n"
        '    """Return what a cart costs."""\n    return sum(line.price for line in lines)\n'
    ),
    "tests/test_cart.py": (
        "from shop.cart import Line, total\n\n\ndef test_total_counts_quantities():\n"
        '    assert total([Line("apple", 0.5, quantity=4), Line("pear", 1.0)]) == 3.0\n'
    ),
    # Pytest in the sandbox cannot see the checkout that this environment has its plugin from.
    "pytest.ini": "[pytest]\naddopts = -p no:kestrel\n",
    "fix.yaml": (
        "kind: sequential\nsteps:\n"
        '  - {id: find, goal: "Find the cause: {{goal}}", produces: [cause]}\n'
        '  - {id: fix, goal: "Fix the code.", consumes: [cause]}\n'
        '  - {id: test, goal: "Run the tests and report."}\n'
    ),
}
_SETUP = """\
%load_ext kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
OLD = "return sum(line.price for line in lines)"
NEW = "return sum(line.price * line.quantity for line in lines)"
TURNS = {
    "Find": [
        [("grep", {"pattern": "def total", "path": "shop"}), ("read_file", {"path": "shop/cart.py"}), \
("read_file", {"path": "tests/test_cart.py"})],
        "`total` adds up prices and leaves the quantities out [shop/cart.py:13].",
    ],
    "Fix": [[("edit_file", {"path": "shop/cart.py", "old": OLD, "new": NEW})], "Each price is multiplied by \
its quantity now [shop/cart.py:13]."],
    "Run": [
        [("bash", {"command": "python -m pytest -q tests"})],
        [("read_file", {"path": "shop/cart.py"})],
        "The cart counts quantities now [shop/cart.py:13], and its test passes.",
    ],
}
def says(request):
    goal = next(message.text for message in request.messages if message.role == "user")
    turns = next(turns for word, turns in TURNS.items() if goal.startswith(word))
    return turns[sum(message.role == "assistant" for message in request.messages)]
lab = Lab(model=ScriptedModel(says))
"""
_GOAL = (
    "%%kestrel --plan fix.yaml --as run\nA customer was charged for one apple instead of four. Find "
    "out why, and fix it."
)
_PLAIN = (
    ".jp-Notebook .jp-Toolbar, .jp-Collapser { visibility: hidden } .jp-Cell, .jp-Notebook::after { "
    "border: none; box-shadow: none; outline: none }"
)
"""Neither the buttons of the active cell nor the bar beside it."""


def main() -> None:
    """Play the scene and take its pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    folder = parser.parse_args().out.resolve()
    # The browser tests have the server and browser already.
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "notebook")]
    from lab_server import CHROMIUM, QUIET, READY, run_cell, serve, write_notebook
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as config:
        for name, text in _FILES.items():
            (file := Path(root) / name).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        write_notebook(Path(root) / "shop.ipynb", [_SETUP, _GOAL])
        with (
            serve(Path(root), Path(config), {"USER": "ada", "LOGNAME": "ada"}) as url,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
            page = browser.new_page(viewport={"width": 1000, "height": 1900}, device_scale_factor=2)
            page.set_default_timeout(240_000)
            page.goto(f"{url}/doc/tree/shop.ipynb")
            page.wait_for_function(READY)
            page.add_style_tag(content=_PLAIN)
            cells, approve = (
                page.locator(".jp-Notebook .jp-Cell"),
                page.get_by_role("button", name="Approve", exact=True),
            )
            run_cell(page, 0)
            cells.nth(0).get_by_text("[1]:").wait_for()
            run_cell(page, 1)
            page.locator(".kst-ask", has_text="line.quantity").wait_for()
            # Waits until the button is enabled.
            approve.click(trial=True)
            _taken(cells.nth(1), folder / "panel.png")
            approve.click()
            page.locator(".kst-ask", has_text="pytest").wait_for()
            approve.click()
            cells.nth(1).get_by_text("[2]:").first.wait_for()
            _taken(cells.nth(1), folder / "figures" / "answer.png")
            _label_box(browser, url, Path(root), folder / "figures" / "label-box.png")
            _suite_page(browser, Path(root), folder / "figures" / "suite_page.png")
            browser.close()


def _label_box(browser: Browser, url: str, place: Path, path: Path) -> None:
    """Take the picture of the box for labels in the notebook about judges."""
    from lab_server import READY, run_cell

    name = "14_when_the_judge_is_wrong.ipynb"
    (place / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / name, place / "notebooks")
    shutil.copytree(ROOT / "datasets" / "capitals", place / "datasets" / "capitals")
    page = browser.new_page(viewport={"width": 1000, "height": 900}, device_scale_factor=2)
    page.set_default_timeout(240_000)
    page.goto(f"{url}/doc/tree/notebooks/{name}")
    page.wait_for_function(READY)
    cells = json.loads((ROOT / "notebooks" / name).read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            run_cell(page, number)
        if ".label(" in "".join(cell["source"]) and cell["cell_type"] == "code":
            break
    box = page.locator(".ksl")
    box.get_by_text("of 110").wait_for()
    box.screenshot(path=str(path))
    _shrink(path)


def _suite_page(browser: Browser, place: Path, path: Path) -> None:
    """Take the picture of the first screen of the demo's page."""
    report = place / "report.html"
    words = ["eval", "run", "evals/demo.yaml", "--cassette", "replay", "--report", str(report)]
    subprocess.run(
        [sys.executable, "-m", "kestrel_lab", *words],
        cwd=ROOT,
        env=os.environ | {"KESTREL_HOME": str(place / "home")},
        check=True,
    )
    page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1.5)
    page.goto(report.as_uri())
    page.locator(".matrix [data-at]").first.wait_for()
    page.screenshot(path=str(path))
    _shrink(path)


def _taken(cell: Locator, path: Path) -> None:
    """Take a picture of a cell."""
    cell.page.mouse.move(0, 0)
    cell.screenshot(path=str(path))
    _shrink(path, frame=6)  # without the frame of the active cell


def _shrink(path: Path, frame: int = 0) -> None:
    """Halve the bytes of a picture, and leave out so many pixels around it."""
    from PIL import Image

    with Image.open(path) as image:
        inside = image.crop((frame, frame, image.width - frame, image.height - frame))
        inside.convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
