"""Sandbox levels S0 to S3, and the requested level."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from kestrel_lab.tools.sandbox.container import Container


class Level(IntEnum):
    """A sandbox level; a higher one allows less.

    At every level commands share the kernel with the rest of the machine.
    """

    S0 = 0
    S1 = 1
    S2 = 2
    S3 = 3

    @property
    def meaning(self) -> str:
        """Describe in one sentence what a command at this level can reach."""
        return _MEANING[self]


_MEANING = {
    Level.S0: "no sandbox: a command reaches whatever its user can, with a short environment",
    Level.S1: "Landlock and seccomp: a command reads the system's programs and writes to the workspace; it "
    "sees other processes, "
    "can change modes and times of its user's files, can read a .kestrel folder of others that lies in "
    "the workspace, can change what git "
    "obeys there until it ends, and has no shared memory",
    Level.S2: "bubblewrap, the machine read-only: home, keys and other processes are hidden, the workspace "
    "is writable",
    Level.S3: "bubblewrap, nothing but programs and the workspace: home, keys and other processes do not "
    "exist for a command",
}

AUTO = "auto"
DEFAULT_MEMORY_GIB = 4.0
GIB = 1024**3
_NAMES = (AUTO, *(level.name for level in Level))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """Sandbox settings: a level, or the highest that works, and whether commands may use the network."""

    level: Level | None = None
    """`None`: the highest that works here."""
    network: bool = False
    """True to give commands at S1 and above the machine's network, local services included."""
    hidden: tuple[Path, ...] = ()
    """Files and folders that are hidden from commands in addition to keys; S1 cannot hide them inside a place
    that commands may write.
    """

    readable: tuple[Path, ...] = ()
    """Folders outside of the workspace that commands may read."""
    memory: int | None = int(DEFAULT_MEMORY_GIB * GIB)
    """Bytes of memory that a command and its descendants may use; `None` for no limit."""
    root: str = ""
    """An absolute path that leads to the workspace, too; only S3, whose root is its own, can have one."""
    container: Container | None = None
    """Where commands run instead of a sandbox of this machine."""

    @property
    def name(self) -> str:
        """The level as a setting writes it."""
        return AUTO if self.level is None else self.level.name

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        network: bool = False,
        hidden: Iterable[Path] = (),
        memory_gib: float | None = DEFAULT_MEMORY_GIB,
    ) -> Sandbox:
        """Return the level for `auto`, `S0`, `S1`, `S2` or `S3` in any case; raises `UsageError`."""
        memory = None if memory_gib is None else int(memory_gib * GIB)
        return cls(level=parse_level(text), network=network, hidden=tuple(hidden), memory=memory)


def parse_level(text: str) -> Level | None:
    """Return the level of that name, `None` for `auto`; raises `UsageError`."""
    word = text.strip()
    if word.lower() == AUTO:
        return None
    if word.upper() in Level.__members__:
        return Level[word.upper()]
    raise UsageError(
        f"unknown sandbox level {text!r}: {did_you_mean(word.upper(), _NAMES)} ({', '.join(_NAMES)})"
    )


NETWORK = re.compile(
    r"\b(?:EAI_AGAIN|ENOTFOUND|ENETUNREACH|ECONNREFUSED)\b|(?i:getaddrinfo|name resolution|name or "
    r"service not known|could not resolve"
    r"|network is unreachable|fetch failed|connect(?:ion)? ?error|connection refused|failed to "
    r"(?:connect|fetch|download)|no address associated"
    r"|socket: operation not permitted)"
)
"""Messages by which programs report that they have no network."""
_WRITING = re.compile(r"(?i)read-only file system")


def denial_cause(level: Level, sandbox: Sandbox, said: str) -> str:
    """Return the part of `said`, a failed command's output, that the sandbox caused; empty if none."""
    if level is Level.S0:
        return ""
    if not sandbox.network and NETWORK.search(said):
        return (
            f"the sandbox ({level.name}) lets commands have no network; a person can allow it with the "
            "setting network = true"
        )
    if _WRITING.search(said):
        return f"the sandbox ({level.name}) lets commands write the workspace and /tmp only"
    return ""
