"""File system checks for the log (no network file systems, private folder), and locks on files."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from kestrel_lab.core.errors import UsageError

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "davfs", "sshfs", "ncpfs"}
)
_LOCAL_FUSE = frozenset(
    {
        f"fuse.{name}"
        for name in (
            "fuse-overlayfs",
            "overlayfs",
            "bindfs",
            "gocryptfs",
            "encfs",
            "cryfs",
            "ntfs-3g",
            "mergerfs",
        )
    }
    | {"fuseblk"}
)
"""User-space file systems on a local disk: rootless containers, encrypted folders, other disks."""
_DOUBTFUL = frozenset({"9p", "virtiofs", "vboxsf", "prl_fs"}) | _LOCAL_FUSE
"""Of a VM's host, or local and in user space: locks and shared memory may or may not work there."""


def kind_of_filesystem(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of the file system, such as `ext4`; empty where the kernel does not name it."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real, best = f"{path.resolve()}/", ("", "")
    for line in lines:
        before, _, after = line.partition(" - ")
        words, kinds = before.split(" "), after.split(" ")
        if len(words) < 5 or not kinds[0]:
            continue
        place = _OCTAL.sub(lambda found: chr(int(found[1], 8)), words[4])
        if real.startswith(f"{place.rstrip('/')}/") and len(place) >= len(best[0]):
            best = (place, kinds[0])
    return best[1]


def is_network(kind: str) -> bool:
    """Whether it is a network file system, where the locks and shared memory of the log do not work."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def is_shared(kind: str) -> bool:
    """Whether another machine may share it, so that locks and syncing cannot be relied on."""
    return is_network(kind) or kind in _DOUBTFUL


def check_local(path: Path, kind: str) -> None:
    """Raise `UsageError` for a log at `path` when that lies on `kind`, a network file system."""
    if is_network(kind):
        raise UsageError(
            f"{path} lies on a network file system ({kind}), where a log may be damaged: set "
            "KESTREL_HOME to a folder on this machine's own "
            "disk. To take the risk, with one process at a time: KESTREL_NETWORK_HOME=true"
        )


PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def private_folder(path: Path) -> bool:
    """Make a folder that only its owner can read, whatever the umask; an existing folder and its contents
    lose the rights of others.

    Returns whether others could look into it before. A folder that is not ours alone is left as it is: one of
    another user, one that everybody may write to, and one that holds the person's home or the folder they
    work in.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_FOLDER)
        path.chmod(PRIVATE_FOLDER)
        return False
    found = path.stat()
    shared = found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX or _holds_more(path)
    if shared or not found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        return False
    path.chmod(PRIVATE_FOLDER)
    for one in _walk_owned(path):
        # It is gone, or belongs to another user; either way nobody else reaches it through this folder now.
        with suppress(OSError):
            Path(one.path).chmod(one.stat(follow_symlinks=False).st_mode & 0o700)
    return True


def private_file(path: Path) -> bool:
    """Make an empty file that only its owner can read, whatever the umask; restricts an existing one.

    Returns whether it was made.
    """
    with suppress(FileExistsError):
        # `fchmod`, because the umask removes bits from the mode given to `open`.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        os.fchmod(fd, PRIVATE_FILE)
        os.close(fd)
        return True
    found = path.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode):
        path.chmod(PRIVATE_FILE)
    return False


def _holds_more(path: Path) -> bool:
    real = path.resolve()
    with suppress(OSError, RuntimeError):
        # `Path.home` raises RuntimeError for a user who has no home folder.
        return real in (
            Path.home().resolve(),
            Path.cwd(),
            *Path.home().resolve().parents,
            *Path.cwd().parents,
        )
    return False


def _walk_owned(path: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder and of its folders; nobody else can reach anything below those."""
    with suppress(OSError), os.scandir(path) as entries:
        for one in entries:
            if not one.is_symlink():
                yield one
                if one.is_dir(follow_symlinks=False):
                    with os.scandir(one) as inner:
                        yield from (file for file in inner if file.is_file(follow_symlinks=False))


try:
    # Not on Windows, where this module must be importable to say so.
    import fcntl
except ImportError:  # Windows: nobody is kept apart there
    fcntl = None  # type: ignore[assignment,unused-ignore]


@contextmanager
def try_lock_file(file: Path) -> Iterator[bool]:
    """Hold the lock of `file` in the block, if nobody else does; gives whether it is held."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
        taken = try_lock_descriptor(handle)
        if not taken or _is_named(handle, file):
            break
        # Whoever held it has removed the file since it was opened here: others lock a new one.
        os.close(handle)
    try:
        yield taken
    finally:
        if taken and fcntl is not None:
            # Explicitly: a child that was forked meanwhile shares the handle, and closing ours alone would
            # not release the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


@asynccontextmanager
async def lock_file(file: Path) -> AsyncIterator[None]:
    """Wait until nobody else holds the lock of `file`, and hold it in the block."""
    while True:
        with try_lock_file(file) as taken:
            if taken:
                yield
                return
        # `flock` itself would block the event loop while it waits.
        await asyncio.sleep(0.1)


def _is_named(handle: int, file: Path) -> bool:
    """Return whether an opened file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def try_lock_descriptor(handle: int) -> bool:
    """Take the lock of an opened file unless somebody else holds it; returns whether it is held now."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
