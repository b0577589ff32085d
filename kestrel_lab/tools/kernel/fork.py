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
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.lockdown import (
    MOST_GROWTH,
    NoLockdown,
    lock_down,
    lockdown_problem,
    preview_grants,
)
from kestrel_lab.tools.kernel.values import Buffers, NotPlain, Store, encode_value, write_values
from kestrel_lab.tools.sandbox.observer import Grants, Observer

Work = Callable[[str, Buffers, list[str]], Json]
"""Work of a copy, given a scratch folder and, after a pause, names; returns JSON that may refer to buffers.
"""
PROBLEM = "problem"
_LOOK_S = 0.2
"""Seconds between two looks at the memory of a copy."""


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

    def __init__(
        self,
        work: Work,
        workspace: str,
        *,
        paused: bool = False,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        """Start; a `paused` copy waits until `resume` gives it work.

        What `prepare` is refused, which runs first, is not noted: it must not run code of a model.
        """
        if reason := fork_problem():
            raise NoLockdown(reason)
        self._scratch = tempfile.mkdtemp(prefix="kestrel-preview-")
        try:
            self._grants = preview_grants(workspace, self._scratch)
        except NoLockdown:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        self._observed = not paused
        self.problem = ""
        """Why the copy was ended, if not for its time."""
        self.observer: Observer | None = None
        """What the copy was refused, once `wait` has returned; a paused copy only gives values back."""
        self._fd = os.memfd_create("kestrel-fork", os.MFD_CLOEXEC)
        waiting, self._starter = os.pipe()
        self._channel, channel = socket.socketpair()
        drawn = random.getstate()
        with warnings.catch_warnings():
            # Newer Pythons warn of forking beside threads: a lock that another thread holds stays locked in
            # the copy. Here that is bounded by the time limit of `wait`.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            # Python reseeds `random` after a fork; the preview must draw the numbers that the kernel would.
            random.setstate(drawn)
            _child(work, self._grants, _ChildEnds(self._fd, waiting, channel), paused=paused, prepare=prepare)
        os.close(waiting)
        channel.close()
        # Not the number of the process: it may be given to another process once this one has ended.
        self._watch = os.pidfd_open(self.pid)
        self._lock = threading.Lock()

    def resume(self, names: Sequence[str]) -> None:
        """Let a paused copy work, on these names."""
        os.write(self._starter, json.dumps(list(names)).encode() + b"\n")

    def wait(self, seconds: float) -> Store | None:
        """Wait for the result of the work; `None` after the time limit or without a result. The copy ends."""
        try:
            is_ended = self._observe(time.monotonic() + seconds)
            self.kill()
            with contextlib.suppress(ValueError):
                return Store(self._fd) if is_ended else None
            return None
        finally:
            self.end()

    def _observe(self, until: float) -> bool:
        """Answer the calls of the copy until it ends; return false if it has not by then."""
        waiting = select.poll()
        waiting.register(self._watch, select.POLLIN)
        if self._observed:
            waiting.register(self._channel, select.POLLIN)
        most = _resident_bytes(self.pid) + MOST_GROWTH
        while (left := until - time.monotonic()) > 0:
            ready = dict(waiting.poll(min(left, _LOOK_S) * 1000))
            if self._channel.fileno() in ready:
                self._answer_channel(waiting)
            elif self.observer is not None and self.observer.listener in ready:
                if ready[self.observer.listener] & select.POLLIN:
                    self.observer.answer()
                else:
                    # No thread of the copy can call any more: to poll it on would be a busy loop.
                    waiting.unregister(self.observer.listener)
            elif self._watch in ready:
                return True
            elif _resident_bytes(self.pid) > most:
                self.problem = f"it needs more than {MOST_GROWTH / 1e9:.1f} GB of memory"
                return False
        return False

    def _answer_channel(self, waiting: select.poll) -> None:
        """Take what the copy sends: first the descriptor of its observer, then that its work begins."""
        message, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        if descriptors:
            self.observer = Observer(descriptors[0], self.pid, self._grants)
            waiting.register(descriptors[0], select.POLLIN)
            return
        # Nothing more comes. Without a message, the copy has ended before its work.
        waiting.unregister(self._channel)
        if message and self.observer is not None:
            self.observer.refusals.clear()
            # The copy waits for it: otherwise a refusal of its work might be taken for one from before.
            self._channel.send(message)

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
            listener = [] if self.observer is None else [self.observer.listener]
            for fd in (self._fd, self._starter, self._watch, *listener):
                os.close(fd)
            self._channel.close()
            self._watch = -1
        shutil.rmtree(self._scratch, ignore_errors=True)

    def held(self) -> int:
        """Return how many bytes of memory the copy alone holds: pages that this process has changed since."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Private_Dirty:"):
                    return int(line.split()[1]) * 1024
        return 0


class _ChildEnds(NamedTuple):
    """Descriptors of a copy to its parent."""

    result: int
    waiting: int
    """Readable when a paused copy is to work."""
    channel: socket.socket
    """Takes the descriptor by which the copy is observed."""


def _resident_bytes(pid: int) -> int:
    """Return how much memory a process holds; 0 once it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _child(
    work: Work, grants: Grants, ends: _ChildEnds, *, paused: bool, prepare: Callable[[], object]
) -> NoReturn:
    """Run as the copy. It always exits here, without running the parent's cleanup."""
    fd, waiting, scratch = ends.result, ends.waiting, grants.write
    try:
        # A collection would write to every object and so copy all pages of the kernel.
        gc.freeze()
        listener = lock_down({fd, waiting, ends.channel.fileno()}, grants, observed=not paused)
        if not paused:
            socket.send_fds(ends.channel, [b"1"], [listener])
            os.close(listener)
        # Python does without the bytecode of modules that it could not write.
        sys.dont_write_bytecode = True
        tempfile.tempdir = scratch
        if not paused:
            prepare()
            os.write(ends.channel.fileno(), b"2")
            os.read(ends.channel.fileno(), 1)
        ends.channel.close()
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
