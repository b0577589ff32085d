"""Opening the database: settings, migrations, and what our own connections may not do."""

import errno
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from kestrel_lab.core.errors import (
    AlreadyDecided,
    Fenced,
    IllegalTransition,
    StorageFull,
    StoreError,
    UsageError,
)
from kestrel_lab.eventlog.schema import MIGRATIONS
from kestrel_lab.eventlog.seals.marks import has_marks, remove_marks
from kestrel_lab.eventlog.seals.row_seals import register_seals
from kestrel_lab.eventlog.text_index import register_terms
from kestrel_lab.host.filesystem import private_file, private_folder
from kestrel_lab.host.vector_tables import load_or_empty, load_vectors

_NOTES = logging.getLogger(__name__)
_SCHEMA = (
    "SQLITE_ALTER",
    "SQLITE_ATTACH",
    "SQLITE_CREATE",
    "SQLITE_DETACH",
    "SQLITE_DROP",
    "SQLITE_PRAGMA",
    "SQLITE_REINDEX",
)
_FORBIDDEN = frozenset(
    code
    for name, code in apsw.mapping_authorizer_function.items()
    if isinstance(name, str) and name.startswith(_SCHEMA)
)
"""Actions that change the schema or the settings of the database, or reach another one."""

_SETTINGS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "recursive_triggers = ON",
    "foreign_keys = ON",
    "secure_delete = ON",
)

_STATEMENTS = 256
"""Compiled statements that a connection keeps. apsw takes another place at each use of any statement, so that
one which every tenth commit needs is lost from the hundred places that there are by default.
"""

ANSWERED_BEFORE = "this question was answered before; the first answer stands"
_BUSY = "another process is in the middle of writing to it; if that one is stopped, end it"
_WAIT_S = 30.0
"""How long a statement waits for other processes that write."""
_SILENT_S = 2.0
"""How long it does so without a word."""
_LOOK_AGAIN_S = 0.1
SCRUB_WAIT_S = 10.0
"""How long the cleaning of the files waits for others to finish what they are reading or writing."""

_NO_ROOM = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP)
"""What SQLite says when a quota or a limit of file sizes is reached, or when there is no room for the index
of the write-ahead log; `SQLITE_FULL` is for the files themselves.
"""


def connect_log(path: Path, sqlite: str | None = None) -> apsw.Connection:
    """A guarded connection to the log at `path`, which is created and migrated as needed.

    Raises `StoreError` when the file is not a database of ours, was written by a newer version, or cannot be
    opened, or when SQLite is of a version (`sqlite`, by default the one that runs here) that may damage it.
    """
    if may_damage(sqlite := sqlite or apsw.sqlite_lib_version()):
        raise StoreError(
            f"SQLite {sqlite} has a fault that can damage a log which several connections write: pip "
            "install --upgrade apsw"
        )
    try:
        if private_folder(path.parent):
            _NOTES.warning(
                "kestrel: others could read %s; it is for its owner only now (mode 0700)", path.parent
            )
        ignore = path.parent / ".gitignore"
        if not ignore.exists():
            private_file(ignore)
            ignore.write_text("*\n", encoding="utf-8")
        made = private_file(path)
        # SQLite gives the latter the mode of the first.
        for name in (f"{path.name}-wal", f"{path.name}-shm"):
            if path.with_name(name).exists():
                private_file(path.with_name(name))
        connection = apsw.Connection(os.fspath(path), statementcachesize=_STATEMENTS)
    except (OSError, apsw.Error) as error:
        raise _unusable(path, error) from error
    with _closed_on_failure(connection, path):
        connection.set_busy_handler(_Patience(path, _WAIT_S).wait)
        # Plans that do not depend on the values bound: else SQLite compiles a cached query anew each time
        # that a bound run or number changes.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # One by one: a statement that gives a row keeps those behind it in the same text from being run.
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}").fetchall()
        register_terms(connection)
        register_seals(connection)
        _migrate(connection, path, made=made)
        load_or_empty(connection)
    connection.authorizer = _authorize
    return connection


def connect_without_room(path: Path) -> apsw.Connection:
    """A connection that reads the log where the disk is full: it needs no file beside the log.

    It keeps everybody else out until it is closed. Raises as `connect_log`, and `StorageFull` where there is
    no log yet, or one that has to be migrated first.
    """
    try:
        connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE)
    except apsw.Error as error:
        raise _no_room_for(path) from error
    with _closed_on_failure(connection, path):
        connection.set_busy_handler(_Patience(path, _WAIT_S).wait)
        # The index of the write-ahead log is in memory then, and in no file.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        connection.execute("PRAGMA query_only = ON").fetchall()
        if _version(connection) != len(MIGRATIONS):
            raise _no_room_for(path)
        register_terms(connection)
        load_or_empty(connection)
    connection.authorizer = _authorize
    return connection


@contextmanager
def _closed_on_failure(connection: apsw.Connection, path: Path) -> Iterator[None]:
    """Close the connection if the block fails; errors of SQLite say then that the log cannot be used."""
    try:
        yield
    except apsw.Error as error:
        connection.close()
        raise _unusable(path, error) from error
    except StoreError:
        connection.close()
        raise


class _Patience:
    """Waits while other processes write to a log, and says so where that takes long."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._since = 0.0
        self._told = False

    def wait(self, calls: int) -> bool:
        """Wait a moment; returns whether to try again. SQLite counts the calls of each statement."""
        if not calls:
            self._since, self._told = time.monotonic(), False
        waited = time.monotonic() - self._since
        if waited > _SILENT_S and not self._told:
            self._told = True
            _NOTES.warning("kestrel: waiting for another process that writes to %s", self._path)
        # Soon at first: most hold the log for a few milliseconds.
        time.sleep(min(_LOOK_AGAIN_S, 0.001 * 2 ** min(calls, 10)))
        return waited < self._seconds


def may_damage(sqlite: str) -> bool:
    """Whether this SQLite has "the WAL-reset bug" (sqlite.org/wal.html), which may lose pages."""
    version = tuple(int(part) for part in sqlite.split(".")[:3])
    return version < (3, 51, 3) and not (
        version[:2] in {(3, 50), (3, 44)} and version >= {50: (3, 50, 7), 44: (3, 44, 6)}[version[1]]
    )


def _unusable(path: Path, error: Exception) -> StoreError:
    if _is_no_room(error):
        return _no_room_for(path)
    if isinstance(error, apsw.BusyError):
        return StoreError(f"the log {path} cannot be opened: {_BUSY}")
    closed = isinstance(error, OSError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError)
    first = f"nothing can be written in {path.parent}:" if closed else "move it away, or"
    return StoreError(
        f"{path} cannot be used as the log: {error}; {first} choose another home folder, with "
        "KESTREL_HOME=FOLDER or Lab(home=FOLDER)"
    )


def _no_room_for(path: Path) -> StorageFull:
    """The error for a log that cannot be opened, or made, because the disk is full."""
    return StorageFull(f"no room on the disk for the log {path}: free some space")


def _is_no_room(error: Exception) -> bool:
    """Whether an error says that the disk, or what the user may use of it, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _NO_ROOM


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, source: str | None
) -> int:
    """Deny whatever could take the rules away; the schema changes in `connect_log` only."""
    # Full-text search asks whether another connection has written.
    if action == apsw.SQLITE_PRAGMA and first == "data_version":
        return apsw.SQLITE_OK
    if action in _FORBIDDEN or (
        (first or "").startswith("sqlite_")
        and action in (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE)
    ):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK


def _migrate(connection: apsw.Connection, path: Path, *, made: bool) -> None:
    """Bring the schema up to date; `made` if the file was made just now, in place of none."""
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > len(MIGRATIONS):
            msg = (
                f"{path} was written by a newer kestrel_lab (schema {version}, this one knows "
                f"{len(MIGRATIONS)}): upgrade kestrel_lab"
            )
            raise StoreError(msg)
        if version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise StoreError(
                f"{path} is a database of another program: move it away, or choose another home folder"
            )
        if version == 0 and has_marks(path):
            _begin_anew(path, made=made)
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            connection.execute(script)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _begin_anew(path: Path, *, made: bool) -> None:
    """Begin a log in place of one that is gone; raises `StoreError` for one that has lost all it had."""
    if not made:
        raise StoreError(
            f"{path} is empty, and events of runs had been stored in it: put a copy of it back, or remove it "
            "to begin a new log"
        )
    _NOTES.warning("kestrel: the log %s is gone; a new one begins", path)
    remove_marks(path)


def _version(connection: apsw.Connection) -> int:
    return int(connection.pragma("user_version") or 0)


def add_vector_tables(path: Path, script: str) -> None:
    """Run a script that adds tables of vectors, which other connections may not add, in one transaction."""
    connection = apsw.Connection(os.fspath(path))
    try:
        connection.set_busy_timeout(30_000)
        load_vectors(connection)
        with connection:
            connection.execute(script)
    except apsw.Error as error:
        raise store_error(error, "a table of vectors") from error
    finally:
        connection.close()


def rewrite_database(path: Path) -> None:
    """Write the database anew, so that nothing which was deleted from it is left in its files.

    Takes as long as copying it, and as much room while it lasts. Raises `StoreError` when another process is
    in the middle of something: what was deleted is gone from every table all the same.
    """
    connection = apsw.Connection(os.fspath(path))
    until = time.monotonic() + SCRUB_WAIT_S
    try:
        connection.set_busy_handler(_Patience(path, SCRUB_WAIT_S).wait)
        while True:
            try:
                connection.execute("VACUUM")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                break
            except (
                apsw.BusyError
            ):  # also at once, without the wait that was asked for, where two clean at a time
                if time.monotonic() >= until:
                    raise
                time.sleep(0.02)
    except apsw.Error as error:
        raise store_error(error, "the cleaning of its files", "repeat") from error
    finally:
        connection.close()


def close_everywhere(path: Path) -> None:
    """Fold the write-ahead log into the file; raises `UsageError` while any process has the log open."""
    connection = apsw.Connection(os.fspath(path))
    try:
        # SQLite leaves this mode for its last connection only. The next connection enters it again.
        if connection.pragma("journal_mode", "delete") != "delete":
            raise apsw.BusyError("it stays open")
    except (apsw.BusyError, apsw.LockedError) as error:
        raise UsageError(
            f"the log {path} is open, here or in another process: end what works with it (a notebook's "
            "kernel, a server) and repeat"
        ) from error
    finally:
        connection.close()


def check_integrity(path: Path, seconds: float) -> tuple[str, bool]:
    """Return the first thing that SQLite finds wrong with the files of a log, or nothing, and whether all of
    them were looked at within that time.

    The tables, indexes and rules are held against those that this version makes.
    """
    connection = apsw.Connection(os.fspath(path))
    until = time.monotonic() + seconds
    try:
        connection.set_busy_timeout(1_000)
        register_terms(connection)
        missing = _schema() - _schema_of(connection)
        if missing:
            kind, name, _ = min(missing)
            return f"the {kind} {name} is not what kestrel made", True
        connection.set_progress_handler(lambda: time.monotonic() > until, 100_000)
        for (problem,) in connection.execute("PRAGMA integrity_check(1)"):
            return ("" if problem == "ok" else str(problem)), True
    except apsw.InterruptError:
        return "", False
    except apsw.Error as error:
        return str(error), True
    finally:
        connection.close()
    return "", True


def _schema() -> set[tuple[str, str, str | None]]:
    """Return what a log of this version has: type, name and statement of each table, index and trigger."""
    fresh = apsw.Connection(":memory:")
    register_terms(fresh)
    for script in MIGRATIONS:
        fresh.execute(script)
    schema = _schema_of(fresh)
    fresh.close()
    return schema


def _schema_of(connection: apsw.Connection) -> set[tuple[str, str, str | None]]:
    """Return type, name and statement of everything that a database has."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
    return {(str(kind), str(name), sql if sql is None else str(sql)) for kind, name, sql in rows}


def store_error(error: Exception, what: str, remedy: str = "resume") -> StoreError:
    """The error of this package that says what SQLite refused; `remedy` is what helps once there is room."""
    text = str(error)
    if _is_no_room(error):
        return StorageFull(
            f"no room on the disk for {what}; free some space, then {remedy}: nothing acknowledged was lost"
        )
    if "E_DECIDED" in text:
        return AlreadyDecided(ANSWERED_BEFORE)
    if "E_FENCED" in text:
        return Fenced(
            f"{what} was not written: the run belongs to another session now, and nothing more of this "
            "one will be"
        )
    if "E_NOT_ASKED" in text:
        return StoreError("this question was never asked: nothing to decide")
    if "E_ILLEGAL_TRANSITION" in text or "E_RUN_TERMINAL" in text:
        return IllegalTransition(f"the log refused {what}: {text}")
    if isinstance(error, apsw.BusyError):
        return StoreError(f"the log refused {what}: {_BUSY}")
    return StoreError(f"the log refused {what}: {text}")


def process_name() -> str:
    """This process, as `host:pid`: who owns a live run."""
    return f"{os.uname().nodename if sys.platform != 'win32' else 'localhost'}:{os.getpid()}"
