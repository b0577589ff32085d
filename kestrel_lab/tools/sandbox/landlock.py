"""Landlock, capabilities and seccomp: a process restricts itself and all its children, without any
privilege.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

_CREATE, _ADD, _RESTRICT, _CAPSET_X86, _CAPSET_ARM = 444, 445, 446, 126, 91
_SECCOMP_X86, _SECCOMP_ARM = 317, 277
_SET_FILTER, _NEW_LISTENER = 1, 8
_VERSION_FLAG = 1
_BENEATH = 1
_NO_NEW_PRIVS, _SECCOMP, _CAPBSET_DROP, _SECUREBITS, _AMBIENT = 38, 22, 24, 28, 47
_NO_ROOT_LOCKED = 0x2F
"""Makes root an ordinary user, irrevocably."""
_MOST_CAPABILITIES = 64

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_FROM_5 = (1 << 16) - 1
_TCP = 3
_SCOPES = 3
TRUNCATES, HAS_TCP, HAS_SCOPES = 3, 4, 6
"""The versions from which Landlock also restricts truncating, TCP and signals."""


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *values: object) -> int:
    result = int(_libc().syscall(ctypes.c_long(number), *values))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(*values: int) -> None:
    if _libc().prctl(*(ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:5])) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def landlock_version() -> int:
    """Return the version of Landlock in the kernel; 0 for none."""
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def drop_privileges() -> None:
    """Drop every capability for good, including those that root has."""
    # First: without it a set-user-id program would give everything back.
    _prctl(_NO_NEW_PRIVS, 1)
    # Root gets all capabilities back with each exec, unless the bounding set is empty and root's id is
    # an ordinary one.
    if os.geteuid() == 0:
        for capability in range(_MOST_CAPABILITIES):
            try:
                _prctl(_CAPBSET_DROP, capability)
            except OSError:
                # The kernel knows no more of them, or they cannot be dropped and go below.
                continue
        try:
            _prctl(_SECUREBITS, _NO_ROOT_LOCKED)
        except OSError:
            # Root without the right to say so; with no_new_privs nothing comes back anyway.
            pass
    header = struct.pack("=II", 0x20080522, 0)
    _call(_CAPSET_X86 if os.uname().machine == "x86_64" else _CAPSET_ARM, header, bytes(24))


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What Landlock leaves to a process and its children. Paths that do not exist are skipped."""

    system: Iterable[str]
    """Folders to read and execute beneath. Links in these paths are followed: no command can write there."""
    read: Iterable[str] = ()
    """Folders to read and execute beneath, also below those it may write. A link in a path is an error."""
    listed: Iterable[str] = ()
    """Folders whose names can be read, but no content."""
    write: Iterable[str] = ()
    """Folders beneath which everything is allowed. A link in a path is an error."""
    network: bool = False
    """Whether TCP can be bound and connected."""


def restrict_process(access: Access) -> None:
    """Restrict this process and its children for good.

    From Landlock 6 on, signals and abstract sockets reach no process outside either. Raises `OSError` where
    there is no Landlock.
    """
    abi = _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    everything = _ALL_BY_ABI.get(abi, _ALL_FROM_5)
    attributes = struct.pack(
        "=QQQ",
        everything,
        _TCP if abi >= HAS_TCP and not access.network else 0,
        _SCOPES if abi >= HAS_SCOPES else 0,
    )
    # A kernel refuses a structure with fields that it does not know, unless they are left out.
    size = 8 if abi < HAS_TCP else 16 if abi < HAS_SCOPES else 24
    rules = _call(_CREATE, attributes[:size], ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        followed = partial(os.open, flags=os.O_PATH | os.O_CLOEXEC)
        grants = (
            *((access.system, _READ, followed), (access.listed, _READ_DIR, followed)),
            *((access.read, _READ, open_nofollow), (access.write, everything, open_nofollow)),
        )
        for paths, allowed, opened in grants:
            for path in paths:
                with suppress(FileNotFoundError):
                    _allow(rules, opened(path), allowed & everything)
        _prctl(_NO_NEW_PRIVS, 1)
        _call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, fd: int, access: int) -> None:
    try:
        # The kernel refuses rights of folders, such as to make a file, for a path that is none.
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _ON_FILES
        _call(
            _ADD,
            ctypes.c_int(rules),
            ctypes.c_int(_BENEATH),
            struct.pack("=Qi", access, fd),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(fd)


def filter_calls(program: bytes, *, all_threads: bool = False) -> None:
    """Apply the filter of `seccomp` to this thread and its children, or to the whole process; it cannot be
    removed.
    """
    # Kept by a name until the kernel has copied it: `described` holds only its address.
    steps = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(steps)))
    _prctl(_NO_NEW_PRIVS, 1)
    if all_threads:
        number = _SECCOMP_X86 if os.uname().machine == "x86_64" else _SECCOMP_ARM
        _call(number, ctypes.c_uint(1), ctypes.c_uint(1), ctypes.c_void_p(ctypes.addressof(described)))
    else:
        _prctl(_SECCOMP, 2, ctypes.addressof(described))


def filter_observed(program: bytes) -> int:
    """Apply a filter to this thread and its children; return the descriptor by which an observer hears of
    their calls. Raises `OSError` where another observer is there already.
    """
    steps = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(steps)))
    _prctl(_NO_NEW_PRIVS, 1)
    number = _SECCOMP_X86 if os.uname().machine == "x86_64" else _SECCOMP_ARM
    return _call(
        number,
        ctypes.c_uint(_SET_FILTER),
        ctypes.c_uint(_NEW_LISTENER),
        ctypes.c_void_p(ctypes.addressof(described)),
    )


def open_nofollow(path: str) -> int:
    """Return a descriptor (`O_PATH`) of an absolute path in which nothing is a link; raises `OSError`
    otherwise.

    What is checked by name and used by name can be swapped in between. What is bound or allowed by this
    descriptor is what was checked, because a folder that cannot be reached without a link cannot be put into
    its place.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags | os.O_DIRECTORY)
    for name in (part for part in path.split("/") if part):
        try:
            inner = os.open(name, flags, dir_fd=fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
        finally:
            os.close(fd)
        fd = inner
    if stat.S_ISLNK(os.fstat(fd).st_mode) or ".." in path.split("/"):
        os.close(fd)
        raise OSError(errno.ELOOP, "it is not where it was when it was checked", path)
    return fd
