"""A real JupyterLab server and a real Chromium for the browser tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
READY = """() => {
  const widget = [...(window.jupyterapp?.shell.widgets('main') ?? [])].find(w => w.sessionContext);
  const kernel = widget?.sessionContext.session?.kernel;
  return kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
CANARY = "sk-canary-5f1e0c7b9a"
"""Stands in the servers' environment where keys are."""
NOTE_CLICKS = (
    "() => document.addEventListener('click', () => { window.clickedAt = Date.now() / 1000; }, true)"
)


class Load:
    """How busy the machine is from `with` to its end: whatever is timed meanwhile takes longer by as much as
    a loop did at the worst moment.
    """

    def __init__(self) -> None:
        self.stretch = 1.0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Load:
        self._measure(0.05)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        self._measure(0.05)

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self._measure(0.005)

    def _measure(self, work_s: float) -> None:
        """Compare the time that so much work took with its processor time."""
        began, used = time.monotonic(), time.thread_time()
        while (spent := time.thread_time() - used) < work_s:
            pass
        self.stretch = max(self.stretch, (time.monotonic() - began) / spent)


@dataclass(frozen=True, slots=True)
class JupyterLab:
    """A running server and a browser to look at it."""

    url: str
    root: Path
    browser: Browser

    @contextmanager
    def opened(
        self, name: str, cells: list[str], prepare: Callable[[Page], object] = lambda _: None
    ) -> Iterator[Page]:
        """A new notebook of `cells` in its own folder, its kernel idle; `prepare` is given the page while it
        is still empty.
        """
        folder = self.root / name
        folder.mkdir()
        write_notebook(folder / "t.ipynb", cells)
        page = self.browser.new_page(viewport={"width": 1100, "height": 900})
        prepare(page)
        try:
            page.goto(f"{self.url}/doc/tree/{name}/t.ipynb")
            page.wait_for_function(READY, timeout=150_000)
            page.evaluate(NOTE_CLICKS)
            yield page
        finally:
            page.close()


def command(page: Page, name: str) -> None:
    """Carry out a command of the front end without waiting for it: cells may wait for a click."""
    page.evaluate("name => { window.jupyterapp.commands.execute(name) }", name)


def run_cell(page: Page, number: int) -> None:
    """Run a cell of the notebook, counted from 0, without waiting for its end."""
    page.evaluate(
        """number => {
          const notebook = [...window.jupyterapp.shell.widgets('main')].find(w => w.sessionContext).content;
          notebook.activeCellIndex = number;
          window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        number,
    )


def write_notebook(path: Path, cells: list[str]) -> None:
    """A notebook file of code cells."""
    code: list[dict[str, object]] = [
        {
            "cell_type": "code",
            "id": f"c{n}",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for n, source in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": code}))


@contextmanager
def serve(root: Path, config: Path, env: Mapping[str, str] = {}) -> Iterator[str]:
    """A JupyterLab server over `root`, with settings and environment variables of its own; gives its address.

    The connection files of its kernels are in the folder `runtime` of `config`. They have no ports: one that
    is chosen before the kernel listens on it may be another process's by then.
    """
    port = free_port()
    options = [
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--IdentityProvider.token=",
        "--KernelManager.transport=ipc",
        "--ServerApp.disable_check_xsrf=True",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None",
    ]
    settings = config / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false"}')
    # On a busy machine a completion takes longer than the second after which JupyterLab drops it.
    completer = config / "@jupyterlab" / "completer-extension" / "manager.jupyterlab-settings"
    completer.parent.mkdir(parents=True)
    completer.write_text('{"providerTimeout": 60000}')
    with (
        # The path of a socket has to be short.
        tempfile.TemporaryDirectory(prefix="kestrel-", dir="/tmp", ignore_cleanup_errors=True) as runtime,
        (config / "server.log").open("w") as log,
    ):
        (config / "runtime").symlink_to(runtime)
        places = dict.fromkeys(
            ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"), str(config)
        )
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env={**os.environ, **places, "JUPYTER_RUNTIME_DIR": runtime, **env, "PATH": path},
            stdout=log,
            stderr=log,
        )
        try:
            yield _answering(f"http://127.0.0.1:{port}", config / "server.log")
        finally:
            server.terminate()
            try:
                server.wait(60)
            finally:
                server.kill()
                server.wait()


def _answering(url: str, log: Path) -> str:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/api/status"):
                return url
        except OSError:
            time.sleep(0.1)
    raise AssertionError("JupyterLab did not start:\n" + log.read_text()[-3_000:])
