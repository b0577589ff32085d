"""The text files of a workspace as they are now, read once each and only when asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kestrel_lab.verification.work_limit import SEARCHED, Work

MAX_FILES: Final = 8_000
MAX_FILE: Final = 1_500_000
"""Bytes of one file that is looked into."""
MAX_BYTES: Final = 80_000_000
"""Bytes of all files that a word is searched in; what lies behind them is not known, and nothing is refused for it."""
_SKIPPED: Final = frozenset(
    {
        ".git",
        ".hg",
        ".kestrel",
        ".ipynb_checkpoints",
        "__pycache__",
        "node_modules",
        ".venv",
        "venv",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".tox",
    }
)


class Files:
    """What a folder holds; nothing outside of it is read, whatever links lead there."""

    def __init__(self, root: Path, seconds: float | None = None) -> None:
        """`seconds` is how long it may be looked into."""
        self.root = root.resolve()
        self.work = Work(seconds)
        self.whole = True
        """Whether everything could be looked into; where not, absence shows nothing."""
        self._paths: tuple[str, ...] | None = None
        self._known: frozenset[str] = frozenset()
        self._folders: set[str] = set()
        self._texts: dict[str, str | None] = {}
        self._holding: dict[str, tuple[str, ...]] = {}
        self._read = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file, relative to the folder."""
        if self._paths is None:
            found: list[str] = []
            for place, folders, names in os.walk(self.root):
                folders[:] = sorted(name for name in folders if name not in _SKIPPED)
                base = os.path.relpath(place, self.root)
                below = "" if base == "." else f"{base}/"
                self._folders.update(f"{below}{name}" for name in folders)
                found += [f"{below}{name}" for name in sorted(names)]
                if len(found) > MAX_FILES or len(self._folders) > MAX_FILES:
                    self.whole = False
                    break
            self._paths = tuple(found[:MAX_FILES])
            self._known = frozenset(self._paths)
        return self._paths

    def named(self, name: str) -> tuple[str, ...]:
        """The files that `name` may mean: the one of that path, or else all whose path ends so."""
        name = name.removeprefix("./").rstrip("/")
        if Path(name).is_absolute():
            inside = os.path.relpath(name, self.root)
            name = inside if not inside.startswith("..") else name
        known = self.paths
        if name in self._known:
            return (name,)
        self.work.spend(len(known))
        name = name.removeprefix("src/") if name.removeprefix("src/").startswith(f"{self.root.name}/") else name
        if name.startswith(f"{self.root.name}/") and (short := name.partition("/")[2]) in self._known:
            return (short,)
        return tuple(path for path in known if path.endswith(f"/{name}"))

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name, or whose path ends so."""
        if self.named(name):
            return True
        self.work.spend(len(self._folders) + 1_000)
        name = name.removeprefix("./").rstrip("/")
        if name.startswith(".."):
            return False
        if name.startswith("~") or Path(name).is_absolute():
            return Path(name).expanduser().exists()
        return name in self._folders or any(path.endswith(f"/{name}") for path in self._folders) or self._real(name) is not None

    def read(self, name: str) -> str | None:
        """The text of a file; `None` where there is none of that name, or no text."""
        found = self.named(name)
        path = found[0] if found else name.removeprefix("./")
        if path not in self._texts:
            self._texts[path] = self._text(path)
        text = self._texts[path]
        self.work.spend(len(text or "") / SEARCHED)  # by whoever asks for it, to go through it
        return text

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every file with its text, as far as there is room."""
        for path in self.paths:
            if self._read > MAX_BYTES:
                self.whole = False
                return
            text = self.read(path)
            if text is not None:
                yield path, text

    def having(self, word: str) -> tuple[str, ...]:
        """The files in which `word` stands as a whole."""
        if word not in self._holding:
            self._holding[word] = tuple(path for path, text in self.texts() if next(places(word, text), None) is not None)
        return self._holding[word]

    def _real(self, path: str) -> Path | None:
        """The file or folder, if it is there and inside."""
        try:
            real = (self.root / path).resolve()
        except (OSError, ValueError, RuntimeError):
            return None
        return real if real.is_relative_to(self.root) and real.exists() else None

    def _text(self, path: str) -> str | None:
        real = self._real(path)
        try:
            if real is None or not real.is_file() or real.stat().st_size > MAX_FILE:
                self.whole = self.whole and (real is None or not real.is_file())
                return None
            content = real.read_bytes()
        except OSError:
            self.whole = False
            return None
        self._read += len(content)
        return None if b"\0" in content[:8_000] else content.decode("utf-8", errors="replace")


def whole_word(word: str) -> re.Pattern[str]:
    """Matches `word` where it is no part of a longer one."""
    return re.compile(rf"(?<![\w]){re.escape(word)}(?![\w])")


def places(word: str, text: str) -> Iterator[int]:
    """Where `word` stands as a whole; many times faster than a pattern that looks behind at every character."""
    at, size = text.find(word), len(word)
    while at >= 0 and size:
        if not _in_word(text[at - 1 : at]) and not _in_word(text[at + size : at + size + 1]):
            yield at
        at = text.find(word, at + 1)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
