"""Servers that were installed, each in a folder of its own that is used only whole and only unchanged."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.mcp.config import Seal, ServerConfig
from kestrel_lab.mcp.registry.catalogue import WORKSPACE, Package

MARK = "kestrel.json"
"""The file that is written last: a folder without it is an unfinished installation and is ignored."""
_TEXTS = ("server", "entry", "lock", "tree")
"""Fields of an installation that its mark keeps as they are."""
_START_S = 60.0
"""A first start reads many files."""
_BEFORE, _BEHIND = (
    re.compile("^(?:mcp-server-|server-|mcp-)(?=.)"),
    re.compile("(?<=.)(?:-mcp-server|-server|-mcp)$"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledServer:
    """An installed server."""

    server: str
    """The prefix of its tools: `time` in `time:convert_time`."""
    entry: str
    """Its name in the catalogue or registry; empty when a person named the package."""
    package: Package
    lock: str
    """Hash of the list of everything that was installed, each with version and hash."""
    packages: int
    """The number of packages in the list."""
    tree: str
    """Hash of every file in the folder after installation."""
    folder: Path

    def config(self, workspace: Path) -> ServerConfig:
        """Return its configuration, sealed: the server is not started if its files have changed."""
        package = self.package
        env = {**dict(package.settings), **{name: f"${{{name}}}" for name in package.variables}}
        if package.kind == "pypi":
            # It must leave its folder as it is.
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        command, *args = start_of(package, self.folder, workspace)
        return ServerConfig(
            name=self.server,
            command=command,
            args=tuple(args),
            env=env,
            source=str(self.folder / MARK),
            start_timeout_s=_START_S,
            seal=Seal(folder=str(self.folder), tree=self.tree),
        )


def start_of(package: Package, folder: Path, workspace: Path) -> tuple[str, ...]:
    """Return the command line that starts a package's program from its folder."""
    where = folder / ("bin" if package.kind == "pypi" else "node_modules/.bin")
    return (
        str(where / package.program),
        *(str(workspace) if word == WORKSPACE else word for word in package.args),
    )


def folder_of(root: Path, package: Package) -> Path:
    """Return the folder of a package."""
    return root / f"{package.name.replace('/', '+')}-{package.version}"


def short_name(package: Package) -> str:
    """Return the prefix of the tools of a package's server: `time` for `mcp-server-time`."""
    name = package.name.rpartition("/")[2].lower().replace(".", "-")
    name = _BEHIND.sub("", _BEFORE.sub("", name))
    return re.sub("_{2,}", "_", name)[:32].strip("-_") or "server"


def list_installed(root: Path) -> list[InstalledServer]:
    """Return every complete installation under `root`, in order of names."""
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []
    return [found for folder in folders if (found := read_installed(folder)) is not None]


def read_installed(folder: Path) -> InstalledServer | None:
    """Return the installation in `folder`; `None` if it is missing or incomplete."""
    try:
        said = cast("dict[str, Any]", loads((folder / MARK).read_text("utf-8")))
        return InstalledServer(
            package=Package.from_json(said),
            folder=folder,
            packages=int(said["packages"]),
            **{name: str(said[name]) for name in _TEXTS},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_installed(found: InstalledServer) -> None:
    """Write the mark of a complete installation, atomically."""
    said: dict[str, Json] = {
        **found.package.as_json(),
        "package": found.package.pin,
        "packages": found.packages,
        **{name: getattr(found, name) for name in _TEXTS},
    }
    # The mark appears at once and complete: an installation without one is ignored.
    unfinished = found.folder / f"{MARK}.new"
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(dumps(said))
        file.flush()
        # Else a power cut could leave the name with an empty file.
        os.fsync(file.fileno())
    unfinished.replace(found.folder / MARK)


def remove_folder(folder: Path) -> None:
    """Remove an installation; its mark first, so that a part of it is never used."""
    (folder / MARK).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def tree_of(folder: Path) -> str:
    """Return a hash of names, contents and execute bits below `folder`, without the mark."""
    whole = hashlib.sha256()
    for path, kind, content in _entries(folder):
        # File names need not be UTF-8.
        whole.update(f"{kind}\0{path}\0{content}\0".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def check_seal(seal: Seal) -> None:
    """Raise `ConnectionError` if the folder changed since its installation."""
    folder = Path(seal.folder)
    if tree_of(folder) != seal.tree:
        what = "are not what was installed and approved" if folder.is_dir() else "are gone"
        raise ConnectionError(
            f"its files in {folder} {what}, so it is not started: remove it with kestrel mcp remove, "
            "and install it again"
        )


def _entries(folder: Path) -> Iterator[tuple[str, str, str]]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted((*names, *(one for one in folders if os.path.islink(os.path.join(place, one))))):
            path = os.path.join(place, name)
            shown = os.path.relpath(path, folder)
            if shown in {MARK, f"{MARK}.new"}:
                continue
            if os.path.islink(path):
                yield shown, "link", os.readlink(path)
            elif os.path.isfile(path):
                yield shown, "program" if os.access(path, os.X_OK) else "file", _hash_of(path)
            else:
                yield shown, "other", ""


def _hash_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
