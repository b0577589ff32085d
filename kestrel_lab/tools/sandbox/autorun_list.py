"""Files that run by themselves: the list `autorun_files.txt`, hidden files, shadowed modules and programs."""

from __future__ import annotations

import os
import posixpath
import re
import site
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

_LIST = Path(__file__).with_name("autorun_files.txt")
_SIGNS = re.compile(r"[*?]")
_HIDDEN = "it is hidden, and programs that work here may obey it"
_SHADOWS = "Python imports it in place of the module {} when a program is started here"
_SETTINGS = re.compile(r"[a-z]\w{4,}rc")
"""The name of a file of settings without a dot before it, such as `matplotlibrc`."""
_MODULE = re.compile(r"(\w+)(?:\.[\w-]+)?\.(?:py|pyw|pyc|so|pyd)")
_NO_MODULES = frozenset(
    [
        "test",
        "tests",
        "docs",
        "examples",
        "src",
        "tools",
        "scripts",
        "setup",
        "conftest",
        "bin",
        "lib",
        "build",
    ]
)
"""Top-level names that packages install carelessly, or that many workspaces have."""
_PROGRAM_FOLDERS = frozenset(["bin", ".bin", "sbin", "scripts"])


def autorun_reason(path: str) -> str:
    """Return what runs or obeys a workspace file unasked, as a clause; empty if nothing known does."""
    normal = posixpath.normpath(path)
    return listed_reason(normal.casefold()) or generic_reason(normal)


def listed_reason(path: str) -> str:
    """Return the reason by which the list has a path in lower case."""
    folder, _, name = path.rpartition("/")
    patterns = _patterns()
    return (patterns.by_path(path, folder) if folder else "") or patterns.by_name(name)


def generic_reason(path: str) -> str:
    """Return why an unlisted path may run by itself: hidden in the root, or in a module's place."""
    parts = path.split("/")
    if parts[0] in ("", ".", ".."):
        return ""
    if parts[0].startswith(".") and not _patterns().harmless(path.casefold()):
        return _HIDDEN
    if _SETTINGS.fullmatch(parts[-1]):
        return "a program that starts here reads its settings from it"
    if len(parts) == 1 and (module := shadowed_module(parts[0], installed=True)):
        return _SHADOWS.format(module)
    if len(parts) == 2 and parts[1].startswith("__init__.") and parts[0] in _module_names():
        return _SHADOWS.format(parts[0])
    return ""


def shadowed_module(name: str, *, installed: bool) -> str:
    """Return the standard or `installed` module that a file of that name would replace in an import."""
    found = _MODULE.fullmatch(name)
    known = _module_names() if installed else sys.stdlib_module_names
    return found[1] if found and found[1] in known and found[1] not in _NO_MODULES else ""


def shadows(module: str) -> str:
    """Return the reason for a file in the place of a module."""
    return _SHADOWS.format(module)


def unchecked_bytecode(path: str) -> str:
    """Return why Python runs bytecode without comparing it with its source; empty if it compares."""
    if os.path.basename(os.path.dirname(path)) != "__pycache__":
        return "Python imports it in place of a source"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            flags = int.from_bytes(file.read(8)[4:], "little")
    except OSError:
        return ""
    # PEP 552: bit 0 for a hash in place of a time, bit 1 for one that is compared.
    return "Python runs it without a look at its source" if flags & 3 == 1 else ""


def is_program_folder(folder: str, root: str) -> bool:
    """Return true if programs may be searched there: the root, folders named for it, or on PATH."""
    return folder == root or os.path.basename(folder) in _PROGRAM_FOLDERS or folder in _search_path()


def program_reason(folder: str, name: str) -> str:
    """Return why an executable file in such a folder runs unasked; empty if no program has its name."""
    if folder in _search_path():
        return "it lies where programs are searched"
    if name in _program_names():
        return f"it has the name of the program {name}, and a shell that looks here first runs it"
    return ""


_NOTHING = re.compile(r"(?!)")


@dataclass(slots=True)
class _Patterns:
    """The list: each pattern with its reason."""

    names: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    """Of names, from a dot on."""
    shapes: list[tuple[re.Pattern[str], str]] = field(default_factory=list)
    """Other patterns of names."""
    folders: dict[str, str] = field(default_factory=dict)
    paths: list[tuple[re.Pattern[str], str]] = field(default_factory=list)
    """Patterns of the end of a path, and of folders with signs."""
    shape: re.Pattern[str] = _NOTHING
    path: re.Pattern[str] = _NOTHING
    """All of `shapes` and `paths` as one expression: most names match none, which this decides quickly."""

    def join(self) -> None:
        """Make these two, when all patterns are there."""
        self.shape, self.path = (
            re.compile("|".join(one.pattern for one, _ in many) or "(?!)", re.DOTALL)
            for many in (self.shapes, self.paths)
        )

    def add(self, pattern: str, reason: str) -> None:
        """Add a pattern; the first reason wins."""
        whole = pattern.rstrip("/")
        if _SIGNS.search(whole) and "/" not in pattern:
            if pattern.startswith("*.") and not _SIGNS.search(pattern[1:]):
                self.ends.setdefault(pattern[1:], reason)
            else:
                self.shapes.append((re.compile(_expression(pattern)), reason))
        elif _SIGNS.search(whole) or (not pattern.endswith("/") and "/" in whole):
            below = "" if whole == pattern else r"/.*"
            self.paths.append((re.compile(rf"(?:.*/)?{_expression(whole)}{below}", re.DOTALL), reason))
        elif pattern.endswith("/"):
            self.folders.setdefault(whole, reason)
            if "/" not in whole:
                # A link or a file in its place.
                self.names.setdefault(whole, reason)
        else:
            self.names.setdefault(pattern, reason)

    def by_name(self, name: str) -> str:
        if said := self.names.get(name):
            return said
        dots = [place for place, sign in enumerate(name) if sign == "."]
        if said := next((self.ends[name[place:]] for place in dots if name[place:] in self.ends), ""):
            return said
        return _first(self.shapes, name) if self.shape.fullmatch(name) else ""

    def by_path(self, path: str, folder: str) -> str:
        return _folder_reason(folder) or (_first(self.paths, path) if self.path.fullmatch(path) else "")

    def harmless(self, path: str) -> bool:
        """Return true for a hidden file that no program obeys."""
        return any(_nobodys().by_name(part) for part in path.split("/"))


def _expression(pattern: str) -> str:
    return "".join("[^/]*" if sign == "*" else "[^/]" if sign == "?" else re.escape(sign) for sign in pattern)


@cache
def _patterns() -> _Patterns:
    return _read_list()[0]


@cache
def _nobodys() -> _Patterns:
    return _read_list()[1]


@cache
def _read_list() -> tuple[_Patterns, _Patterns]:
    """Read the list: patterns with a reason, and hidden files that no program obeys."""
    found, nobodys, reason = _Patterns(), _Patterns(), ""
    for line in _LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            reason = line.removesuffix(":")
            continue
        for pattern in line.split():
            (found if reason else nobodys).add(pattern, reason or "nobody")
    found.join()
    nobodys.join()
    return found, nobodys


def _first(patterns: list[tuple[re.Pattern[str], str]], text: str) -> str:
    return next((reason for pattern, reason in patterns if pattern.fullmatch(text)), "")


@lru_cache(maxsize=4_096)
def _folder_reason(folder: str) -> str:
    parts, known = folder.split("/"), _patterns().folders
    names = (
        "/".join(parts[start : start + size])
        for start in range(len(parts))
        for size in (1, 2, 3)
        if start + size <= len(parts)
    )
    return next((known[name] for name in names if name in known), "")


@cache
def _module_names() -> frozenset[str]:
    """Return the names of modules that this interpreter finds: of the standard library, and installed."""
    places = {
        *site.getsitepackages(),
        site.getusersitepackages(),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    }
    names = set(sys.stdlib_module_names)
    for place in places:
        for name in names_in(place):
            if name.isidentifier():
                names.add(name)
            elif found := _MODULE.fullmatch(name):
                names.add(found[1])
    return frozenset(names - _NO_MODULES - {"__pycache__"})


@cache
def _program_names() -> frozenset[str]:
    return frozenset(name for place in _search_path() for name in names_in(place))


def _search_path() -> list[str]:
    return [os.path.abspath(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]


def names_in(folder: str) -> list[str]:
    """Return the names in a folder; none of one that cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
