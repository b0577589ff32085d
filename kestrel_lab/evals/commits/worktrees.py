"""Worktrees of commits, each with a Python environment that has what the commit requires.

Nothing here writes to the user's files, index, HEAD, branches or stash; git keeps a note of each worktree
in its own folder until the worktree is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import sys
import sysconfig
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import content_key, loads_toml
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.git import commit_of
from kestrel_lab.eventlog.connection import process_name
from kestrel_lab.eventlog.run_status import alive_elsewhere
from kestrel_lab.host.filesystem import lock_file
from kestrel_lab.host.git import add_worktree, git_output

REQUIREMENTS: Final = (
    *("requirements.txt", "constraints.txt", "setup.py", "setup.cfg"),
    *("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock", "requirements.lock"),
)
"""Files at the top of a repository that say, with the dependencies in `pyproject.toml`, what it requires."""
_OUR_FOLDER: Final = Path(__file__).resolve().parents[3]
"""The folder from which this kestrel_lab is imported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The Python of a commit: program and environment variables."""

    python: Path
    env: dict[str, str]
    """Variables beside those of this process."""


@asynccontextmanager
async def temporary_worktree(repository: Path, sha: str, home: Path) -> AsyncIterator[Path]:
    """Check out commit `sha` into a folder under `home` that is removed at the end, also on error and
    cancellation.

    What a killed process left behind is removed at the next call. Neither hooks nor filters of the repository
    are run.
    """
    folder = _folder(home, "worktrees")
    # git reads the notes of all worktrees whenever it makes or removes one, and fails at one that is half
    # written.
    turn = _folder(home, "envs") / "worktrees.lock"
    async with lock_file(turn):
        await _clear(repository, folder)
    place = folder / f"{sha[:12]}-{os.getpid()}-{secrets.token_hex(2)}"
    try:
        async with lock_file(turn):
            await add_worktree(repository, place, await commit_of(repository, sha))
        yield place
    finally:
        await asyncio.shield(_remove_in_turn(repository, place, turn))


async def environment_for(current: Path, tree: Path, home: Path, note: Callable[[str], None]) -> Environment:
    """Return the Python that runs the code in `tree`.

    The current one, when the tree requires what `current`, the user's checkout, requires. Otherwise a virtual
    environment under `home`, made once for all commits with equal requirements, in which the tree's
    requirements are installed and what they leave out comes from the current environment. The tree's own
    code always comes first. Raises `UsageError` with pip's last words when the installation fails.
    """
    needs = requirements_of(tree)
    sources = [tree, tree / "src"]
    own: dict[str, str] = {}
    if needs == requirements_of(current):
        python = Path(sys.executable)
        sources.append(_OUR_FOLDER)
    else:
        name = f"{needs}-py{sys.version_info.major}.{sys.version_info.minor}"
        # Two processes that compare commits must not install into one environment at once.
        async with lock_file(_folder(home, "envs") / f"{name}.lock"):
            python = await _make_environment(tree, _folder(home, "envs") / name, note)
        # Commands that tools and checks run are to find this environment's programs, as after activating it.
        own = {
            "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(python.parent.parent),
        }
    path = os.pathsep.join(dict.fromkeys(str(place) for place in sources))
    return Environment(python=python, env={**own, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})


def requirements_of(tree: Path) -> str:
    """Return a hash that is equal for trees with equal requirements."""
    parts: dict[str, object] = {
        name: hashlib.sha256((tree / name).read_bytes()).hexdigest()
        for name in REQUIREMENTS
        if (tree / name).is_file()
    }
    if (tree / "pyproject.toml").is_file():
        parts["pyproject.toml"] = _declared_requirements((tree / "pyproject.toml").read_bytes())
    return content_key(parts)[:16]


def _declared_requirements(content: bytes) -> object:
    """Return the requirements in a `pyproject.toml`; a hash of all of it where it cannot be read."""
    try:
        declared = loads_toml(content.decode())
        project = declared.get("project", {})
        keys = ("dependencies", "optional-dependencies", "requires-python", "dynamic")
        return [
            {key: project.get(key) for key in keys if key in project},
            declared.get("dependency-groups"),
            declared.get("tool", {}).get("poetry", {}).get("dependencies"),
        ]
    except (ValueError, AttributeError, TypeError):  # no TOML, or something else where a table should be
        return hashlib.sha256(content).hexdigest()


async def _make_environment(tree: Path, folder: Path, note: Callable[[str], None]) -> Path:
    """Return the Python of the environment in `folder`, which is made if it is missing or was not
    finished.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    finished = folder / "finished"
    if _folder_exists(finished):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    note("creating an environment for changed requirements")
    lent = find_spec("pip") is not None
    # A pip of its own takes an environment several seconds; the one that is here can install into it.
    await _run(tree, sys.executable, "-m", "venv", *(["--without-pip"] if lent else []), str(folder))
    with_pip = [sys.executable, "-m", "pip", "--python", str(python)] if lent else [str(python), "-m", "pip"]
    pip = [*with_pip, "install", "--disable-pip-version-check", "--no-input"]
    listed = _folder_exists(tree / "requirements.txt")
    if listed:
        note("installing requirements.txt")
        await _run(tree, *pip, "-r", "requirements.txt")
    if _folder_exists(tree / "pyproject.toml") or _folder_exists(tree / "setup.py"):
        note("installing the project")
        await _run(tree, *pip, *(["--no-deps"] if listed else []), ".")
    _fall_back_to_current(folder)
    return python


def _folder(home: Path, name: str) -> Path:
    place = home.absolute() / name
    place.mkdir(parents=True, exist_ok=True)
    return place


def _folder_exists(place: Path) -> bool:
    return place.exists()


def _fall_back_to_current(folder: Path) -> None:
    """Let the environment import what it lacks, kestrel_lab to begin with, from where this process imports
    it; then it is finished.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / ("Lib" if os.name == "nt" else f"lib/{version}") / "site-packages"
    places = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(_OUR_FOLDER)])
    (packages / "kestrel_lab_fallback.pth").write_text(
        "".join(f"{place}\n" for place in places), encoding="utf-8"
    )
    # Last, so that an environment whose installation was cut off is made again.
    (folder / "finished").touch()


async def _run(folder: Path, *argv: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        last = one_line(output.decode(errors="replace")[-1500:], 800)
        raise UsageError(
            f"the requirements of this commit could not be installed; {' '.join(argv[1:4])} said: {last}"
        )


async def _clear(repository: Path, folder: Path) -> None:
    host = process_name().rpartition(":")[0]
    for place in _list_folder(folder):
        owner = place.name.split("-")[1] if place.name.count("-") == 2 else ""
        if owner.isdecimal() and int(owner) != os.getpid() and not alive_elsewhere(f"{host}:{owner}"):
            await _remove(repository, place)


def _list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def _remove_in_turn(repository: Path, place: Path, turn: Path) -> None:
    async with lock_file(turn):
        await _remove(repository, place)


async def _remove(repository: Path, place: Path) -> None:
    if not _folder_exists(place):
        return
    try:
        await git_output(repository, "worktree", "remove", "--force", "--force", str(place))
    except UsageError:
        # Not a worktree of this repository, or half made: the folder goes, and git forgets what it knows of
        # it.
        shutil.rmtree(place, ignore_errors=True)
        await git_output(repository, "worktree", "prune")
