"""Memory limit of a command, enforced by asking the kernel repeatedly, without a cgroup.

`RLIMIT_AS` and `RLIMIT_DATA` bound what one process asks for, not what all have: runtimes reserve far more than they use, and
ten processes have ten times as much. A cgroup would be exact, but containers and sessions rarely let one be made.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass

_PAGE = resource.getpagesize()
_PATIENCE = 10
"""The pause after an exact count, in multiples of the time that the count took."""


@dataclass(slots=True)
class MemoryBound:
    """A limit on the bytes of memory of all processes of one command."""

    most: int
    _next: float = 0.0

    def exceeded(self, processes: Iterable[int]) -> bool:
        """Return whether they have more by now. Files that are mapped count for nothing: the kernel can drop them."""
        there = list(processes)
        # Memory files are the command's or others': how many there are on the machine bounds what an exact count can find.
        if sum(map(_resident, there)) + _shared_memory() <= self.most or time.monotonic() < self._next:
            return False
        begun = time.monotonic()
        anonymous, shared = map(sum, zip(*(_proportional(process) for process in there), strict=True)) if there else (0, 0)
        found = anonymous + max(shared, _memory_files(there))
        self._next = time.monotonic() + _PATIENCE * (time.monotonic() - begun)
        return found > self.most


def _shared_memory() -> int:
    """Return the bytes in memory files and shared memory on the whole machine."""
    try:
        with open("/proc/meminfo", "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Shmem:")), 0)
    except OSError:
        return 0


def _resident(process: int) -> int:
    """Return the bytes of memory of a process, shared memory included; 0 for one that is gone."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(process: int) -> tuple[int, int]:
    """Bytes of its own and of shared memory, each page that several have divided among them, where the kernel says so."""
    for file, own, shared in (("smaps_rollup", b"Pss_Anon", b"Pss_Shmem"), ("status", b"RssAnon", b"RssShmem")):
        try:
            with open(f"/proc/{process}/{file}", "rb") as lines:
                found = {name: rest for name, _, rest in (line.partition(b":") for line in lines)}
            return int(found[own].split()[0]) * 1024, int(found[shared].split()[0]) * 1024
        except (OSError, KeyError):  # it ended, may not be asked, or the kernel is older
            continue
    return 0, 0


def _memory_files(processes: Iterable[int]) -> int:
    """Return the bytes of the memory files (`memfd_create`) that the processes hold open, each counted once; such a file can be filled without being mapped."""
    found = {}
    for process in processes:
        folder = f"/proc/{process}/fd"
        try:
            for fd in os.listdir(folder):
                if os.readlink(f"{folder}/{fd}").startswith("/memfd:"):
                    mark = os.stat(f"{folder}/{fd}")
                    found[mark.st_dev, mark.st_ino] = mark.st_blocks * 512
        except OSError:  # it ended, or may not be asked
            continue
    return sum(found.values())
