"""What git runs or obeys in a repository, and what hides changes from it; for the autorun watch."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator

from kestrel_lab.tools.sandbox.autorun_list import names_in

_OBEYED = {
    "config": "git obeys it, and may run what it names",
    "config.worktree": "git obeys it, and may run what it names",
    "commondir": "it says where git finds settings and hooks",
    "gitdir": "it says where git finds a worktree",
    "info/attributes": "git obeys it",
    "info/exclude": "git shows no new files that it names",
    "info/sparse-checkout": "git leaves out files that it names",
    "info/grafts": "git reads other commits in place of those that it names",
    "objects/info/alternates": "git reads objects from where it says",
    "objects/info/http-alternates": "git reads objects from where it says",
}
_REMOTES = ("remotes", "branches")
"""Folders in which old versions keep addresses, which git still obeys."""
_POINTS = re.compile(r"^\s*(path|hookspath)\s*=\s*\"?([^\"\n#;]+)", re.IGNORECASE | re.MULTILINE)
"""Lines of a repository's settings that name another file of settings, or a folder of hooks."""
_EXEC = re.compile(rb"(?m)^\s*(?:x|exec)\s")
"""A line of a rebase list that names a program; other lines pick commits."""
_STRATEGY = re.compile(rb"\s*(?:ort|recursive|resolve|octopus|ours|subtree)?\s*")
"""Ways to merge that git has itself; it runs any other as a program."""
_STATE: dict[str, tuple[Callable[[bytes], bool], str]] = {
    "rebase-merge/git-rebase-todo": (
        lambda text: _EXEC.search(text) is not None,
        "git runs the programs that it names",
    ),
    "sequencer/todo": (lambda text: _EXEC.search(text) is not None, "git runs the programs that it names"),
    "rebase-merge/strategy": (
        lambda text: _STRATEGY.fullmatch(text) is None,
        "git runs the program that it names when the rebase goes on",
    ),
    "sequencer/opts": (
        lambda text: b"strategy" in text,
        "git runs the program that it names when the picks go on",
    ),
    "rebase-apply/apply-opt": (
        lambda text: re.search(rb"unsafe|directory", text) is not None,
        "git writes where it says",
    ),
    "packed-refs": (
        lambda text: b" refs/replace/" in text,
        "git reads other objects in place of those that it names",
    ),
}
"""Files that record the state of the work and are carried over from a private folder, with what makes one of
them run or rule something.
"""
LINKS = ("objects", "refs", "logs")
"""Folders that a command writes in every sandbox, in which git makes no links."""
BARE = frozenset({"HEAD", "objects", "refs"})


def is_state(path: str) -> bool:
    """Return whether a file is carried over from a private folder, by links that change its times."""
    return path.endswith(tuple(f"/{name}" for name in _STATE))


def files_git_runs(place: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield what git runs or obeys because of what is at `place`, a repository's folder or a file or link
    that leads to one, and why.
    """
    if not os.path.isdir(place) or os.path.islink(place):
        yield place, "it says where git finds settings and hooks"
    if not os.path.isdir(place):
        return
    yield from ((f"{place}/{name}", who) for name, who in _OBEYED.items())
    yield from _state(place)
    yield from (
        (f"{place}/{name}", "git makes objects and refs where it leads")
        for name in LINKS
        if os.path.islink(f"{place}/{name}")
    )
    yield from _named_elsewhere(place, root)
    for name in names_in(f"{place}/worktrees"):
        yield from (
            (f"{place}/worktrees/{name}/{file}", _OBEYED[file])
            for file in ("commondir", "gitdir", "config.worktree")
        )
    # Each in a folder like the submodule's own, however deep.
    for folder, inner, files in os.walk(f"{place}/modules"):
        if {*inner, *files} >= BARE:
            inner.clear()
            yield from files_git_runs(folder, root)


def _state(place: str) -> Iterator[tuple[str, str]]:
    """Yield files of a work that was interrupted which name a program or rule what git reads."""
    for name, (matters, who) in _STATE.items():
        if (text := _content(f"{place}/{name}")) is not None and matters(text):
            yield f"{place}/{name}", who


def _named_elsewhere(place: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield hooks, and what settings and old lists of addresses name in the workspace."""
    yield from _hooks(f"{place}/hooks")
    for settings in ("config", "config.worktree"):
        for hook_folder, target in _configured_places(f"{place}/{settings}", place):
            if target.startswith(f"{os.path.realpath(root)}/"):
                yield from (
                    _hooks(target) if hook_folder else [(target, "the settings of a repository include it")]
                )
    for folder in _REMOTES:
        yield from (
            (f"{place}/{folder}/{name}", "git takes an address from it")
            for name in names_in(f"{place}/{folder}")
        )


def _hooks(folder: str) -> Iterator[tuple[str, str]]:
    return ((f"{folder}/{name}", "git runs it") for name in names_in(folder) if not name.endswith(".sample"))


def _configured_places(settings: str, gitdir: str) -> Iterator[tuple[bool, str]]:
    """Yield the places that a repository's settings name, and whether each is a folder of hooks."""
    try:
        fd = os.open(settings, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            text = file.read(1_000_000)
    except OSError:
        return
    for key, value in _POINTS.findall(text):
        hook_folder = key.lower() != "path"
        base = os.path.dirname(gitdir) if hook_folder else gitdir
        yield hook_folder, os.path.realpath(os.path.join(base, os.path.expanduser(value.strip())))


def _content(path: str) -> bytes | None:
    try:
        with os.fdopen(
            os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:
            return file.read(1_000_000)
    except OSError:
        return None


# The index: files whose changes git does not show.

_ASSUMED, _EXTENDED, _SKIPPED = 0x8000, 0x4000, 0x4000
_NAME_BITS = 0xFFF
_MOST_BYTES = 64 * 1024**2


def hidden_changes(index: str) -> dict[str, str]:
    """Return files an index marks as unchanged, each with a reason; empty if it is no index."""
    try:
        with os.fdopen(
            os.open(index, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return {}
    for hash_bytes in (20, 32):
        try:
            return dict(_marked_entries(content, hash_bytes))
        except (ValueError, struct.error):
            continue
    return {}


def _marked_entries(content: bytes, hash_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield the marked entries, see gitformat-index(5); raises `ValueError` or `struct.error` if invalid."""
    signature, version, count = struct.unpack_from(">4sII", content)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    place, name = 12, b""
    for _ in range(count):
        begin = place
        (flags,) = struct.unpack_from(">H", content, place + 40 + hash_bytes)
        place += 42 + hash_bytes
        more = 0
        if flags & _EXTENDED:
            (more,) = struct.unpack_from(">H", content, place)
            place += 2
        if version == 4:
            cut, place = _varint(content, place)
            name = name[: len(name) - cut]
            end = content.index(b"\0", place)
            name, place = name + content[place:end], end + 1
        else:
            end = content.index(b"\0", place)
            name = content[place:end]
            place = begin + (end - begin + 8) // 8 * 8
        if flags & _NAME_BITS != min(len(name), _NAME_BITS):
            raise ValueError("not an index")
        if flags & _ASSUMED or more & _SKIPPED:
            how = "assume-unchanged" if flags & _ASSUMED else "skip-worktree"
            yield name.decode("utf-8", "replace"), f"git shows no changes of it any more: {how}"


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = content[place] & 0x7F
    while content[place] & 0x80:
        place += 1
        value = ((value + 1) << 7) | (content[place] & 0x7F)
    return value, place + 1
