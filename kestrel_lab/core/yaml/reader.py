"""Strict, safe reading of YAML files, with the line of every value for error messages.

PyYAML composes the nodes, which carry their lines; a pass over the parser's events before it refuses what
would cost much or build objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line

MAX_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 50
MAX_NODES: Final = 50_000

Where = tuple[str | int, ...]
"""The path of a value in a document: `("scenarios", 2, "goal")`."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml is ten times faster, where it is built in
    """YAML 1.2 tags: only `true` and `false` are booleans; `no`, `on` and dates stay text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _tag, _first, _pattern in (
    ("null", ["~", "n", "N", ""], r"(~|null|Null|NULL|)\Z"),
    ("bool", [*"tTfF"], r"(true|True|TRUE|false|False|FALSE)\Z"),
    ("int", [*"-+0123456789"], r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    ("not finite", [*"-+."], r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"),
    ("float", [*"-+.0123456789"], r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _first)


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlFile:
    """A document as JSON values, with the line of each of them."""

    name: str
    """The name of the file in error messages."""
    value: Json
    lines: dict[Where, int]
    """The line, from 1, of each value; of the key, for a value of a mapping."""

    def place(self, path: Where = ()) -> str:
        """Return the place of `path` as messages begin with it: `evals/smoke.yaml:12: scenarios[2].goal`."""
        position = f"{self.name}:{self.line(path)}"
        return f"{position}: {dotted_path(path)}" if path else position

    def line(self, path: Where) -> int:
        """Return the line of `path`, or of the nearest value around it when nothing is written at `path`."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def dotted_path(path: Where) -> str:
    """Return `path` as people write it: `scenarios[2].goal`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def read_yaml(path: Path, name: str | None = None, *, aliases: bool = False) -> YamlFile:
    """Read the YAML file at `path`; with `aliases` also one that uses anchors, as files of others do.

    Raises:
        UsageError: it cannot be read, is not UTF-8, or `parse_yaml` refuses it.
    """
    name = name or str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        # A cut may fall within a character; `parse_yaml` refuses what is too large.
        text = content.decode("utf-8-sig", "strict" if len(content) <= MAX_BYTES else "replace")
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is not UTF-8 text (byte {error.start + 1})") from error
    return parse_yaml(text, name, aliases=aliases)


def parse_yaml(text: str, name: str, *, aliases: bool = False) -> YamlFile:
    """Read one YAML document into JSON values.

    Plain scalars follow YAML 1.2: only `true` and `false` are booleans, `no`, `on` and dates stay text.
    Keys are always text. With `aliases` every alias is replaced by its value, `<<` merges mappings, and the
    bounds apply to the result.

    Raises:
        UsageError: for broken YAML, and for what a suite never needs and an attack does: anchors and aliases,
            tags, a key written twice, more than one document, more than `MAX_BYTES` bytes, `MAX_DEPTH` levels
            or `MAX_NODES` values. The message begins with the file and the line.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"{name}: is larger than {MAX_BYTES:,} bytes; split it")
    try:
        _check(text, name, aliases=aliases)
        node = yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{name}:{line}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not valid YAML: {one_line(str(error), 200)}") from error
    lines: dict[Where, int] = {}
    value = None if node is None else _Values(name, lines, merges=aliases).value(node, ())
    return YamlFile(name=name, value=value, lines=lines)


def _nodes(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yield each event that begins a document or a node, with the number of nodes so far and the depth."""
    nodes = depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, NodeEvent | DocumentStartEvent):
            nodes += isinstance(event, NodeEvent)
            yield nodes, depth, event
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)


def _check(text: str, name: str, *, aliases: bool) -> None:
    """Raise `UsageError` for what is not supported, before anything is built."""
    documents = 0
    for nodes, depth, event in _nodes(text):
        documents += isinstance(event, DocumentStartEvent)
        if documents > 1:
            raise _yaml_error(name, event, "a second document begins here; one file holds one")
        if nodes > MAX_NODES:
            raise _yaml_error(name, event, f"more than {MAX_NODES:,} values")
        if depth > MAX_DEPTH:
            raise _yaml_error(name, event, f"more than {MAX_DEPTH} levels deep")
        if getattr(event, "anchor", None) is not None and not aliases:
            raise _yaml_error(
                name, event, "anchors and aliases (&name, *name) are not supported; write the value out"
            )
        if getattr(event, "tag", None) is not None:
            raise _yaml_error(name, event, f"tags such as {event.tag!r} are not supported")


class _Values:
    """Turns the nodes of one document into JSON values and notes their lines."""

    def __init__(self, name: str, lines: dict[Where, int], *, merges: bool) -> None:
        self._name, self._lines, self._merges, self._made = name, lines, merges, 0

    def value(self, node: yaml.Node, path: Where) -> Json:
        # An alias may stand for what holds it, or for a list of aliases of lists of aliases.
        self._made += 1
        if self._made > MAX_NODES or len(path) > MAX_DEPTH:
            raise _yaml_error(
                self._name, node, f"its aliases make more than {MAX_NODES:,} values or {MAX_DEPTH} levels"
            )
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Where) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _yaml_error(self._name, key, "a key must be text, not a list or mapping")
            if not (name := str(key.value)):
                raise _yaml_error(self._name, key, "a key is empty")
            where = (*path, name)
            if name == "<<" and self._merges:
                merged = self.value(value, where)
                for one in reversed(merged if isinstance(merged, list) else [merged]):
                    found |= one if isinstance(one, dict) else {}
                continue
            if name in found and where in self._lines:
                raise _yaml_error(
                    self._name, key, f"{dotted_path(where)}: the key is already on line {self._lines[where]}"
                )
            self._lines[where] = key.start_mark.line + 1
            found[name] = self.value(value, where)
        return found

    def _scalar(self, node: yaml.Node) -> Json:
        text = str(node.value)
        match node.tag:
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" if len(text) > 300:
                raise _yaml_error(
                    self._name, node, "a number of more than 300 digits; put it in quotes to make it text"
                )
            case "int":
                return int(text) if text.lstrip("+-").isdecimal() else int(text, 0)
            case "float" if abs(number := float(text)) < float("inf"):
                return number
            case "float":
                raise _yaml_error(
                    self._name,
                    node,
                    f"{one_line(text)!r} is too large for a number; put it in quotes to make it text",
                )
            case "not finite":
                raise _yaml_error(
                    self._name, node, f"{text!r} is not a finite number; put it in quotes to make it text"
                )
        return text


def _yaml_error(name: str, where: Any, why: str) -> UsageError:
    return UsageError(f"{name}:{where.start_mark.line + 1}: {why}")
