"""The table of macros: every version of every macro of a workspace."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass

from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.eventlog.store import SessionStore

_COLUMNS = "id, workspace_id, name, description, schema_json, steps_json, version, enabled, created_at, updated_at"


@dataclass(frozen=True, kw_only=True, slots=True)
class MacroRow:
    """One version of one macro."""

    id: str
    workspace: str
    name: str
    description: str
    schema: dict[str, Json]
    steps: list[dict[str, Json]]
    version: int
    enabled: bool
    created_at: float
    updated_at: float


def macro_rows(store: SessionStore, workspace: str) -> list[MacroRow]:
    """Every version of every macro of `workspace`, by name, the oldest version first."""
    rows = store.query(f"SELECT {_COLUMNS} FROM macros WHERE workspace_id = ? ORDER BY name, version", (workspace,))
    return [
        MacroRow(
            id=row[0],
            workspace=row[1],
            name=row[2],
            description=row[3],
            schema=json.loads(row[4]),
            steps=json.loads(row[5]),
            version=row[6],
            enabled=bool(row[7]),
            created_at=row[8],
            updated_at=row[9],
        )
        for row in rows
    ]


def add_macro(
    store: SessionStore,
    workspace: str,
    name: str,
    description: str,
    schema: dict[str, Json],
    steps: list[dict[str, Json]],
    *,
    enabled: bool,
) -> None:
    """Store the next version of a macro and wait until it is on disk."""
    now = time.time()
    sql = (
        f"INSERT INTO macros({_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?, coalesce(max(version), 0) + 1, ?, ?, ?"
        " FROM macros WHERE workspace_id = ? AND name = ?"
    )
    values = (str(uuid.uuid4()), workspace, name, description, dumps(schema), dumps(steps), int(enabled), now, now, workspace, name)
    store.execute(sql, values, f"macro {name!r}").result()


def enable_macro(store: SessionStore, workspace: str, name: str, *, enabled: bool) -> None:
    """Set whether a macro is offered, and wait until that is on disk."""
    sql = "UPDATE macros SET enabled = ?, updated_at = ? WHERE workspace_id = ? AND name = ? AND enabled IS NOT ?"
    store.execute(sql, (int(enabled), time.time(), workspace, name, int(enabled)), f"macro {name!r}").result()


def delete_macro(store: SessionStore, workspace: str, name: str) -> None:
    """Delete every version of a macro and wait until that is on disk."""
    store.execute("DELETE FROM macros WHERE workspace_id = ? AND name = ?", (workspace, name), f"macro {name!r}").result()
