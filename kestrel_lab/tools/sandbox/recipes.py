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
from kestrel_lab.tools.sandbox.launching import Launch
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
from kestrel_lab.tools.sandbox.seccomp import AF_INET, AF_INET6, filter_program
from kestrel_lab.tools.workspace import settings_in

HOME = "/tmp/home"  # noqa: S108  # of the sandbox, which has a /tmp of its own
_GUARDED = (".git/hooks", ".git/config")
"""What git runs or obeys later, outside the sandbox; the rest of .git may be written, to commit."""
_SETTINGS = ("kestrel.toml", ".mcp.json")
"""What says what an agent may do unasked. A file that is not there yet cannot be guarded."""
_ENGINE = ".kestrel"


def launch_for(level: Level, argv: Sequence[str], *, workspace: Path, env: Mapping[str, str], sandbox: Sandbox) -> Launch:
    """How `argv` is started in `workspace`, held in at `level`.

    Raises `OSError` where the processor's system calls are not known, and `PermissionError` for a workspace that
    the level cannot hold a command in.
    """
    if level is Level.S0:
        return Launch(argv=tuple(argv), cwd=str(workspace), env=env)
    check_workspace(level, workspace)
    if level is Level.S1:
        return _landlocked(argv, workspace, env, sandbox)
    return _wrapped(level, argv, workspace, env, sandbox)


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


def _secrets(sandbox: Sandbox, workspace: Path) -> list[Path]:
    return [*secret_places(), *sandbox.hidden, workspace / _ENGINE]


def _landlocked(argv: Sequence[str], workspace: Path, env: Mapping[str, str], sandbox: Sandbox) -> Launch:
    more = ("/proc", "/sys/devices/system/cpu", *(NETWORK if sandbox.network else ()))
    read = (*PROGRAMS, *CONFIGURATION, *more, *map(str, pythons()))
    families = (AF_INET, AF_INET6) if sandbox.network else ()
    return Launch(
        argv=tuple(argv),
        cwd=str(workspace),
        env=env,
        program=filter_program(families, truncate=version() >= TRUNCATES),
        read=read,
        write=(str(workspace), *DEVICES),
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


def _wrapped(level: Level, argv: Sequence[str], workspace: Path, env: Mapping[str, str], sandbox: Sandbox) -> Launch:
    program = filter_program((AF_INET, AF_INET6))
    mounts = _mounts(level, workspace, sandbox)
    net = ("--share-net",) if sandbox.network else ()
    kept = dict(env) | {"HOME": HOME, "TMPDIR": "/tmp"}  # noqa: S108  # the sandbox's own
    words = [
        *(bwrap_path() or "bwrap", "--unshare-all", *net, "--unshare-user", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--seccomp", str(FILTER_FD)),
        *mounts.options(),
        *("--chdir", str(workspace), "--"),
        *argv,
    ]
    return Launch(argv=tuple(words), cwd="/", env=kept, program=program, shifted=True)


def _mounts(level: Level, workspace: Path, sandbox: Sandbox) -> _Mounts:
    mounts = _machine_mounts(sandbox) if level is Level.S2 else _minimal_mounts(sandbox)
    mounts.add("/proc", "--proc")
    mounts.add("/dev", "--dev")
    mounts.add(HOME, "--dir")
    mounts.add(workspace, "--bind", str(workspace))
    if (workspace / ".git").is_dir() and not (workspace / ".git").is_symlink():
        mounts.add(workspace / ".git", "--bind", str(workspace / ".git"))  # a mount cannot be moved away
        for name in _GUARDED:
            if (place := workspace / name).exists() and not place.is_symlink():
                mounts.add(place, "--ro-bind", str(place))
    for place in _settings(workspace):
        mounts.add(place, "--ro-bind", str(place))
    for place in pythons():
        mounts.readable(place)
    _hide(mounts, level, workspace, sandbox)
    return mounts


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
            mounts.add(place, "--tmpfs")
    if sandbox.network:  # where a resolver keeps it under /run
        mounts.readable(Path("/etc/resolv.conf").resolve())
    return mounts


def _minimal_mounts(sandbox: Sandbox) -> _Mounts:
    """Programs and what they need to run."""
    return _Mounts(dict(_system_mounts(network=sandbox.network).found))


@cache
def _system_mounts(*, network: bool) -> _Mounts:
    mounts = _Mounts()
    for name in (*PROGRAMS, *CONFIGURATION, *(NETWORK if network else ())):
        if not (Path(name).is_dir() and not os.listdir(name)):  # each mount takes time
            mounts.readable(name)
    for name in ("/tmp", "/var/tmp", "/run"):  # noqa: S108  # the sandbox's own, in memory as all of its root
        mounts.add(name, "--dir")
    return mounts


def _hide(mounts: _Mounts, level: Level, workspace: Path, sandbox: Sandbox) -> None:
    """Empty places where keys lie in something that is mounted."""
    shown: Iterable[Path] = [Path("/")] if level is Level.S2 else [workspace, *pythons(), *map(Path, PROGRAMS)]
    covered = [place for place in private_places() if place != Path("/")] if level is Level.S2 else []
    for place in hidden_in(_secrets(sandbox, workspace), shown):
        if within(place, workspace) or not any(within(place, folder) for folder in covered):
            mounts.nothing(place)
