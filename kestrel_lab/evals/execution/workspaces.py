"""Workspaces of trials: a folder of its own that is removed afterwards, or an installed package to read."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.core.yaml.validation import join_problems
from kestrel_lab.evals.guidance import Guidance, commit_guidance, install_guidance
from kestrel_lab.evals.scenario_parts import FolderCopy, GitCheckout, InlineFiles, PackageSource
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.suites.repository_checkouts import checkout_folder, make_checkout
from kestrel_lab.host.log_files import leave_out_logs
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.container import INSTALL, Engine, find_engine
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.select import choose_level_async

WORKSPACE: Final = "/workspace"
"""The place of the workspace in an image, where a scenario does not say another."""


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
    containers: Containers | None = None,
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
        and not (scenario.image or scenario.dockerfile or scenario.root)
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
        yield Workspace(folder) if containers is None else await containers.fill(scenario, folder)
    finally:
        if keep_in is None:
            # In a thread: where other trials write their logs, a file system takes milliseconds to remove a
            # folder.
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, onerror=_make_writable))


def _left_out(scenario: Scenario) -> Callable[[str, list[str]], set[str]]:
    return leave_out_logs() if isinstance(scenario.place, GitCheckout) else leave_out_logs(".git")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Image:
    """An image that a scenario names."""

    id: str
    root: str
    """The place of the workspace in it."""
    packed: bytes
    """What it has there, as a tar archive."""


@dataclass(kw_only=True, slots=True)
class Containers:
    """The images that a suite's scenarios name, each had once; and what holds the commands of a trial."""

    suite: Suite
    env: Mapping[str, str]
    notes: list[str] = field(default_factory=list)
    """What could not be had, and is done without."""
    broken: dict[str, str] = field(default_factory=dict)
    """By scenario, why its environment cannot be had: its trials break, and no model is asked."""
    _engine: Engine | None = None
    _looked: bool = False
    _images: dict[tuple[str, str, str], _Image] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def prepare(self, sandbox: Sandbox, *, agents: Sequence[str] = ()) -> None:
        """Pull and build the images; `agents` are configurations whose programs run on this machine.

        Raises `UsageError` that tells of all that cannot be had.
        """
        problems = []
        for scenario in self.suite.scenarios:
            try:
                await self._prepare(scenario, sandbox, agents)
            except UsageError as error:
                problems.append(f"scenario {scenario.id!r}: {error}")
        if problems:
            raise UsageError(join_problems(dict.fromkeys(problems)))

    async def _prepare(self, scenario: Scenario, sandbox: Sandbox, agents: Sequence[str]) -> None:
        named = scenario.image or scenario.dockerfile
        if scenario.image and scenario.dockerfile:
            raise UsageError("it names an image and a dockerfile: leave one out")
        if isinstance(scenario.place, PackageSource) and (named or scenario.root):
            raise UsageError("its workspace is an installed package, which stays where it is")
        if await self._image(scenario) is not None:
            if agents:
                programs = f"the agents of {', '.join(agents)} are programs of this machine"
                raise UsageError(f"{programs}, and {named} does not have them")
        elif scenario.root:
            # The root of a lower level is the machine's own.
            if scenario.dockerfile and _installs(_dockerfile(self.suite, scenario)):
                self.broken[scenario.id] = (
                    f"its environment is built by {named}, and no container engine answers here: {INSTALL}"
                )
                return
            await choose_level_async(replace(sandbox, level=Level.S3), _empty_workspace().root)
            if named:
                self.notes.append(
                    f"scenario {scenario.id!r} was run in the sandbox at {scenario.root}, without what "
                    f"{named} installs: no container engine answers here"
                )

    async def _image(self, scenario: Scenario) -> _Image | None:
        """Return the image of a scenario; `None` if it names none, or can do without and has to."""
        if not (named := scenario.image or scenario.dockerfile):
            return None
        async with self._turn:
            if not self._looked:
                self._engine, self._looked = await find_engine(self.env), True
            if (engine := self._engine) is None:
                if scenario.root:
                    return None
                raise UsageError(
                    f"it needs {named}, and no container engine answers here: {INSTALL}. With a root: (such "
                    "as /app) it is run in the sandbox, without what the image installs"
                )
            key = (scenario.image, scenario.dockerfile, scenario.root)
            if key not in self._images:
                name, folder = (
                    await engine.image(scenario.image)
                    if scenario.image
                    else await engine.build(_dockerfile(self.suite, scenario))
                )
                root = scenario.root or folder.rstrip("/") or WORKSPACE
                packed = await engine.files(name, root)
                self._images[key] = _Image(id=name, root=root, packed=packed)
            return self._images[key]

    async def fill(self, scenario: Scenario, folder: Path) -> Workspace:
        """Put what the scenario's image has at its root into the folder of a trial; what is there stays."""
        image = await self._image(scenario)
        if image is not None and image.packed:
            await asyncio.to_thread(_unpack, image.packed, folder)
        root = scenario.root if image is None else image.root
        workspace = Workspace(folder)
        return workspace.also_known_as(Path(root)) if root else workspace

    @asynccontextmanager
    async def opened(
        self, scenario: Scenario, workspace: Workspace, usual: Sandbox
    ) -> AsyncIterator[Sandbox]:
        """Open what holds the commands of one trial."""
        if scenario.id in self.broken:
            yield usual
            return
        image = await self._image(scenario)
        if image is None or self._engine is None:
            yield replace(usual, level=Level.S3, root=scenario.root) if scenario.root else usual
            return
        async with self._engine.container(
            image.id,
            workspace=workspace.root,
            root=image.root,
            network=usual.network,
            memory=usual.memory,
        ) as container:
            yield replace(usual, container=container)


def _dockerfile(suite: Suite, scenario: Scenario) -> Path:
    found = suite.resolve(scenario.dockerfile)
    found = found / "Dockerfile" if found.is_dir() else found
    if not found.is_file():
        raise UsageError(f"the dockerfile {found} is not there")
    return found


def _installs(dockerfile: Path) -> bool:
    """Return whether an image has more than files: a sandbox stands in for those alone."""
    for line in split_lines(dockerfile.read_text("utf-8", "replace")):
        if line.strip().upper().startswith(("RUN ", "RUN\t", "ENTRYPOINT")):
            return True
    return False


def _unpack(packed: bytes, folder: Path) -> None:
    """Unpack an archive of one folder into another; what is there stays, and nothing leads out of it."""
    if not hasattr(tarfile, "data_filter"):
        raise UsageError("the files of an image are unpacked by Python 3.11.4 or later: this one is older")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            _, _, member.name = member.name.partition("/")
            place = folder / member.name
            if not member.name or (not member.isdir() and os.path.lexists(place)):
                continue
            try:
                archive.extract(member, folder, filter="data")
            except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
                # It leads to another part of the image: right in the container, and never followed outside.
                if member.issym():
                    place.symlink_to(member.linkname)


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
