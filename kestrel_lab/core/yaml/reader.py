"""YAML read strictly and safely, with the line of every value kept for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line

MAX_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 50
MAX_NODES: Final = 50_000

Where = tuple[str | int, ...]
"""Where a value stands in a document: `("scenarios", 2, "goal")`."""

Event = Any
"""A parser event; the stubs of PyYAML leave out which fields its events have."""

# libyaml is ten times faster; the pure Python parser gives the same events where it is not built in.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlFile:
    """A document as JSON values, and where each of them was written."""

    name: str
    """What error messages call the file."""
    value: Json
    lines: dict[Where, int]
    """The line, from 1, of each value; of the key, for a value of a mapping."""

    def place(self, path: Where = ()) -> str:
        """Where `path` is written, for the beginning of a message: `evals/smoke.yaml:12: scenarios[2].goal`."""
        position = f"{self.name}:{self.line(path)}"
        return f"{position}: {dotted(path)}" if path else position

    def line(self, path: Where) -> int:
        """The line of `path`; of the nearest value around it, when nothing is written at `path`."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def dotted(path: Where) -> str:
    """`path` as people write it: `scenarios[2].goal`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def read_yaml(path: Path, name: str | None = None) -> YamlFile:
    """Read the YAML file at `path`.

    Raises:
        UsageError: it cannot be read, is not UTF-8, or `parse_yaml` refuses it.
    """
    name = name or str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror or error}"
        raise UsageError(msg) from error
    if len(content) > MAX_BYTES:
        msg = f"{name}: is larger than {MAX_BYTES:,} bytes; split it"
        raise UsageError(msg)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{name}: is not UTF-8 text (byte {error.start + 1})"
        raise UsageError(msg) from error
    return parse_yaml(text, name)


def parse_yaml(text: str, name: str) -> YamlFile:
    """Read one YAML document into JSON values.

    Plain scalars follow YAML 1.2: only `true` and `false` are booleans, `no`, `on` and dates stay text.
    Keys are always text.

    Raises:
        UsageError: for broken YAML, and for what a suite never needs and an attack does: anchors and
            aliases, tags, a key written twice, more than one document, more than `MAX_BYTES` bytes,
            `MAX_DEPTH` levels or `MAX_NODES` values. The message begins with the file and the line.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        msg = f"{name}: is larger than {MAX_BYTES:,} bytes; split it"
        raise UsageError(msg)
    builder = _Builder(name)
    try:
        value = builder.document(_events(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        msg = f"{name}:{line}: not valid YAML: {error.problem or error.context}"
        raise UsageError(msg) from error
    except yaml.YAMLError as error:
        msg = f"{name}: not valid YAML: {one_line(str(error), 200)}"
        raise UsageError(msg) from error
    return YamlFile(name=name, value=value, lines=builder.lines)


def yaml_problem(text: str) -> str:
    """Why `text` is no YAML; empty if it is, whatever tags, anchors and documents it has.

    Only the syntax is looked at: nothing is built, so an alias costs as little as it is written with. What lies behind
    `MAX_DEPTH` levels or `MAX_NODES` values is not looked at.
    """
    depth = nodes = 0
    anchors: set[str] = set()
    try:
        for event in _events(text):
            depth += isinstance(event, MappingStartEvent | SequenceStartEvent) - isinstance(event, MappingEndEvent | SequenceEndEvent)
            nodes += 1
            if depth > MAX_DEPTH or nodes > MAX_NODES:
                break
            anchor = getattr(event, "anchor", None)
            if isinstance(event, AliasEvent) and anchor not in anchors:
                return f"the alias *{anchor} has no anchor"
            if anchor is not None:
                anchors.add(anchor)
    except yaml.YAMLError as error:
        return " ".join(str(error).split())
    return ""


def _events(text: str) -> Iterator[Event]:
    loader = _LOADER(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


class _Builder:
    """Turns a stream of parser events into JSON values, and stops at the first thing that is refused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[Where, int] = {}
        self.nodes = 0

    def document(self, events: Iterator[Event]) -> Json:
        value: Json = None
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.refused(event, "a second document begins here; one file holds one")
            elif isinstance(event, MappingStartEvent | SequenceStartEvent | ScalarEvent | AliasEvent):
                value = self.node(event, events, ())
            elif isinstance(event, StreamEndEvent):
                break
        return value

    def node(self, event: Event, events: Iterator[Event], path: Where) -> Json:
        self.admit(event, path)
        self.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, MappingStartEvent):
            return self.mapping(events, path)
        if isinstance(event, SequenceStartEvent):
            return self.sequence(events, path)
        return self.scalar(event)

    def admit(self, event: Event, path: Where) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.refused(event, f"more than {MAX_NODES:,} values")
        if len(path) > MAX_DEPTH:
            raise self.refused(event, f"more than {MAX_DEPTH} levels deep")
        if isinstance(event, AliasEvent) or event.anchor is not None:
            raise self.refused(event, "anchors and aliases (&name, *name) are not supported; write the value out")
        if event.tag is not None:
            raise self.refused(event, f"tags such as {event.tag!r} are not supported")

    def mapping(self, events: Iterator[Event], path: Where) -> dict[str, Json]:
        found: dict[str, Json] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            key = self.key(event, path)
            if key in found:
                first = self.lines[(*path, key)]
                raise self.refused(event, f"{dotted((*path, key))}: the key is already on line {first}")
            self.lines[(*path, key)] = event.start_mark.line + 1
            found[key] = self.node(next(events), events, (*path, key))
        return found

    def key(self, event: Event, path: Where) -> str:
        self.admit(event, path)
        if not isinstance(event, ScalarEvent):
            raise self.refused(event, "a key must be text, not a list or mapping")
        if not event.value:
            raise self.refused(event, "a key is empty")
        return str(event.value)

    def sequence(self, events: Iterator[Event], path: Where) -> list[Json]:
        found: list[Json] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            found.append(self.node(event, events, (*path, len(found))))
        return found

    def scalar(self, event: Event) -> Json:
        text = str(event.value)
        if not event.implicit[0] or event.style in ("'", '"', "|", ">"):
            return text
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return text.lower() == "true"
        if _INTEGER.fullmatch(text):
            if len(text) > 300:
                raise self.refused(event, "a number of more than 300 digits; put it in quotes to make it text")
            return int(text) if text.lstrip("+-").isdecimal() else int(text, 0)
        if _NOT_FINITE.fullmatch(text):
            raise self.refused(event, f"{text!r} is not a finite number; put it in quotes to make it text")
        if _FLOAT.fullmatch(text):
            number = float(text)
            if number in (float("inf"), float("-inf")):
                raise self.refused(event, f"{one_line(text)!r} is too large for a number; put it in quotes to make it text")
            return number
        return text

    def refused(self, event: Event, why: str) -> UsageError:
        return UsageError(f"{self.name}:{event.start_mark.line + 1}: {why}")
