"""Command lines of the sandbox levels: mounts for bubblewrap, paths for Landlock."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from kestrel_lab.host.log_files import is_log, open_folders
from kestrel_lab.host.programs import find_program
from kestrel_lab.tools.files.workspace import settings_in
from kestrel_lab.tools.sandbox.gitdir.private_gitdir import LIVE, PREFIX, mounted_names
from kestrel_lab.tools.sandbox.landlock import TRUNCATES, Access, landlock_version
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.launcher_process import FILTER_FD, SOURCE_FD
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.mounts import (
    CONFIGURATION,
    DEVICES,
    NETWORK,
    PROGRAMS,
    copied_settings,
    existing_below,
    is_within,
    linked_repository,
    own_repository,
    places_around,
    private_places,
    python_folders,
    secret_places,
)
from kestrel_lab.tools.sandbox.seccomp import AF_INET, AF_INET6, filter_program

HOME = "/tmp/home"  # of the sandbox, which has a /tmp of its own  # noqa: S108
_SETTINGS = ("kestrel.toml", ".mcp.json")
"""Files that decide what an agent may do unasked. A file that does not exist yet cannot be protected."""
_ENGINE = ".kestrel"
_NOBODY = "65534"
_MOST_IN_MEMORY = 2 * 1024**3
_SIZE = "--size"


def launch_for(
    level: Level,
    argv: Sequence[str],
    *,
    workspace: Path,
    env: Mapping[str, str],
    sandbox: Sandbox,
    folder: Path | None = None,
) -> Launch:
    """Return the launch of `argv` in `workspace`, or in a `folder` of it, at a sandbox level.

    Raises `OSError` if the processor's system calls are not known, and `PermissionError` if the level cannot
    confine a command to that workspace.
    """
    plain = Launch(argv=tuple(argv), cwd=str(workspace if folder is None else folder), env=env)
    return replace(
        launch_with_places(level, plain, read=sandbox.readable, write=(workspace,), sandbox=sandbox),
        watched=str(workspace),
    )


def launch_with_places(
    level: Level, plain: Launch, *, read: Sequence[Path], write: Sequence[Path], sandbox: Sandbox
) -> Launch:
    """Return `plain` with a sandbox in which the program can read the places `read` and write those of
    `write`. If its folder is in none of them, it appears empty.
    """
    if level is Level.S0:
        return plain
    for place in (*read, *write):
        check_workspace(level, place, sandbox.hidden, written=place in write)
    if level is Level.S1:
        return _landlock_launch(plain, read, write, sandbox)
    mounts = _mounts(level, read, write, sandbox)
    if not any(is_within(Path(plain.cwd), place) for place in (*read, *write)):
        mounts.add(plain.cwd, "--dir")
    if sandbox.root and level is Level.S3 and write and is_within(Path(plain.cwd), write[0]):
        plain = replace(plain, cwd=str(Path(sandbox.root) / Path(plain.cwd).relative_to(write[0])))
    return _bwrap_launch(plain, mounts, sandbox)


def check_workspace(
    level: Level, workspace: Path, hidden: Sequence[Path] = (), *, written: bool = True
) -> None:
    """Raise `PermissionError` for a workspace that contains something that the level must hide and cannot.

    S1 can hide a part of a place that is only read, but not of one that is `written`: a command could move
    the part out of its parent folder.
    """
    for needed in ("/usr", "/etc", "/dev", "/proc"):
        if is_within(Path(needed), workspace):
            raise PermissionError(
                f"the workspace {workspace} contains system folders, so no sandbox can contain a "
                "command there"
            )
    if (
        written
        and level is Level.S1
        and (found := next(existing_below((*secret_places(), *hidden), [workspace]), None))
    ):
        advice = (
            ": set home to a folder outside of it, or move it there with kestrel home --move"
            if str(found) in map(os.path.realpath, hidden)
            else ""
        )
        raise PermissionError(
            f"the workspace contains {found}, and level S1 cannot hide a part of a workspace{advice}"
        )


@cache
def bwrap_path() -> str | None:
    """Return the path of bubblewrap; `None` if it is not installed."""
    return find_program("bwrap")


def _landlock_launch(plain: Launch, read: Sequence[Path], write: Sequence[Path], sandbox: Sandbox) -> Launch:
    # Runtimes look up processes and the number of processors there when they start.
    more = ("/proc", "/sys/devices/system/cpu", *(NETWORK if sandbox.network else ()))
    linked = [found for place in write if (found := linked_repository(place)) is not None]
    written = [place for one in linked for place in (*one.written, one.own)]
    # Landlock restricts TCP only: UDP is denied by the filter, which then allows no internet socket at all.
    families = (AF_INET, AF_INET6) if sandbox.network else ()
    seen = (*python_folders(), *read)
    shown = places_around(
        map(os.path.realpath, seen), set(map(str, existing_below(_keys_in(seen, sandbox), seen)))
    )
    terminal = ("/dev/tty",) if plain.terminal else ()
    return replace(
        plain,
        program=filter_program(families, truncate=landlock_version() >= TRUNCATES),
        access=Access(
            system=(*PROGRAMS, *CONFIGURATION, *more),
            read=(*shown.read, *(str(one.common) for one in linked)),
            listed=shown.listed,
            write=(*map(os.path.realpath, write), *map(str, written), *DEVICES, *terminal),
            network=sandbox.network,
        ),
        private=True,
        memory=sandbox.memory,
    )


class _Source(str):
    """Placeholder in mount options for a path the launcher opens; bubblewrap gets the descriptor's number."""

    __slots__ = ()


@dataclass(slots=True)
class _Mounts:
    """Mounts by depth, so that inner ones come after outer ones; in the same place the later one wins."""

    found: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    repositories: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    memory: int | None = None
    """Bytes of memory that the command may have; `None` for no limit."""

    def add(self, place: str | Path, *options: str, rank: int = 0) -> None:
        name = str(place)
        self.found[name] = (len(Path(name).parts) * 10 + rank, [*options, name])

    def own(self, place: str | Path) -> None:
        """Mount a memory file system no larger than the command's memory limit, which it counts towards."""
        size = _MOST_IN_MEMORY if self.memory is None else min(_MOST_IN_MEMORY, self.memory)
        self.add(place, _SIZE, str(size), "--tmpfs")

    @property
    def in_memory(self) -> tuple[str, ...]:
        """The places of such file systems."""
        return tuple(name for name, (_, words) in self.found.items() if words[0] == _SIZE)

    def readable(self, place: str | Path) -> None:
        """Mount a path read-only in the same place; a link stays a link."""
        name = str(place)
        if Path(name).is_symlink() and Path(name).parent == Path("/"):
            self.add(name, "--symlink", str(Path(name).readlink()))
        elif Path(name).exists():
            self.add(name, "--ro-bind", name)

    def opened(self, place: str | Path, source: str | Path, *, written: bool = False) -> None:
        """Mount `source`, a path without links, at `place`.

        Bubblewrap is given a descriptor and looks after mounting whether it mounted that: `source` may be
        swapped meanwhile.
        """
        self.add(place, "--bind-fd" if written else "--ro-bind-fd", _Source(source))

    def nothing(self, place: Path) -> None:
        """Mount an empty, unwritable folder or file in its place."""
        if place.is_dir():
            self.add(place, "--perms", "0555", "--tmpfs")
        else:
            self.add(place, "--ro-bind", os.devnull)

    def options(self) -> tuple[list[str], list[str]]:
        """Return bubblewrap's arguments, and the paths to open for it, in order of descriptor numbers."""
        sources: list[str] = []
        words = []
        for word in (
            word for _, words in sorted(self.found.values(), key=lambda one: one[0]) for word in words
        ):
            if isinstance(word, _Source):
                sources.append(str(word))
                word = str(SOURCE_FD + len(sources) - 1)  # the number of the place  # noqa: PLW2901
            words.append(word)
        return words, sources


def _bwrap_launch(plain: Launch, mounts: _Mounts, sandbox: Sandbox) -> Launch:
    net = ("--share-net",) if sandbox.network else ()
    options, sources = mounts.options()
    words = [
        *(bwrap_path() or "bwrap", "--unshare-all", *net, "--unshare-user", "--cap-drop", "ALL", *_user()),
        *(
            "--die-with-parent",
            # A command with the caller's terminal could type into it (TIOCSTI); one that is to have a
            # terminal must keep its session.
            *(() if plain.terminal else ("--new-session",)),
            "--seccomp",
            str(FILTER_FD),
        ),
        *options,
        # The root is a file system in memory without a size: writable, it would escape the memory limit.
        *("--remount-ro", "/"),
        *("--chdir", plain.cwd, "--"),
        *plain.argv,
    ]
    return replace(
        plain,
        argv=tuple(words),
        cwd="/",
        env={**plain.env, "HOME": HOME, "TMPDIR": "/tmp"},  # the sandbox's own  # noqa: S108
        program=filter_program((AF_INET, AF_INET6), namespaces=True),
        sources=tuple(sources),
        repositories=tuple(mounts.repositories),
        memory=sandbox.memory,
        in_memory=mounts.in_memory,
        shifted=True,
    )


def _user() -> tuple[str, ...]:
    """Return the user of a command: the present one, and `nobody` where that is root.

    The number within is root's own outside, so that the files it writes belong to root, whose
    workspace it is, and programs do not take themselves for root. The kernel still sees root's number where
    it asks for that and not for capabilities, of which there are none: in /proc and /sys. Both are therefore
    mounted read-only as a whole. A number of nobody's own outside would have to be given the workspace's
    files, and root's programs under /root could not be reached.
    """
    return ("--uid", _NOBODY, "--gid", _NOBODY) if os.geteuid() == 0 else ()


def _mounts(level: Level, read: Sequence[Path], write: Sequence[Path], sandbox: Sandbox) -> _Mounts:
    mounts = _machine_mounts(sandbox) if level is Level.S2 else _minimal_mounts(sandbox)
    mounts.add("/proc", "--proc", "/proc", "--remount-ro")
    mounts.add("/dev", "--dev", "/dev", "--remount-ro")
    mounts.own("/dev/shm")  # the sandbox's own  # noqa: S108
    mounts.add(HOME, "--dir")
    for place in (*python_folders(), *read):
        if place.exists():
            mounts.opened(place, os.path.realpath(place))
    for place in write:
        # Mounts are sorted by depth, so what follows lies over the workspace and protects parts of it.
        mounts.opened(place, os.path.realpath(place), written=True)
        _guard_repository(mounts, place)
        for settings in _settings(place):
            mounts.opened(settings, os.path.realpath(place) + f"/{settings.name}")
    if sandbox.root and level is Level.S3 and write:
        # A link and not a second mount: what is protected in the workspace stays so by this name.
        mounts.add(sandbox.root, "--symlink", os.path.realpath(write[0]))
    _hide_keys(mounts, level, (*read, *write), sandbox)
    return mounts


def _guard_repository(mounts: _Mounts, workspace: Path) -> None:
    """Protect what git runs or obeys; in a worktree's repository a command writes only what commits do."""
    if (pointer := workspace / ".git").is_file() and not pointer.is_symlink():
        # Read-only: git follows it, so a changed one would lead to another repository, with its own hooks.
        mounts.opened(pointer, os.path.realpath(pointer))
    if (own := own_repository(workspace)) is not None:
        _mount_gitdir(mounts, own, _as_named(own, (workspace,)))
    elif (linked := linked_repository(workspace)) is not None:
        mounts.opened(linked.common, linked.common)
        for place in linked.written:
            mounts.opened(place, place, written=True)
        _mount_gitdir(mounts, linked.own, linked.own)


def _as_named(found: Path, places: Iterable[Path]) -> Path:
    """Return the name of `found` inside the sandbox, by its place, which may lead through links."""
    for place in places:
        if is_within(found, real := Path(os.path.realpath(place))):
            return place / found.relative_to(real)
    return found


def _mount_gitdir(mounts: _Mounts, gitdir: Path, at: Path) -> None:
    """Mount a private folder over the repository's; read-only if the user cannot write the repository."""
    if not os.access(gitdir, os.W_OK):
        mounts.opened(at, gitdir)
        return
    # Only what exists can be mounted, and git makes this folder with the first commit, which may be the
    # command's.
    (gitdir / "logs").mkdir(exist_ok=True)
    private, shown = gitdir / f"{PREFIX}{secrets.token_hex(8)}", tuple(mounted_names(str(gitdir)))
    mounts.repositories.append((str(gitdir), str(private), shown))
    mounts.opened(at, private, written=True)
    for name in shown:
        mounts.opened(at / name, gitdir / name, written=name in LIVE)


def _settings(workspace: Path) -> Iterable[Path]:
    """Return the settings files in the workspace; a `pyproject.toml` only if it has settings of kestrel."""
    found = [workspace / name for name in _SETTINGS]
    project = workspace / "pyproject.toml"
    if project.is_file() and settings_in(project.read_bytes()) is not None:
        found.append(project)
    return [place for place in found if place.is_file() and not place.is_symlink()]


def _machine_mounts(sandbox: Sandbox) -> _Mounts:
    """Mount the machine read-only, without other users' files."""
    mounts = _Mounts(memory=sandbox.memory)
    mounts.add("/", "--ro-bind", "/")
    for place in private_places():
        if place.is_dir() and place != Path("/") and not place.is_symlink():
            mounts.own(place)
    # Where a resolver keeps it under /run.
    if sandbox.network:
        mounts.readable(Path("/etc/resolv.conf").resolve())
    return mounts


def _minimal_mounts(sandbox: Sandbox) -> _Mounts:
    mounts = _Mounts(dict(_program_mounts().found), memory=sandbox.memory)
    mounts.own("/tmp")  # the sandbox's own, in memory as all of its root  # noqa: S108
    settings = copied_settings()
    if settings is not None:
        mounts.add("/etc", "--ro-bind", str(settings[0]))
    for name in (
        *(CONFIGURATION if settings is None else settings[1]),
        *(NETWORK if sandbox.network else ()),
    ):
        mounts.readable(name)
    return mounts


@cache
def _program_mounts() -> _Mounts:
    mounts = _Mounts()
    for name in PROGRAMS:
        if not (Path(name).is_dir() and not os.listdir(name)):  # each mount takes time
            mounts.readable(name)
    for name in ("/var/tmp", "/run"):  # noqa: S108
        mounts.add(name, "--dir")
    return mounts


def _logs_in(places: Sequence[Path], hidden: Sequence[Path]) -> Iterator[Path]:
    """Yield what to hide, and the homes of all logs open here; of a home that is a place, its databases."""
    roots = [os.path.realpath(place) for place in places]
    for folder in dict.fromkeys([*map(os.path.realpath, hidden), *open_folders()]):
        if folder in roots:
            yield from (place for place in Path(folder).iterdir() if is_log(place))
        else:
            yield Path(folder)


def _keys_in(places: Sequence[Path], sandbox: Sandbox) -> list[Path]:
    """Return the keys and logs that a command must not see; not all of them lie in these places, or exist."""
    return [*secret_places(), *_logs_in(places, sandbox.hidden), *(place / _ENGINE for place in places)]


def _hide_keys(mounts: _Mounts, level: Level, places: Sequence[Path], sandbox: Sandbox) -> None:
    """Hide keys that lie inside a mounted folder."""
    shown: Iterable[Path] = (
        [Path("/")] if level is Level.S2 else [*places, *python_folders(), *map(Path, PROGRAMS)]
    )
    covered = [place for place in private_places() if place != Path("/")] if level is Level.S2 else []
    for secret in existing_below(_keys_in(places, sandbox), shown):
        named = _as_named(secret, places)
        if any(is_within(named, place) for place in places) or not any(
            is_within(secret, folder) for folder in covered
        ):
            mounts.nothing(named)
