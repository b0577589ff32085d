"""A front end without widgets in front of a real kernel: it shows text, and a person could type."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from waits import PATIENCE_S


class Typist:
    """A front end without widgets in front of a real kernel."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client
        self.asked_at: list[float] = []

    def run(self, code: str, answer: str | None = None) -> str:
        """What `code` prints or raises; a question is answered with `answer`, or with Stop if that is
        `None`.
        """
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            printed.append(content.get("text") or content.get("evalue") or "")

        def asked(message: dict[str, Any]) -> None:
            self.asked_at.append(time.monotonic())
            printed.append(message["content"]["prompt"])
            if answer is None:
                self._manager.interrupt_kernel()
            else:
                self._client.input(answer)

        self._client.execute_interactive(
            code, allow_stdin=True, timeout=PATIENCE_S, output_hook=hook, stdin_hook=asked
        )
        return "".join(printed)


@contextmanager
def typist(folder: Path, env: Mapping[str, str] = {}) -> Iterator[Typist]:
    """A kernel in `folder` and somebody to type."""
    with tempfile.TemporaryDirectory(
        prefix="kestrel-"
    ) as sockets:  # a port may be another process's by the time the kernel listens
        manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel")
        manager.start_kernel(cwd=str(folder), env={**os.environ, **env})
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE_S)
            yield Typist(manager, client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
