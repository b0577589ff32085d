"""The results of a team in PostgreSQL: tables of trials, their later scores and their runs, to which rows are
only added.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import KestrelError, StoreError, UsageError
from kestrel_lab.core.json_types import dumps
from kestrel_lab.evals.shared.shared_trials import MOST_EVENTS, MOST_TEXT, scores_digest, trial_digest
from kestrel_lab.evals.stored_trials import EvalRow, LaterScores
from kestrel_lab.host.postgres import Postgres, make_tables

if TYPE_CHECKING:
    from asyncpg import Connection

VERSION = 1
"""Of the tables; raised when an older kestrel_lab could not read what a newer one has written."""
_SCRIPT = f"""
CREATE SCHEMA IF NOT EXISTS kestrel;
CREATE TABLE IF NOT EXISTS kestrel.results_version(number integer NOT NULL);
INSERT INTO kestrel.results_version SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM kestrel.results_version);
CREATE TABLE IF NOT EXISTS kestrel.trials(
  id text PRIMARY KEY,
  suite text NOT NULL,
  scenario text NOT NULL,
  config text NOT NULL,
  epoch bigint NOT NULL,
  git_sha text NOT NULL,
  key text NOT NULL,
  created_at double precision NOT NULL,
  result text NOT NULL,
  metrics text NOT NULL,
  digest text NOT NULL,
  pushed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS trials_by_suite ON kestrel.trials(suite);
CREATE TABLE IF NOT EXISTS kestrel.scores(
  trial text NOT NULL REFERENCES kestrel.trials(id) ON DELETE CASCADE,
  digest text NOT NULL,
  suite_hash text NOT NULL,
  result text NOT NULL,
  key text NOT NULL,
  created_at double precision NOT NULL,
  PRIMARY KEY(trial, digest)
);
CREATE TABLE IF NOT EXISTS kestrel.runs(
  trial text PRIMARY KEY REFERENCES kestrel.trials(id) ON DELETE CASCADE,
  events text NOT NULL
);
"""
_COLUMNS = ("id", "suite", "scenario", "config", "epoch", "git_sha", "key", "created_at", "result", "metrics")
_ADD_TRIALS = f"""
INSERT INTO kestrel.trials({", ".join(_COLUMNS)}, digest)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], \
$8::float8[], $9::text[],
  $10::text[], $11::text[])
ON CONFLICT (id) DO NOTHING RETURNING id
"""
_ADD_SCORES = """
INSERT INTO kestrel.scores SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], \
$6::float8[])
ON CONFLICT DO NOTHING RETURNING trial
"""
_BOUNDED = f"CASE WHEN octet_length(result) <= {MOST_TEXT} THEN result END AS result"
_TRIALS = f"""
SELECT {", ".join(_COLUMNS[:-2])}, {_BOUNDED}, CASE WHEN octet_length(metrics) <= {MOST_TEXT} THEN metrics \
END AS metrics
FROM kestrel.trials WHERE id = ANY($1::text[])
"""
_SCORES = (
    f"SELECT trial, suite_hash, {_BOUNDED}, key, created_at FROM kestrel.scores WHERE trial = "
    "ANY($1::text[]) ORDER BY created_at"
)


class ResultsDatabase:
    """An open connection to the results at an address."""

    def __init__(self, server: Postgres, connection: Connection, version: int | None) -> None:
        self._server, self._connection = server, connection
        self.empty = version is None
        """Whether nobody has pushed to it."""

    async def make(self) -> None:
        """Make the tables where they are not there."""
        with self._told():
            await make_tables(self._connection, "kestrel.runs", _SCRIPT)
            self.empty = False

    async def suites(self) -> dict[str, int]:
        """Return the names of the suites with the numbers of their trials."""
        found = await self._fetch("SELECT suite, count(*) FROM kestrel.trials GROUP BY suite ORDER BY suite")
        return {str(suite): int(count) for suite, count in found}

    async def ids(self, suite: str) -> list[str]:
        """Return the ids of all trials of a suite, oldest first."""
        sql = "SELECT id FROM kestrel.trials WHERE suite = $1 ORDER BY created_at, id"
        return [str(name) for (name,) in await self._fetch(sql, suite)]

    async def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of those of these trials that are there."""
        found = await self._fetch("SELECT id, digest FROM kestrel.trials WHERE id = ANY($1)", ids)
        return {str(name): str(digest) for name, digest in found}

    async def scored(self, ids: Sequence[str]) -> set[tuple[str, str]]:
        """Return trial and digest of the later scores of these trials that are there."""
        found = await self._fetch("SELECT trial, digest FROM kestrel.scores WHERE trial = ANY($1)", ids)
        return {(str(trial), str(digest)) for trial, digest in found}

    async def with_runs(self, ids: Sequence[str]) -> set[str]:
        """Return which of these trials have their runs there."""
        return {
            str(name)
            for (name,) in await self._fetch("SELECT trial FROM kestrel.runs WHERE trial = ANY($1)", ids)
        }

    async def add(
        self, trials: Iterable[EvalRow], scores: Iterable[LaterScores], runs: Mapping[str, str]
    ) -> tuple[set[str], int, int]:
        """Add what is not there, all of it or nothing; returns the ids of the new trials, and the numbers of
        new scores and runs.

        `scores` are of these trials and of others that are there, `runs` are events by trial.
        """
        # In one order for everybody: two that add the same rows wait for each other and not both at once.
        rows = [_cells(row) for row in sorted(trials, key=lambda row: row.id)]
        later = [
            (one.trial, scores_digest(one), one.suite_hash, dumps(one.result), one.key, one.created_at)
            for one in sorted(scores, key=lambda one: (one.trial, one.created_at))
        ]
        with self._told():
            async with self._connection.transaction():
                new = await self._connection.fetch(_ADD_TRIALS, *_transpose(rows, 11))
                judged = await self._connection.fetch(_ADD_SCORES, *_transpose(later, 6))
                kept = await self._connection.fetch(
                    (
                        "INSERT INTO kestrel.runs SELECT * FROM unnest($1::text[], $2::text[]) "
                        "ON CONFLICT DO NOTHING RETURNING trial"
                    ),
                    *_transpose(sorted(runs.items()), 2),
                )
        return {str(name) for (name,) in new}, len(judged), len(kept)

    async def trials(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the columns of these trials as they are there, unchecked; what is too long is `None`."""
        return [dict(row) for row in await self._fetch(_TRIALS, ids)]

    async def scores(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the later scores of these trials as they are there, unchecked, oldest first."""
        return [dict(row) for row in await self._fetch(_SCORES, ids)]

    async def events(self, trial: str) -> str | None:
        """Return the events of a trial's run as text, unchecked; `None` where there are none, or more than
        any run has.
        """
        sql = "SELECT events FROM kestrel.runs WHERE trial = $1 AND octet_length(events) <= $2"
        return next((str(events) for (events,) in await self._fetch(sql, trial, MOST_EVENTS)), None)

    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        with self._told():
            return list(await self._connection.fetch(sql, *values))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the server refuses into a `StoreError` that names it."""
        try:
            yield
        except KestrelError:
            raise
        except self._server.errors as error:
            raise StoreError(self._server.problem_text(error)) from error


@asynccontextmanager
async def opened_results(url: str) -> AsyncIterator[ResultsDatabase]:
    """Connect to the results at an address.

    Raises `UsageError` for an address that cannot be one, a server that cannot be reached or refuses, tables
    of a newer version, and without the client.
    """
    server = Postgres(url, "a store of shared results")
    try:
        # Connecting is quick or hopeless; a query may read all ids of a suite, so that only a long silence
        # means that the server is gone.
        connection = await asyncio.wait_for(server.connect(120.0), 15.0)
    except server.errors as error:
        raise UsageError(f"the shared results cannot be reached: {server.problem_text(error)}") from error
    try:
        try:
            there = await connection.fetchval("SELECT to_regclass('kestrel.results_version')::text")
            version = (
                None
                if there is None
                else await connection.fetchval("SELECT max(number)::bigint FROM kestrel.results_version")
            )
        except server.errors as error:
            raise UsageError(f"the shared results cannot be read: {server.problem_text(error)}") from error
        if version is not None and version > VERSION:
            raise UsageError(
                f"the results on {server.where} were written by a newer kestrel_lab (tables {version}, "
                f"this one knows {VERSION}): upgrade it"
            )
        yield ResultsDatabase(server, connection, version)
    finally:
        connection.terminate()


def _cells(row: EvalRow) -> tuple[Any, ...]:
    texts = (dumps(row.result), dumps(row.metrics), trial_digest(row))
    return (*(getattr(row, name) for name in _COLUMNS[:-2]), *texts)


def _transpose(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Return rows as columns, for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]
