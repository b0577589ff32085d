"""Which kind of file system a path lies on: some do not keep the promises that a log needs."""

from __future__ import annotations

import re
from pathlib import Path

from kestrel_lab.core.errors import UsageError

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "davfs", "sshfs", "ncpfs"})
_LOCAL_FUSE = frozenset(
    {f"fuse.{name}" for name in ("fuse-overlayfs", "overlayfs", "bindfs", "gocryptfs", "encfs", "cryfs", "ntfs-3g", "mergerfs")}
    | {"fuseblk"}
)
"""File systems in user space whose files lie on a disk of this machine: containers without root, encrypted folders, other disks."""
_DOUBTFUL = frozenset({"9p", "virtiofs", "vboxsf", "prl_fs"}) | _LOCAL_FUSE
"""Of the host of a virtual machine, or local and in user space: whether locks and memory are shared as they should depends on the set-up."""


def kind_of_filesystem(path: Path, mounts: Path = _MOUNTS) -> str:
    """The type that the kernel names, `ext4` for example; empty where it cannot be told."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real, best = path.resolve(), ("", "")
    for line in lines:
        before, _, after = line.partition(" - ")
        words, kinds = before.split(" "), after.split(" ")
        if len(words) < 5 or not kinds[0]:
            continue
        place = _OCTAL.sub(lambda found: chr(int(found[1], 8)), words[4])
        if (real == Path(place) or Path(place) in real.parents) and len(place) >= len(best[0]):
            best = (place, kinds[0])
    return best[1]


def is_network(kind: str) -> bool:
    """Whether files of it are kept elsewhere: locks and shared memory, which a log relies on, are not what they are on a disk."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def is_shared(kind: str) -> bool:
    """Whether files of it may be kept elsewhere, where locks and syncing may not mean what they say."""
    return is_network(kind) or kind in _DOUBTFUL


def check_local(path: Path, kind: str) -> None:
    """Raise `UsageError` for a log at `path` when that lies on `kind`, a network file system."""
    if is_network(kind):
        msg = (
            f"{path} lies on a network file system ({kind}), where a log may be damaged: set KESTREL_HOME to a folder on this machine's own "
            "disk, for example ~/.local/state/kestrel. To take the risk, with one process at a time: KESTREL_NETWORK_HOME=true"
        )
        raise UsageError(msg)
