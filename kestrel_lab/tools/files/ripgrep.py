"""Text search with ripgrep, which gets open descriptors and never a path that could leave them."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kestrel_lab.host.log_files import LOG_NAMES
from kestrel_lab.host.programs import beside_python
from kestrel_lab.tools.files.workspace import SKIPPED
from kestrel_lab.tools.shell.environment import clean_environment
from kestrel_lab.tools.shell.output import Capture
from kestrel_lab.tools.shell.process import run_process

_TIMEOUT_S = 30.0
_LINE_CHARS = 300
_MAX_RECORD = 8_000_000
_FLAGS = (
    "--json",
    # Equal searches give equal answers.
    "--sort=path",
    "--hidden",
    "--no-follow",
    "--no-require-git",
    # And nothing from outside the workspace has a say in them.
    "--no-config",
    "--no-ignore-global",
    "--no-ignore-exclude",
    "--no-ignore-parent",
    "--no-messages",
    "--max-filesize=32M",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A line that matched; `path` is relative to what was searched, empty for a single file."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchMatches:
    """Results of a search."""

    matches: tuple[Match, ...]
    incomplete: str = ""
    """Why there may be more matches; empty if complete."""


async def search_tree(directory: int, pattern: str, flags: Sequence[str], most: int) -> SearchMatches:
    """Search everything under an open directory but `SKIPPED`, logs and what ignore files name."""
    skip = [f"--glob=!**/{name}/" for name in sorted(SKIPPED)] + [
        f"--glob=!**/{name}" for name in sorted(LOG_NAMES)
    ]
    return await _search([*flags, *skip], pattern, ".", _directory_path(directory), None, most)


async def search_file(file: int, pattern: str, flags: Sequence[str], most: int) -> SearchMatches:
    """Search an open file."""
    return await _search(flags, pattern, "-", "/", file, most)


async def _search(
    flags: Sequence[str], pattern: str, target: str, cwd: str, stdin: int | None, most: int
) -> SearchMatches:
    if "\0" in pattern or any("\0" in flag for flag in flags):
        raise ValueError("the pattern contains a NUL character")
    argv = [rg_path(), *_FLAGS, *flags, f"--regexp={pattern}", "--", target]
    reader = _Reader(most)
    complaints = Capture(4_000)

    def complain(piece: bytes) -> bool:
        complaints.feed(piece)
        return True

    ended = await run_process(
        argv,
        cwd=cwd,
        env=clean_environment(),
        stdout=reader.feed,
        stderr=complain,
        timeout_s=_TIMEOUT_S,
        stdin=stdin,
    )
    if ended.stopped == "timeout":
        return SearchMatches(
            matches=tuple(reader.matches),
            incomplete=f"stopped after {_TIMEOUT_S:g} seconds: search a smaller directory",
        )
    if ended.stopped == "output":
        matches = tuple(reader.matches[:most])
        return SearchMatches(
            matches=matches, incomplete=f"stopped after {len(matches)} lines: use a narrower pattern or path"
        )
    if ended.exit_code not in {0, 1} and not reader.matches and (said := complaints.text().strip()):
        raise ValueError(f"rg refused the search: {said}\nTo search for plain text, set literal.")
    return SearchMatches(matches=tuple(reader.matches))


class _Reader:
    """Takes the JSON lines that `rg` writes, until one match more than wanted."""

    def __init__(self, most: int) -> None:
        self.matches: list[Match] = []
        self._most = most
        self._rest = b""

    def feed(self, piece: bytes) -> bool:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            record = json.loads(line)
            if record["type"] == "match":
                self.matches.append(_match(record["data"]))
                if len(self.matches) > self._most:
                    return False
        return len(self._rest) < _MAX_RECORD


def _match(found: Mapping[str, Any]) -> Match:
    named = found["path"]
    path = named["text"] if "text" in named else os.fsdecode(base64.b64decode(named["bytes"]))
    text = _text(found["lines"]).rstrip("\r\n")
    if len(text) > _LINE_CHARS:
        begin = max(min((part["start"] for part in found["submatches"]), default=0) - _LINE_CHARS // 3, 0)
        # Offsets count bytes: in other scripts the window begins a little late.
        text = ("…" if begin else "") + text[begin : begin + _LINE_CHARS] + "…"
    return Match(
        path="" if path == "<stdin>" else path.removeprefix("./"), line=found["line_number"], text=text
    )


def _text(field: Mapping[str, str]) -> str:
    """Text, or bytes that are no UTF-8 and come in base 64."""
    return field["text"] if "text" in field else base64.b64decode(field["bytes"]).decode("utf-8", "replace")


def _directory_path(directory: int) -> str:
    """Return a path that denotes an open directory even after a rename; its name if the system has none."""
    if sys.platform.startswith("linux"):
        return f"/proc/self/fd/{directory}"
    import fcntl  # not on every system

    return os.fsdecode(fcntl.fcntl(directory, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0"))


def rg_path() -> str:
    """Return the path of ripgrep, next to this Python or on PATH; `FileNotFoundError` tells how to install
    it.
    """
    if found := beside_python("rg"):
        return found
    raise FileNotFoundError(
        "ripgrep is not installed: run `pip install ripgrep`, or install rg with the system's package manager"
    )
