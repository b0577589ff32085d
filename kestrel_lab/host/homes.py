"""Home folders: the place of a workspace's log if none is configured.

Each workspace has a folder below the user's state folder, such as `~/.local/state/kestrel/shop-3f2a1b9c`,
with a small file that names the workspace. It is outside of the workspace, so that no command of an agent, no
search and no copy meets the log. A `.kestrel` in the workspace, the place in earlier versions, is still used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.host.filesystem import is_network, kind_of_filesystem, private_folder
from kestrel_lab.host.log_files import LOG
from kestrel_lab.host.user import home_folder

IN_WORKSPACE = ".kestrel"
RECORD = "workspace.json"
"""The file of a home that says which workspace it belongs to."""
_APP = "kestrel"
_NAME_CHARS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownHome:
    """A home folder below the state folder, and the workspace that it belongs to."""

    folder: Path
    workspace: Path
    inode: tuple[int, int]
    """Device and inode of the workspace: they stay when it is moved within its file system."""

    @property
    def lost(self) -> bool:
        """Whether there is no such workspace any more."""
        return not self.workspace.is_dir()


def state_folder(env: Mapping[str, str]) -> Path | None:
    """Return the folder of all homes of the user; `None` for a user who has no home folder."""
    if (named := env.get("XDG_STATE_HOME")) and Path(named).is_absolute():
        return Path(named, _APP)
    if not home_folder().is_dir():
        return None
    # Importing it takes 40 ms, which the import of `Lab` must not.
    from platformdirs import (
        user_state_path,
    )

    return user_state_path(_APP, appauthor=False)


def default_home(workspace: Path, env: Mapping[str, str]) -> Path:
    """Return the home of a workspace for which none is configured; links to the workspace are resolved.

    In this order: the one below the state folder, if it has a log; `.kestrel` in the workspace, if it has a
    log; a new one below the state folder, or in the workspace if the state folder cannot be written. So a
    `.kestrel` that somebody adds later is ignored.
    """
    place = workspace.resolve()
    inside, own = place / IN_WORKSPACE, own_home(place, env)
    if own is not None and os.path.lexists(own / LOG):
        return own
    if os.path.lexists(inside / LOG) or own is None or not _can_keep(own):
        return inside
    return own


def own_home(workspace: Path, env: Mapping[str, str]) -> Path | None:
    """Return the workspace's place below the state folder, whether it exists or not."""
    root = state_folder(env)
    return None if root is None else root / _home_name(workspace.resolve())


def record_workspace(home: Path, workspace: Path, env: Mapping[str, str]) -> None:
    """Record in a home below the state folder which `workspace` it belongs to; no-op for other homes."""
    place = workspace.resolve()
    if home != own_home(place, env):
        return
    status = place.stat()
    identity = {"workspace": str(place), "device": status.st_dev, "inode": status.st_ino}
    record, temporary = home / RECORD, home / f".{RECORD}-{os.getpid()}"
    # A read-only home can be looked at, and needs no record.
    with suppress(OSError):
        if record.is_file() and json.loads(record.read_text(encoding="utf-8")) == identity:
            return
        private_folder(home.parent)
        temporary.write_text(f"{json.dumps(identity, indent=1)}\n", encoding="utf-8")
        temporary.replace(record)


def known_homes(env: Mapping[str, str]) -> Iterator[KnownHome]:
    """Yield the homes below the state folder that say whose they are."""
    root = state_folder(env)
    for folder in sorted(root.iterdir()) if root is not None and root.is_dir() else ():
        if (found := read_record(folder)) is not None:
            yield found


def read_record(folder: Path) -> KnownHome | None:
    """Return what a home says of its workspace; `None` for a folder that says nothing."""
    try:
        identity = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        inode = (int(identity["device"]), int(identity["inode"]))
        return KnownHome(folder=folder, workspace=Path(str(identity["workspace"])), inode=inode)
    except (OSError, ValueError, TypeError, KeyError):
        # A record that is missing or damaged is no reason to fail: the home belongs to nobody we know.
        return None


def moved_notice(workspace: Path, env: Mapping[str, str]) -> str:
    """Return a hint for a workspace without runs that was probably moved; else an empty text."""
    place = workspace.resolve()
    status = place.stat()
    found = next(
        (one for one in known_homes(env) if one.inode == (status.st_dev, status.st_ino) and one.lost), None
    )
    if found is None:
        return ""
    return (
        f"kestrel: {one_line(str(place), 200)} has no runs yet, and "
        f"{one_line(str(found.workspace), 200)}, which is gone, has a log. "
        f"If that is the same folder, take them over: kestrel home --take {one_line(found.folder.name, 80)}"
    )


def _home_name(place: Path) -> str:
    readable = re.sub(r"[^\w.-]+", "-", place.name.encode("utf-8", "replace").decode()).strip("-.")[
        :_NAME_CHARS
    ]
    return f"{readable or 'workspace'}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}"


def _can_keep(home: Path) -> bool:
    """Whether a home can be made there: writable, and on no network file system, where logs are refused."""
    there = next(place for place in (home, *home.parents) if place.exists())
    return os.access(there, os.W_OK | os.X_OK) and not is_network(kind_of_filesystem(there))
