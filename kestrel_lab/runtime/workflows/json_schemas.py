"""JSON Schemas of workflow and agent files, generated from their pydantic models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.runtime.workflows.models import AgentFileEntry, AnyWorkflow

FOLDER: Final = Path(__file__).parents[2] / "schemas"
"""The folder of the shipped schemas, `NAME.schema.json`."""
_KINDS: Final[dict[str, Any]] = {
    "workflow": Annotated[AnyWorkflow, Field(discriminator="kind")],
    "agent": AgentFileEntry,
}
NAMES: Final = tuple(_KINDS)


def schema_text(name: str) -> str:
    """Return the JSON Schema of a kind of file as indented JSON; raises `UsageError` for an unknown name."""
    if name not in _KINDS:
        raise UsageError(f"there is no schema {name!r}; {nearest(name, _KINDS)}")
    return written(name, _KINDS[name])


def written(name: str, kind: Any) -> str:
    """Return the JSON Schema of the pydantic type `kind`, called `name`, as indented JSON."""
    found = TypeAdapter(kind).json_schema(by_alias=True)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"kestrel_lab {name}", **_bare(found)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _bare(value: Any) -> Any:
    """Return a schema without the titles that only repeat the names of keys."""
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if key != "title" or not isinstance(item, str)}
    return value
