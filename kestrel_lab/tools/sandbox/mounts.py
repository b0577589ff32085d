"""Mounts of the sandbox: paths that a command needs to read, and paths that it must never see."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from kestrel_lab.host.user import home_folder

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
CONFIGURATION = tuple(
    f"/etc/{name}"
    for name in (
        *(
            "alternatives",
            "crypto-policies",
            "fonts",
            "gitconfig",
            "group",
            "hosts",
            "java",
            "ld.so.cache",
            "localtime",
            "mime.types",
        ),
        *("nsswitch.conf", "openssl", "os-release", "passwd", "pki", "protocols", "services", "ssl"),
    )
)
"""The files in /etc that programs need; no passwords, no server keys."""
NETWORK = ("/etc/resolv.conf", "/etc/host.conf", "/etc/gai.conf")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Safe devices: no disks, terminals or shared memory."""

_KEYS = (
    *(
        ".ssh",
        ".gnupg",
        ".aws",
        ".azure",
        ".kube",
        ".docker",
        ".config/gcloud",
        ".config/gh",
        ".config/git",
        ".config/op",
        ".netrc",
    ),
    *(
        ".git-credentials",
        ".pypirc",
        ".npmrc",
        ".pgpass",
        ".my.cnf",
        ".vault-token",
        ".password-store",
        ".local/share/keyrings",
    ),
    *(
        ".huggingface",
        ".cache/huggingface/token",
        ".config/litellm",
        ".local/share/jupyter/runtime",
        ".jupyter",
        ".ipython/profile_default/security",
    ),
    *(
        "Library/Keychains",
        "Library/Jupyter/runtime",
        ".bash_history",
        ".python_history",
        ".mozilla",
        ".config/google-chrome",
    ),
)
_PASSWORDS = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
)


@cache
def python_folders() -> tuple[Path, ...]:
    """Return the folders of the running Python and its base installation that are not system folders."""
    found = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    # Also by its name with links: the first line of a script names the interpreter that way.
    named = {Path(os.path.abspath(sys.prefix))}
    kept = [place for place in found | named if not any(is_within(place, Path(root)) for root in PROGRAMS)]
    return tuple(sorted(place for place in kept if not is_within(home_folder(), place)))


def secret_places(env: Mapping[str, str] = os.environ) -> list[Path]:
    """Return files and folders with keys of the user and the machine, and Jupyter's connection files."""
    found = list(_usual_secrets(home_folder()))
    if folder := env.get("JUPYTER_RUNTIME_DIR"):
        found.append(Path(folder))
    if folder := env.get("JUPYTER_DATA_DIR"):
        found.append(Path(folder) / "runtime")
    if folder := env.get("XDG_RUNTIME_DIR"):
        found.append(Path(folder))
    # A process that can read a kernel's connection file can run code in the kernel. Jupyter passes its path
    # as an argument.
    found += [
        Path(word).parent
        for word in sys.argv[1:]
        if word.endswith(".json") and Path(word).name.startswith("kernel-")
    ]
    return found


@cache
def _usual_secrets(home: Path) -> tuple[Path, ...]:
    return (*(home / name for name in _KEYS), *map(Path, _PASSWORDS))


def private_places() -> list[Path]:
    """Return folders with other users' data: homes, temporary files, sockets."""
    return [
        home_folder(),
        Path("/root"),
        Path("/home"),
        Path("/tmp"),  # noqa: S108
        Path("/var/tmp"),  # noqa: S108
        Path("/run"),
        Path(tempfile.gettempdir()),
    ]  # to be hidden


def is_within(place: Path, folder: Path) -> bool:
    """Return whether `place` is `folder` or beneath it, by their names alone."""
    return f"{place}/".startswith(f"{folder}/" if folder.name else "/")


def existing_below(places: Iterable[Path], folders: Iterable[Path]) -> Iterator[Path]:
    """Yield those of `places` that exist and lie in one of `folders`, as they really are."""
    # Most of the usual places do not exist, and resolving links takes time.
    there = [place for place in places if os.path.lexists(place)]
    roots = [os.path.realpath(folder).rstrip("/") for folder in folders] if there else []
    for place in there:
        real = os.path.realpath(place)
        if os.path.exists(real) and any(real == root or real.startswith(root + "/") for root in roots):
            yield Path(real)


class ReadPlaces(NamedTuple):
    """What a process may read that Landlock restricts."""

    read: tuple[str, ...]
    listed: tuple[str, ...] = ()
    """Folders of which it may read the names only, beside those that are below `read`."""


def places_around(places: Iterable[str], hidden: Collection[str]) -> ReadPlaces:
    """Return what to grant so that everything beneath `places` can be read except `hidden`, all of them paths
    without links.

    Landlock cannot take away a part of a folder that it grants. So a folder with something hidden in it is
    granted entry by entry, as it is now: what is made directly in it later cannot be read.
    """
    read, listed, todo = list[str](), list[str](), list(places)
    while todo:
        place = todo.pop()
        if place in hidden:
            continue
        if any(one.startswith(f"{place}/") for one in hidden):
            listed.append(place)
            todo += [entry.path for entry in folder_entries(place) if not entry.is_symlink()]
        else:
            read.append(place)
    return ReadPlaces(tuple(read), tuple(listed))


def folder_entries(folder: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing for one that is gone or cannot be read."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


# A copy of what commands need of `/etc`. It makes one mount out of twenty, of which each would cost every
# command a fifth of a millisecond.

_MOST_ENTRIES = 5_000
"""Files and links of a folder that is copied; a larger one has a mount of its own."""


def copied_settings() -> tuple[Path, tuple[str, ...]] | None:
    """Return a folder with a copy of `CONFIGURATION`, and the names left out; `None` on failure.

    It is renewed after changes and removed at exit. Links stay links.
    """
    stamp = tuple((name, os.lstat(name).st_mtime_ns) for name in CONFIGURATION if os.path.lexists(name))
    try:
        return _copy_settings(os.getpid(), stamp)
    except OSError:
        # No room, or no permission to read: then each file is mounted by itself.
        return None


@lru_cache(maxsize=1)
def _copy_settings(process: int, stamp: tuple[tuple[str, int], ...]) -> tuple[Path, tuple[str, ...]]:
    folder = Path(tempfile.mkdtemp(prefix="kestrel-etc-"))
    atexit.register(_remove, folder, process)
    left_out = []
    for name, _ in stamp:
        source, target = Path(name), folder / Path(name).name
        if source.is_dir() and not source.is_symlink():
            if sum(len(files) + len(inner) for _, inner, files in os.walk(source)) > _MOST_ENTRIES:
                left_out.append(name)
                target.mkdir()  # where it is mounted
            else:
                shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    # Mount points: a command with network gets the present files of the machine there.
    for name in NETWORK:
        (folder / Path(name).name).touch()
    folder.chmod(0o755)
    return folder, tuple(left_out)


def _remove(folder: Path, process: int) -> None:
    # A forked process runs the exit handlers, too, and must not remove what its parent uses.
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


# What of a git repository lies outside a workspace that is a worktree of it: what git needs there, and what a
# command must not write.

WRITTEN = ("objects", "refs", "logs")
"""Folders of the shared repository that a commit in a worktree writes."""
_MOST = 4_096


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkedRepository:
    """Location of a worktree's repository."""

    own: Path
    """The worktree's own folder in it."""
    common: Path

    @property
    def written(self) -> list[Path]:
        """Folders of the shared repository that a commit writes; one may be a link to anywhere."""
        return [
            place for name in WRITTEN if (place := self.common / name).is_dir() and not place.is_symlink()
        ]


def own_repository(workspace: Path) -> Path | None:
    """The folder of the repository that lies in `workspace` itself, whether `.git` is that folder, a link to
    it or a file that names it.
    """
    place = workspace / ".git"
    try:
        if place.is_file() and not place.is_symlink():
            word, _, named = _line(place).partition(": ")
            place = workspace / named if word == "gitdir" else place
        found = place.resolve(strict=True)
    except (OSError, ValueError):
        return None
    return found if found.is_dir() and workspace.resolve() in found.parents else None


def linked_repository(workspace: Path) -> LinkedRepository | None:
    """Return the repository that `workspace` is a worktree of; `None` if it is not a worktree, or if only the
    workspace claims to be one.

    Files of the workspace may have been written by anybody. So the repository must name the workspace as one
    of its worktrees, and must be outside of it, where no command in the workspace could have made it.
    """
    try:
        word, _, named = _line(workspace / ".git").partition(": ")
        if word != "gitdir":
            return None
        own = (workspace / named).resolve(strict=True)
        common = own.parent.parent
        if workspace.resolve() in (common, *common.parents):
            return None
        back = Path(_line(own / "gitdir"))
        parts = [common / name for name in ("objects", "refs")]
        if own.parent.name != "worktrees" or not all(
            part.is_dir() and not part.is_symlink() for part in parts
        ):
            return None
        if (own / _line(own / "commondir")).resolve() != common or (own / back).resolve() != (
            workspace / ".git"
        ).resolve():
            return None
    except (OSError, ValueError):
        return None
    return LinkedRepository(own=own, common=common)


def _line(file: Path) -> str:
    # The workspace may have put a link or a pipe there: a link is refused, and opening a pipe does not block.
    with os.fdopen(
        os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8"
    ) as opened:
        return opened.read(_MOST).rstrip("\n")
