"""Settings and where each came from: a default, `pyproject.toml`, `kestrel.toml`, or the environment; the
last one wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import loads_toml
from kestrel_lab.core.redaction import shown_url
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.host.homes import default_home
from kestrel_lab.mcp.config import ServerConfig, Trust, read_mcp_json, read_server
from kestrel_lab.mcp.registry.install import checked_pattern
from kestrel_lab.middleware.cache import cache_mode
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.permissions.rule import read_rules
from kestrel_lab.permissions.rulebook import Rulebook
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings
from kestrel_lab.runtime.operations.verify_plan import answer_forms, parse_form
from kestrel_lab.runtime.operations.verify_plan import parse_level as parse_verify
from kestrel_lab.runtime.options import (
    GUIDANCE_FILES,
    OTEL_MODES,
    SKILL_SOURCES,
    guidance_names,
    read_otel_mode,
    skill_sources,
)
from kestrel_lab.runtime.project_trust import TrustedFiles, Weakening, setting_lines
from kestrel_lab.runtime.security.containment import read_mode
from kestrel_lab.tools.sandbox.levels import AUTO, DEFAULT_MEMORY_GIB, parse_level
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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def _sandbox(value: Any) -> str:
    level = parse_level(_text(value))
    return AUTO if level is None else level.name


def _switch(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in {"on", "off", "true", "false", "yes", "no"}:
        return value.lower() in {"on", "true", "yes"}
    if not isinstance(value, bool):
        raise ValueError("must be on or off")
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value.lower() == "none":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not 0 < number < math.inf:
        raise ValueError("must be positive")
    return number


def _whole_number(value: Any) -> int | None:
    number = _number(value)
    if number is not None and number != int(number):
        raise ValueError("must be a whole number")
    return None if number is None else int(number)


def _checked_patterns(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a list of NAME==VERSION")
    return tuple(checked_pattern(word.strip()) for word in words if word.strip())


def _share(value: Any) -> float | None:
    number = _number(value)
    if number is not None and number > 1:
        raise ValueError("must be a share from 0 to 1, or none")
    return number


def _guidance(value: Any) -> str:
    text = "off" if value is False else _text(value)
    guidance_names(text)
    return text


def _is_different(value: Any, default: Any) -> bool:
    """For a setting without an order: whatever differs may let something run."""
    return bool(value != default)


def _harmless(_value: Any, _default: Any) -> bool:
    """For a setting that lets nothing run that would not."""
    return False


def _is_more(value: Any, default: Any) -> bool:
    """For a bound, where less is safer and no bound the least safe."""
    return default is not None and (value is None or value > default)


def _is_outside(value: str, _default: str) -> bool:
    """For a folder, which is safe within the project."""
    return not Path(value).expanduser().resolve().is_relative_to(Path.cwd())


def _no_plain_name(value: str | None, _default: None) -> bool:
    """For a model: a provider's own name is safe; one that begins with a maker (`scripted:FILE`) or holds an
    address is not.
    """
    return any(":" in name.partition("/")[0] or "//" in name for name in (value or "").split(" > "))


def _is_after(*safest_first: str) -> Callable[[Any, Any], bool]:
    """For words in an order."""
    return lambda value, default: safest_first.index(value) > safest_first.index(default)


def _more_places(value: str, default: str) -> bool:
    """For places whose texts agents are given."""
    return not set(skill_sources(value)) <= set(skill_sources(default))


class _Known(NamedTuple):
    """A setting that there is."""

    default: Any
    read: Callable[[Any], Any]
    meaning: str
    weakens: Callable[[Any, Any], bool] = _is_different
    """Whether a value, beside the default, makes something less safe: a project's file may say so only when
    it is trusted.
    """


_DEFAULTS = Limits()
_KNOWN: dict[str, _Known] = {
    "home": _Known(
        "",
        _text,
        "folder of the event log and of everything else that is kept; unset: one per workspace, see "
        "`kestrel home`",
        _is_outside,
    ),
    "model": _Known(
        None, _text, "model of runs that name none; unset: the first that is found", _no_plain_name
    ),
    "provider": _Known(
        None, _text, "provider of model names that do not say theirs (also MODEL_PROVIDER)", _harmless
    ),
    "api_base": _Known(None, _text, "address of an OpenAI-compatible server"),
    "approve": _Known(
        "ask",
        lambda value: Policy.parse(_text(value)).text,
        "approval policy: ask, auto, auto:LEVEL or deny",
        lambda value, default: Policy.parse(value).allow > Policy.parse(default).allow,
    ),
    "sandbox": _Known(
        AUTO,
        _sandbox,
        "how strictly commands are sandboxed: S3, S2, S1, S0 (not at all), or auto for the best that "
        "works here",
        _is_after("S3", AUTO, "S2", "S1", "S0"),
    ),
    "network": _Known(
        False,
        _switch,
        "whether commands in a sandbox may use the network, this machine's own services included",
    ),
    "sandbox_memory": _Known(
        DEFAULT_MEMORY_GIB,
        _number,
        "most GiB of memory of a command in a sandbox, with all it starts; none for no bound",
        _is_more,
    ),
    "cache": _Known(
        "use",
        lambda value: cache_mode(_text(value)),
        "stored answers of pure tools: use, off, refresh (ask anew and store) or replay (only what is "
        "stored)",
        _harmless,
    ),
    "cache_url": _Known(
        None,
        _text,
        "server that keeps them for several machines, redis://HOST:PORT/0 or "
        "postgresql://USER@HOST/DATABASE; unset: in the folder home",
    ),
    "containment": _Known(
        "on",
        lambda value: read_mode(str(value) if isinstance(value, bool) else _text(value)),
        "whether calls with an effect ask once a model has read foreign text: on, strict (files count "
        "too) or off",
        _is_after("strict", "on", "off"),
    ),
    "expand": _Known(
        False,
        _switch,
        "whether a run may look for MCP servers with tools that it lacks, and ask to install one",
    ),
    "mcp_registry": _Known(
        None, _text, "address of a registry of MCP servers to look in; unset: the catalogue only"
    ),
    "mcp_catalogue": _Known(
        None,
        _text,
        "file with MCP servers to look for, one JSON object per line; unset: the one that is shipped",
    ),
    "mcp_allow": _Known(
        (),
        _checked_patterns,
        "MCP servers that are installed without asking: NAME==VERSION, or NAME==VERSION.*",
    ),
    "verify": _Known(
        "warn",
        lambda value: parse_verify(_text(value)),
        "how the claims of answers are checked: off, warn (concerns are shown beside them), repair, "
        "judge (by a model too), quality (a report only)",
        lambda value, _default: value == "off",
    ),
    "abstain": _Known(
        None,
        _share,
        "lowest score of a judge, or share of cited claims, that an answer needs; a run whose answer "
        "has less fails and says so",
        _is_more,
    ),
    "network_home": _Known(
        False, _switch, "whether the home folder may lie on a network file system, where a log may be damaged"
    ),
    "form": _Known(
        "none",
        lambda value: parse_form(_text(value)),
        f"form that answers have to have: {answer_forms()}",
        _harmless,
    ),
    "guidance_files": _Known(
        GUIDANCE_FILES,
        _guidance,
        "files with guidance for agents, the first that a workspace has; off for none. Text of the workspace",
        _harmless,
    ),
    "skills": _Known(
        SKILL_SOURCES,
        _text,
        "where skills (SKILL.md) are found: workspace, home, folders that hold skills; off for none",
        _more_places,
    ),
    "otel": _Known(
        "off",
        lambda value: read_otel_mode(("on" if value else "off") if isinstance(value, bool) else _text(value)),
        "spans of runs to an OpenTelemetry collector (OTEL_EXPORTER_OTLP_ENDPOINT): off, on, content "
        "(with texts)",
        _is_after(*OTEL_MODES),
    ),
    "cycles": _Known(_DEFAULTS.cycles, _whole_number, "most model turns of a run", _is_more),
    "cost_usd": _Known(_DEFAULTS.cost_usd, _number, "most US dollars of a run", _is_more),
    "seconds": _Known(
        _DEFAULTS.seconds,
        _number,
        "most seconds of work of a run; waiting, for a person or a busy endpoint, does not count",
        _is_more,
    ),
    "checkpoint_every": _Known(
        10,
        _whole_number,
        "model turns after which a snapshot of a run is kept, for resuming quickly; none for never",
        _harmless,
    ),
    "tokens": _Known(_DEFAULTS.tokens, _whole_number, "most tokens of a run", _is_more),
    "wall_seconds": _Known(
        _DEFAULTS.wall_seconds, _number, "most seconds of a run in all, waiting included", _is_more
    ),
    "model_seconds": _Known(
        _DEFAULTS.model_seconds,
        _number,
        "most seconds of one model call; one that takes longer has failed; none for no bound",
        _is_more,
    ),
    "messages": _Known(_DEFAULTS.messages, _whole_number, "most messages of a run's conversations", _is_more),
    "context_tokens": _Known(
        _DEFAULTS.context_tokens,
        _whole_number,
        "tokens of a model's context, beyond which a conversation is compacted; none for what is known of it",
        _harmless,
    ),
}


LIMITS = (
    "cycles",
    "cost_usd",
    "seconds",
    "tokens",
    "wall_seconds",
    "model_seconds",
    "messages",
    "context_tokens",
)
"""Settings that are limits of runs."""


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


def mcp_expansion(settings: Settings) -> ExpansionSettings:
    """How far runs may go to find tools."""
    return ExpansionSettings(
        expand=settings["expand"],
        registry=settings["mcp_registry"] or "",
        catalogue=settings["mcp_catalogue"] or "",
        allow=settings["mcp_allow"],
    )


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
            else {name: _cautious_server(server) for name, server in servers.items()}
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


def _is_lax(trust: Trust) -> bool:
    return trust.danger < Trust().danger or trust.effect != Trust().effect


def _cautious_server(server: ServerConfig) -> ServerConfig:
    """The server with nothing said of its tools that makes them less than they are without a word."""
    tools = {name: Trust() if _is_lax(trust) else trust for name, trust in server.tools.items()}
    return replace(server, trust=Trust() if _is_lax(server.trust) else server.trust, tools=tools)


def load_settings(folder: Path, env: Mapping[str, str]) -> Settings:
    """Read the settings that hold in `folder`: its files or those of the nearest folder above that has any.

    What weakens a safety setting holds only in a file that the user trusts as it is; variables are the user's
    own. Raises `UsageError` that names file and key for a setting that does not exist or cannot be read.
    """
    items = {
        key: Setting(key=key, value=one.default, source="default", meaning=one.meaning)
        for key, one in _KNOWN.items()
    }
    items["home"] = replace(items["home"], value=str(default_home(folder, env)))
    rules, ignored, trusted = Rulebook(), list[Weakening](), TrustedFiles.of(env)
    named = {key: name for key in _KNOWN if env.get(name := f"KESTREL_{key.upper()}")}
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
            if _KNOWN[key].weakens(setting.value, _KNOWN[key].default):
                found.append(Weakening(path=path, key=key, shown=setting.shown))
    rules = read_rules(table.get("rules", []), shown_path(path))
    found += [
        Weakening(path=path, key="rules", number=number, shown=str(rule))
        for number, rule in enumerate(rules, 1)
        if rule.verdict == "allow"
    ]
    servers: dict[str, ServerConfig] = {}
    with suppress(UsageError):  # told by `mcp_servers`, where servers are needed
        servers = _servers_of(path, table)
    for server in servers.values():
        if lax := [name for name, trust in {"*": server.trust, **server.tools}.items() if _is_lax(trust)]:
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
    if key not in _KNOWN:
        raise UsageError(
            f"{f'{source}: ' if source else ''}unknown setting {key!r}: "
            f"{did_you_mean(key, [*_KNOWN, 'rules', 'mcp'])}"
        )


def _setting(key: str, value: Any, source: str) -> Setting:
    check_key(key, source)
    known = _KNOWN[key]
    try:
        return Setting(key=key, value=known.read(value), source=source, meaning=known.meaning)
    except ValueError as error:
        msg = (
            f"{source}: setting {key!r}: "
            f"{error}{'' if repr(value) in str(error) else f' (found {one_line(repr(value))})'}"
        )
        raise UsageError(msg) from error
