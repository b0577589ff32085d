"""How a command is started at each level: for bubblewrap a list of mounts, for Landlock a list of paths."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kestrel_lab.tools.sandbox.landlock import TRUNCATES, version
from kestrel_lab.tools.sandbox.launcher import FILTER_FD
from kestrel_lab.tools.sandbox.launching import Launch, can_launch
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.places import (
    CONFIGURATION,
    DEVICES,
    NETWORK,
    PROGRAMS,
    hidden_in,
    private_places,
    pythons,
    secret_places,
    within,
)
from kestrel_lab.tools.sandbox.repository import OBEYED, WRITTEN, Linked, linked_repository
from kestrel_lab.tools.sandbox.seatbelt import seatbelt_launch
from kestrel_lab.tools.sandbox.seccomp import AF_INET, AF_INET6, filter_program
from kestrel_lab.tools.sandbox.settingsfolder import copied_settings
from kestrel_lab.tools.workspace import settings_in

HOME = "/tmp/home"  # noqa: S108  # of the sandbox, which has a /tmp of its own
_GUARDED = (".git/hooks", ".git/config")
"""What git runs or obeys later, outside the sandbox; the rest of .git may be written, to commit."""
_SETTINGS = ("kestrel.toml", ".mcp.json")
"""What says what an agent may do unasked. A file that is not there yet cannot be guarded."""
_ENGINE = ".kestrel"
_OWN = ("--size", str(2 * 1024**3), "--tmpfs")
"""A place in memory, with a bound: what fills it does not fill the machine's."""


def launch_for(
    level: Level,
    argv: Sequence[str],
    *,
    workspace: Path,
    env: Mapping[str, str],
    sandbox: Sandbox,
    folder: Path | None = None,
    private: Path | None = None,
) -> Launch:
    """How `argv` is started in `workspace`, or in a `folder` of it, held in at `level`.

    Raises `OSError` where the processor's system calls are not known, and `PermissionError` for a workspace that
    the level cannot hold a command in.
    """
    begin = workspace if folder is None else folder
    return launch_among(level, argv, read=(), write=(workspace,), folder=begin, env=env, sandbox=sandbox, private=private)


def launch_among(
    level: Level,
    argv: Sequence[str],
    *,
    read: Sequence[Path],
    write: Sequence[Path],
    folder: Path,
    env: Mapping[str, str],
    sandbox: Sandbox,
    private: Path | None = None,
) -> Launch:
    """The same for a program that sees any number of places, beside what all see: some to read, and some to write.

    A `folder` that is none of them is empty to it. Where there is no launcher, `private` is a folder for its temporary
    files, which the caller makes and takes away.
    """
    if level is Level.S0:
        return Launch(argv=tuple(argv), cwd=str(folder), env=env)
    for place in (*read, *write):
        check_workspace(level, place)
    if level is Level.S1 and private is not None and not can_launch():
        return seatbelt_launch(argv, read=read, write=write, private=private, folder=folder, env=env, sandbox=sandbox)
    if level is Level.S1:
        return _landlocked(argv, read, write, folder, env, sandbox)
    mounts = _mounts(level, read, write, sandbox)
    if not any(within(folder, place) for place in (*read, *write)):
        mounts.add(folder, "--dir")
    return _wrapped(argv, mounts, folder, env, sandbox)


def check_workspace(level: Level, workspace: Path) -> None:
    """Raise `PermissionError` for a workspace that holds what the level must keep out of reach and cannot hide."""
    for needed in ("/usr", "/etc", "/dev", "/proc"):
        if within(Path(needed), workspace):
            msg = f"the workspace {workspace} holds the system's own folders, no sandbox can be put around a command there"
            raise PermissionError(msg)
    if level is Level.S1 and (found := next(hidden_in(secret_places(), [workspace]), None)):
        msg = f"the workspace holds {found}, and level S1 cannot hide a part of it"
        raise PermissionError(msg)


@cache
def bwrap_path() -> str | None:
    """Where bubblewrap is; `None` where it is not installed."""
    return shutil.which("bwrap")


def _landlocked(
    argv: Sequence[str], read: Sequence[Path], write: Sequence[Path], folder: Path, env: Mapping[str, str], sandbox: Sandbox
) -> Launch:
    more = ("/proc", "/sys/devices/system/cpu", *(NETWORK if sandbox.network else ()))
    linked = [found for place in write if (found := linked_repository(place)) is not None]
    written = [place for one in linked for place in (*(one.common / name for name in WRITTEN), one.own)]
    families = (AF_INET, AF_INET6) if sandbox.network else ()
    return Launch(
        argv=tuple(argv),
        cwd=str(folder),
        env=env,
        program=filter_program(families, truncate=version() >= TRUNCATES),
        read=(*PROGRAMS, *CONFIGURATION, *more, *map(str, (*pythons(), *read, *(one.common for one in linked)))),
        write=(*map(str, (*write, *written)), *DEVICES),
        network=sandbox.network,
        private=True,
    )


@dataclass(slots=True)
class _Mounts:
    """Mounts in the order of their depth, so that what lies in another comes after it; of two in one place the later stands."""

    found: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def add(self, place: str | Path, *options: str, rank: int = 0) -> None:
        name = str(place)
        self.found[name] = (len(Path(name).parts) * 10 + rank, [*options, name])

    def readable(self, place: str | Path) -> None:
        """The same path within, read-only; a link stays one."""
        name = str(place)
        if Path(name).is_symlink() and Path(name).parent == Path("/"):
            self.add(name, "--symlink", str(Path(name).readlink()))
        elif Path(name).exists():
            self.add(name, "--ro-bind", name)

    def nothing(self, place: Path) -> None:
        """An empty folder or file in its place, which cannot be written."""
        if place.is_dir():
            self.add(place, "--perms", "0555", "--tmpfs")
        else:
            self.add(place, "--ro-bind", os.devnull)

    def options(self) -> list[str]:
        return [word for _, words in sorted(self.found.values(), key=lambda one: one[0]) for word in words]


def _wrapped(argv: Sequence[str], mounts: _Mounts, folder: Path, env: Mapping[str, str], sandbox: Sandbox) -> Launch:
    program = filter_program((AF_INET, AF_INET6))
    net = ("--share-net",) if sandbox.network else ()
    kept = dict(env) | {"HOME": HOME, "TMPDIR": "/tmp"}  # noqa: S108  # the sandbox's own
    words = [
        *(bwrap_path() or "bwrap", "--unshare-all", *net, "--unshare-user", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--seccomp", str(FILTER_FD)),
        *mounts.options(),
        *("--remount-ro", "/"),  # what is no mount of its own lies in memory without a bound
        *("--chdir", str(folder), "--"),
        *argv,
    ]
    return Launch(argv=tuple(words), cwd="/", env=kept, program=program, shifted=True)


def _mounts(level: Level, read: Sequence[Path], write: Sequence[Path], sandbox: Sandbox) -> _Mounts:
    mounts = _machine_mounts(sandbox) if level is Level.S2 else _minimal_mounts(sandbox)
    mounts.add("/proc", "--proc")
    mounts.add("/dev", "--dev")
    mounts.add(HOME, "--dir")
    for place in (*pythons(), *read):
        mounts.readable(place)
    for place in write:
        mounts.add(place, "--bind", str(place))
        _guard_repository(mounts, place)
        for settings in _settings(place):
            mounts.add(settings, "--ro-bind", str(settings))
    _hide(mounts, level, (*read, *write), sandbox)
    return mounts


def _guard_repository(mounts: _Mounts, workspace: Path) -> None:
    """What git runs or obeys is not written; of a worktree's repository only what a commit writes is."""
    if (workspace / ".git").is_dir() and not (workspace / ".git").is_symlink():
        mounts.add(workspace / ".git", "--bind", str(workspace / ".git"))  # a mount cannot be moved away
        for name in _GUARDED:
            if (place := workspace / name).exists() and not place.is_symlink():
                mounts.add(place, "--ro-bind", str(place))
    elif (linked := linked_repository(workspace)) is not None:
        _mount_linked(mounts, linked, workspace)


def _mount_linked(mounts: _Mounts, linked: Linked, workspace: Path) -> None:
    """The repository of a worktree, read-only but for what a commit writes."""
    mounts.add(workspace / ".git", "--ro-bind", str(workspace / ".git"))  # it says where the repository is
    mounts.add(linked.common, "--ro-bind", str(linked.common))
    for place in (*(linked.common / name for name in WRITTEN), linked.own):
        if place.is_dir() and not place.is_symlink():
            mounts.add(place, "--bind", str(place))
    for place in (linked.own / name for name in OBEYED):
        if place.exists() and not place.is_symlink():
            mounts.add(place, "--ro-bind", str(place))


def _settings(workspace: Path) -> Iterable[Path]:
    """The files of settings in the workspace, a `pyproject.toml` only if it holds some."""
    found = [workspace / name for name in _SETTINGS]
    project = workspace / "pyproject.toml"
    if project.is_file() and settings_in(project.read_bytes()) is not None:
        found.append(project)
    return [place for place in found if place.is_file() and not place.is_symlink()]


def _machine_mounts(sandbox: Sandbox) -> _Mounts:
    """Everything, read-only, but what belongs to others."""
    mounts = _Mounts()
    mounts.add("/", "--ro-bind", "/")
    for place in private_places():
        if place.is_dir() and place != Path("/") and not place.is_symlink():
            mounts.add(place, *_OWN)
    if sandbox.network:  # where a resolver keeps it under /run
        mounts.readable(Path("/etc/resolv.conf").resolve())
    return mounts


def _minimal_mounts(sandbox: Sandbox) -> _Mounts:
    """Programs and what they need to run."""
    mounts = _Mounts(dict(_program_mounts().found))
    settings = copied_settings()
    if settings is not None:
        mounts.add("/etc", "--ro-bind", str(settings[0]))
    for name in (*(CONFIGURATION if settings is None else settings[1]), *(NETWORK if sandbox.network else ())):
        mounts.readable(name)
    return mounts


@cache
def _program_mounts() -> _Mounts:
    mounts = _Mounts()
    for name in PROGRAMS:
        if not (Path(name).is_dir() and not os.listdir(name)):  # each mount takes time
            mounts.readable(name)
    mounts.add("/tmp", *_OWN)  # noqa: S108  # the sandbox's own, in memory as all of its root
    for name in ("/var/tmp", "/run"):  # noqa: S108
        mounts.add(name, "--dir")
    return mounts


def _hide(mounts: _Mounts, level: Level, places: Sequence[Path], sandbox: Sandbox) -> None:
    """Empty places where keys lie in something that is mounted."""
    secrets = [*secret_places(), *sandbox.hidden, *(place / _ENGINE for place in places)]
    shown: Iterable[Path] = [Path("/")] if level is Level.S2 else [*places, *pythons(), *map(Path, PROGRAMS)]
    covered = [place for place in private_places() if place != Path("/")] if level is Level.S2 else []
    for secret in hidden_in(secrets, shown):
        if any(within(secret, place) for place in places) or not any(within(secret, folder) for folder in covered):
            mounts.nothing(secret)
