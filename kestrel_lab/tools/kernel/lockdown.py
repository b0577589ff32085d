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
import stat
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from kestrel_lab.tools.sandbox import landlock
from kestrel_lab.tools.sandbox.mounts import (
    CONFIGURATION,
    DEVICES,
    PROGRAMS,
    ReadPlaces,
    existing_below,
    folder_entries,
    places_around,
    python_folders,
    secret_places,
)
from kestrel_lab.tools.sandbox.seccomp import filter_program, processor_column

MOST_SHARED = 256 * 1024**2
"""Bytes of writable shared memory that are replaced by a copy; with more there is no preview."""
MOST_GROWTH = 4 * 1024**3
"""Bytes of memory that a locked process may use beyond those of its parent."""
MOST_WRITTEN = 1024**3
"""Bytes of the largest file that it may write."""
MOST_SEARCHED = 50_000
"""Entries of a workspace that are searched for pipes before a preview."""

_PROT_RW, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 3, 2, 0x10, 0x20
_OF_SYSTEM = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/kernel", "/sys/devices/system/cpu")
_OF_ITSELF = ("/proc/self/maps", "/proc/self/status", "/proc/self/statm", "/proc/self/stat")
"""Libraries read these at start. Not its environment, which holds keys, and not its memory as a file."""


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


def preview_places(workspace: str) -> ReadPlaces:
    """Return the `read_places` of a preview, without pipes, sockets and devices of the workspace.

    Reading a pipe takes data that another process should get. Raises `NoLockdown` as `read_places` does.
    """
    return places_around(read_places(workspace), set(_special_files(os.path.realpath(workspace))))


def _special_files(root: str) -> Iterator[str]:
    """Yield pipes, sockets and devices below `root`, as far as `MOST_SEARCHED` entries."""
    todo, seen = [root], 0
    while todo and seen < MOST_SEARCHED:
        for entry in folder_entries(todo.pop()):
            seen += 1
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
            elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                yield entry.path


def is_special_file(path: str | bytes) -> bool:
    """Return true for a pipe, socket or device (except `/dev/null` etc.): reading it affects others."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return (
        not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and os.path.realpath(os.fsdecode(path)) not in DEVICES
    )


def lock_down(keep: Collection[int], places: ReadPlaces, scratch: str) -> None:
    """Deny effects to this process for good; it must have been forked just now and have one thread.

    Only the descriptors `keep` stay open, and files can be written beneath `scratch` alone. After
    `NoLockdown` or `OSError` the process is not locked and must end at once.
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
    landlock.restrict_process(landlock.Access(system=places.read, listed=places.listed, write=[scratch]))
    landlock.filter_calls(filter_program((), effects=False))


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
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = MOST_WRITTEN if most == resource.RLIM_INFINITY else min(MOST_WRITTEN, most)
    resource.setrlimit(resource.RLIMIT_FSIZE, (written, written))
    # The limit is on addresses, of which the copy has as many as the kernel already.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    size = pages * os.sysconf("SC_PAGE_SIZE") + MOST_GROWTH
    size = size if most == resource.RLIM_INFINITY else min(size, most)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


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
