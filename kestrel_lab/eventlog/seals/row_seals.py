"""Results are sealed like events: each row of these tables carries a hash of itself, and each evaluation has
a head, which says how many rows it has and what their hashes are together.

A row that is changed behind the log's back is not what its hash says; one that is gone is missed by the head.
The database writes the head in the transaction of the row, so that no code path can forget it. A removal
writes a new head, which counts what is gone. Rows that earlier versions wrote have no hash: they are not
sealed, and no head counts them. This finds accidents; who can write the file can write hashes, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import apsw

from kestrel_lab.core.errors import StoreError
from kestrel_lab.eventlog.seals.hash_chain import PAGE, Read

EMPTY: Final = bytes(32)
"""The hash of a head without rows."""
REMEDY: Final = (
    "put an earlier copy of the log back, or remove what is left of the evaluation (kestrel runs remove) and "
    "run it again"
)


@dataclass(frozen=True, slots=True)
class SealedTable:
    """A table whose rows are sealed."""

    columns: tuple[str, ...]
    """What the hash of a row is of, in this order."""
    evaluation: tuple[str, str, str]
    """SQL of what a row belongs to: the name of a suite or batch, a commit and a configuration; the row is
    `{row}`.
    """
    key: str
    """The column that names a row."""
    rows: str
    """What its rows are called."""


_SUITE = "(SELECT suite FROM eval_runs WHERE id = {row}.trial)"
SEALED: Final[Mapping[str, SealedTable]] = MappingProxyType(
    {
        "eval_runs": SealedTable(
            (
                *("id", "scenario", "result_json", "metrics_json", "git_sha"),
                *("created_at", "suite", "config", "epoch", "key"),
            ),
            ("{row}.suite", "{row}.git_sha", "{row}.config"),
            "id",
            "trials",
        ),
        "eval_scores": SealedTable(
            ("trial", "suite_hash", "result_json", "key", "created_at"),
            (_SUITE, "''", "''"),
            "rowid",
            "later scores",
        ),
        "batch_events": SealedTable(
            ("batch", "at", "type", "body"), ("{row}.batch", "''", "''"), "number", "facts of a batch"
        ),
    }
)


def row_hash(values: Iterable[object]) -> bytes:
    """Return the hash of a row: of the values of its columns, each with its length."""
    contents = []
    for value in values:
        # Half of a surrogate pair is no UTF-8, and may stand in a name all the same.
        text = value if isinstance(value, str) else repr(value)
        content = text.encode("utf-8", "surrogatepass")
        contents.append(b"%d:%b" % (len(content), content))
    return hashlib.sha256(b"".join(contents)).digest()


def check_row(values: Iterable[object], digest: object, row: str) -> None:
    """Raise `StoreError` where a row that is sealed, and called `row`, is not what was written."""
    if digest is not None and digest != row_hash(values):
        raise StoreError(f"{row} is not what was written: {REMEDY}. See: kestrel doctor")


def check_heads(read: Read, table: str, name: str | None = None, git_sha: str | None = None) -> None:
    """Raise `StoreError` where rows of an evaluation are missing: of the suite or batch with this name, of
    this commit, or of all.
    """
    for problem in head_problems(read, table, name, git_sha):
        raise StoreError(f"{problem}: {REMEDY}. See: kestrel doctor")


def head_problems(
    read: Read, table: str, name: str | None = None, git_sha: str | None = None
) -> Iterator[str]:
    """Yield what is wrong with the rows of each evaluation whose head does not say what is there."""
    sealed = SEALED[table]
    suite, commit, config = (sql.format(row="r") for sql in sealed.evaluation)
    # One statement, so that both sides are of one moment.
    sql = f"""
      SELECT name, git_sha, config, sealed, hash, 1 FROM heads
        WHERE source = '{table}' AND (?1 IS NULL OR name = ?1) AND (?2 IS NULL OR git_sha = ?2)
      UNION ALL SELECT {suite}, {commit}, {config}, 1, r.hash, 0 FROM {table} AS r
        WHERE typeof(r.hash) = 'blob' AND (?1 IS NULL OR {suite} = ?1) AND (?2 IS NULL OR {commit} = ?2)
    """
    heads: dict[tuple[object, ...], tuple[int, bytes]] = {}
    present: dict[tuple[object, ...], tuple[int, bytes]] = {}
    for *evaluation, count, digest, is_head in read(sql, (name, git_sha)):
        key = tuple(evaluation)
        if is_head:
            heads[key] = (count, digest)
        else:
            rows, folded = present.get(key, (0, EMPTY))
            present[key] = (rows + 1, fold_hashes(folded, digest))
    for key in heads.keys() | present.keys():
        count, digest = heads.get(key, (0, EMPTY))
        rows, folded = present.get(key, (0, EMPTY))
        if count != rows:
            yield f"{_evaluation_text(key)} has {rows} of {count} {sealed.rows} that were written"
        elif digest != folded:
            yield f"{_evaluation_text(key)} has other {sealed.rows} than those that were written"


def checked_rows(read: Read, table: str) -> Iterator[str]:
    """Yield for each row of a table what is wrong with it; an empty text where nothing is."""
    sealed = SEALED[table]
    sql = f"""
      SELECT {sealed.key}, hash, {", ".join(sealed.columns)} FROM {table}
        WHERE {sealed.key} > ? ORDER BY {sealed.key} LIMIT {PAGE}
    """
    last: object = "" if table == "eval_runs" else 0
    while rows := read(sql, (last,)):
        for _, digest, *values in rows:
            is_intact = digest is None or digest == row_hash(values)
            yield "" if is_intact else f"{values[0]} of the {sealed.rows} is not what was written"
        last = rows[-1][0]


def count_unsealed(read: Read) -> int:
    """Return how many rows were written by versions that sealed none."""
    return sum(
        int(count)
        for table in SEALED
        for (count,) in read(f"SELECT count(*) FROM {table} WHERE hash IS NULL", ())
    )


def fold_hashes(folded: bytes, digest: bytes) -> bytes:
    """Add the hash of a row to that of a head, or take it out again: the order of rows does not matter."""
    return (int.from_bytes(folded) ^ int.from_bytes(digest)).to_bytes(32)


def register_seals(connection: apsw.Connection) -> None:
    """Give a connection the function that the triggers of the heads call."""
    connection.create_scalar_function("kestrel_fold", _fold_values, 2, deterministic=True)


def _fold_values(*values: Any) -> bytes:
    folded, digest = values
    return fold_hashes(folded, digest)


def _evaluation_text(evaluation: tuple[object, ...]) -> str:
    name, git_sha, config = evaluation
    commit = f" at commit {str(git_sha)[:10]}" if git_sha else ""
    return f"{name}{commit}" + (f", configuration {config}," if config else "")


def seal_rules(table: str) -> str:
    """Return the script of the rules of a sealed table: each new row carries its hash, and the head of its
    evaluation is written with it.
    """
    inserted = [sql.format(row="NEW") for sql in SEALED[table].evaluation]
    deleted = [sql.format(row="OLD") for sql in SEALED[table].evaluation]
    names = f"source = '{table}' AND name = {{}} AND git_sha = {{}} AND config = {{}}"
    return f"""
ALTER TABLE {table} ADD COLUMN hash BLOB;
CREATE TRIGGER {table}_hash BEFORE INSERT ON {table} WHEN typeof(NEW.hash) IS NOT 'blob' OR length(NEW.hash) \
IS NOT 32 BEGIN
  SELECT RAISE(ABORT, 'E_HASH: each result carries its hash');
END;
CREATE TRIGGER {table}_sealed AFTER INSERT ON {table} WHEN NEW.hash IS NOT NULL BEGIN
  INSERT INTO heads(source, name, git_sha, config) SELECT '{table}', {", ".join(inserted)}
    WHERE NOT EXISTS (SELECT 1 FROM heads WHERE {names.format(*inserted)});
  UPDATE heads SET sealed = sealed + 1, hash = kestrel_fold(hash, NEW.hash) WHERE {names.format(*inserted)};
END;
CREATE TRIGGER {table}_removed BEFORE DELETE ON {table} WHEN OLD.hash IS NOT NULL BEGIN
  UPDATE heads SET sealed = sealed - 1, removed = removed + 1, hash = kestrel_fold(hash, OLD.hash)
    WHERE {names.format(*deleted)};
END;
"""
