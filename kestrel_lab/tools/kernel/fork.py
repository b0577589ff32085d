"""Forked copies of a kernel: one works and answers through a memory file, another preserves the state."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.lockdown import (
    NoLockdown,
    lock_down,
    lockdown_problem,
    preview_places,
)
from kestrel_lab.tools.kernel.values import Buffers, NotPlain, Store, encode_value, write_values
from kestrel_lab.tools.sandbox.mounts import ReadPlaces

Work = Callable[[str, Buffers, list[str]], Json]
"""Work of a copy, given a scratch folder and, after a pause, names; returns JSON that may refer to buffers.
"""
PROBLEM = "problem"


def fork_problem() -> str:
    """Return why the kernel cannot be copied now; empty if it can."""
    if reason := lockdown_problem():
        return reason
    # Not imported here: a kernel without torch must not pay for loading it.
    torch = sys.modules.get("torch")
    # CUDA does not work in a forked process.
    if torch is not None and torch.cuda.is_initialized():
        return "a copy of the kernel would lose its graphics processor (CUDA is in use)"
    return ""


class Fork:
    """A locked-down copy of this process for one piece of work.

    Raises `NoLockdown` if no copy can be made. The copy has one thread, the one that made it.
    """

    def __init__(self, work: Work, workspace: str, *, paused: bool = False) -> None:
        """Start; a `paused` copy waits until `resume` gives it work."""
        if reason := fork_problem():
            raise NoLockdown(reason)
        places = preview_places(workspace)
        self._scratch = tempfile.mkdtemp(prefix="kestrel-preview-")
        self._fd = os.memfd_create("kestrel-fork", os.MFD_CLOEXEC)
        waiting, self._starter = os.pipe()
        drawn = random.getstate()
        with warnings.catch_warnings():
            # Newer Pythons warn of forking beside threads: a lock that another thread holds stays locked in
            # the copy. Here that is bounded by the time limit of `wait`.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            # Python reseeds `random` after a fork; the preview must draw the numbers that the kernel would.
            random.setstate(drawn)
            _child(work, places, self._scratch, self._fd, waiting, paused=paused)
        os.close(waiting)
        # Not the number of the process: it may be given to another process once this one has ended.
        self._watch = os.pidfd_open(self.pid)
        self._lock = threading.Lock()

    def resume(self, names: Sequence[str]) -> None:
        """Let a paused copy work, on these names."""
        os.write(self._starter, json.dumps(list(names)).encode() + b"\n")

    def wait(self, seconds: float) -> Store | None:
        """Wait for the result of the work; `None` after the time limit or without a result. The copy ends."""
        try:
            ended = select.poll()
            ended.register(self._watch, select.POLLIN)
            ready = ended.poll(seconds * 1000)
            self.kill()
            with contextlib.suppress(ValueError):
                return Store(self._fd) if ready else None
            return None
        finally:
            self.end()

    def kill(self) -> None:
        """Kill the copy, from any thread; `wait` returns then."""
        with self._lock, contextlib.suppress(OSError):
            if self._watch >= 0:
                signal.pidfd_send_signal(self._watch, signal.SIGKILL)

    def end(self) -> None:
        """Kill the copy and clean up; repeated calls do nothing."""
        self.kill()
        with self._lock:
            if self._watch < 0:
                return
            with contextlib.suppress(ChildProcessError):
                # Otherwise the ended copy stays as a zombie.
                os.waitpid(self.pid, 0)
            for fd in (self._fd, self._starter, self._watch):
                os.close(fd)
            self._watch = -1
        shutil.rmtree(self._scratch, ignore_errors=True)

    def held(self) -> int:
        """Return how many bytes of memory the copy alone holds: pages that this process has changed since."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Private_Dirty:"):
                    return int(line.split()[1]) * 1024
        return 0


def _child(work: Work, places: ReadPlaces, scratch: str, fd: int, waiting: int, *, paused: bool) -> NoReturn:
    """Run as the copy. It always exits here, without running the parent's cleanup."""
    try:
        # A collection would write to every object and so copy all pages of the kernel.
        gc.freeze()
        lock_down({fd, waiting}, places, scratch)
        tempfile.tempdir = scratch
        buffers, names = Buffers(), list[str]()
        if paused:
            with os.fdopen(waiting, "rb") as asked:
                # End of file: the kernel has ended, or closed this copy.
                if not (line := asked.readline()):
                    os._exit(0)
            names = json.loads(line)
        write_values(fd, work(scratch, buffers, names), buffers)
    except NoLockdown as error:
        write_values(fd, {PROBLEM: str(error)}, Buffers())
    except BaseException as error:  # this process ends; the parent reports the error  # noqa: BLE001
        with contextlib.suppress(BaseException):
            last = traceback.extract_tb(error.__traceback__)[-1]
            write_values(fd, {PROBLEM: f"{type(error).__name__}: {error} ({last.name})"}, Buffers())
    finally:
        os._exit(0)


def copied_values(namespace: dict[str, Any]) -> Work:
    """Return the work of a copy that gives old values back: a tree by name, or a reason."""

    def work(_: str, buffers: Buffers, names: list[str]) -> Json:
        found: dict[str, Json] = {}
        for name in names:
            try:
                found[name] = {"value": encode_value(namespace[name], buffers)}
            except NotPlain as reason:
                found[name] = {PROBLEM: str(reason)}
        return found

    return work
