"""A permission rule as a file states it, and whether it applies to a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from kestrel_lab.core.calls import Call
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json, loads_toml
from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.permissions.argument_patterns import (
    ValuePattern,
    address_pattern,
    path_pattern,
    plain_pattern,
)
from kestrel_lab.permissions.command_patterns import CommandPattern, Match
from kestrel_lab.permissions.policy import VERDICTS, Verdict
from kestrel_lab.shell_syntax.parser import read_line

_KEYS = ("tool", "verdict", "command", "path", "url", "args", "reason")
_KINDS = ("command", "path", "url")
_NEVER_ALLOWED = frozenset({"eval", "source", ".", "exec", "trap", "alias", "set", "enable", "hash"})
_PLURAL = {"path": "paths", "url": "urls"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A verdict for calls of some tools, optionally restricted by patterns of arguments."""

    tool: str
    """A name, with `*` and `?` for any signs and any sign: `write_file`, `http_*`, `time:*`."""
    verdict: Verdict
    reason: str
    commands: Mapping[str, tuple[CommandPattern, ...]]
    """Patterns by argument for command lines; one must match."""
    values: Mapping[str, tuple[ValuePattern, ...]]
    """Patterns by argument for other values; one must match."""
    source: str
    """Where the rule is written: `rule 2 of kestrel.toml`."""
    table: Mapping[str, Json]
    """As it was written."""

    def __str__(self) -> str:
        """Return the rule in one line."""
        patterns = [(name, pattern.text) for name, commands in self.commands.items() for pattern in commands]
        patterns += [(name, value.text) for name, values in self.values.items() for value in values]
        conditions = ", ".join(
            f"`{text}`" if name in _KINDS else f"{name} `{text}`" for name, text in patterns
        )
        return f"{self.verdict} {self.tool}{f' {conditions}' if conditions else ''}"

    @property
    def why(self) -> str:
        """The rule in one line, with the reason that its author gave."""
        return f"{self}{f': {self.reason}' if self.reason else ''}"

    def names(self, tool: str) -> bool:
        """Return whether it applies to that tool."""
        return fnmatchcase(tool, self.tool)

    def concerns(self, call: Call, root: str) -> Match:
        """Return whether an asking or denying rule applies: one matching part of the call is enough.

        `MAYBE` if part of the call is unknown before it runs.
        """
        # All conditions must hold, so the weakest match decides; a rule without any applies to each call.
        found = Match.YES
        for name, commands in self.commands.items():
            text = _argument(call, name)
            line = read_line(text) if isinstance(text, str) else None
            fits = [
                pattern.concerns(command)
                for command in (line.commands if line else ())
                for pattern in commands
            ]
            possible = [
                pattern.concerns(command)
                for command in (line.possible if line else ())
                for pattern in commands
            ]
            # The program may or may not run these words, so no match among them is certain.
            fits += [min(Match.MAYBE, match) for match in possible]
            found = min(found, max(fits, default=Match.NO))
        for name, values in self.values.items():
            value = _argument(call, name)
            found = min(
                found, Match.NO if value is None else max(pattern.concerns(value, root) for pattern in values)
            )
        return found

    def allows_values(self, call: Call, root: str) -> bool:
        """Return whether all arguments that are no command lines fit the patterns of an allowing rule."""
        return all(
            (value := _argument(call, name)) is not None and _all_fit(value, patterns, root)
            for name, patterns in self.values.items()
        )


def _argument(call: Call, name: str) -> Json:
    """Return an argument; for `path` and `url` also of the plural name."""
    value = call.args.get(name)
    return value if value is not None else call.args.get(_PLURAL.get(name, name))


def _all_fit(value: Json, patterns: Sequence[ValuePattern], root: str) -> bool:
    """Return whether each of several values fits one of the patterns."""
    if isinstance(value, list):
        return bool(value) and all(_all_fit(one, patterns, root) for one in value)
    return any(pattern.allows(value, root) for pattern in patterns)


def read_rules(tables: object, source: str) -> tuple[Rule, ...]:
    """Rules from the tables of a file; raises `UsageError` that names file, rule and key."""
    if (
        isinstance(tables, str)
        or not isinstance(tables, Sequence)
        or not all(isinstance(table, Mapping) for table in tables)
    ):
        raise UsageError(f"{source}: write rules as [[rules]] tables, each with a tool and a verdict")
    return tuple(read_rule(table, f"rule {number} of {source}") for number, table in enumerate(tables, 1))


def read_rules_file(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a TOML file that contains only `[[rules]]`; raises `UsageError`."""
    where = shown_path(path)
    try:
        content = loads_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{where} is not TOML: {error}") from error
    except OSError as error:
        raise UsageError(
            f"{where}: {(error.strerror or 'refused').lower()}: name a file with [[rules]]"
        ) from error
    if unknown := [key for key in content if key != "rules"]:
        raise UsageError(
            f"{where}: unknown key {unknown[0]!r}: {did_you_mean(unknown[0], ['rules'])}; a file of "
            "rules holds [[rules]] tables only"
        )
    return read_rules(content.get("rules", []), where)


def read_rule(table: Mapping[str, Any], source: str) -> Rule:
    """Return one rule; raises `UsageError` that names `source` and the key."""
    _check(table, source)
    verdict = cast("Verdict", table["verdict"])
    more = table.get("args", {})
    if not isinstance(more, Mapping):
        msg = (
            f"{source}: key 'args' must be a table of argument names and patterns, e.g. args = {{ "
            f'branch = "main" }} (found {more!r})'
        )
        raise UsageError(msg)
    commands: dict[str, tuple[CommandPattern, ...]] = {}
    values: dict[str, tuple[ValuePattern, ...]] = {}
    for name, kind, wanted in [
        *((kind, kind, table[kind]) for kind in _KINDS if kind in table),
        *_arguments(more, source),
    ]:
        where = f"{source}: key {name!r}"
        if kind == "command":
            commands[name] = tuple(
                _read_or_refuse(where, CommandPattern.parse, text) for text in _texts(where, wanted)
            )
        elif kind:
            values[name] = tuple(_read_or_refuse(where, _READ[kind], text) for text in _texts(where, wanted))
        else:
            values[name] = tuple(plain_pattern(one) for one in _plain_values(where, wanted))
    if verdict == "allow" and (
        hopeless := {one.words[0] for found in commands.values() for one in found} & _NEVER_ALLOWED
    ):
        msg = (
            f"{source}: key 'command': {min(hopeless)} can do anything or changes what other commands "
            "do: no rule can allow it"
        )
        raise UsageError(msg)
    return Rule(
        tool=table["tool"].strip(),
        verdict=verdict,
        reason=table.get("reason", "").strip(),
        commands=commands,
        values=values,
        source=source,
        table=dict(table),
    )


def _check(table: Mapping[str, Any], source: str) -> None:
    """Raise `UsageError` for a key that there is not, and for one that every rule needs."""
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{source}: unknown key {key!r}: {did_you_mean(str(key), _KEYS)}")
    for key in ("tool", "verdict", "reason"):
        value = table.get(key, "")
        if not isinstance(value, str) or (key != "reason" and not value.strip()):
            raise UsageError(
                f"{source}: key {key!r} must be {'a text' if key == 'reason' else 'there, as a text'} "
                f"(found {value!r})"
            )
    if (verdict := table["verdict"]) not in VERDICTS:
        raise UsageError(f"{source}: unknown verdict {verdict!r}: {did_you_mean(verdict, VERDICTS)}")


_READ: dict[str, Callable[[str], ValuePattern]] = {"path": path_pattern, "url": address_pattern}


def _arguments(more: Mapping[str, Any], source: str) -> list[tuple[str, str, Any]]:
    """Name, kind and pattern of each argument in `args`; the kind is named by a table of one key."""
    found: list[tuple[str, str, Any]] = []
    for name, wanted in more.items():
        if not isinstance(wanted, Mapping):
            found.append((name, "", wanted))
            continue
        if len(wanted) != 1 or next(iter(wanted)) not in _KINDS:
            kind = str(next(iter(wanted), ""))
            raise UsageError(
                f"{source}: key 'args.{name}': write one of {', '.join(_KINDS)} with a pattern: "
                f"{did_you_mean(kind, _KINDS)}"
            )
        kind = next(iter(wanted))
        found.append((name, kind, wanted[kind]))
    return found


def _texts(where: str, wanted: object) -> list[str]:
    texts = [wanted] if isinstance(wanted, str) else wanted
    if (
        not isinstance(texts, list | tuple)
        or not texts
        or not all(isinstance(text, str) and text.strip() for text in texts)
    ):
        raise UsageError(f"{where} must be a pattern, or a list of some (found {wanted!r})")
    return [str(text).strip() for text in texts]


def _plain_values(where: str, wanted: object) -> list[str | float | bool]:
    several = wanted if isinstance(wanted, list | tuple) else [wanted]
    if not several or not all(isinstance(one, str | int | float) for one in several):
        raise UsageError(
            f"{where} must be a text, a number, true or false, or a list of some (found {wanted!r})"
        )
    return list(several)


def _read_or_refuse(where: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
