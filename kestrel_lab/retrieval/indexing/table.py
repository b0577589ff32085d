"""The database of a code index: its schema, and functions that insert or remove a file in all tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import apsw

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.host.filesystem import private_file, private_folder
from kestrel_lab.language.code_tokens import index_text
from kestrel_lab.language.grammars import absent_grammars
from kestrel_lab.retrieval.indexing.chunks import Parsed
from kestrel_lab.retrieval.indexing.file_list import Stamp

VERSION = 2 if not absent_grammars() else 1_000_002 + len(absent_grammars())
"""Of the tables. An index that was made without all grammars lacks symbols, and is made anew with them."""
FIELDS = ("body", "title", "path", "base", "symbols")
"""The columns of a file in the full-text table."""
_FTS = "content='', contentless_delete=1, tokenize='porter unicode61'"
_SCHEMA = f"""
CREATE TABLE files(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, mtime INTEGER NOT NULL, ctime INTEGER \
NOT NULL,
  size INTEGER NOT NULL, inode INTEGER NOT NULL, looked INTEGER NOT NULL, hash BLOB NOT NULL, language TEXT \
NOT NULL, title TEXT NOT NULL,
  skipped TEXT NOT NULL) STRICT;
CREATE TABLE chunks(id INTEGER PRIMARY KEY, file INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT \
NULL, kind TEXT NOT NULL,
  name TEXT NOT NULL) STRICT;
CREATE INDEX chunks_of ON chunks(file);
CREATE TABLE symbols(file INTEGER NOT NULL, name TEXT NOT NULL, folded TEXT NOT NULL, qualified TEXT NOT \
NULL, kind TEXT NOT NULL,
  first INTEGER NOT NULL, last INTEGER NOT NULL) STRICT;
CREATE INDEX symbols_of ON symbols(file);
CREATE INDEX symbols_named ON symbols(folded);
CREATE TABLE edges(file INTEGER NOT NULL, kind TEXT NOT NULL, target TEXT NOT NULL, names TEXT NOT NULL, \
line INTEGER NOT NULL) STRICT;
CREATE INDEX edges_of ON edges(file);
CREATE TABLE vectors(chunk INTEGER PRIMARY KEY, model TEXT NOT NULL, vector BLOB NOT NULL) STRICT;
CREATE TABLE facts(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE commits(seq INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL, at INTEGER NOT NULL) STRICT;
CREATE TABLE commit_files(seq INTEGER NOT NULL, path TEXT NOT NULL, many INTEGER NOT NULL) STRICT;
CREATE INDEX commits_by_file ON commit_files(path);
CREATE INDEX files_by_commit ON commit_files(seq);
CREATE VIRTUAL TABLE commit_words USING fts5(message, {_FTS});
CREATE VIRTUAL TABLE file_words USING fts5({", ".join(FIELDS)}, {_FTS});
CREATE VIRTUAL TABLE chunk_words USING fts5(name, body, {_FTS});
PRAGMA user_version = {VERSION};
"""
_BUSY_MS = 20_000
UNUSABLE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)
"""SQLite's errors for a damaged file."""
OLD = "the index was made by another version of kestrel_lab and"
"""The message for an index with other tables."""


def open_index(path: Path) -> apsw.Connection:
    """Open or create the index at `path`; raises one of `UNUSABLE` for another file, else `StoreError`."""
    try:
        private_folder(path.parent)
        private_file(path)
        connection = apsw.Connection(os.fspath(path))
    except (OSError, apsw.CantOpenError) as error:
        raise StoreError(
            f"no index can be kept at {path}: {full_stop(error)} Choose another home folder"
        ) from error
    try:
        connection.set_busy_timeout(_BUSY_MS)
        # An index can be made again: a power cut may cost its last moments, not the order within it.
        for setting in (
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "temp_store = MEMORY",
            "cache_size = -65536",
        ):
            connection.execute(f"PRAGMA {setting}").fetchall()
        _prepare(connection)
        connection.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, file_words, 'row')")
    except apsw.Error:
        connection.close()
        raise
    return connection


def _prepare(connection: apsw.Connection) -> None:
    if connection.pragma("user_version") == VERSION:
        return
    with WriteTransaction(connection):
        if connection.pragma("user_version") != VERSION:
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise apsw.FormatError(OLD)
            connection.execute(_SCHEMA)


class WriteTransaction:
    """A transaction that locks for writing at its beginning, so that it never fails half-way."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> apsw.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def indexed_files(connection: apsw.Connection) -> dict[str, tuple[int, Stamp, int, bytes, str]]:
    """Return every indexed file: number, stamp, time of reading, hash, why it was skipped."""
    rows: Iterable[Sequence[Any]] = connection.execute(
        "SELECT path, id, mtime, ctime, size, inode, looked, hash, skipped FROM files"
    )
    return {
        path: (number, Stamp(*stamp), looked, content, skipped)
        for path, number, *stamp, looked, content, skipped in rows
    }


def remove_files(connection: apsw.Connection, paths: Iterable[str]) -> None:
    """Remove files from every table."""
    for path in paths:
        row = connection.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()
        if row is None:
            continue
        connection.execute(
            "DELETE FROM chunk_words WHERE rowid IN (SELECT id FROM chunks WHERE file = ?)", row
        )
        connection.execute("DELETE FROM vectors WHERE chunk IN (SELECT id FROM chunks WHERE file = ?)", row)
        connection.execute("DELETE FROM file_words WHERE rowid = ?", row)
        for table in ("chunks", "symbols", "edges"):
            connection.execute(f"DELETE FROM {table} WHERE file = ?", row)
        connection.execute("DELETE FROM files WHERE id = ?", row)


def store_file(
    connection: apsw.Connection,
    path: str,
    stamp: Stamp,
    looked: int,
    content: bytes,
    found: Parsed | str,
    text: str = "",
) -> None:
    """Store what was `found` in `path`, or why it was skipped; `content` is the hash of its bytes."""
    remove_files(connection, [path])
    language, title, skipped = (
        ("", "", found) if isinstance(found, str) else (found.language, found.title, "")
    )
    connection.execute(
        "INSERT INTO files(path, mtime, ctime, size, inode, looked, hash, language, title, skipped) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (path, stamp.mtime, stamp.ctime, stamp.size, stamp.inode, looked, content, language, title, skipped),
    )
    number = connection.last_insert_rowid()
    if isinstance(found, str):
        return
    lines = text.split("\n")
    bodies = []
    for chunk in found.chunks:
        body = index_text("\n".join(lines[chunk.first - 1 : chunk.last]))
        bodies.append(body)
        connection.execute(
            "INSERT INTO chunks(file, first, last, kind, name) VALUES (?, ?, ?, ?, ?)",
            (number, chunk.first, chunk.last, chunk.kind, chunk.name),
        )
        connection.execute(
            "INSERT INTO chunk_words(rowid, name, body) VALUES (?, ?, ?)",
            (connection.last_insert_rowid(), index_text(chunk.name), body),
        )
    base = path.rsplit("/", 1)[-1]
    symbols = " ".join(dict.fromkeys(symbol.name for symbol in found.symbols))
    fields = (
        " ".join(bodies),
        index_text(title),
        index_text(path),
        index_text(base.rsplit(".", 1)[0]),
        index_text(symbols),
    )
    connection.execute(
        f"INSERT INTO file_words(rowid, {', '.join(FIELDS)}) VALUES (?, ?, ?, ?, ?, ?)", (number, *fields)
    )
    connection.executemany(
        "INSERT INTO symbols VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (number, each.name, each.name.lower(), each.qualified, each.kind, each.first, each.last)
            for each in found.symbols
        ],
    )
    connection.executemany(
        "INSERT INTO edges VALUES (?, ?, ?, ?, ?)",
        [(number, e.kind, e.target, e.names, e.line) for e in found.edges],
    )


def update_stamp(connection: apsw.Connection, path: str, stamp: Stamp, looked: int) -> None:
    """Store the new stamp of a file with unchanged content."""
    connection.execute(
        "UPDATE files SET mtime = ?, ctime = ?, size = ?, inode = ?, looked = ? WHERE path = ?",
        (stamp.mtime, stamp.ctime, stamp.size, stamp.inode, looked, path),
    )
