"""Workspaces of trials: a folder of its own that is removed afterwards, or an installed package to read."""

from __future__ import annotations

import asyncio
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.guidance import Guidance, commit_guidance, install_guidance
from kestrel_lab.evals.suite import FolderCopy, GitCheckout, InlineFiles, PackageSource, Scenario, Suite
from kestrel_lab.evals.suites.repository_checkouts import checkout_folder, make_checkout
from kestrel_lab.host.log_files import leave_out_logs
from kestrel_lab.tools.files.workspace import Workspace


def workspace_source(suite: Suite, scenario: Scenario, home: Path) -> Path | None:
    """Return the folder that the scenario's workspace is made from, `None` for inline files; raises
    `UsageError` if it is missing.

    For a commit of a repository it is one under `home`, which is made when it is first needed.
    """
    match scenario.place:
        case FolderCopy(folder=folder):
            found = suite.resolve(folder)
            if not found.is_dir():
                raise UsageError(f"scenario {scenario.id!r}: the workspace folder {found} is not a folder")
            return found
        case PackageSource(package=package):
            return _package_folder(package, scenario)
        case GitCheckout():
            return checkout_folder(suite, scenario.place, home)
    return None


@asynccontextmanager
async def trial_workspace(
    scenario: Scenario,
    source: Path | None,
    keep_in: Path | None = None,
    *,
    only_pure: bool = False,
    guidance: Guidance | None = None,
    named: frozenset[str] = frozenset(),
) -> AsyncIterator[Workspace]:
    """Open the workspace of one trial.

    `source` is what `workspace_source` found. A throw-away folder is removed at the end, unless `keep_in`
    names a folder to make it in and leave it. Trials without files whose tools are all pure (`only_pure`)
    share one empty, read-only folder: making and removing a folder costs more than all the rest of such a
    trial. With `guidance` the workspace has its files and no other guidance; `named` is what counts as such
    beside the files known by name.
    """
    if isinstance(scenario.place, PackageSource) and source is not None:
        yield Workspace(source, read_only=True)
        return
    if (
        only_pure
        and scenario.place == InlineFiles()
        and keep_in is None
        and not (guidance and guidance.files)
    ):
        yield _empty_workspace()
        return
    if isinstance(scenario.place, GitCheckout) and source is not None:
        await make_checkout(scenario.place, source)
    folder = _new_folder(keep_in)
    try:
        if isinstance(scenario.place, InlineFiles):
            _write(folder, scenario.place.files)
        elif source is not None:
            await asyncio.to_thread(
                shutil.copytree, source, folder, symlinks=True, dirs_exist_ok=True, ignore=_left_out(scenario)
            )
        if (
            guidance is not None
            and await asyncio.to_thread(install_guidance, folder, guidance, named)
            and isinstance(scenario.place, GitCheckout)
        ):
            await commit_guidance(folder)
        yield Workspace(folder)
    finally:
        if keep_in is None:
            # In a thread: where other trials write their logs, a file system takes milliseconds to remove a
            # folder.
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, onerror=_make_writable))


def _left_out(scenario: Scenario) -> Callable[[str, list[str]], set[str]]:
    return leave_out_logs() if isinstance(scenario.place, GitCheckout) else leave_out_logs(".git")


@cache
def _empty_folder() -> tempfile.TemporaryDirectory[str]:
    """The folder that trials without files share; it is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="kestrel-empty-")


@cache
def _empty_workspace() -> Workspace:
    return Workspace(Path(_empty_folder().name), read_only=True)


def _new_folder(inside: Path | None) -> Path:
    if inside is not None:
        inside.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="kestrel-", dir=inside))


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")


def _package_folder(package: str, scenario: Scenario) -> Path:
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"scenario {scenario.id!r} works on the source of the package {package!r}, which is not "
            "installed here (or is a single module): "
            f"pip install {package}"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _make_writable(remove: Callable[[str], object], path: str, _error: object) -> None:
    """Try once more after making `path` and its folder writable; a trial may have left them read-only."""
    place = Path(path)
    for folder in (place.parent, place):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(stat.S_IRWXU)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
