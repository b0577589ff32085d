"""Settings and where each came from: a default, `pyproject.toml`, `kestrel.toml`, or the environment; the
last one wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import loads_toml
from kestrel_lab.core.redaction import shown_url
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.host.homes import default_home
from kestrel_lab.mcp.config import (
    ServerConfig,
    cautious_server,
    read_mcp_json,
    read_server,
    weakens_trust,
)
from kestrel_lab.permissions.rule import read_rules
from kestrel_lab.permissions.rulebook import Rulebook
from kestrel_lab.runtime.options import LIMITS, SETTINGS
from kestrel_lab.runtime.project_trust import TrustedFiles, Weakening, setting_lines
from kestrel_lab.views.html.table_view import TableView


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting as it is in force."""

    key: str
    value: Any
    source: str
    """`default`, a file, an environment variable, or who said it in this session."""
    meaning: str

    @property
    def shown(self) -> str:
        """The value as people may see it: an address without user and password."""
        return shown_url(self.value) if self.key.endswith("_url") and self.value else str(self.value)


@dataclass(frozen=True, slots=True, repr=False)
class Settings(TableView):
    """Everything that can be set, by key, and the rules about calls."""

    items: Mapping[str, Setting]
    rules: Rulebook = field(default_factory=Rulebook)
    """Rules about calls, of all files that apply."""
    ignored: tuple[Weakening, ...] = ()
    """What files say that nobody trusts, and what therefore does not hold."""
    notes: tuple[str, ...] = ()
    """What is said beside the table."""

    def lines(self) -> tuple[str, ...]:
        """Return what is said beside the table."""
        return self.notes

    def __getitem__(self, key: str) -> Any:
        return self.items[key].value

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.items.values())

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts per setting."""
        rows: list[tuple[str, ...]] = [(s.key, s.shown, s.source, s.meaning) for s in self]
        rows += [("rules", str(rule), rule.source, rule.reason) for rule in self.rules]
        rows += [
            (
                one.key,
                one.shown,
                f"{shown_path(one.path)}: not trusted",
                "ignored until you say: kestrel trust",
            )
            for one in self.ignored
        ]
        return ("setting", "value", "from", "meaning"), rows

    def given(self, source: str, **values: Any) -> Settings:
        """The same with `values` in force, those that are `None` left out; raises `UsageError` for one that
        cannot be.
        """
        given = {key: _setting(key, value, source) for key, value in values.items() if value is not None}
        return replace(
            self,
            items={**self.items, **given},
            ignored=tuple(one for one in self.ignored if one.key not in given),
        )

    def only(self, key: str) -> Settings:
        """That one alone; raises `UsageError` for one that does not exist."""
        check_key(key)
        return Settings({key: self.items[key]}, ignored=tuple(one for one in self.ignored if one.key == key))

    @property
    def limits(self) -> Limits:
        """The limits of runs that bring none of their own."""
        return Limits(**{key: self[key] for key in LIMITS})


def mcp_servers(folder: Path, env: Mapping[str, str]) -> dict[str, ServerConfig]:
    """The MCP servers configured for `folder`: `[mcp.servers.NAME]` where settings are, and a `.mcp.json`
    beside; the settings win.

    Servers are approved one by one. What a file that is not trusted says of the danger of their tools does
    not count where it is less than that of any server. Raises `UsageError` that names file, server and key.
    """
    found: dict[str, ServerConfig] = {}
    for place in (folder.resolve(), *folder.resolve().parents):
        if (place / ".mcp.json").is_file():
            found = read_mcp_json(place / ".mcp.json")
        if found or (place / ".git").exists():
            break
    trusted = TrustedFiles.of(env)
    for path, table in setting_files(folder):
        servers = _servers_of(path, table)
        found |= (
            servers
            if trusted.holds(path, table)
            else {name: cautious_server(server) for name, server in servers.items()}
        )
    return found


def _servers_of(path: Path, table: Mapping[str, Any]) -> dict[str, ServerConfig]:
    own, where = table.get("mcp", {}), shown_path(path)
    if (
        not isinstance(own, dict)
        or not isinstance(servers := own.get("servers", {}), dict)
        or set(own) - {"servers"}
    ):
        raise UsageError(f"{where}: write MCP servers as [mcp.servers.NAME], with a command or a url each")
    return {name: read_server(name, one, where) for name, one in servers.items()}


def load_settings(folder: Path, env: Mapping[str, str]) -> Settings:
    """Read the settings that hold in `folder`: its files or those of the nearest folder above that has any.

    What weakens a safety setting holds only in a file that the user trusts as it is; variables are the user's
    own. Raises `UsageError` that names file and key for a setting that does not exist or cannot be read.
    """
    items = {
        key: Setting(key=key, value=one.default, source="default", meaning=one.meaning)
        for key, one in SETTINGS.items()
    }
    items["home"] = replace(items["home"], value=str(default_home(folder, env)))
    rules, ignored, trusted = Rulebook(), list[Weakening](), TrustedFiles.of(env)
    named = {key: name for key in SETTINGS if env.get(name := f"KESTREL_{key.upper()}")}
    for path, table in setting_files(folder):
        weak = find_weakenings(path, table)
        skipped = (
            set[tuple[str, int]]()
            if not weak or trusted.holds(path, table)
            else {(one.key, one.number) for one in weak}
        )
        ignored += [one for one in weak if (one.key, one.number) in skipped and one.key not in named]
        own = read_rules(table.get("rules", []), shown_path(path))
        rules += Rulebook(
            tuple(rule for number, rule in enumerate(own, 1) if ("rules", number) not in skipped)
        )
        for key, value in table.items():
            if key in ("mcp", "rules"):  # see `mcp_servers` for the former
                continue
            setting = _setting(key, value, shown_path(path))
            if (key, 0) not in skipped:
                items[key] = setting
    for key, name in named.items():
        items[key] = _setting(key, env[name], name)
    return Settings(items, rules, tuple(ignored))


def find_weakenings(path: Path, table: Mapping[str, Any]) -> list[Weakening]:
    """What of the settings of a file makes something less safe than it is by default, with the lines that say
    so.
    """
    found: list[Weakening] = []
    for key, value in table.items():
        if key not in ("mcp", "rules"):
            setting = _setting(key, value, shown_path(path))
            if SETTINGS[key].weakens(setting.value, SETTINGS[key].default):
                found.append(Weakening(path=path, key=key, shown=setting.shown))
    rules = read_rules(table.get("rules", []), shown_path(path))
    found += [
        Weakening(path=path, key="rules", number=number, shown=str(rule))
        for number, rule in enumerate(rules, 1)
        if rule.verdict == "allow"
    ]
    servers: dict[str, ServerConfig] = {}
    with suppress(UsageError):  # `mcp_servers` reports it, where servers are needed
        servers = _servers_of(path, table)
    for server in servers.values():
        if lax := [
            name for name, trust in {"*": server.trust, **server.tools}.items() if weakens_trust(trust)
        ]:
            found.append(
                Weakening(
                    path=path,
                    key="mcp",
                    number=1,
                    shown=f"mcp server {server.name}: less danger of {', '.join(lax)}",
                )
            )
    section = ("tool", "kestrel") if path.name == "pyproject.toml" else ()
    lines = (
        setting_lines(path.read_text(encoding="utf-8"), section, [(one.key, one.number) for one in found])
        if found
        else {}
    )
    return [replace(one, line=lines.get((one.key, one.number), 0)) for one in found]


def setting_files(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The tables that apply, weakest first."""
    for place in (folder.resolve(), *folder.resolve().parents):
        found = []
        project = place / "pyproject.toml"
        if project.is_file() and isinstance(tool := _read(project).get("tool"), dict) and "kestrel" in tool:
            if not isinstance(table := tool["kestrel"], dict):
                msg = (
                    f"{shown_path(project)}: tool.kestrel must be a table: write settings below "
                    f"[tool.kestrel] (found {one_line(repr(table))})"
                )
                raise UsageError(msg)
            found.append((project, table))
        own = place / "kestrel.toml"
        if own.is_file():
            found.append((own, _read(own)))
        if found or (place / ".git").exists():
            return found
    return []


def _read(path: Path) -> dict[str, Any]:
    try:
        return loads_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def check_key(key: str, source: str = "") -> None:
    """Raise `UsageError` with the nearest spelling for a setting that does not exist."""
    if key not in SETTINGS:
        raise UsageError(
            f"{f'{source}: ' if source else ''}unknown setting {key!r}: "
            f"{did_you_mean(key, [*SETTINGS, 'rules', 'mcp'])}"
        )


def _setting(key: str, value: Any, source: str) -> Setting:
    check_key(key, source)
    known = SETTINGS[key]
    try:
        return Setting(key=key, value=known.checked(value), source=source, meaning=known.meaning)
    except ValueError as error:
        msg = (
            f"{source}: setting {key!r}: "
            f"{error}{'' if repr(value) in str(error) else f' (found {one_line(repr(value))})'}"
        )
        raise UsageError(msg) from error
