"""The home folder of a workspace: where it is, homes of missing workspaces, and moving one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import sanitize_text, shown_path
from kestrel_lab.eventlog.connection import close_everywhere
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.homes import (
    IN_WORKSPACE,
    KnownHome,
    default_home,
    known_homes,
    own_home,
    read_record,
    record_workspace,
    state_folder,
)
from kestrel_lab.host.log_files import LOG
from kestrel_lab.views.html.table_view import Part, PartsView, Table

_MADE_AGAIN = ("envs", "worktrees", "checkouts", "index")
"""Folders of a home whose files name the place where they are; they are made again when they are needed."""
_INSTALLED = "mcp"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class HomeFolder(PartsView):
    """Where the log of a workspace is, and the homes of workspaces that are gone."""

    folder: Path
    source: str
    """What says so: `default`, or the setting."""
    note: str = ""
    lost: tuple[KnownHome, ...] = ()

    @property
    def headline(self) -> str:
        """The folder, and what says so."""
        why = "one per workspace" if self.source == "default" else f"set by {self.source}"
        real = self.folder.resolve()
        return sanitize_text(
            f"{real} ({why}{f', found by the link {self.folder}' if self.folder.is_symlink() else ''})"
        )

    def parts(self) -> list[Part]:
        """Return the note, and a table of the homes whose workspace is gone."""
        found: list[Part] = [self.note] if self.note else []
        if self.lost:
            rows = [
                (one.folder.name, shown_path(one.workspace), _used(one.folder), _megabytes(one.folder))
                for one in self.lost
            ]
            found += [
                "workspaces that are gone; their homes are in "
                f"{sanitize_text(str(self.lost[0].folder.parent))}:",
                Table(("home", "workspace", "last used", "MB"), rows),
                "to take one over for the current folder: kestrel home --take HOME; to delete one, "
                "remove the folder",
            ]
        return found


def home_of(workspace: Path, env: Mapping[str, str], folder: Path, source: str) -> HomeFolder:
    """Describe the home `folder` of a workspace, which `source` names."""
    inside, note = workspace / IN_WORKSPACE, ""
    if source == "default" and (inside / LOG).exists() and folder.resolve() != inside.resolve():
        note = (
            f"{shown_path(inside)} has a log too, which is not used: to look at it, "
            f"KESTREL_HOME={IN_WORKSPACE} kestrel runs"
        )
    elif folder.resolve() == inside.resolve():
        note = (
            "it lies in the workspace, so sandbox level S1 runs no command there: kestrel home --move "
            "takes it out"
        )
    elif not folder.exists():
        note = "there is nothing yet"
    lost = [one for one in known_homes(env) if one.lost and one.folder.resolve() != folder.resolve()]
    return HomeFolder(folder=folder, source=source, note=note, lost=tuple(lost))


def move_home(workspace: Path, env: Mapping[str, str], target: Path | None = None) -> str:
    """Move the home of a workspace to `target`, by default to its place below the state folder; returns what
    was done, in words.

    From elsewhere than the state folder it is found by a link there. Raises `UsageError` where there is no
    log to move, where something is in the way, and while any process has the log open.
    """
    own, folder = own_home(workspace, env), default_home(workspace, env).resolve()
    if own is None:
        raise UsageError(
            "there is no state folder to find a home in: set KESTREL_HOME to the folder that it is to be in"
        )
    place = own if target is None else (Path.cwd() / target.expanduser()).resolve()
    if not (folder / LOG).exists():
        raise UsageError(
            f"there is no log of {workspace} yet: begin with KESTREL_HOME={place}, or set home in "
            "kestrel.toml"
        )
    if place.resolve() == folder and not (place == own and own.is_symlink()):
        raise UsageError(f"the home of {workspace} is {folder} already")
    if (
        os.path.lexists(place)
        and not (place == own and own.is_symlink())
        and (not place.is_dir() or any(place.iterdir()))
    ):
        raise UsageError(f"{place} is there already, and not empty: name another folder, or a new one in it")
    if folder in place.resolve().parents:
        raise UsageError(f"{place} lies in the home itself: name a folder outside of it")
    close_everywhere(folder / LOG)
    if own.is_symlink():
        own.unlink()
    left = _move(folder, place)
    if place != own:
        own.parent.mkdir(parents=True, exist_ok=True)
        own.symlink_to(place, target_is_directory=True)
    else:
        record_workspace(own, workspace, env)
    servers = f"; install again what runs had installed: {', '.join(left)}" if left else ""
    return f"moved {folder} to {place}{servers}"


def take_home(workspace: Path, env: Mapping[str, str], name: str) -> str:
    """Make the home of a workspace that is gone that of `workspace`; returns what was done, in words.

    `name` is its folder, or the folder's name below the state folder. Raises `UsageError` for a home whose
    workspace is there, and where the current one has runs of its own.
    """
    root, own = state_folder(env), own_home(workspace, env)
    if root is None or own is None:
        raise UsageError("there is no state folder, so there are no homes to take over")
    found = read_record(root / name) or read_record(Path(name).expanduser())
    if found is None:
        raise UsageError(
            f"{name} is no home of a workspace below {root}: kestrel home lists those whose workspace is gone"
        )
    if not found.lost:
        raise UsageError(f"{found.folder} belongs to {found.workspace}, which is there")
    if (here := default_home(workspace, env)) != own:
        raise UsageError(
            f"this folder has a log of its own, in {here}: set KESTREL_HOME={found.folder} to see the "
            "other runs"
        )
    if (own / LOG).exists():
        store = SessionStore(own / LOG)
        try:
            if store.runs(limit=1):
                raise UsageError(
                    f"this folder has runs of its own, in {own}: set KESTREL_HOME={found.folder} to "
                    "see the other ones"
                )
        finally:
            store.close()
        close_everywhere(own / LOG)
        shutil.rmtree(own)
    close_everywhere(found.folder / LOG)
    found.folder.rename(own)
    record_workspace(own, workspace, env)
    return f"the runs of {found.workspace} are those of {workspace} now, in {own}"


def _move(folder: Path, place: Path) -> list[str]:
    """Move a home without location-dependent parts; returns the MCP servers installed in it."""
    left = (
        sorted(one.name for one in (folder / _INSTALLED).iterdir() if one.is_dir())
        if (folder / _INSTALLED).is_dir()
        else []
    )
    for name in (*_MADE_AGAIN, _INSTALLED):
        shutil.rmtree(folder / name, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        place.rmdir()
    try:
        folder.rename(place)
    except OSError:  # another file system
        copy = place.with_name(f".{place.name}-{os.getpid()}")
        shutil.copytree(folder, copy, symlinks=True)
        copy.rename(place)
        shutil.rmtree(folder)
    return left


def _used(folder: Path) -> str:
    return strftime(
        "%Y-%m-%d",
        localtime(
            max((one.stat().st_mtime for one in folder.glob(f"{LOG}*")), default=folder.stat().st_mtime)
        ),
    )


def _megabytes(folder: Path) -> str:
    return f"{sum(one.lstat().st_size for one in folder.rglob('*')) / 1e6:,.1f}"
