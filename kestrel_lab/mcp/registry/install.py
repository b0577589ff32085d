"""Installation of MCP servers: lock every package with version and hash, get that approved, install into a
folder of its own.

uv, pip and npm are started without a shell and in the root folder, so that no project's settings decide where
packages come from. No code of a package runs during its installation: wheels only, and no scripts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.host.filesystem import lock_file as file_lock
from kestrel_lab.host.filesystem import private_folder
from kestrel_lab.mcp.approvals import Approvals
from kestrel_lab.mcp.registry.catalogue import Package
from kestrel_lab.mcp.registry.installed_servers import (
    InstalledServer,
    folder_of,
    read_installed,
    remove_folder,
    start_of,
    tree_of,
    write_installed,
)
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.shell.process import run_launched

Installer = Literal["uv", "pip", "npm"]

_LOCK_S, _INSTALL_S = 180.0, 600.0
_KEPT, _MOST_OUTPUT = 4_000, 50_000_000
"""Bytes of an installer's output that are kept for its error, and after which it is stopped."""
_LEFT_OUT = (
    *("PYTHON", "VIRTUAL_ENV", "CONDA_", "NODE_OPTIONS", "NODE_PATH"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE", "PIP_NO_DEPS"),
)
"""Prefixes of environment variables that would change what is installed or where."""
_REQUIREMENTS = "requirements.lock"
_LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)")


class InstallError(Exception):
    """A package cannot be found, is not as expected, or cannot be installed; the message says what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPackage:
    """A package and its dependencies, each in one version and with its hash."""

    package: Package
    """The package, with the hash of its file."""
    installer: Installer
    text: str
    """The lock file for the installer."""
    packages: int

    @property
    def hash(self) -> str:
        """Hash of the lock file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def commands(self, root: Path) -> tuple[tuple[str, ...], ...]:
        """Return the command lines that install it."""
        # Wheels only and no scripts: no code of a package may run before it is in a sandbox. Hashes, and no
        # dependencies beyond the lock: nothing is installed that was not approved.
        folder = folder_of(root, self.package)
        python, file = str(folder / "bin" / "python"), str(folder / _REQUIREMENTS)
        strict = ("--only-binary", ":all:", "--require-hashes", "--no-deps")
        match self.installer:
            case "uv":
                made = ("uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder))
                return made, (
                    "uv",
                    "pip",
                    "install",
                    "--python",
                    python,
                    *strict,
                    "--link-mode",
                    "copy",
                    "--compile-bytecode",
                    "-r",
                    file,
                )
            case "pip":
                plain = (sys.executable, "-m", "venv", "--without-pip", str(folder))
                return plain, (
                    sys.executable,
                    "-m",
                    "pip",
                    "--python",
                    python,
                    "install",
                    *strict,
                    "--compile",
                    "-r",
                    file,
                )
            case "npm":
                return (
                    ("npm", "ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"),
                )


def installer_for(package: Package, env: Mapping[str, str]) -> Installer:
    """Return the installer: npm for its packages, else uv, else pip.

    Raises `InstallError` if there is none.
    """
    path = env.get("PATH")
    if package.kind == "npm":
        if shutil.which("npm", path=path) is None:
            raise InstallError(f"{package.pin} needs npm, which is not found: install Node.js")
        return "npm"
    if shutil.which("uv", path=path) is not None:
        return "uv"
    if find_spec("pip") is None:
        raise InstallError(f"{package.pin} needs uv or pip, and neither is found: install one of them")
    return "pip"


async def lock_package(package: Package, env: Mapping[str, str]) -> LockedPackage:
    """Resolve `package` and its dependencies to exact versions with hashes; installs and runs nothing.

    Raises `InstallError` if it cannot be found or its hash differs from the entry's.
    """
    installer = installer_for(package, env)
    with tempfile.TemporaryDirectory(prefix="kestrel-lock-") as scratch:
        text = await {"uv": _lock_uv, "pip": _lock_pip, "npm": _lock_npm}[installer](
            package, Path(scratch), env
        )
    hashes = _hashes(package, installer, text)
    own = hashes.get(_normal(package.name), ())
    if not own:
        raise InstallError(f"{package.pin} was not found where {installer} looks for packages")
    if package.sha256 and package.kind == "pypi" and package.sha256 not in own:
        raise InstallError(
            f"{package.pin} is another file than the catalogue names: it should have the hash "
            f"{package.sha256[:16]}…, and has {own[0][:16]}…"
        )
    return LockedPackage(
        package=replace(package, sha256=package.sha256 or ",".join(own)),
        installer=installer,
        text=text,
        packages=len(hashes),
    )


async def install_package(
    locked: LockedPackage, root: Path, *, server: str, entry: str, env: Mapping[str, str]
) -> InstalledServer:
    """Install into the package's folder under `root`, unless the same lock is already installed unchanged.

    One of several processes installs, the others wait. A killed installation leaves a folder that is ignored.
    Raises `InstallError`.
    """
    folder = folder_of(root, locked.package)
    await asyncio.to_thread(private_folder, root)
    # The kernel releases this lock when its process ends, however that happens.
    async with file_lock(root / f".{folder.name}.lock"):
        known = own_installation(folder, env)
        if (
            known is not None
            and known.lock == locked.hash
            and await asyncio.to_thread(tree_of, folder) == known.tree
        ):
            return known
        await asyncio.to_thread(remove_folder, folder)
        try:
            await asyncio.to_thread(_begin, locked, folder)
            for argv in locked.commands(root):
                await _done(argv, env, _INSTALL_S, f"installing {locked.package.pin}")
            _check_program(locked, Path(start_of(locked.package, folder, folder)[0]))
        except BaseException:
            remove_folder(folder)
            raise
        # The record is written last: a folder without it counts as not installed.
        found = InstalledServer(
            server=server,
            entry=entry,
            package=locked.package,
            lock=locked.hash,
            packages=locked.packages,
            tree=await asyncio.to_thread(tree_of, folder),
            folder=folder,
        )
        await asyncio.to_thread(_remember, found, env)
        await asyncio.to_thread(write_installed, found)
        return found


def own_installation(folder: Path, env: Mapping[str, str]) -> InstalledServer | None:
    """Return the installation in `folder` if this user made it; one that came with a project never counts."""
    known = read_installed(folder)
    return known if known is not None and (_records(env) / known.tree).is_file() else None


def _remember(found: InstalledServer, env: Mapping[str, str]) -> None:
    """Record outside every project that this user installed it."""
    _records(env).mkdir(parents=True, exist_ok=True)
    (_records(env) / found.tree).touch()


def _records(env: Mapping[str, str]) -> Path:
    return Approvals.of(env).path.parent / "mcp-installed"


def _check_program(locked: LockedPackage, program: Path) -> None:
    if not os.access(program, os.X_OK):
        there = (
            ", ".join(sorted(path.name for path in program.parent.iterdir())[:20])
            if program.parent.is_dir()
            else "nothing"
        )
        raise InstallError(f"{locked.package.pin} has no program {program.name!r}; it has {there}")


def _begin(locked: LockedPackage, folder: Path) -> None:
    folder.mkdir(parents=True)
    if locked.installer == "npm":
        (folder / "package.json").write_text(
            json.dumps({"private": True, "dependencies": {locked.package.name: locked.package.version}}),
            "utf-8",
        )
        (folder / "package-lock.json").write_text(locked.text, "utf-8")
    else:
        (folder / _REQUIREMENTS).write_text(locked.text, "utf-8")


async def _lock_uv(package: Package, scratch: Path, env: Mapping[str, str]) -> str:
    wanted, found = scratch / "wanted.in", scratch / "found.txt"
    wanted.write_text(f"{package.name}=={package.version}\n", "utf-8")
    plain = ("--no-header", "--no-annotate", "--generate-hashes", "--only-binary", ":all:")
    argv = (
        "uv",
        "pip",
        "compile",
        "--quiet",
        *plain,
        "--python",
        sys.executable,
        "--output-file",
        str(found),
        str(wanted),
    )
    await _done(argv, env, _LOCK_S, f"looking for {package.pin}")
    return found.read_text("utf-8").replace("\\\n", "")


async def _lock_pip(package: Package, scratch: Path, env: Mapping[str, str]) -> str:
    report = scratch / "report.json"
    how = ("--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", str(report))
    argv = (sys.executable, "-m", "pip", "install", *how, f"{package.name}=={package.version}")
    await _done(argv, env, _LOCK_S, f"looking for {package.pin}")
    found: Any = json.loads(report.read_text("utf-8"))
    lines = []
    for one in found["install"]:
        about, hashes = one["metadata"], one["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" not in hashes:
            raise InstallError(
                f"{package.pin} needs {about['name']}, which has no hash where pip looks for packages"
            )
        lines.append(f"{about['name']}=={about['version']} --hash=sha256:{hashes['sha256']}")
    return "".join(f"{line}\n" for line in sorted(lines, key=str.lower))


async def _lock_npm(package: Package, scratch: Path, env: Mapping[str, str]) -> str:
    (scratch / "package.json").write_text(
        json.dumps({"private": True, "dependencies": {package.name: package.version}}), "utf-8"
    )
    argv = (
        "npm",
        "install",
        "--prefix",
        str(scratch),
        "--package-lock-only",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    )
    await _done(argv, env, _LOCK_S, f"looking for {package.pin}")
    found: Any = json.loads((scratch / "package-lock.json").read_text("utf-8"))
    found.pop("name", None)  # that of the scratch folder
    for path, one in found["packages"].items():
        if (
            path
            and not one.get("link")
            and not one.get("inBundle")
            and not str(one.get("integrity", "")).startswith("sha512-")
        ):
            raise InstallError(
                f"{package.pin} needs {one_line(path, 80)}, which has no hash where npm looks for packages"
            )
    return json.dumps(found, indent=1, sort_keys=True)


def _hashes(package: Package, installer: Installer, text: str) -> dict[str, list[str]]:
    if installer == "npm":
        packages: dict[str, Any] = json.loads(text)["packages"]
        own = packages.get(f"node_modules/{package.name}", {})
        known = {
            path: [str(one.get("integrity", ""))]
            for path, one in packages.items()
            if path.startswith("node_modules/")
        }
        if own.get("version") == package.version:
            known[_normal(package.name)] = known.pop(f"node_modules/{package.name}")
        return known
    found = {}
    for line in text.splitlines():
        if not (match := _LINE.fullmatch(line.strip())):
            if line.strip():
                raise InstallError(
                    f"{package.pin} cannot be pinned: {one_line(line, 120)!r} has no exact version and hash"
                )
            continue
        if _normal(match[1]) != _normal(package.name) or match[2] == package.version:
            found[_normal(match[1])] = re.findall(r"[0-9a-f]{64}", match[3])
    return found


async def _done(argv: Sequence[str], env: Mapping[str, str], seconds: float, what: str) -> None:
    """Run a command of an installer; raises `InstallError` with the end of its output."""
    said, taken = bytearray(), 0

    def keep(piece: bytes) -> bool:
        nonlocal taken
        taken += len(piece)
        said.extend(piece)
        # The cause of a failure is at the end.
        del said[:-_KEPT]
        return taken < _MOST_OUTPUT

    ours = {name: value for name, value in env.items() if not name.startswith(_LEFT_OUT)}
    ours |= {
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "NO_COLOR": "1",
        "npm_config_update_notifier": "false",
    }
    try:
        program = shutil.which(argv[0], path=ours.get("PATH")) or argv[0]
        # What is killed with us must not go on writing.
        launch = Launch(argv=(program, *argv[1:]), cwd="/", env=ours)
        ended = await run_launched(launch, stdout=keep, stderr=keep, timeout_s=seconds)
    except OSError as error:
        raise InstallError(
            f"{what} failed: {argv[0]} cannot be started: {error.strerror or error}"
        ) from error
    if ended.exit_code != 0 or ended.stopped:
        how = (
            f"it took more than {seconds:g} s"
            if ended.stopped == "timeout"
            else f"exit code {ended.exit_code}"
        )
        raise InstallError(
            f"{what} failed ({how}): "
            f"{one_line(said.decode('utf-8', 'replace')[-1500:], 1000) or 'it says nothing'}"
        )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def allowing_pattern(package: Package, patterns: Sequence[str]) -> str:
    """Return the pattern of a setting that allows `package` beforehand; empty for none.

    A package that needs environment variables is never allowed beforehand: a person decides each time.
    """
    if package.variables:
        return ""
    pin = package.pin
    return next(
        (one for one in patterns if (pin.startswith(one[:-1]) if one.endswith(".*") else pin == one)), ""
    )


def checked_pattern(pattern: str) -> str:
    """Return the pattern `NAME==VERSION` or `NAME==VERSION.*`; raises `ValueError` for anything else."""
    name = pattern.removesuffix(".*").removeprefix("npm:")
    if name.count("==") != 1 or not re.fullmatch(r"(?:@[\w.-]+/)?[A-Za-z0-9][\w.-]*==\d[\w.+!-]*", name):
        raise ValueError(f"{one_line(pattern, 60)!r} is not NAME==VERSION or NAME==VERSION.*")
    return pattern


def check_name_free(server: str, taken: Sequence[str]) -> None:
    """Raise `UsageError` if another server has the name."""
    if server in taken:
        raise UsageError(
            f"there is an MCP server {server!r} already: remove or rename it first (kestrel mcp)"
        )
