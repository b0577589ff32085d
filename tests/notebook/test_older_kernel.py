"""An older ipykernel, which takes no clicks while a cell runs: nothing hangs, questions are typed or left to
the policy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from lab_server import CHROMIUM, QUIET, JupyterLab, command, serve
from typist import typist
from waits import PATIENCE_S

from kestrel_lab.notebook.panel import HELLO_S

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]
PINS = ["ipykernel==6.31.0", "nest-asyncio==1.6.0"]
SETUP = """%load_ext kestrel_lab
import ipykernel
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
write = lambda n: [("write_file", {"path": f"{n}.txt", "content": "x"})]
lab = Lab(model=ScriptedModel([write(0), write(1), "done"]))
print(ipykernel.__version__)"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Environment variables that put ipykernel 6 before the one that is installed, for kernels only."""
    folder = tmp_path_factory.mktemp("ipykernel6")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--target",
        str(folder),
    ]
    done = subprocess.run([*pip, *PINS], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"ipykernel 6 cannot be installed: {done.stderr.strip()[-200:]}")
    return {"PYTHONPATH": os.pathsep.join((str(folder), *filter(None, [os.environ.get("PYTHONPATH")])))}


def test_questions_are_typed_and_stop_works(older: Mapping[str, str], tmp_path: Path) -> None:
    """Without widgets each question is asked in words, the second without waiting for a page again; Stop
    breaks the run off.
    """
    with typist(tmp_path, older) as person:
        version = person.run(SETUP)
        stopped = person.run('%kestrel run "write" --as r', answer=None)
        status = person.run("print(r.status)")
        began = time.monotonic()
        asked = person.run('%kestrel run "write" --as r', answer="y")
        first, second = (at - began for at in person.asked_at[-2:])
        answer = person.run("print(r.answer)")

    assert (version, status, answer) == ("6.31.0\n", "WAITING_APPROVAL\n", "done\n")
    assert ("stopped run " in stopped, asked.count("asks for approval")) == (True, 2)
    assert [(tmp_path / f"{n}.txt").read_text() for n in range(2)] == ["x", "x"]
    assert second - first < HELLO_S < first


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here")
def test_in_a_page_questions_are_typed_below_the_cell(older: Mapping[str, str], tmp_path: Path) -> None:
    """JupyterLab shows the panel, and as its buttons cannot be heard the question comes as a line to type in;
    the end is saved.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    root, config = tmp_path / "root", tmp_path / "config"
    root.mkdir()
    config.mkdir()
    with serve(root, config, older) as url, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET.split(), timeout=120_000)
        with JupyterLab(url, root, browser).opened(
            "older", [SETUP, '%kestrel run "write" --as r', "print(r.answer, r.status)"]
        ) as page:
            command(page, "notebook:run-all-cells")
            for number in range(2):
                line = page.locator(".jp-Stdin-input").last
                playwright.expect(page.locator(".jp-Stdin-prompt").last).to_contain_text(
                    f"{number}.txt", timeout=1_000 * PATIENCE_S
                )
                line.fill("y")
                line.press("Enter")
            playwright.expect(page.locator(".jp-Notebook .jp-Cell").nth(2)).to_contain_text(
                "done COMPLETE", timeout=1_000 * PATIENCE_S
            )
            playwright.expect(page.locator(".jp-Notebook .jp-Cell").nth(1)).to_contain_text("COMPLETE")
            first = page.locator(".jp-Notebook .jp-Cell").nth(0).inner_text()
        browser.close()

    assert "6.31.0" in first
