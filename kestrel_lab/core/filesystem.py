"""Which kind of file system a path lies on: some do not keep the promises that a log needs."""

from __future__ import annotations

import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_SHARED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "davfs", "sshfs", "ncpfs", "vboxsf", "prl_fs"}
)


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


def is_shared(kind: str) -> bool:
    """Whether files of it are kept elsewhere, where locks and syncing may not mean what they say."""
    return kind in _SHARED or kind.startswith("fuse")
