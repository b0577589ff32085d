"""Open a path beneath a directory so that no symlink, however timed, leads out of it."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_AT_FDCWD = -100
_RETRIES = 64
# Opening a FIFO without a writer would block, and opening a terminal would make it the controlling one.
_ALWAYS = os.O_CLOEXEC | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NONBLOCK", 0)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root_fd: int, path: str, flags: int, mode: int, *, follow: bool) -> int:
    """Return a file descriptor for the relative `path` under the directory `root_fd`.

    With `follow`, symlinks that stay beneath the directory are followed where the kernel can promise it
    (Linux 5.6 and later); elsewhere, and without it, every symlink is refused. Raises `OSError`, with
    `EXDEV` or `ELOOP` for a path that leads out or through a symlink, and `ValueError` for a NUL.
    """
    # C would take the path to end there, and open another file than the one that was checked.
    if "\0" in path:
        raise ValueError("a path cannot contain a NUL character")
    if has_openat2():
        return _openat2(
            root_fd, path, flags | _ALWAYS, mode, _BENEATH | (_NO_MAGICLINKS if follow else _NO_SYMLINKS)
        )
    return walk_beneath(root_fd, path, flags, mode)


def walk_beneath(root_fd: int, path: str, flags: int, mode: int) -> int:
    """Open a path on kernels without `openat2`: component by component, refusing symlinks and `..`."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    if not parts:
        return os.open(".", flags | _ALWAYS, mode, dir_fd=root_fd)
    here = os.dup(root_fd)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _ALWAYS, dir_fd=here)
            os.close(here)
            here = below
        fd = os.open(parts[-1], flags | os.O_NOFOLLOW | _ALWAYS, mode, dir_fd=here)
        # With O_PATH the symlink itself is opened.
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return fd
    finally:
        os.close(here)


@functools.cache
def has_openat2() -> bool:
    """Return whether the kernel, and whatever filters its calls, offers `openat2`."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.close(_openat2(_AT_FDCWD, ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, 0, 0))
    except OSError as error:
        return error.errno not in {errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG}
    return True


@functools.cache
def _syscall() -> Callable[..., int]:
    function: Any = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.POINTER(_OpenHow),
        ctypes.c_size_t,
    )
    return function  # type: ignore[no-any-return]


def _openat2(root_fd: int, path: str, flags: int, mode: int, resolve: int) -> int:
    # Unlike `open`, `openat2` refuses what it would ignore: a mode if nothing is created, and most flags with
    # O_PATH.
    if flags & os.O_PATH:
        flags &= os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    how = _OpenHow(flags=flags, mode=mode if flags & os.O_CREAT else 0, resolve=resolve)
    for _ in range(_RETRIES):
        fd = _syscall()(_OPENAT2, root_fd, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        # EAGAIN: something was renamed on the way, look again.
        if code not in {errno.EAGAIN, errno.EINTR}:
            break
    raise OSError(code, os.strerror(code), path)
