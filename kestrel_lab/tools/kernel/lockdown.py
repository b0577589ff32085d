"""Lockdown of a forked process: it keeps its memory and loses every way to have an effect outside of itself.

First it gives up what it inherited: descriptors, writable shared memory, its place in the process group of
the parent. Then Landlock and seccomp refuse the rest, as at sandbox level S1 with a single writable folder.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import site
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from kestrel_lab.tools.kernel.caches import LibraryCaches
from kestrel_lab.tools.sandbox import landlock
from kestrel_lab.tools.sandbox.mounts import (
    CONFIGURATION,
    DEVICES,
    NETWORK,
    PROGRAMS,
    existing_below,
    python_folders,
    secret_places,
)
from kestrel_lab.tools.sandbox.observer import Grants
from kestrel_lab.tools.sandbox.seccomp import filter_program, processor_column

MOST_SHARED = 256 * 1024**2
"""Bytes of writable shared memory that are replaced by a copy; with more there is no preview."""
MOST_GROWTH = 4 * 1024**3
"""Bytes of memory that a locked process may use beyond those of its parent; then its parent ends it."""
MOST_WRITTEN = 1024**3
"""Bytes of the largest file that it may write."""

_PROT_RW, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 3, 2, 0x10, 0x20
_OF_SYSTEM = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/kernel", "/sys/devices/system/cpu")
_OF_ITSELF = ("/proc/self/maps", "/proc/self/status", "/proc/self/statm", "/proc/self/stat")
"""Libraries read these at start. Not its environment, which holds keys, and not its memory as a file."""
_OF_PREVIEW = ("/proc/self", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage")
"""A preview has the memory of the kernel, and so its environment."""


class NoLockdown(Exception):
    """A process cannot be locked down here; the message is the reason."""


def lockdown_problem() -> str:
    """Return why no process can be locked down on this machine; empty if one can."""
    if not sys.platform.startswith("linux"):
        return f"effects of a copy of the kernel can be denied on Linux only, and this is {sys.platform}"
    if landlock.landlock_version() < landlock.TRUNCATES:
        return "this Linux has no Landlock, or one that does not rule the truncation of files"
    if processor_column() is None:
        return "the system calls of this processor are not known"
    return ""


def read_places(workspace: str) -> list[str]:
    """Return the folders that a preview may read: the workspace, programs and Python packages; no home, no
    keys, no other process.

    Raises `NoLockdown` for a workspace that contains keys.
    """
    packages = [
        place
        for place in (*map(str, python_folders()), *sys.path, site.getusersitepackages())
        if place and os.path.isabs(place)
    ]
    found = [*PROGRAMS, *CONFIGURATION, *DEVICES, *_OF_SYSTEM, *packages, workspace]
    if hidden := list(existing_below(secret_places(), [Path(workspace)])):
        raise NoLockdown(
            f"the folder {workspace} holds keys ({hidden[0]}), which code must not read unasked: work "
            "in a folder of its own"
        )
    return [*dict.fromkeys(os.path.realpath(place) for place in found if os.path.exists(place)), *_OF_ITSELF]


def preview_grants(workspace: str, scratch: str) -> Grants:
    """Return what a preview may open: the `read_places`, caches of libraries, and `scratch` to write beneath.

    What is in the workspace, around it or in a cache is opened by the observer, who leaves out pipes,
    sockets and devices: reading takes from them what another process should get. Raises `NoLockdown` as
    `read_places` does.
    """
    root = os.path.realpath(workspace)
    granted, around = list[str](), [root]
    for place in read_places(workspace):
        is_nested = _is_in(place, root) or _is_in(root, place)
        (around if is_nested else granted).append(place)
    caches = LibraryCaches.of_user()

    def brokered(real: str, place: int) -> bool:
        return any(_is_in(real, folder) for folder in around) or caches.may_be_read(real, place)

    return Grants(read=(*granted, *NETWORK, *_OF_PREVIEW), brokered=brokered, write=os.path.realpath(scratch))


def _is_in(place: str, folder: str) -> bool:
    return os.path.join(place, "").startswith(os.path.join(folder, ""))


def lock_down(keep: Collection[int], grants: Grants, *, observed: bool) -> int:
    """Deny effects to this process for good; it must have been forked just now and have one thread.

    Only the descriptors `keep` stay open. Returns the descriptor for an `Observer`, which has to be given
    away before anything else is done; -1 for a process that is not `observed`. After `NoLockdown` or
    `OSError` the process is not locked and must end at once.
    """
    # Jupyter interrupts the process group of the kernel; its copies must not notice.
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # This order: the first steps open files that the last ones deny, and descriptors that are open when
    # Landlock comes in force would stay usable.
    _unshare_memory()
    close_others(keep)
    _bound()
    landlock.drop_privileges()
    landlock.restrict_process(landlock.Access(system=grants.read, write=[grants.write]))
    if observed:
        try:
            return landlock.filter_observed(filter_program((), effects=False, observed=True))
        except OSError as error:
            raise NoLockdown(
                f"what a copy of the kernel is refused cannot be observed here ({error})"
            ) from error
    landlock.filter_calls(filter_program((), effects=False))
    return -1


def close_others(keep: Collection[int]) -> None:
    """Close every descriptor but `keep`; input and output lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    kept = {0, 1, 2, *keep}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:
                # The descriptor of the listing itself, which is closed by now.
                continue


def _bound() -> None:
    # No dump of the kernel's memory, which may hold keys.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A write beyond the limit ends the copy: an error could be caught, and nobody would know.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = MOST_WRITTEN if most == resource.RLIM_INFINITY else min(MOST_WRITTEN, most)
    resource.setrlimit(resource.RLIMIT_FSIZE, (written, written))


def _unshare_memory() -> None:
    """Replace all memory that this process shares with others, and can write, by a private copy.

    The event log is mapped that way, and so are arrays in files and in shared memory: the parent would see a
    write there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    shared = list(_shared_writable())
    if (total := sum(one.size for one in shared)) > MOST_SHARED:
        raise NoLockdown(f"{total / 1e6:,.0f} MB of memory are shared with other processes or files")
    for one in shared:
        # Memory of a device, such as a graphics card, cannot be copied. `/dev/shm` and `/dev/zero` are the
        # kernel's names for ordinary shared memory.
        if one.path.startswith("/dev/") and not one.path.startswith(
            ("/dev/shm/", "/dev/zero")  # noqa: S108
        ):
            raise NoLockdown(f"the kernel works with a device ({one.path})")
        inside = one.readable()
        content = ctypes.string_at(one.start, inside)
        if (
            libc.mmap(one.start, one.size, _PROT_RW, _MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS, -1, 0)
            != one.start
        ):
            raise OSError(ctypes.get_errno(), "shared memory could not be replaced")  # as `OSError` is made
        ctypes.memmove(one.start, content, inside)


class _Mapping(NamedTuple):
    """A memory mapping of this process: address, size, and mapped part of a file."""

    start: int
    size: int
    offset: int
    path: str

    def readable(self) -> int:
        """Return how many of its bytes can be read; an access beyond the end of the file ends the process."""
        if not self.path.startswith("/") or self.path.endswith("(deleted)"):
            return self.size
        try:
            left = os.stat(self.path).st_size - self.offset
        except OSError:
            return self.size
        page = os.sysconf("SC_PAGE_SIZE")
        return max(0, min(self.size, -(-left // page) * page))


def _shared_writable() -> Iterator[_Mapping]:
    """Yield each mapping that is shared and may be written, or could be made writable."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        place, mode, offset, _, _, *path = line.split(maxsplit=5)
        if mode[0] == "r" and mode[3] == "s":
            start, end = (int(number, 16) for number in place.split("-"))
            yield _Mapping(start, end - start, int(offset, 16), path[0] if path else "")
