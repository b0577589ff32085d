"""The page about clusters: scheduler and workers are started as it says, without and with TLS."""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from in_process import kestrel
from ports import free_port
from test_pages import BLOCKS, project, repository
from waits import until

dask = pytest.importorskip("dask", reason="the cluster extra is not installed")
pytest.importorskip("distributed", reason="the cluster extra is not installed")
pytestmark = [pytest.mark.slow]

__all__ = ["project", "repository"]  # fixtures
PAGE = "docs/howto/cluster.md"
LINES = [
    line.removeprefix("$ ")
    for block in BLOCKS
    if block.page == PAGE and block.kind == "console"
    for line in block.text.splitlines()
]


def lines_about(protocol: str, port: int) -> list[list[str]]:
    """Return the words of the page's commands about a protocol, at a free port."""
    marks = (f"{protocol}://", f"--protocol {protocol}") if protocol == "tls" else ("tcp://", "--host")
    lines = [line for line in LINES if any(mark in line for mark in marks)]
    if protocol == "tcp":
        lines = [line for line in lines if "tls" not in line]
    return [shlex.split(line.replace("8786", str(port))) for line in lines]


@contextmanager
def started(words: list[str], folder: Path) -> Iterator[None]:
    """Run `dask …` as a process of its own until the block ends."""
    program = Path(sys.executable).with_name(words[0])
    done = subprocess.Popen(
        [program, *words[1:]], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        done.send_signal(signal.SIGTERM)
        done.wait()


def listens(port: int) -> bool:
    """Return whether somebody takes connections there."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def make_certificates(folder: Path) -> None:
    """Make an authority and a certificate of it."""
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2",
        "req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=node",
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out node.pem -days 2",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
def test_a_suite_runs_on_a_cluster_as_the_page_says(
    protocol: str, project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The commands of the page, in their order, make every trial of the suite pass on a worker."""
    if protocol == "tls":
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl to make certificates")
        make_certificates(project)
        for line in LINES:
            if line.startswith("export DASK_"):
                name, _, value = line.removeprefix("export ").partition("=")
                monkeypatch.setenv(name, value)
        dask.config.refresh()  # the process has read its settings when it imported Dask
        request.addfinalizer(lambda: dask.config.refresh(env={}))
    port = free_port()
    scheduler, worker, run = lines_about(protocol, port)
    with started(scheduler, project):
        until(lambda: listens(port), "the scheduler")
        with started(worker, project):
            done = kestrel(project, *run[1:], "--csv", "trials.csv")
    assert done.returncode == 0, done.stderr
    trials = pd.read_csv(project / "trials.csv")
    assert len(trials) == 32
    assert trials["outcome"].eq("pass").all(), done.stdout
