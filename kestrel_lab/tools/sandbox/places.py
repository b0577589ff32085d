"""Which places a command needs to read, and which it must never see."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
CONFIGURATION = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "crypto-policies", "fonts", "gitconfig", "group", "hosts", "java", "ld.so.cache", "localtime", "mime.types"),
        *("nsswitch.conf", "openssl", "os-release", "passwd", "pki", "protocols", "services", "ssl"),
    )
)
"""What of /etc programs need; no passwords, no keys of servers."""
NETWORK = ("/etc/resolv.conf", "/etc/host.conf", "/etc/gai.conf")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""No disks, terminals or shared memory of others."""

_KEYS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".config/gh", ".config/git", ".config/op", ".netrc"),
    *(".git-credentials", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".vault-token", ".password-store", ".local/share/keyrings"),
    *(
        ".huggingface",
        ".cache/huggingface/token",
        ".config/litellm",
        ".local/share/jupyter/runtime",
        ".jupyter",
        ".ipython/profile_default/security",
    ),
    *("Library/Keychains", "Library/Jupyter/runtime", ".bash_history", ".python_history", ".mozilla", ".config/google-chrome"),
)
_PASSWORDS = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh")


def home() -> Path:
    """The home folder of whoever runs this."""
    return Path.home()


@cache
def pythons() -> tuple[Path, ...]:
    """The folders of the Python that runs this and of the one it was made from, where they are not the system's."""
    found = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    named = {Path(os.path.abspath(sys.prefix))}  # scripts in it name it as it was called
    kept = [place for place in found | named if not any(within(place, Path(root)) for root in PROGRAMS)]
    return tuple(sorted(place for place in kept if not within(home(), place)))


def secret_places(env: Mapping[str, str] = os.environ) -> list[Path]:
    """Files and folders with keys, of the user and of the machine, and where Jupyter's kernels tell how to drive them."""
    found = list(_usual_secrets(home()))
    if folder := env.get("JUPYTER_RUNTIME_DIR"):
        found.append(Path(folder))
    if folder := env.get("JUPYTER_DATA_DIR"):
        found.append(Path(folder) / "runtime")
    if folder := env.get("XDG_RUNTIME_DIR"):
        found.append(Path(folder))
    found += [Path(word).parent for word in sys.argv[1:] if word.endswith(".json") and Path(word).name.startswith("kernel-")]
    return found


@cache
def _usual_secrets(home: Path) -> tuple[Path, ...]:
    return (*(home / name for name in _KEYS), *map(Path, _PASSWORDS))


def private_places() -> list[Path]:
    """Folders that hold what belongs to others: homes, temporary files, sockets."""
    return [home(), Path("/root"), Path("/home"), Path("/tmp"), Path("/var/tmp"), Path("/run"), Path(tempfile.gettempdir())]  # noqa: S108  # to be hidden


def within(place: Path, folder: Path) -> bool:
    """Whether `place` is `folder` or beneath it, as they are named."""
    return place == folder or folder in place.parents


def hidden_in(places: Iterable[Path], folders: Iterable[Path]) -> Iterator[Path]:
    """Those of `places` that exist and lie in one of `folders`, as they really are."""
    there = [place for place in places if os.path.lexists(place)]  # most do not exist, and following links takes time
    roots = [os.path.realpath(folder).rstrip("/") for folder in folders] if there else []
    for place in there:
        real = os.path.realpath(place)
        if os.path.exists(real) and any(real == root or real.startswith(root + "/") for root in roots):
            yield Path(real)
