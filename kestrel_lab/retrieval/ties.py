"""What ties files to the best of a ranking: a change often touches a file and what changes, is imported or stands with it."""

from __future__ import annotations

import json
import posixpath
from collections import defaultdict
from collections.abc import Collection, Mapping

import apsw

from kestrel_lab.retrieval import history
from kestrel_lab.retrieval.imports import resolved

TIES = ("together", "imported", "folder")
"""Kinds of ties: changed in the same commits, imported or linked to, in the same folder."""


def ties(connection: apsw.Connection, leaders: Mapping[str, float], paths: Collection[str]) -> dict[str, dict[str, float]]:
    """For each kind, how closely each of `paths` is tied to any of the `leaders`, from 0 to 1; these count as much as is given, best first.

    The first leader is tied to itself in full by every kind, so that nothing overtakes it for being tied to it; the
    others are only tied to one another.
    """
    found: dict[str, dict[str, float]] = {kind: defaultdict(float) for kind in TIES}

    def tie(kind: str, path: str, leader: str, closely: float) -> None:
        found[kind][path] = max(found[kind][path], closely * leaders[leader])

    imported, shares = _imported(connection, leaders), history.shares(connection, leaders, paths)
    for leader in leaders:
        for path in paths:
            if path == leader:
                continue
            tie("together", path, leader, shares[leader].get(path, 0.0))
            tie("imported", path, leader, float(path in imported.get(leader, ())))
            tie("folder", path, leader, float(posixpath.dirname(path) == posixpath.dirname(leader)))
    for first in list(leaders)[:1]:
        for kind in TIES:
            found[kind][first] = 1.0
    return found


def _imported(connection: apsw.Connection, leaders: Collection[str]) -> dict[str, set[str]]:
    """What each of these files imports or links to."""
    known = frozenset(str(row[0]) for row in connection.execute("SELECT path FROM files"))
    sql = "SELECT path, kind, target, names FROM edges JOIN files ON files.id = file WHERE path IN (SELECT value FROM json_each(?))"
    found: dict[str, set[str]] = defaultdict(set)
    for path, kind, target, names in connection.execute(sql, (json.dumps(list(leaders)),)):
        found[path].update(resolved(path, kind, target, names, known))
    return found
