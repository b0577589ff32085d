"""One JupyterLab server and one browser for the browser tests of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_server import CANARY, CHROMIUM, QUIET, JupyterLab, serve
from waits import PATIENCE_MS

# The stand-in for a provider.
sys.path.append(str(Path(__file__).parents[1] / "models"))


@pytest.fixture(scope="session")
def screens() -> Path:
    """The folder for screenshots, which continuous integration keeps."""
    folder = Path(os.environ.get("KESTREL_ARTIFACTS") or Path(__file__).parents[2] / "out" / "tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# For a file, not for all: while playwright works no other test in the thread could run an event loop.
@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    """A server over an empty folder and a browser to look at it."""
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    # For every expectation: playwright's own five seconds are too few on a busy machine.
    playwright.expect.set_options(timeout=PATIENCE_MS)
    root, config = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("config")
    with serve(root, config, {"OPENAI_API_KEY": CANARY}) as url, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET.split(), timeout=120_000)
        yield JupyterLab(url, root, browser)
        browser.close()
