"""Safe git calls: nothing in a repository can start a program.

Git starts programs that a repository's settings name: file system monitors, hooks, filters, pagers, diff and
merge drivers, helpers for keys, addresses and signatures. The author of the repository chose them. Git is
therefore never shown these settings. It gets a *view*: a private git folder with settings of ours, in which
links lead to the objects, references and index of the repository. Of the repository's settings a short list
is taken over, and each is plain data. Without settings no attribute names a program either. Submodules are
never entered by git itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import full_stop, one_line

_SECONDS: Final = 30
_LONG_S: Final = 1800
"""Limit for commands that work on whole trees or fetch from other machines."""
_MOST: Final = 4_096
_LINKED: Final = ("objects", "refs", "packed-refs", "reftable", "shallow", "worktrees")
"""Parts of the shared folder of a repository that a view contains: data, and nothing that git obeys."""
_DATA: Final = frozenset(
    {
        *(
            "core.filemode",
            "core.ignorecase",
            "core.precomposeunicode",
            "core.symlinks",
            "core.autocrlf",
            "core.eol",
        ),
        *("core.excludesfile", "extensions.objectformat", "extensions.refstorage"),
    }
)
"""Settings that a view takes over: how files and objects are written. None can name a program or an address.
"""
_WORD: Final = re.compile(r"[a-z0-9]{1,20}", re.IGNORECASE)
_PROTOCOLS: Final = "https:ssh:git:file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """Where the parts of a repository are."""

    top: Path | None
    """The folder of its files; `None` for a bare one."""
    own: Path
    """The git folder of this worktree: its index and HEAD."""
    common: Path
    """The git folder that all worktrees share."""

    @classmethod
    def around(cls, folder: Path) -> Repository | None:
        """Return the repository that `folder` is in, as git finds it."""
        start = folder.resolve()
        for place in (start, *start.parents):
            mark = place / ".git"
            if mark.is_file():
                word, _, named = _line(mark).partition("gitdir: ")
                return None if word or not named else cls._of(place / named, place)
            if found := cls._of(mark, place) or cls._of(place, None):
                return found
        return None

    @classmethod
    def _of(cls, own: Path, top: Path | None) -> Repository | None:
        common = own / (_line(own / "commondir") or ".")
        whole = _line(own / "HEAD") and (common / "objects").is_dir() and (common / "refs").is_dir()
        return cls(top=top, own=own.resolve(), common=common.resolve()) if whole else None


def git_program(*around: Path) -> str:
    """Return the path of git: the first on PATH that lies neither in the current folder nor in one of
    `around`.

    Raises `UsageError` where there is none.
    """
    if found := shutil.which("git", path=_search_path(*around)):
        return found
    raise UsageError("the git command is not there: install git, outside of the folders that agents work in")


def run_git(folder: Path, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in the repository around `folder`; a missing git is also reported by the exit code."""
    try:
        with _call(folder, args) as (argv, env):
            return _run(argv, folder, env, stdin)
    except UsageError as error:
        # 127 is what a shell says of a program that is not there.
        return subprocess.CompletedProcess(args, 127, b"", str(error).encode())


def run_git_outside(folder: Path, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a git command that needs no repository and sees none."""
    try:
        with tempfile.TemporaryDirectory(prefix="kestrel-git-") as place:
            env = {
                **_environment(Path(place), folder),
                "GIT_DIR": os.devnull,
                "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
            }
            return _run(_argv(args, folder), folder, env, stdin)
    except UsageError as error:
        return subprocess.CompletedProcess(args, 127, b"", str(error).encode())


async def git_output(folder: Path, *args: str) -> str:
    """Return git's output in the repository around `folder`; raises `UsageError` with git's message."""
    with _call(folder, args) as (argv, env):
        return await _output(argv, args, folder, env)


_LACKING: Final = re.compile(
    r"unable to (?:read|find|get)|missing (?:blob|tree|commit|object)|bad (?:object|tree|blob)|invalid object"
    r"|could not (?:read|get)|cannot (?:read|get)|promisor",
    re.IGNORECASE,
)
"""How git reports an object that it does not have."""


def partial_clone_advice(folder: Path, message: str) -> str:
    """Return what to do about an object that a partial clone lacks; empty for any other failure.

    Nothing is fetched from here: how the other machine is reached, the repository's settings say.
    """
    repository = Repository.around(folder) if _LACKING.search(message) else None
    if repository is None or not any((repository.common / "objects" / "pack").glob("*.promisor")):
        return ""
    clone = repository.common.parent if repository.common.name == ".git" else repository.common
    return (
        f"{clone} is a partial clone (git clone --filter), which lacks older files: fetch them with "
        f"git -C {shlex.quote(str(clone))} fetch --refetch --no-filter, and try again"
    )


def private_settings(repository: Repository) -> str:
    """Return settings for a private copy: how files and objects are written, nothing that runs a program."""
    try:
        return _config(repository, git_program(repository.top or repository.common))
    except UsageError:  # no git here, so nobody reads them before it is installed
        return "[core]\nrepositoryformatversion = 0\nbare = false\n"


async def add_worktree(repository: Path, place: Path, sha: str) -> None:
    """Make `place` a worktree with the files of commit `sha` exactly as stored: filters do not run."""
    found = Repository.around(repository)
    if found is None:
        raise UsageError(f"git finds no repository in {repository}")
    # Not `git worktree add`: it starts another git in the repository itself, which obeys the repository's
    # settings and runs its hooks.
    own = found.common / "worktrees" / place.name
    files_of = {
        own: {"HEAD": sha, "commondir": "../..", "gitdir": f"{place}/.git"},
        place: {".git": f"gitdir: {own}"},
    }
    for folder, files in files_of.items():
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
    await git_output(place, "reset", "--quiet", "--hard", "HEAD")


async def copy_commit(source: str | Path, commit: str, place: Path) -> None:
    """Make the empty folder `place` a repository of that one commit, checked out; raises `UsageError` with
    git's own words.

    `source` is a repository on this machine, or an address. An address is reached as the user's own settings
    say.
    """
    with tempfile.TemporaryDirectory(prefix="kestrel-git-") as private:
        env = _environment(Path(private), place)
        await _output(_argv(("init", "--quiet", "--template="), place), ("init",), place, env)
    fetch = (
        "fetch",
        "--quiet",
        "--depth",
        "1",
        "--no-tags",
        "--no-recurse-submodules",
        "--no-auto-maintenance",
        "--",
    )
    if isinstance(source, Path):
        origin = Repository.around(source)
        if origin is None:
            raise UsageError(f"git finds no repository in {source}")
        with (
            _view(origin, git_program(place)) as shown,
            _call(place, (*fetch, str(shown), commit)) as (argv, env),
        ):
            await _output(
                argv, fetch, place, env | {"GIT_DIR": str(place / ".git"), "GIT_ALLOW_PROTOCOL": "file"}
            )
    else:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name.startswith(_USERS)
        }
        env = kept | {
            "PATH": _search_path(place),
            "GIT_DIR": str(place / ".git"),
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C.UTF-8",
        }
        await _output(
            _argv((*fetch, source, commit), place), fetch, place, env | {"GIT_ALLOW_PROTOCOL": _PROTOCOLS}
        )
    (place / ".git" / "HEAD").write_text(
        await git_output(place, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}"),
        encoding="ascii",
    )
    await git_output(place, "reset", "--quiet", "--hard", "HEAD")
    (place / ".git" / "FETCH_HEAD").unlink(missing_ok=True)


_USERS: Final = ("GIT_CONFIG", "GIT_SSH", "GIT_ASKPASS", "GIT_SSL", "GIT_HTTP", "GIT_PROXY")
"""Variables by which a user says how other machines are reached."""


@contextmanager
def _call(folder: Path, args: tuple[str, ...]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command line and the environment of a call in the repository around `folder`."""
    repository = Repository.around(folder)
    if repository is None:
        with tempfile.TemporaryDirectory(prefix="kestrel-git-") as place:
            yield _argv(args, folder), {**_environment(Path(place), folder), "GIT_DIR": os.devnull}
        return
    around = (folder, repository.top or repository.common)
    with _view(repository, git_program(*around)) as shown:
        tree = {} if repository.top is None else {"GIT_WORK_TREE": str(repository.top)}
        index = repository.own / "index"
        # Git would block on reading a pipe that a command put there.
        pipe = index.exists() and not index.is_file()
        where = {"GIT_DIR": str(shown), "GIT_INDEX_FILE": str(shown / "index" if pipe else index), **tree}
        yield _argv(args, *around), {**_environment(shown, *around), **where}


@contextmanager
def _view(repository: Repository, program: str) -> Iterator[Path]:
    """Make a private git folder that shows the data of a repository under safe settings."""
    with tempfile.TemporaryDirectory(prefix="kestrel-git-") as name:
        place = Path(name)
        for word in _LINKED:
            if (repository.common / word).is_dir() or (
                repository.common / word
            ).is_file():  # git would block on a pipe
                (place / word).symlink_to(repository.common / word)
        (place / "info").mkdir()
        if (repository.common / "info" / "exclude").is_file():
            (place / "info" / "exclude").symlink_to(repository.common / "info" / "exclude")
        (place / "logs").mkdir()
        for own, link in (
            (repository.own / "logs" / "HEAD", "HEAD"),
            (repository.common / "logs" / "refs", "refs"),
        ):
            if own.exists():
                (place / "logs" / link).symlink_to(own)
        for one in repository.own.iterdir():
            if one.name.endswith("_HEAD") or one.name.startswith("sharedindex."):
                (place / one.name).symlink_to(one)
        (place / "HEAD").write_bytes(os.fsencode(_line(repository.own / "HEAD") + "\n"))
        (place / "config").write_text(_config(repository, program), encoding="utf-8")
        yield place


def _config(repository: Repository, program: str) -> str:
    data = {
        **_users_data(program),
        **_data_of(program, repository.common / "config", _stamp(repository.common / "config")),
    }
    lines = ["[core]", f"repositoryformatversion = {int(any(key.startswith('extensions.') for key in data))}"]
    lines += [f"bare = {'true' if repository.top is None else 'false'}", "logallrefupdates = false"]
    usual = f"{os.environ.get('XDG_CONFIG_HOME') or '~/.config'}/git/ignore"
    path = Path(data.pop("core.excludesfile", "") or usual).expanduser()
    if path.is_absolute() and str(path).isprintable():
        lines.append(f"excludesfile = {json.dumps(str(path), ensure_ascii=False)}")
    for key, value in data.items():
        section, _, name = key.partition(".")
        lines += [f"[{section}]", f"{name} = {value}"]
    return "\n".join(lines) + "\n"


@cache
def _users_data(program: str) -> dict[str, str]:
    """Return what the user's own settings say of files; read once."""
    return _read_data(program, "--global")


@lru_cache(maxsize=256)
def _data_of(program: str, path: Path, stamp: object) -> dict[str, str]:
    """Return what a file of settings says of files; `stamp` changes with the file."""
    return {} if stamp is None else _read_data(program, "--file", str(path))


def _read_data(program: str, *where: str) -> dict[str, str]:
    """Return the settings that are plain data; `git config` reads files and starts nothing."""
    with tempfile.TemporaryDirectory(prefix="kestrel-git-") as place:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env |= {"GIT_DIR": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
        done = _run(
            [program, "--no-pager", "config", *where, "--includes", "--null", "--list"], Path(place), env
        )
    pairs = [item.partition("\n") for item in done.stdout.decode("utf-8", "surrogateescape").split("\0")]
    known = {key.lower(): value for key, _, value in pairs if key.lower() in _DATA}
    return {
        key: value for key, value in known.items() if key == "core.excludesfile" or _WORD.fullmatch(value)
    }


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Changes when a regular file does; `None` for anything else."""
    with suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
    return None


def _environment(private: Path, *around: Path) -> dict[str, str]:
    """Return an environment without user or system settings for git; `private` is its home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "PATH": _search_path(*around),
        "HOME": str(private),
        "XDG_CONFIG_HOME": str(private),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }


def _argv(args: tuple[str, ...], *around: Path) -> list[str]:
    # For what git starts itself, as a removed worktree's status: a view has neither hooks nor settings.
    fixed = (
        "--no-pager",
        "-c",
        f"core.hooksPath={os.devnull}",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "advice.detachedHead=false",
    )
    return [git_program(*around), *fixed, *args]


def _search_path(*around: Path) -> str:
    folders = {os.path.realpath(folder) for folder in (*around, Path.cwd())}
    return _path_outside(os.environ.get("PATH", os.defpath), frozenset(folders))


@lru_cache(maxsize=256)
def _path_outside(path: str, folders: frozenset[str]) -> str:
    """Return the absolute entries of `path` outside of `folders`; keeps folders that hold system ones."""
    unsafe = [Path(folder) for folder in folders if not Path("/usr/bin").is_relative_to(folder)]
    places = [place for place in path.split(os.pathsep) if Path(place).is_absolute()]
    return os.pathsep.join(
        place
        for place in places
        if not any(Path(os.path.realpath(place)).is_relative_to(one) for one in unsafe)
    )


def _run(
    argv: list[str], folder: Path, env: Mapping[str, str], stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            argv, cwd=folder, env=env, input=stdin, capture_output=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        # 124 is what `timeout` says.
        return subprocess.CompletedProcess(argv, 124, b"", f"no end after {_SECONDS} seconds".encode())


async def _output(argv: list[str], args: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(_LONG_S):
            output, errors = await process.communicate()
    except BaseException:
        # A cancellation, too: git must not outlive the call that started it.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        message = errors.decode(errors="replace")
        failure = f"git {' '.join(args[:3])} failed in {folder}: {one_line(message, 300)}"
        advice = partial_clone_advice(folder, message)
        raise UsageError(f"{full_stop(failure)} {advice}" if advice else failure)
    return output.decode("utf-8", "surrogateescape")


def _line(file: Path) -> str:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read(_MOST).rstrip("\n") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except (OSError, ValueError):
        return ""
