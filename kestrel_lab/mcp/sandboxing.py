"""Sandbox of an MCP server: it can read its own program and the paths in its table, no other user files."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.host.user import home_folder
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.tools.sandbox.command_lines import launch_with_places
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.levels import NETWORK, Level, Sandbox
from kestrel_lab.tools.sandbox.mounts import PROGRAMS, is_within, private_places
from kestrel_lab.tools.sandbox.select import Choice, choose_level

_BINS = frozenset({"bin", "sbin"})
_FETCHERS = frozenset({"npx", "uvx", "pipx", "bunx", "pnpm", "uv", "docker"})
"""Programs that download the server before they start it."""


def sandboxed_server(config: ServerConfig, env: Mapping[str, str], lab: Sandbox) -> tuple[Launch, Choice]:
    """Return the command that starts the server, and its sandbox level; blocks on first use to probe levels.

    Raises `UsageError` if its level is unavailable, `OSError` for a missing program or path.
    """
    sandbox = Sandbox(
        level=lab.level if config.sandbox is None else config.sandbox.level,
        network=config.network,
        hidden=lab.hidden,
        memory=lab.memory,
    )
    folder = Path(os.path.abspath(config.cwd or "."))
    program = program_path(config.command, folder, env)
    read, write = _places(config, folder, program, env)
    # A folder such as the home is not shown as a whole, so the program cannot start in it.
    begin = program.parent if _is_broad(folder) else folder
    choice = choose_level(sandbox, begin, config.at_least, written=begin in write)
    if not choice.wanted:
        raise UsageError(f'{choice}. It is not started: sandbox = "S0" in its table starts it without one')
    plain = Launch(argv=(str(program), *config.args), cwd=str(folder), env=env)
    return launch_with_places(choice.level, plain, read=read, write=write, sandbox=sandbox), choice


def network_hint(config: ServerConfig, level: Level | None, said: str) -> str:
    """Return a hint to allow the network if a server without one reports a network error; else empty."""
    if config.network or not level:
        return ""
    if Path(config.command).name in _FETCHERS or NETWORK.search(said):
        return f"; it has no network: if it needs one, set network = true for the MCP server {config.name!r}"
    return ""


def program_path(command: str, folder: Path, env: Mapping[str, str]) -> Path:
    """Return the path of a program; raises `FileNotFoundError` for one that is not there."""
    if (found := _find_on_path(str(folder / command) if os.sep in command else command, env)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command)
    return found


def _places(
    config: ServerConfig, folder: Path, program: Path, env: Mapping[str, str]
) -> tuple[list[Path], list[Path]]:
    """Return the paths the server may read, and write; shared folders only if its table names them."""
    read = program_folders(program, env)
    if not _is_broad(folder):
        read.add(folder)
    for word in config.args:
        read.update(_paths_named(word, folder))
    for value in config.env.values():
        for part in value.split(os.pathsep):
            if part.startswith("/") and (place := Path(part)).exists() and place != Path("/"):
                read.add(place)
    read.update(_configured_paths(config.read, folder))
    write = set(_configured_paths(config.write, folder))
    return sorted(place for place in read - write if not _system(place)), sorted(write)


def program_folders(program: Path, env: Mapping[str, str]) -> set[Path]:
    """Return the installation folders of a program and its interpreters, without those in every sandbox."""
    found = set(filter(None, map(installation_folder, _programs(program, env))))
    return {place for place in found if not _system(place)}


def _configured_paths(names: tuple[str, ...], folder: Path) -> Iterator[Path]:
    for name in names:
        place = Path(os.path.abspath(folder / Path(name).expanduser()))
        if not place.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        yield place


def _paths_named(word: str, folder: Path) -> Iterator[Path]:
    """Yield the path that an argument names, and the folder of a file."""
    text = word.partition("=")[2] or word
    with suppress(OSError, ValueError):
        place = Path(os.path.abspath(folder / text))
        if text and place != Path("/") and place.exists():
            yield place
            if place.is_file() and not _is_broad(place.parent):
                yield place.parent


def installation_folder(file: Path) -> Path | None:
    """Return the folder of a program's installation, or just the file if the folder is shared."""
    if "node_modules" in file.parts:
        place = Path(*file.parts[: file.parts.index("node_modules")])
    else:
        place = file.parent.parent if file.parent.name in _BINS else file.parent
    if _system(place):
        return None
    return file if _is_broad(place) else place


def _is_broad(place: Path) -> bool:
    """Return whether a folder holds unrelated things."""
    shared = [
        *private_places(),
        *(home_folder() / name for name in (".local", ".config", ".cache")),
        Path("/opt"),
        Path("/usr/local"),
        Path("/etc"),
    ]
    return any(is_within(one, place) for one in shared)


def _system(place: Path) -> bool:
    """Return whether every sandbox shows the path anyway."""
    return any(is_within(place, Path(name)) for name in PROGRAMS)


def _programs(program: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """Yield a program, its link targets, its interpreters, and the base Python of a virtual environment."""
    todo, seen = [program], set()
    while todo:
        file = todo.pop()
        if file in seen or not file.exists():
            continue
        seen.add(file)
        yield file
        if file.is_symlink():
            todo.append(Path(os.path.abspath(file.parent / file.readlink())))
        todo.append(file.resolve())
        todo += [found for word in _interpreter(file) if (found := _find_on_path(word, env)) is not None]
        with suppress(OSError, UnicodeDecodeError):
            settings = (file.parent.parent / "pyvenv.cfg").read_text("utf-8")
            if home := re.search(r"(?m)^home\s*=\s*(\S.*)$", settings):
                todo.append(Path(home[1].strip()) / "python3")


def _interpreter(file: Path) -> list[str]:
    with suppress(OSError), file.open("rb") as opened:
        line = opened.readline(512)
        if line.startswith(b"#!"):
            return [
                word for word in line[2:].decode("utf-8", "replace").split()[:3] if not word.startswith("-")
            ]
    return []


def _find_on_path(word: str, env: Mapping[str, str]) -> Path | None:
    found = shutil.which(word, path=env.get("PATH", os.defpath))
    return None if found is None else Path(os.path.abspath(found))
