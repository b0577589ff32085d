"""Discovery of MCP servers: installed ones, the catalogue, and a registry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.mcp.registry.catalogue import Entry, Package, named_package, read_catalogue
from kestrel_lab.mcp.registry.client import Registry
from kestrel_lab.mcp.registry.install import InstallError, LockedPackage, installer_for, lock_package
from kestrel_lab.mcp.registry.installed_servers import InstalledServer, list_installed
from kestrel_lab.mcp.registry.scoring import FITTING, ScoredEntry, score_entry
from kestrel_lab.tools.tool_search import tool_index
from kestrel_lab.tools.web.fetch import Reach

_LOOKED_AT = 20
"""Entries that are scored."""
_SHARE = 0.6
"""Least share of the best match's points for another entry to be listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpansionSettings:
    """Settings of the search for tools during a run."""

    expand: bool = False
    """Whether runs search for servers by default."""
    registry: str = ""
    """Address of a registry; empty for none."""
    catalogue: str = ""
    """A file in place of the shipped catalogue."""
    allow: tuple[str, ...] = ()
    """Packages that are installed without asking: see `mcp.registry.install.allowing_pattern`."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The sources of servers, with the folder of installed ones."""

    root: Path
    env: Mapping[str, str]
    settings: ExpansionSettings = field(default_factory=ExpansionSettings)

    @cached_property
    def catalogue(self) -> list[Entry]:
        """The entries of the catalogue; raises `UsageError` for one that cannot be read."""
        return read_catalogue(Path(self.settings.catalogue) if self.settings.catalogue else None)

    @cached_property
    def registry(self) -> Registry | None:
        """The registry, where one is configured."""
        return Registry.at(self.settings.registry, Reach(env=self.env)) if self.settings.registry else None

    def installed(self) -> list[InstalledServer]:
        """Return the installed servers."""
        return list_installed(self.root)

    async def search(self, need: str, top_k: int) -> tuple[list[ScoredEntry], str]:
        """Return at most `top_k` servers for `need`, best first, and the problem of the registry, if any."""
        entries, problem = list(self.catalogue), ""
        if self.registry is not None:
            try:
                entries += await self.registry.search(need)
            except ConnectionError as error:
                # The catalogue is enough to go on without the registry.
                problem = str(error)
        by_name: dict[str, Entry] = {}
        # The catalogue goes before the registry.
        for entry in entries:
            by_name.setdefault(entry.name, entry)
        hits = tool_index(entry.described() for entry in by_name.values()).search(need, _LOOKED_AT)
        judged = [self.judged(by_name[name], need) for name in hits]
        least = max([FITTING, *(_SHARE * one.match for one in judged)])
        fitting = [one for one in judged if one.match >= least]
        return sorted(fitting, key=lambda one: -one.score)[:top_k], problem

    def judged(self, entry: Entry, need: str) -> ScoredEntry:
        """Score `entry` by the rubric."""
        return score_entry(
            entry, need, [one.package.name for one in self.catalogue if one.package is not None], self.env
        )

    def entry(self, name: str) -> Entry:
        """Return the entry that a person names: by its name in the catalogue, its package, or as
        `NAME==VERSION`.

        Raises `UsageError` for a package that is not in the catalogue and has no version.
        """
        for one in self.catalogue:
            package = one.package
            if name in {one.name, one.name.partition("/")[2]} or (
                package is not None and name in {package.name, package.pin}
            ):
                return one
        package = named_package(name)
        known = next(
            (one for one in self.catalogue if one.package is not None and one.package.name == package.name),
            None,
        )
        # Another version of it.
        if known is not None and known.package is not None:
            return replace(
                known,
                version=package.version,
                package=replace(known.package, version=package.version, sha256=""),
            )
        return Entry(
            name=f"unknown/{package.name.rpartition('/')[2]}",
            version=package.version,
            package=package,
            source="you",
        )

    async def locked(self, package: Package) -> LockedPackage:
        """Return the lock of `package` and store it until the installation; raises `InstallError`."""
        found = await lock_package(package, self.env)
        place = self._locks / found.hash
        await asyncio.to_thread(_write_atomically, place, found.text)
        return found

    def kept(self, package: Package, wanted: str, packages: int) -> LockedPackage:
        """Return the stored lock with the hash `wanted`; raises `InstallError` if it is gone or changed."""
        text = ""
        with suppress(OSError):
            text = (self._locks / wanted).read_text("utf-8")
        found = LockedPackage(
            package=package, installer=installer_for(package, self.env), text=text, packages=packages
        )
        if found.hash != wanted:
            raise InstallError(
                f"the lock file of {package.pin} needs is gone or was changed since it was looked up: "
                "look for it again"
            )
        return found

    @property
    def _locks(self) -> Path:
        return self.root / ".locks"


def _write_atomically(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(f".{id(text)}")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(place)


def installed_servers(root: Path, taken: Iterable[str], workspace: Path) -> dict[str, ServerConfig]:
    """Return the configurations of installed servers, without those whose name is taken."""
    others = set(taken)
    return {one.server: one.config(workspace) for one in list_installed(root) if one.server not in others}
