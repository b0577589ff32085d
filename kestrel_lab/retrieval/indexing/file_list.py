"""File list of a folder, and why files are left out of the index."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import is_utf8
from kestrel_lab.core.text_files import decode_marked
from kestrel_lab.host.git import run_git
from kestrel_lab.host.log_files import LOG_NAMES, is_open_here, open_no_log
from kestrel_lab.host.programs import beside_python

MOST_BYTES = 1_000_000
SKIPPED_FOLDERS = tuple(
    ".git .hg .svn .kestrel node_modules __pycache__ .venv .tox .mypy_cache .ruff_cache "
    ".ipynb_checkpoints".split()
)
_SECRET = (
    *(
        ".env",
        ".env.*",
        "*.env",
        ".envrc",
        ".netrc",
        ".pgpass",
        ".npmrc",
        ".pypirc",
        ".htpasswd",
        ".git-credentials",
    ),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.asc", "*.ppk"),
    *(
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
        "credentials",
        "credentials.json",
        "secrets.*",
        "*.tfstate",
        "*.tfvars",
    ),
)
_STAGED = re.compile(r"(\d{6}) [0-9a-f]{40,64} \d\t(.*)", re.DOTALL)
"""A staged file as git prints it: mode, hash, stage, path."""
_SUBMODULE = "160000"
_NO_SECRET = (".env.example", ".env.sample", ".env.template", "*.pub")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Metadata of a file that changes with its content."""

    mtime: int
    ctime: int
    size: int
    inode: int


def files_of(folder: Path) -> list[str]:
    """Paths of the files below `folder`, relative and with `/`: what git has or would take, else what
    `ripgrep_program` would search.

    Raises `UsageError` when there is no such folder.
    """
    return [path for path in _list_files(folder) if is_utf8(path)]


def unnameable_files(folder: Path) -> list[str]:
    """Return files with names that are not UTF-8, which no index can store.

    Their odd bytes are shown in hexadecimal.
    """
    return [
        path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for path in _list_files(folder)
        if not is_utf8(path)
    ]


def _list_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: name one that exists")
    found = _by_git(folder)
    listed = _by_rg(folder) if found is None else found
    return sorted({path for path in listed if path and not {*path.split("/")[:-1]} & {*SKIPPED_FOLDERS}})


def _by_git(folder: Path) -> list[str] | None:
    """Return the files git lists, also below a repository; `None` without a repository or if all is ignored.

    Git lists nested repositories only by name, so each is asked for its own files.
    """
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return None
    done = run_git(folder, "ls-files", "-z", "--stage", "--cached", "--others", "--exclude-standard")
    if done.returncode != 0:
        return None
    found: list[str] = []
    for line in _paths(done.stdout):
        staged = _STAGED.match(line)
        path = staged[2] if staged else line
        inner = path.rstrip("/")
        if (path.endswith("/") or (staged and staged[1] == _SUBMODULE)) and (
            folder / inner / ".git"
        ).exists():
            found += [f"{inner}/{each}" for each in _by_git(folder / inner) or ()]
        else:
            found.append(path)
    return found or None


def _by_rg(folder: Path) -> list[str]:
    program = ripgrep_program(folder)
    flags = [
        "--hidden",
        "--no-follow",
        "--no-require-git",
        "--no-config",
        "--no-ignore-global",
        "--no-ignore-parent",
        "--no-messages",
    ]
    done = subprocess.run(
        [program, "--files", "--null", *flags],
        cwd=folder,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return [path.removeprefix("./") for path in _paths(done.stdout)]


def ripgrep_program(folder: Path) -> str:
    """Return the path of ripgrep, next to this Python or on PATH; raises `UsageError` with install
    instructions.
    """
    if found := beside_python("rg", outside=[folder]):
        return found
    raise UsageError(
        "ripgrep is not installed: run `pip install ripgrep`, or install rg with the system's package manager"
    )


def _paths(listed: bytes) -> list[str]:
    return [name.decode("utf-8", "surrogateescape") for name in listed.split(b"\0") if name]


def file_stamp(folder: Path, path: str) -> Stamp | str:
    """Return the stamp of a file, or why it is not read."""
    try:
        found = os.lstat(os.path.join(folder, path))
    except OSError:
        return "gone"
    if (found.st_mode & 0o170000) == 0o120000:
        return "a symbolic link, which is not followed"
    if (found.st_mode & 0o170000) != 0o100000:
        return "not a regular file"
    if path.rpartition("/")[2].casefold() in LOG_NAMES or is_open_here(found.st_dev, found.st_ino):
        return "a log of kestrel"
    return Stamp(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def skip_reason(path: str, size: int) -> str:
    """Return why a file is not read, by its name and size alone; empty if it is read."""
    if is_secret(path):
        return "its name says that it holds secrets"
    if size > MOST_BYTES:
        return f"larger than {MOST_BYTES:,} bytes ({size:,})"
    return ""


def is_secret(path: str) -> bool:
    """Return whether a file's name suggests that it contains keys or passwords."""
    name = path.rsplit("/", 1)[-1].lower()
    return any(fnmatch.fnmatch(name, each) for each in _SECRET) and not any(
        fnmatch.fnmatch(name, each) for each in _NO_SECRET
    )


def read_text(folder: Path, path: str) -> tuple[str, bytes] | str:
    """Return the text of a file and its bytes, or why it cannot be read as text."""
    try:
        # Between listing and opening the name may have become a link out of the folder.
        with os.fdopen(
            open_no_log(os.path.join(folder, path), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb"
        ) as file:
            # The file may have grown since its stamp.
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    if len(content) > MOST_BYTES:
        return f"larger than {MOST_BYTES:,} bytes"
    if (marked := decode_marked(content)) is not None:
        return marked.text, content
    if b"\0" in content:
        return "binary"
    text = content.decode("utf-8", "replace")
    # Not UTF-8: text of Latin-1 has few control characters, binary files have many.
    if text.count("\ufffd") > max(8, len(text) // 50):
        try:
            text = content.decode("latin-1")
        except UnicodeDecodeError:
            return "binary"
        if sum(ord(sign) < 32 and sign not in "\t\n\r\f" for sign in text) > len(text) // 50:
            return "binary"
    return text, content
