"""The configuration of an MCP server: its command or address, its sandbox, and the trust in its tools."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from kestrel_lab.core.calls import Danger, Effect
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.permissions.policy import danger_named
from kestrel_lab.tools.sandbox.levels import Level, Sandbox, parse_level
from kestrel_lab.tools.shell.environment import looks_secret

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]|_(?!_)){0,31}", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SHARED_KEYS = frozenset(
    {
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "headers",
        "type",
        "sandbox",
        "at_least",
        "network",
        "read",
        "write",
    }
)
"""Keys of `.mcp.json` that programs share, and the sandbox keys, which a person sees before approving."""
_TRUST_KEYS = ("danger", "effect", "untrusted", "content")
_EFFECTS: tuple[Effect, ...] = get_args(Effect)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """A person's statements about a tool.

    The server's own annotations are separate, see `mcp.approvals.Definition.says`.
    """

    danger: Danger = Danger.MEDIUM
    effect: Effect = "opaque"
    untrusted: bool = True
    """True if answers may contain text by others. Only a server without network may be declared trusted."""
    content: tuple[str, ...] = ()
    """Arguments that bear no authority, see `tools.tool.Tool.content`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OAuth:
    """Login for a server at an address; if empty, a person logs in and the client registers itself."""

    client_id: str = ""
    """The client that was registered by hand; for client credentials always."""
    client_secret: str = ""
    private_key: str = ""
    """A key in PEM form, in place of a secret (`private_key_jwt`)."""
    algorithm: str = "ES256"
    """Signature algorithm of the key."""
    client_credentials: bool = False
    """True if a program logs in by itself, without a person."""
    issuer: str = ""
    """The authorisation server that the client belongs to; its credentials are sent to no other."""
    scope: str = ""
    client_metadata_url: str = ""
    """The `https` address of a document that describes the client, for servers that take one as its id."""
    id_token: str = ""
    """A token of a company's identity provider, which is exchanged for one of the server (enterprise-managed
    authorization, SEP-990).
    """
    id_endpoint: str = ""
    """The address at which the identity provider exchanges it."""
    id_client: str = ""
    """The client that the identity provider issued it to."""
    port: int = 0
    """The port of the redirect address `http://127.0.0.1:PORT/callback`; 0 for any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    """A folder that must not have changed since installation: see `mcp.registry.installed_servers`."""

    folder: str
    tree: str
    """The hash of its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """A configured server; variables of the environment are not yet filled in."""

    name: str
    command: str = ""
    """The program; empty for a server at a `url`."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables besides a few harmless ones; `${NAME}` is replaced by one of ours."""
    cwd: str = ""
    url: str = ""
    """The address of a server that speaks streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict)
    oauth: OAuth = OAuth()
    trust: Trust = Trust()
    tools: Mapping[str, Trust] = field(default_factory=dict)
    """Tools with another trust."""
    only: tuple[str, ...] | None = None
    """The tools to offer; `None` for all."""
    enabled: bool = True
    sandbox: Sandbox | None = None
    """Its sandbox, of which only the level counts; `None` for the lab's level."""
    at_least: Level = Level.S0
    """The lowest sandbox level at which it is started."""
    network: bool = False
    """True if it may use the network, local services included."""
    read: tuple[str, ...] = ()
    """Readable paths besides its program, its folder, and paths in arguments and variables."""
    write: tuple[str, ...] = ()
    """Paths it may write."""
    timeout_s: float = 60.0
    """Most seconds of a call."""
    start_timeout_s: float = 20.0
    problem: str = ""
    """Why its table is invalid; such a server is not `enabled`."""
    source: str = ""
    """The file of its table; empty for a server given by code."""
    seal: Seal | None = None
    """The seal of its installation; `None` for a server that kestrel did not install."""

    @property
    def shown(self) -> str:
        """The whole command or address as configured; values that look secret are not shown."""
        if self.url:
            return self.url
        given = [
            f"{name}={'…' if looks_secret(name) and not _VARIABLE.search(value) else value}"
            for name, value in self.env.items()
        ]
        plain = re.compile(r"[\w@%+=:,./-]+").fullmatch
        words = " ".join(
            word if plain(word) else json.dumps(word, ensure_ascii=False)
            for word in (*given, self.command, *self.args)
        )
        notes = [*([f"in {self.cwd}"] if self.cwd else []), *self._freedoms]
        return f"{words}  ({'; '.join(notes)})" if notes else words

    @property
    def _freedoms(self) -> list[str]:
        """Its extra permissions, in words."""
        words = ["without a sandbox"] if self.sandbox is not None and self.sandbox.level is Level.S0 else []
        words += ["with network"] if self.network else []
        words += [
            f"answers of {name} are its own"
            for name, trust in (("all tools", self.trust), *self.tools.items())
            if not trust.untrusted
        ]
        return words + [
            f"{verb} {', '.join(places)}"
            for verb, places in (("reads", self.read), ("writes", self.write))
            if places
        ]

    @property
    def key(self) -> str:
        """Hash of the command or address and all that changes it; a path in a command adds its folder."""
        bound = os.sep in self.command or any(os.sep in word or Path(word).exists() for word in self.args)
        place = str(Path(self.cwd or ".").resolve()) if self.cwd or bound else ""
        # Left out when empty, so that older approvals stay valid.
        freedoms = self._freedoms
        sealed = () if self.seal is None else (self.seal.tree,)
        login = [asdict(self.oauth)] if self.oauth != OAuth() else []
        more = (*sealed, *([freedoms] if freedoms else []), *login)
        return content_key(
            self.name,
            self.command,
            list(self.args),
            dict(self.env),
            place,
            self.url,
            dict(self.headers),
            *more,
        )

    def trust_in(self, tool: str) -> Trust:
        """Return the trust in `tool`."""
        return self.tools.get(tool, self.trust)

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Return `env` with our variables filled in; raises `UsageError` for one that is not set."""
        return {name: self._filled(value, ours) for name, value in self.env.items()}

    def filled_headers(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Return `headers` with our variables filled in; raises `UsageError` for one that is not set."""
        return {name: self._filled(value, ours) for name, value in self.headers.items()}

    def filled_oauth(self, ours: Mapping[str, str]) -> OAuth:
        """Return `oauth` with our variables filled in; raises `UsageError` for one that is not set."""
        known, fill = self.oauth, partial(self._filled, ours=ours)
        key, token = fill(known.private_key), fill(known.id_token)
        return replace(
            known,
            client_id=fill(known.client_id),
            client_secret=fill(known.client_secret),
            private_key=key,
            id_token=token,
        )

    def _filled(self, text: str, ours: Mapping[str, str]) -> str:
        def put(found: re.Match[str]) -> str:
            value = ours.get(found[1], found[2])
            if value is None:
                raise UsageError(
                    f"MCP server {self.name!r} needs the environment variable {found[1]}, which is not set"
                )
            return value

        return _VARIABLE.sub(put, text)


def read_server(name: str, table: object, source: str = "") -> ServerConfig:
    """Return the server of a table; raises `UsageError` that names file, server and key."""
    where = f"{source}: MCP server {name!r}" if source else f"MCP server {name!r}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: a name has up to 32 letters, digits, - and _, no two _ in a row")
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: must be a table with a command or a url")
    kind = table.get("type", "")
    if kind not in ("", "stdio", "http", "streamable-http"):
        raise UsageError(
            f"{where}: unknown type {kind!r}: stdio or http; the older sse transport is not supported"
        )
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in (*_TRUST_KEYS, "type"):
            continue
        if key not in _READ:
            raise UsageError(
                f"{where}: unknown key {key!r}: {did_you_mean(key, [*_READ, *_TRUST_KEYS, 'type'])}"
            )
        try:
            values[key] = _READ[key](value)
        except ValueError as error:
            found = "" if key == "oauth" else f" (found {value!r})"  # it may hold a secret
            raise UsageError(f"{where}: {key}: {error}{found}") from error
    if bool(values.get("command")) == bool(values.get("url")) or ("oauth" in values and "url" not in values):
        raise UsageError(
            f"{where}: give a command to start, or the url of a running server, which may have oauth: "
            "one of them"
        )
    trust = _trust(table, Trust(), where)
    tools = {
        tool: _trust(own, trust, f"{where}: tool {tool!r}") for tool, own in values.pop("tools", {}).items()
    }
    made = ServerConfig(name=name, source=source, trust=trust, tools=tools, **values)
    if (made.url or made.network or made.at_least < Level.S1) and not all(
        one.untrusted for one in (trust, *tools.values())
    ):
        raise UsageError(
            f"{where}: untrusted = false is for a command without network that runs in a sandbox only: "
            'say at_least = "S1", and no network'
        )
    return made


def cautious_server(server: ServerConfig) -> ServerConfig:
    """The server with nothing said of its tools that makes them less than they are without a word."""
    tools = {name: Trust() if weakens_trust(trust) else trust for name, trust in server.tools.items()}
    return replace(server, trust=Trust() if weakens_trust(server.trust) else server.trust, tools=tools)


def weakens_trust(trust: Trust) -> bool:
    """Return whether a table calls tools less dangerous than they are without a word."""
    return trust.danger < Trust().danger or trust.effect != Trust().effect


def read_mcp_json(path: Path) -> dict[str, ServerConfig]:
    """Return the servers of a `.mcp.json`, which other programs write too; none if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        servers = json.loads(text)["mcpServers"]
        return {name: _foreign_server(name, table, str(path)) for name, table in servers.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f'{path} is not of the form {{"mcpServers": {{"NAME": {{"command": …}}}}}}: '
            f"{type(error).__name__}: {error}"
        ) from error


def _foreign_server(name: str, table: Mapping[str, Json], source: str) -> ServerConfig:
    """Return a server of another program's file: unknown keys are ignored, and an invalid table gives a
    server with a `problem`.
    """
    known = {key: value for key, value in table.items() if key in _SHARED_KEYS}
    try:
        return read_server(
            name, known | ({"enabled": False} if table.get("disabled") is True else {}), source
        )
    except UsageError as error:
        return ServerConfig(name=name, source=source, enabled=False, problem=str(error))


def _trust(table: object, otherwise: Trust, where: str) -> Trust:
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: must be a table with danger or effect")
    danger, effect = table.get("danger"), table.get("effect", otherwise.effect)
    if effect not in _EFFECTS:
        raise UsageError(f"{where}: unknown effect {effect!r}: {did_you_mean(str(effect), _EFFECTS)}")
    untrusted, content = (
        table.get("untrusted", otherwise.untrusted),
        table.get("content", list(otherwise.content)),
    )
    if (
        not isinstance(untrusted, bool)
        or not isinstance(content, list)
        or not all(isinstance(one, str) for one in content)
    ):
        raise UsageError(
            f"{where}: untrusted must be true or false, and content a list of names of arguments"
        )
    danger = otherwise.danger if danger is None else danger_named(str(danger))
    return Trust(danger=danger, effect=cast("Effect", effect), untrusted=untrusted, content=tuple(content))


def _require(value: Any, holds: bool, wanted: str) -> Any:
    if not holds:
        raise ValueError(f"must be {wanted}")
    return value


def _text(value: Any) -> str:
    return str(_require(value, isinstance(value, str) and "\0" not in value, "a text"))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _require(value, isinstance(value, list | tuple), "a list of texts")))


def _pairs(value: Any) -> dict[str, str]:
    return {
        _text(key): _text(item)
        for key, item in _require(value, isinstance(value, Mapping), "a table of texts").items()
    }


def _address(value: Any) -> str:
    if not (text := _text(value)).startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return text


def _seconds(value: Any) -> float:
    holds = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6
    return float(_require(value, holds, "a positive number"))


def _yes_or_no(value: Any) -> bool:
    return bool(_require(value, isinstance(value, bool), "true or false"))


def _oauth(value: Any) -> OAuth:
    _require(value, isinstance(value, Mapping), "a table")
    known = {one.name: one for one in fields(OAuth)}
    for key, item in value.items():
        if key not in known:
            raise ValueError(f"has no key {key!r}: {did_you_mean(key, known)}")
        _require(
            item,
            type(item) is type(known[key].default),
            f"a table in which {key} is a {type(known[key].default).__name__}",
        )
    made = OAuth(**value)
    if made.client_credentials:
        _require(
            made,
            bool(made.client_id and made.issuer),
            "a table with client_id and issuer, where client_credentials is true",
        )
        _require(
            made,
            bool(made.client_secret) is not bool(made.private_key),
            "a table with client_secret or private_key, one of them",
        )
    if made.id_token:
        _require(
            made,
            all((made.client_id, made.client_secret, made.issuer, made.id_endpoint, made.id_client)),
            "a table with client_id, client_secret, issuer, id_endpoint and id_client, where it has an "
            "id_token",
        )
    return made


_READ: dict[str, Callable[[Any], Any]] = {
    "command": _text,
    "args": _texts,
    "env": _pairs,
    "cwd": _text,
    "url": _address,
    "headers": _pairs,
    "oauth": _oauth,
    "tools": lambda value: dict(
        _require(value, isinstance(value, Mapping), "a table with a table for each tool")
    ),
    "only": _texts,
    "enabled": _yes_or_no,
    "sandbox": lambda value: Sandbox.parse(_text(value)),
    "at_least": lambda value: parse_level(_text(value)) or Level.S1,
    "network": _yes_or_no,
    "read": _texts,
    "write": _texts,
    "timeout_s": _seconds,
    "start_timeout_s": _seconds,
}
