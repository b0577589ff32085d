"""The catalogue of MCP servers: entries in the form of the official registry's `server.json`, parsed as
untrusted input.

Names, versions and arguments are accepted only in forms that cannot mean anything else; texts are shown,
never followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.tools.tool_search import ToolDescription

Kind = Literal["pypi", "npm"]

OURS = "io.github.kestrel-lab/catalogue"
"""The key of `_meta` under which the shipped catalogue adds `licence`, `command` and `tools`."""
_MOST_CHARS, _MOST_ENTRIES = 64_000, 20_000
"""Characters of one entry, and entries of a catalogue."""
_MOST_WORDS = 20
"""Arguments of a server, and variables."""
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAMES = {
    "pypi": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"),
    "npm": re.compile(r"(?:@[a-z0-9][a-z0-9._-]{0,63}/)?[a-z0-9][a-z0-9._-]{0,98}"),
}
_VERSIONS = {
    "pypi": re.compile(
        r"(?:\d+!)?\d+(?:\.\d+)*(?:[-_.]?(?:a|b|rc|alpha|beta|post|dev)[-_.]?\d*)*(?:\+[A-Za-z0-9.]+)?",
        re.IGNORECASE,
    ),
    "npm": re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?"),
}
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_RULING = re.compile(
    r"(?:LD|DYLD|PYTHON|NODE|NPM|PIP|UV|GIT|BASH|KESTREL|XDG|SSL)(?:_.*|[A-Z]*)|PATH|HOME|SHELL|ENV|IFS|PS4|TMPDIR|PERL5\w*|RUBY\w*|JAVA\w*"
)
"""Environment variables that decide which programs run, and how."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
WORKSPACE = "{workspace}"
"""Placeholder for the run's folder in a server's arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A package in exactly one version, and the command line of its program."""

    kind: Kind
    name: str
    version: str
    sha256: str = ""
    """Hash of its file, if the entry has one."""
    command: str = ""
    """The name of its program; empty for the name of the package."""
    args: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Variables of our environment that the server needs."""
    settings: tuple[tuple[str, str], ...] = ()
    """Variables with values set by the entry."""

    @property
    def pin(self) -> str:
        """The package as people write it: `mcp-server-time==2026.10.19`, `npm:@scope/name==1.2.3`."""
        return f"{'' if self.kind == 'pypi' else self.kind + ':'}{self.name}=={self.version}"

    @property
    def program(self) -> str:
        """The name of the command that starts it."""
        return self.command or self.name.rpartition("/")[2]

    def as_json(self) -> dict[str, Json]:
        """Return every field, for an event or a file."""
        return cast("dict[str, Json]", loads(dumps(cast("Json", asdict(self)))))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Package:
        """Rebuild a package from its fields, or from its pin (`package`) and the other fields.

        Raises `UsageError` for a package that must not be installed, `KeyError` if a field is missing.
        """
        pin = (
            value["package"]
            if "package" in value
            else cls(kind=value["kind"], name=value["name"], version=value["version"]).pin
        )
        return replace(
            named_package(str(pin)),
            sha256=str(value.get("sha256", "")),
            command=str(value.get("command", "")),
            args=tuple(map(str, value.get("args", ()))),
            variables=tuple(map(str, value.get("variables", ()))),
            settings=tuple((str(name), str(setting)) for name, setting in value.get("settings", ())),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A server in a catalogue or registry."""

    name: str
    """Name in the registry's form, `io.github.somebody/server`."""
    description: str = ""
    version: str = ""
    package: Package | None = None
    """`None` if no package can be installed; `problem` says why."""
    problem: str = ""
    repository: str = ""
    licence: str = ""
    tools: tuple[str, ...] = ()
    """Its tools, as the catalogue lists them: `name: description`."""
    source: str = ""
    """The origin of the entry: `catalogue`, a file, or the address of a registry."""
    status: str = "active"
    hidden: bool = False
    """True if its texts have hidden or misleading characters."""

    def described(self) -> ToolDescription:
        """Return the entry as a document of the tool search."""
        called = self.package.name if self.package is not None else ""
        return ToolDescription(
            name=self.name,
            description=self.description,
            parameters=" ".join(self.tools),
            server=f"{self.name} {called}",
        )


def read_entry(value: Json, source: str) -> Entry:
    """Return the entry of a `server.json`, or of a registry's answer around one.

    Raises `ValueError` for anything else. If its package must not be installed, the entry has a `problem`.
    """
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    around = value.get("_meta")
    server = value["server"] if isinstance(value.get("server"), dict) else value
    assert isinstance(server, dict)
    name = server.get("name")
    if not isinstance(name, str) or not _SERVER.fullmatch(name):
        raise ValueError(f"its name does not have the form namespace/server: {one_line(str(name), 60)!r}")
    meta = server.get("_meta")
    ours = meta.get(OURS) if isinstance(meta, dict) else None
    ours = ours if isinstance(ours, dict) else {}
    description = _text(server.get("description"))
    tools = tuple(_text(tool) for tool in _list(ours.get("tools")))[:100]
    package, problem = _package(server, _text(ours.get("command")))
    repository = server.get("repository")
    return Entry(
        name=name,
        description=one_line(description, 400),
        version=one_line(_text(server.get("version")), 40),
        package=package,
        problem=problem,
        repository=one_line(_text(repository.get("url")) if isinstance(repository, dict) else "", 200),
        licence=one_line(_text(ours.get("licence")), 40),
        tools=tuple(one_line(tool, 200) for tool in tools),
        source=source,
        status=_status(server, around),
        hidden=any(sanitize_text(text) != text.replace("\r\n", "\n") for text in (description, *tools)),
    )


def read_catalogue(path: Path | None = None) -> list[Entry]:
    """Return the entries of a file with one JSON object per line, or of the shipped catalogue; raises
    `UsageError` naming the line.
    """
    where = "catalogue" if path is None else str(path)
    try:
        text = (
            (files("kestrel_lab.mcp.registry") / "catalogue.jsonl").read_text("utf-8")
            if path is None
            else path.read_text("utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the catalogue of MCP servers {where} cannot be read: {error}") from error
    entries: dict[str, Entry] = {}
    for number, line in enumerate(split_lines(text)[:_MOST_ENTRIES], 1):
        if not line.strip():
            continue
        try:
            if len(line) > _MOST_CHARS:
                raise ValueError(f"it has more than {_MOST_CHARS:,} characters")
            entry = read_entry(loads(line), where)
        except ValueError as error:
            raise UsageError(
                f"{where}, line {number}: this is not an entry of an MCP server: {error}"
            ) from error
        entries.setdefault(entry.name, entry)
    return list(entries.values())


def read_entries(values: Iterable[Json], source: str) -> list[Entry]:
    """Return the valid entries of `values`; a registry may contain anything else."""
    found: dict[str, Entry] = {}
    for value in values:
        try:
            if len(json.dumps(value)) > _MOST_CHARS:
                continue
            entry = read_entry(value, source)
        except (ValueError, RecursionError):
            continue
        found.setdefault(entry.name, entry)
    return list(found.values())


def named_package(text: str) -> Package:
    """Return the package of `NAME==VERSION` or `npm:NAME==VERSION`; raises `UsageError` for anything else."""
    kind = "npm" if text.startswith("npm:") else "pypi"
    name, pinned, version = text.removeprefix("npm:").partition("==")
    problem = (
        _name_problem(kind, name, version)
        if pinned
        else f"it has no version: write {one_line(text, 60)}==VERSION"
    )
    if problem:
        raise UsageError(f"{one_line(text, 80)!r} is not installed: {problem}")
    return Package(kind=cast("Kind", kind), name=name, version=version)


def _package(server: Mapping[str, Json], command: str) -> tuple[Package | None, str]:
    """Return the first package that can be installed, or why none can."""
    problems: list[str] = []
    for given in _list(server.get("packages")):
        if not isinstance(given, dict):
            continue
        try:
            return _read_package(given, command), ""
        except ValueError as error:
            problems.append(str(error))
    remote = " it is offered as a remote service only" if server.get("remotes") else " it names no package"
    return None, "; ".join(problems) or remote.strip()


def _read_package(given: Mapping[str, Json], command: str) -> Package:
    kind, name, version = (
        _text(given.get("registryType")),
        _text(given.get("identifier")),
        _text(given.get("version")),
    )
    if kind not in _NAMES:
        raise ValueError(
            f"a package of type {one_line(kind, 20) or 'unknown'} cannot be installed: only pypi and npm"
        )
    if problem := _name_problem(kind, name, version):
        raise ValueError(problem)
    transport = given.get("transport")
    if isinstance(transport, dict) and transport.get("type", "stdio") != "stdio":
        raise ValueError("it does not speak on standard input and output")
    if command and not _NAMES["pypi"].fullmatch(command):
        raise ValueError("its command is not a plain name")
    sha256 = _text(given.get("fileSha256"))
    if sha256 and not _SHA256.fullmatch(sha256):
        raise ValueError("its hash is not a SHA-256 hash")
    variables, settings = _variables(given)
    return Package(
        kind=cast("Kind", kind),
        name=name,
        version=version,
        sha256=sha256,
        command=command,
        args=_arguments(given),
        variables=variables,
        settings=settings,
    )


def _name_problem(kind: str, name: str, version: str) -> str:
    """Return the problem of a name or version; empty when both are unambiguous."""
    if not _NAMES[kind].fullmatch(name) or ".." in name:
        return f"{one_line(name, 60)!r} is not a package name of {kind}"
    if not version:
        return f"{name} has no version: only one exact version is installed"
    if len(version) > 64 or not _VERSIONS[kind].fullmatch(version):
        return f"{one_line(version, 40)!r} is not one exact version of {name}"
    return ""


def _arguments(given: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the arguments of the command: fixed values, and the run's folder for a required path."""
    words: list[str] = []
    for one in _list(given.get("packageArguments"))[:_MOST_WORDS]:
        if not isinstance(one, dict):
            continue
        value = _text(one.get("value")) or _text(one.get("default"))
        if not value and one.get("isRequired") is True:
            if one.get("format") != "filepath":
                wanted = one_line(_text(one.get("valueHint") or one.get("name")), 40)
                raise ValueError(f"it needs the argument {wanted}, which only you can give")
            value = WORKSPACE
        if not value:
            continue
        flag = _text(one.get("name")) if one.get("type") == "named" else ""
        words += [word for word in (flag, value) if word]
    if any(sanitize_text(word) != word or "\n" in word or len(word) > 500 for word in words):
        raise ValueError("its arguments have hidden characters, or are too long")
    if any("{" in word and word != WORKSPACE for word in words):
        raise ValueError("its arguments have places that only you can fill")
    return tuple(words)


def _variables(given: Mapping[str, Json]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the variables that the server needs, and those that the entry sets."""
    wanted: list[str] = []
    settings: list[tuple[str, str]] = []
    for one in _list(given.get("environmentVariables"))[:_MOST_WORDS]:
        if not isinstance(one, dict):
            continue
        name, value = _text(one.get("name")), _text(one.get("value")) or _text(one.get("default"))
        needed = one.get("isRequired") is True or one.get("isSecret") is True
        if not needed and not value:
            continue
        if not _VARIABLE.fullmatch(name) or _RULING.fullmatch(name):
            raise ValueError(f"it wants to set the variable {one_line(name, 40)!r}, which is not its own")
        if one.get("isRequired") is True and not value:
            wanted.append(name)
        elif value and sanitize_text(value) == value and "$" not in value and len(value) <= 500:
            settings.append((name, value))
    return tuple(wanted), tuple(settings)


def _status(server: Mapping[str, Json], around: Json) -> str:
    found: list[Json] = [server.get("status")]
    for meta in (around, server.get("_meta")):
        for key, said in meta.items() if isinstance(meta, dict) else ():
            if key.endswith("/official") and isinstance(said, dict):
                found.append(said.get("status"))
    return next(
        (one_line(word, 20) for word in found if isinstance(word, str) and word != "active"), "active"
    )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
