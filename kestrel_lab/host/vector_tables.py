"""The SQLite extension sqlite-vec: loads it into a connection for `vec0` tables of vectors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import apsw

MARGIN = 1.125
"""How far beyond the nearest candidates, in bits per square root of the width, others may still be among the
nearest vectors.

Over 100,000 vectors of 256 numbers, static word vectors of texts and random ones alike, this finds .99 and
more of the exact ten.
"""
_MOST_CANDIDATES = 4_096
"""sqlite-vec gives no more at once."""


def load_vectors(connection: apsw.Connection) -> str:
    """Load the extension into `connection`; return why it cannot be loaded, or an empty text."""
    try:
        connection.enable_load_extension(True)
        try:
            connection.load_extension(_extension())
        finally:
            connection.enable_load_extension(False)
    except (
        apsw.Error,
        AttributeError,
        ModuleNotFoundError,
    ) as error:  # SQLite may be built without extensions
        return str(error)
    return ""


def load_or_empty(connection: apsw.Connection) -> None:
    """Load the extension into `connection`; where that fails, empty the `vec0` tables that another machine
    made and drop their triggers.

    They can then be neither searched nor changed, and would keep the bits of vectors that are deleted from
    now on. They are filled anew where the extension can be loaded.
    """
    if not load_vectors(connection):
        return
    for (table,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE % USING vec0(%'"
    ).fetchall():
        triggers = "".join(f"DROP TRIGGER IF EXISTS {table}_{when};" for when in ("deleted", "changed"))
        connection.execute(
            f"{triggers} DELETE FROM {table}_rowids; DELETE FROM {table}_chunks; DELETE FROM "
            f"{table}_vector_chunks00"
        )


@cache
def load_problem() -> str:
    """Return why sqlite-vec cannot be loaded on this machine, or an empty text."""
    connection = apsw.Connection(":memory:")
    try:
        return load_vectors(connection)
    finally:
        connection.close()


@cache
def _extension() -> str:
    """The file of the extension; its package is found and not imported, for that costs milliseconds."""
    spec = find_spec("sqlite_vec")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package sqlite-vec is not installed: pip install sqlite-vec")
    return os.fspath(Path(spec.origin).with_name("vec0"))


def table_name(prefix: str, model: str) -> str:
    """Return the name of `model`'s `vec0` table; vectors of different models cannot be compared."""
    return f"{prefix}_{re.sub('[^a-z0-9]+', '_', model.lower())}"


def sign_bits(vectors: Any) -> list[bytes]:
    """Return the signs of each vector's numbers as the text of a `bit` column's value."""
    import numpy as np

    return [row.tobytes() for row in np.packbits(vectors > 0, axis=-1, bitorder="little")]


def candidate_rows(
    query: Callable[[str, Sequence[object]], list[tuple[Any, ...]]],
    table: str,
    vector: Any,
    top_k: int,
    where: str,
    bindings: Sequence[object],
) -> list[int]:
    """Return the row ids of a `vec0` table whose bits are like those of `vector`: enough of them to hold the
    `top_k` nearest.

    The condition `where` and its `bindings` are about the table's partition key and `rowid`. The nearest by
    bits come first, then all within `MARGIN` of them: two searches, because sqlite-vec's time for one grows
    with how many rows it may give and not with how many it does.
    """
    sql = f"SELECT rowid, distance FROM {table} WHERE bits MATCH vec_bit(?) AND k = ? AND {where}"
    wanted = sign_bits(vector[None])[0]
    first = query(sql, (wanted, min(top_k, _MOST_CANDIDATES), *bindings))
    if len(first) < top_k:
        return [row[0] for row in first]
    within = first[-1][1] + round(MARGIN * len(vector) ** 0.5)
    return [
        row[0] for row in query(f"{sql} AND distance <= ?", (wanted, _MOST_CANDIDATES, *bindings, within))
    ]
