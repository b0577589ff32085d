"""Definitions of MCP tools, and the file of approved ones.

A definition that differs in any field from the approved one is another tool: it is not called before a person
approves it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, content_key, dumps
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.host.user import home_folder

if TYPE_CHECKING:
    from kestrel_lab.mcp.config import ServerConfig

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_MOST = 64_000
"""Characters of one definition."""
_MOST_TOOLS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A tool as its server defines it, with every field."""

    name: str
    fields: dict[str, Json]

    @property
    def pin(self) -> str:
        """A hash of the definition, independent of the order of its keys."""
        return content_key(self.fields)

    @property
    def description(self) -> str:
        """The description for models."""
        return str(self.fields.get("description") or self.fields.get("title") or self.name)

    @property
    def schema(self) -> dict[str, Json]:
        """The JSON Schema of the arguments."""
        found = self.fields.get("inputSchema")
        if not isinstance(found, dict):
            return {"type": "object", "properties": {}}
        return {
            key: value
            for key, value in found.items()
            if not (value is None and key in {"type", "properties", "required"})
        }

    @property
    def says(self) -> str:
        """What the server's MCP annotations promise: `only reads`, `stays closed` (reaches nobody else), or
        nothing.

        Part of the definition and its pin, so the person who approves the tool sees it. A tool marked
        destructive promises neither.
        """
        hints = self.fields.get("annotations")
        if not isinstance(hints, dict) or hints.get("destructiveHint") is True:
            return ""
        return (
            "only reads"
            if hints.get("readOnlyHint") is True
            else "stays closed"
            if hints.get("openWorldHint") is False
            else ""
        )


def problem_of(definition: Definition) -> str:
    """Return why a tool is never offered; empty for a good definition."""
    if not _NAME.fullmatch(definition.name) or ".." in definition.name:
        return "its name has other characters than letters, digits, _, - and ."
    text = dumps(definition.fields)
    if len(text) > _MOST:
        return f"its definition has {len(text):,} characters, more than {_MOST:,}"
    if hidden := _find_hidden_text(definition.fields):
        return f"its definition has hidden characters: {hidden}"
    schema = definition.schema
    required = schema.get("required", [])
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        return "its arguments are not an object"
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "its schema's required is not a list of names"
    return ""


def check_definitions(definitions: Iterable[Definition]) -> tuple[dict[str, Definition], dict[str, str]]:
    """Return the definitions that can be offered, by name, and why the others cannot."""
    kept: dict[str, Definition] = {}
    refused: dict[str, str] = {}
    for number, one in enumerate(definitions):
        shown = one_line(one.name, 60)
        if number >= _MOST_TOOLS:
            refused["…"] = f"the server has more than {_MOST_TOOLS} tools"
            break
        if one.name in kept:
            refused[shown] = "the server has two tools of that name; the first one counts"
        elif why := problem_of(one):
            refused[shown] = why
        else:
            kept[one.name] = one
    return kept, refused


def definition_diff(name: str, old: Definition | None, new: Definition | None) -> str:
    """Return the change from one definition to the other as a unified diff, with hidden characters shown."""

    def lines(one: Definition | None) -> list[str]:
        return (
            []
            if one is None
            else sanitize_text(
                json.dumps(one.fields, indent=1, sort_keys=True, ensure_ascii=False)
            ).splitlines()
        )

    return "\n".join(
        difflib.unified_diff(lines(old), lines(new), f"{name} (approved)", f"{name} (now)", lineterm="", n=1)
    )


@dataclass(frozen=True, slots=True)
class Approvals:
    """The user's approved servers and tools, in a file outside every project so that no project brings its
    own.
    """

    path: Path

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Approvals:
        """Return the user's file."""
        place = Path(env["XDG_CONFIG_HOME"]) if env.get("XDG_CONFIG_HOME") else home_folder() / ".config"
        return cls(place / "kestrel" / "mcp.json")

    def tools(self, server: ServerConfig) -> dict[str, Definition] | None:
        """Return the approved tools of `server`; `None` unless exactly this command or address was."""
        found = self._read().get(server.key)
        if not isinstance(found, dict) or not isinstance(found.get("tools"), dict):
            return None
        tools = cast("dict[str, dict[str, Json]]", found["tools"])
        return {name: Definition(name=name, fields=fields) for name, fields in tools.items()}

    def approve(self, server: ServerConfig, tools: Mapping[str, Definition]) -> None:
        """Approve `server` with `tools`, in place of an earlier approval."""
        kept = self._read()
        kept[server.key] = {
            "name": server.name,
            "what": server.shown,
            "tools": {name: one.fields for name, one in tools.items()},
        }
        self._write(kept)

    def withdraw(self, server: ServerConfig) -> bool:
        """Remove the approval of `server`; returns whether there was one."""
        kept = self._read()
        if kept.pop(server.key, None) is None:
            return False
        self._write(kept)
        return True

    def _read(self) -> dict[str, Json]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        # No file yet, or a user without a readable home folder: nothing is approved.
        except (
            FileNotFoundError,
            NotADirectoryError,
            PermissionError,
        ):
            return {}
        except ValueError as error:
            raise UsageError(
                f"{self.path} cannot be read ({error}): remove it and approve the MCP servers again"
            ) from error
        return cast("dict[str, Json]", content) if isinstance(content, dict) else {}

    def _write(self, content: dict[str, Json]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Readable by its owner only.
            number, name = tempfile.mkstemp(dir=self.path.parent, prefix=".mcp")
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written ({error.strerror}): set XDG_CONFIG_HOME to a folder of "
                "yours, approvals are kept there"
            ) from error
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
        os.replace(name, self.path)


def _find_hidden_text(value: Json) -> str:
    """Return the first text in `value` with hidden or misleading characters."""
    if isinstance(value, str):
        return "" if sanitize_text(value) == value.replace("\r\n", "\n") else one_line(value, 80)
    if isinstance(value, dict):
        return next(
            (
                found
                for key, item in value.items()
                if (found := _find_hidden_text(key) or _find_hidden_text(item))
            ),
            "",
        )
    if isinstance(value, list):
        return next((found for item in value if (found := _find_hidden_text(item))), "")
    return ""
