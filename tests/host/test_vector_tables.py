"""Vectors in SQLite: the signs that tables hold, candidates by them, and what becomes of a table where the
extension cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import numpy as np
import pytest

from kestrel_lab.host import vector_tables
from kestrel_lab.host.vector_tables import (
    candidate_rows,
    load_or_empty,
    load_problem,
    load_vectors,
    sign_bits,
    table_name,
)

pytestmark = pytest.mark.skipif(bool(load_problem()), reason=load_problem())


@pytest.fixture
def table() -> Iterator[apsw.Connection]:
    """A table of eight vectors of 16 numbers, each with one positive number more than the one before."""
    connection = apsw.Connection(":memory:")
    assert load_vectors(connection) == ""
    connection.execute("CREATE VIRTUAL TABLE t USING vec0(bits bit[16])")
    for number in range(8):
        vector = np.where(np.arange(16) < number, 1.0, -1.0)
        connection.execute(
            "INSERT INTO t(rowid, bits) VALUES (?, vec_bit(?))", (number, sign_bits(vector[None])[0])
        )
    yield connection
    connection.close()


def test_signs_are_bits_and_zero_is_not_positive() -> None:
    """The lowest bit is the first number."""
    assert sign_bits(np.array([[1.0, 0.0, -1.0, 2.0, 0, 0, 0, 0], [0.0] * 8])) == [
        bytes([0b1001]),
        bytes([0]),
    ]


def test_models_have_tables_of_their_own() -> None:
    """Whatever is in their names."""
    assert table_name("notes", "Maker/Model-2.5") == "notes_maker_model_2_5"


def test_candidates_are_the_nearest_and_all_within_a_margin(
    table: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many at least, if there are as many; rows that the condition excludes are not among them."""

    def found(top_k: int, where: str = "rowid >= 0") -> list[int]:
        vector = np.full(16, -1.0)
        return candidate_rows(
            lambda sql, values: table.execute(sql, values).fetchall(), "t", vector, top_k, where, ()
        )

    monkeypatch.setattr(vector_tables, "MARGIN", 0.5)
    assert sorted(found(1)) == [0, 1, 2]
    assert sorted(found(2)) == [0, 1, 2, 3]
    assert sorted(found(20)) == list(range(8))
    assert sorted(found(1, "rowid IN (4, 5, 6, 7)")) == [4, 5, 6]


def test_a_connection_without_the_extension_holds_no_bits_of_deleted_vectors(
    table: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it can be loaded nothing is emptied."""
    load_or_empty(table)
    assert table.execute("SELECT count(*) FROM t_rowids").fetchall() == [(8,)]

    def missing() -> str:
        raise ModuleNotFoundError("not installed here")

    monkeypatch.setattr(vector_tables, "_extension", missing)
    other = apsw.Connection(":memory:")
    assert load_vectors(other) == "not installed here"
    load_or_empty(table)
    assert table.execute("SELECT count(*) FROM t_rowids").fetchall() == [(0,)]
    other.close()
