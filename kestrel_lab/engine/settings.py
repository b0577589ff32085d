"""Settings and where each came from: a default, `pyproject.toml`, `kestrel.toml`, or the environment; the last one wins."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.limits import Limits
from kestrel_lab.core.text import shown_path
from kestrel_lab.engine.containment import read_mode
from kestrel_lab.engine.sources import ExpansionSettings
from kestrel_lab.engine.verified import forms, parse_form
from kestrel_lab.engine.verified import parse_level as parse_verify
from kestrel_lab.middleware.cache import cache_mode
from kestrel_lab.middleware.policy import Policy
from kestrel_lab.middleware.redisshelf import shown_url
from kestrel_lab.tools.mcp.config import ServerConfig, read_mcp_json, read_server
from kestrel_lab.tools.mcp.install import checked_pattern
from kestrel_lab.tools.rules.book import Rulebook
from kestrel_lab.tools.rules.rule import read_rules
from kestrel_lab.tools.sandbox.levels import AUTO, parse_level
from kestrel_lab.views.html import table_html
from kestrel_lab.views.text import table_text


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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        msg = "must be a text"
        raise ValueError(msg)
    return value


def _policy(value: Any) -> str:
    return Policy.parse(_text(value)).text


def _sandbox(value: Any) -> str:
    level = parse_level(_text(value))
    return AUTO if level is None else level.name


def _cache(value: Any) -> str:
    return cache_mode(_text(value))


def _containment(value: Any) -> str:
    return read_mode(str(value) if isinstance(value, bool) else _text(value))


def _switch(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in {"on", "off", "true", "false", "yes", "no"}:
        return value.lower() in {"on", "true", "yes"}
    if not isinstance(value, bool):
        msg = "must be on or off"
        raise ValueError(msg)
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value.lower() == "none":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        msg = "must be a number"
        raise ValueError(msg)
    try:
        number = float(value)
    except ValueError:
        msg = "must be a number"
        raise ValueError(msg) from None
    if not 0 < number < math.inf:
        msg = "must be positive"
        raise ValueError(msg)
    return number


def _whole(value: Any) -> int | None:
    number = _number(value)
    if number is not None and number != int(number):
        msg = "must be a whole number"
        raise ValueError(msg)
    return None if number is None else int(number)


def _allowed(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        msg = "must be a list of NAME==VERSION"
        raise ValueError(msg)
    return tuple(checked_pattern(word.strip()) for word in words if word.strip())


def _share(value: Any) -> float | None:
    number = _number(value)
    if number is not None and number > 1:
        msg = "must be a share from 0 to 1, or none"
        raise ValueError(msg)
    return number


def _verify(value: Any) -> str:
    return parse_verify(_text(value))


def _form(value: Any) -> str:
    return parse_form(_text(value))


_DEFAULTS = Limits()
_KNOWN: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "home": (".kestrel", _text, "folder of the event log and of everything else that is kept"),
    "model": (None, _text, "model of runs that name none; unset: the first that is found"),
    "provider": (None, _text, "provider of model names that do not say theirs (also MODEL_PROVIDER)"),
    "api_base": (None, _text, "address of an OpenAI-compatible server"),
    "approve": ("ask", _policy, "approval policy: ask, auto, auto:LEVEL or deny"),
    "sandbox": (AUTO, _sandbox, "how commands are held in: S3, S2, S1, S0 (not at all), or auto for the best that works here"),
    "network": (False, _switch, "whether commands in a sandbox may use the network, this machine's own services included"),
    "cache": ("use", _cache, "stored answers of pure tools: use, off, refresh (ask anew and store) or replay (only what is stored)"),
    "cache_url": (None, _text, "Redis server that keeps them, redis://HOST:PORT/0; unset: in the folder home"),
    "containment": (
        "on",
        _containment,
        "ask before a model that read what others wrote has an effect: on, strict (files count too) or off",
    ),
    "expand": (False, _switch, "whether a run may look for MCP servers with tools that it lacks, and ask to install one"),
    "mcp_registry": (None, _text, "address of a registry of MCP servers to look in; unset: the catalogue only"),
    "mcp_catalogue": (None, _text, "file with MCP servers to look for, one JSON object per line; unset: the one that is shipped"),
    "mcp_allow": ((), _allowed, "MCP servers that are installed without asking: NAME==VERSION, or NAME==VERSION.*"),
    "verify": (
        "warn",
        _verify,
        "what is done about the claims of answers: off, warn (said beside them), repair, judge (by a model too), quality (a report on them)",
    ),
    "abstain": (
        None,
        _share,
        "confidence that an answer has to state, else its run fails and says so; see `kestrel eval calibration --risk`",
    ),
    "network_home": (False, _switch, "whether the home folder may lie on a network file system, where a log may be damaged"),
    "form": ("none", _form, f"form that answers have to have: {forms()}"),
    "cycles": (_DEFAULTS.cycles, _whole, "most model turns of a run"),
    "cost_usd": (_DEFAULTS.cost_usd, _number, "most US dollars of a run"),
    "seconds": (_DEFAULTS.seconds, _number, "most seconds of work of a run; waiting, for a person or a busy endpoint, does not count"),
    "checkpoint_every": (10, _whole, "model turns after which a snapshot of a run is kept, for resuming quickly; none for never"),
    "tokens": (_DEFAULTS.tokens, _whole, "most tokens of a run"),
    "wall_seconds": (_DEFAULTS.wall_seconds, _number, "most seconds of a run in all, waiting included"),
    "messages": (_DEFAULTS.messages, _whole, "most messages of a run's conversations"),
}


LIMITS = ("cycles", "cost_usd", "seconds", "tokens", "wall_seconds", "messages")
"""Settings that are limits of runs."""


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """Everything that can be set, by key, and the rules about calls."""

    items: Mapping[str, Setting]
    rules: Rulebook = field(default_factory=Rulebook)
    """Rules about calls, of all files that apply."""

    def __getitem__(self, key: str) -> Any:
        return self.items[key].value

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.items.values())

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts per setting."""
        rows: list[tuple[str, ...]] = [(s.key, s.shown, s.source, s.meaning) for s in self]
        rows += [("rules", str(rule), rule.source, rule.reason) for rule in self.rules]
        return ("setting", "value", "from", "meaning"), rows

    def __repr__(self) -> str:
        return table_text(*self.table())

    def _repr_html_(self) -> str:
        return table_html(*self.table())

    def given(self, source: str, **values: Any) -> Settings:
        """The same with `values` in force, those that are `None` left out; raises `UsageError` for one that cannot be."""
        return Settings(
            {**self.items, **{key: _setting(key, value, source) for key, value in values.items() if value is not None}}, self.rules
        )

    def only(self, key: str) -> Settings:
        """That one alone; raises `UsageError` for one that does not exist."""
        check_key(key)
        return Settings({key: self.items[key]})

    @property
    def limits(self) -> Limits:
        """The limits of runs that bring none of their own."""
        return Limits(**{key: self[key] for key in LIMITS})


def expansion_of(settings: Settings) -> ExpansionSettings:
    """How far runs may go to find tools."""
    return ExpansionSettings(
        expand=settings["expand"],
        registry=settings["mcp_registry"] or "",
        catalogue=settings["mcp_catalogue"] or "",
        allow=settings["mcp_allow"],
    )


def mcp_servers(folder: Path) -> dict[str, ServerConfig]:
    """The MCP servers configured for `folder`: `[mcp.servers.NAME]` where settings are, and a `.mcp.json` beside; the settings win.

    Raises `UsageError` that names file, server and key.
    """
    found: dict[str, ServerConfig] = {}
    for place in (folder.resolve(), *folder.resolve().parents):
        if (place / ".mcp.json").is_file():
            found = read_mcp_json(place / ".mcp.json")
        if found or (place / ".git").exists():
            break
    for path, table in setting_files(folder):
        own, where = table.get("mcp", {}), shown_path(path)
        if not isinstance(own, dict) or not isinstance(servers := own.get("servers", {}), dict) or set(own) - {"servers"}:
            msg = f"{where}: write MCP servers as [mcp.servers.NAME], with a command or a url each"
            raise UsageError(msg)
        found |= {name: read_server(name, one, where) for name, one in servers.items()}
    return found


def load_settings(folder: Path, env: Mapping[str, str]) -> Settings:
    """Read the settings that hold in `folder`: its files or those of the nearest folder above that has any.

    Raises `UsageError` that names file and key for a setting that does not exist or cannot be read.
    """
    items = {key: Setting(key=key, value=value, source="default", meaning=meaning) for key, (value, _, meaning) in _KNOWN.items()}
    rules = Rulebook()
    for path, table in setting_files(folder):
        rules += Rulebook(read_rules(table.get("rules", []), shown_path(path)))
        for key, value in table.items():
            if key in ("mcp", "rules"):  # see `mcp_servers` for the former
                continue
            items[key] = _setting(key, value, shown_path(path))
    for key in _KNOWN:
        name = f"KESTREL_{key.upper()}"
        if env.get(name):
            items[key] = _setting(key, env[name], name)
    return Settings(items, rules)


def setting_files(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The tables that apply, weakest first."""
    for place in (folder.resolve(), *folder.resolve().parents):
        found = []
        project = place / "pyproject.toml"
        if project.is_file() and isinstance(table := _read(project).get("tool", {}).get("kestrel"), dict):
            found.append((project, table))
        own = place / "kestrel.toml"
        if own.is_file():
            found.append((own, _read(own)))
        if found or (place / ".git").exists():
            return found
    return []


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path} is not TOML: {error}"
        raise UsageError(msg) from error


def check_key(key: str, source: str = "") -> None:
    """Raise `UsageError` with the nearest spelling for a setting that does not exist."""
    if key not in _KNOWN:
        msg = f"{f'{source}: ' if source else ''}unknown setting {key!r}: {nearest(key, [*_KNOWN, 'rules', 'mcp'])}"
        raise UsageError(msg)


def _setting(key: str, value: Any, source: str) -> Setting:
    check_key(key, source)
    _, read, meaning = _KNOWN[key]
    try:
        return Setting(key=key, value=read(value), source=source, meaning=meaning)
    except ValueError as error:
        msg = f"{source}: setting {key!r}: {error} (found {value!r})"
        raise UsageError(msg) from error
