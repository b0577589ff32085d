"""Which project settings a user trusts: kept outside of every project, once for each content.

A repository that was cloned, or a command, may bring settings. Those that weaken a safety setting count only
when the user trusts the file as it is now. A change of any of its settings, also of one that only made it
safer, asks for trust again.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.host.git import Repository, run_git
from kestrel_lab.host.user import home_folder

VARIABLE = "KESTREL_TRUST"
"""For where nobody types `kestrel trust`: `all`, or folders whose settings are trusted, with `:` between."""
_ALL = frozenset({"1", "all", "on", "true", "yes"})
_NONE = frozenset({"", "0", "none", "off", "false", "no"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Weakening:
    """A setting of a project that makes something less safe than it is without."""

    path: Path
    key: str
    shown: str
    """Its value, as people may see it."""
    number: int = 0
    """Of several with that key, which."""
    line: int = 0
    """Where it stands; 0 where that is not known."""

    def __str__(self) -> str:
        """The setting and its place."""
        place = f" (line {self.line})" if self.line else ""
        return f"{self.shown if self.number else f'{self.key} = {one_line(self.shown, 80)}'}{place}"


@dataclass(frozen=True, slots=True)
class TrustedFiles:
    """The files of project settings that a user trusts, and the content that each had then."""

    store: Path
    always: str = ""
    """What the variable says."""

    @classmethod
    def of(cls, env: Mapping[str, str]) -> TrustedFiles:
        """Those of the user."""
        place = Path(env["XDG_CONFIG_HOME"]) if env.get("XDG_CONFIG_HOME") else home_folder() / ".config"
        return cls(place / "kestrel" / "trusted.json", env.get(VARIABLE, "").strip())

    def holds(self, path: Path, table: Mapping[str, Any]) -> bool:
        """Whether the file at `path` is trusted with the settings `table`."""
        if self.always.lower() in _ALL:
            return True
        if self.always.lower() not in _NONE:
            folders = [Path(word).expanduser().resolve() for word in self.always.split(os.pathsep) if word]
            if any(Path(_place(path)).is_relative_to(folder) for folder in folders):
                return True
        return self._read().get(_place(path)) == _content(table)

    def add(self, path: Path, table: Mapping[str, Any]) -> None:
        """Trust the settings `table` of the file at `path`, and none that it had before."""
        self._write({**self._read(), _place(path): _content(table)})

    def remove(self, path: Path) -> bool:
        """Trust the file at `path` no longer; returns whether it was."""
        kept = self._read()
        if kept.pop(_place(path), None) is None:
            return False
        self._write(kept)
        return True

    def _read(self) -> dict[str, str]:
        try:
            content = json.loads(self.store.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UsageError(
                f"{self.store} cannot be read ({error}): remove it and run kestrel trust again"
            ) from error
        return content if isinstance(content, dict) else {}

    def _write(self, content: Mapping[str, str]) -> None:
        self.store.parent.mkdir(parents=True, exist_ok=True)
        # Readable by its owner only.
        number, name = tempfile.mkstemp(dir=self.store.parent, prefix=".trusted")
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
        Path(name).replace(self.store)


def files_from_repository(home: Path) -> dict[str, Any]:
    """What a repository brings of a home folder that lies in it: its files by hash, as git tracks them; empty
    for nothing.

    A log that somebody else wrote may hold decided approvals, stored answers and environments with programs.
    """
    place = Path(os.path.abspath(home))  # a link that the repository brings is what is looked at  # noqa: PTH100
    if not os.path.lexists(place) or Repository.around(place.parent) is None:
        return {}
    listed = run_git(place.parent, "ls-files", "--stage", "-z", "--", f":(literal){place.name}").stdout
    return {"home": sorted(listed.decode("utf-8", "replace").split("\0")[:-1])} if listed else {}


def check_home(home: Path, trusted: TrustedFiles) -> None:
    """Raise `UsageError` for a home folder that its repository brings and nobody trusts."""
    if (found := files_from_repository(home)) and not trusted.holds(home, found):
        raise UsageError(
            f"{home} comes with the repository ({len(found['home'])} of its files are tracked by git): "
            "what it holds of runs, answers and "
            "environments was written by others, and is not used. Name another folder with "
            "KESTREL_HOME, or say: kestrel trust"
        )


def ignored_notice(found: Iterable[Weakening]) -> str:
    """What is ignored and what to do, in a line; empty for nothing."""
    files: dict[Path, list[str]] = {}
    for one in found:
        files.setdefault(one.path, []).append(str(one))
    said = [
        f"{shown_path(path)} is not trusted, so these settings are ignored: {', '.join(words)}"
        for path, words in files.items()
    ]
    return f"{'. '.join(said)}. Look at them, then: kestrel trust" if said else ""


def setting_lines(
    text: str, section: Iterable[str], wanted: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """The lines of a TOML file that complete the settings `wanted`, by key and, for one that may be repeated,
    its number.

    Each line is the first up to which the file, read as a file of its own, has the setting.
    """
    lines, missing, found = split_lines(text), set(wanted), dict[tuple[str, int], int]()
    for number in range(1, len(lines) + 1):
        if not missing:
            break
        try:
            table: Any = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            # The first lines alone may end within a value that goes on below.
            continue
        for word in section:
            table = table.get(word, {}) if isinstance(table, dict) else {}
        for key, place in list(missing):
            value = table.get(key) if isinstance(table, dict) else None
            if value is not None and (not place or (isinstance(value, list | dict) and len(value) >= place)):
                found[key, place] = number
                missing.discard((key, place))
    return found


def _place(path: Path) -> str:
    """Where a file is; of a link its own place, since it may lead to a file trusted elsewhere."""
    return str(path.parent.resolve() / path.name)


def _content(table: Mapping[str, Any]) -> str:
    return content_key("settings/1", json.dumps(table, sort_keys=True, default=str))
