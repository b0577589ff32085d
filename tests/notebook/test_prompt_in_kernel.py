"""A front end that shows no widgets: the kernel asks on standard input, and Stop still works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

pytestmark = pytest.mark.timeout(120)

SETUP = """%load_ext kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
lab = Lab(model=ScriptedModel([[("write_file", {"path": "a.txt", "content": "x"})], "done"]))"""


class Typist:
    """A front end without widgets in front of a real kernel."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, answer: str | None = None) -> str:
        """What `code` prints or raises; a question is answered with `answer`, or with Stop if that is `None`."""
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            printed.append(content.get("text") or content.get("evalue") or "")

        def asked(message: dict[str, Any]) -> None:
            printed.append(message["content"]["prompt"])
            if answer is None:
                self._manager.interrupt_kernel()
            else:
                self._client.input(answer)

        self._client.execute_interactive(code, allow_stdin=True, timeout=40, output_hook=hook, stdin_hook=asked)
        return "".join(printed)


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[Typist]:
    """A kernel in an empty folder."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield Typist(manager, client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_without_widgets_the_kernel_asks_in_words(typist: Typist, tmp_path: Path) -> None:
    """A typed yes lets the run go on; Stop during the question cancels the run and leaves the kernel alive."""
    typist.run(SETUP)
    stopped = typist.run('%kestrel run "write" --as r', answer=None)
    status = typist.run("print(r.status)")
    typist.run('%kestrel run "write" --as r', answer="y")

    assert "write_file (MEDIUM) asks for approval\n  path: a.txt\n  content: x\n" in stopped
    assert "was stopped" in stopped
    assert (status, typist.run("print(r.answer)"), (tmp_path / "a.txt").read_text()) == ("CANCELLED\n", "done\n", "x")
