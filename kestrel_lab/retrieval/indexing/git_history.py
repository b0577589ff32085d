"""Git history as ranking signals: recent changes, common changes, and commit messages of files."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import apsw

from kestrel_lab.host.git import run_git
from kestrel_lab.language.code_tokens import index_text

MOST_COMMITS = 3_000
_MOST_FILES = 40
"""Files of one commit; a commit of more files is ignored as a sweep."""
_MESSAGE_CHARS = 2_000
_FEW = 2
"""Commits with unrelated files assumed for each file, besides the known ones (smoothing)."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit with its message."""

    hash: str
    at: int
    message: str
    paths: tuple[str, ...]


def head_of(folder: Path) -> str:
    """Return the checked-out commit; empty if there is none."""
    return _git(folder, "rev-parse", "--verify", "--quiet", "HEAD").strip()


def update_history(connection: apsw.Connection, folder: Path, head: str) -> None:
    """Index the last commits before `head`, the checked-out one, in the caller's transaction."""
    row = connection.execute("SELECT value FROM facts WHERE name = 'head'").fetchone()
    known = str(row[0]) if row else ""
    if known == head:
        return
    on_top = known and run_git(folder, "merge-base", "--is-ancestor", known, head).returncode == 0
    if not on_top:
        connection.execute("DELETE FROM commits; DELETE FROM commit_files; DELETE FROM commit_words")
    if head:
        for commit in reversed(list(_log(folder, f"{known}..{head}" if on_top else head))):
            _store_commit(connection, commit)
        connection.execute(
            "DELETE FROM commit_files WHERE seq <= (SELECT max(seq) FROM commits) - ?1;", (MOST_COMMITS,)
        )
        connection.execute(
            "DELETE FROM commit_words WHERE rowid <= (SELECT max(seq) FROM commits) - ?", (MOST_COMMITS,)
        )
        connection.execute(
            "DELETE FROM commits WHERE seq <= (SELECT max(seq) FROM commits) - ?", (MOST_COMMITS,)
        )
    connection.execute("INSERT OR REPLACE INTO facts VALUES ('head', ?)", (head,))


def _store_commit(connection: apsw.Connection, commit: Commit) -> None:
    connection.execute("INSERT INTO commits(hash, at) VALUES (?, ?)", (commit.hash, commit.at))
    number = connection.last_insert_rowid()
    connection.execute(
        "INSERT INTO commit_words(rowid, message) VALUES (?, ?)", (number, index_text(commit.message))
    )
    connection.executemany(
        "INSERT INTO commit_files VALUES (?, ?, ?)",
        [(number, path, len(commit.paths)) for path in commit.paths],
    )


def _log(folder: Path, span: str) -> Iterator[Commit]:
    output = _git(
        folder,
        "log",
        "--no-merges",
        f"--max-count={MOST_COMMITS}",
        "--name-only",
        "--no-renames",
        "--relative",
        "-z",
        "--format=%x01%H %ct %B%x02",
        span,
    )
    for piece in output.split("\x01")[1:]:
        head, _, names = piece.partition("\x02")
        content, at, message = [*head.split(" ", 2), ""][:3]
        paths = tuple(name.strip("\n") for name in names.split("\0") if name.strip("\n"))
        if 0 < len(paths) <= _MOST_FILES:
            yield Commit(content, int(at), message[:_MESSAGE_CHARS], paths)


def _git(folder: Path, *arguments: str) -> str:
    done = run_git(folder, *arguments)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def commit_message_scores(
    connection: apsw.Connection, messages: Mapping[int, float], files: Mapping[str, int]
) -> dict[int, float]:
    """Return scores of files changed by the commits that match a question."""
    found: dict[int, list[float]] = defaultdict(list)
    for seq, path, many in connection.execute(
        "SELECT seq, path, many FROM commit_files WHERE seq IN (SELECT value FROM json_each(?))",
        (json.dumps(list(messages)),),
    ):
        if path in files:
            found[files[path]].append(messages[seq] / math.log2(1 + many))
    return {
        file: sum(score / place for place, score in enumerate(sorted(scores, reverse=True)[:5], 1))
        for file, scores in found.items()
    }


_HALF = 500


def recent_changes(connection: apsw.Connection, files: Mapping[str, int]) -> dict[int, float]:
    """Return how much each file changed recently; the last `_HALF` commits count half of the total."""
    found: dict[int, float] = defaultdict(float)
    newest = (connection.execute("SELECT max(seq) FROM commits").fetchone() or (0,))[0] or 0
    for seq, path, many in connection.execute(
        "SELECT seq, path, many FROM commit_files WHERE seq > ?", (newest - 4 * _HALF,)
    ):
        if path in files:
            # A commit's weight is divided among its files: a sweep over many says little of each.
            found[files[path]] += 0.5 ** ((newest - seq) / _HALF) / many
    return {file: math.log1p(score) for file, score in found.items()}


def changed_together(connection: apsw.Connection, path: str, most: int = 30) -> dict[str, float]:
    """Return files changed together with `path` and the share of its commits; large commits count less."""
    own = list(connection.execute("SELECT seq, many FROM commit_files WHERE path = ?", (path,)))
    total = sum(1 / math.log2(1 + many) for _, many in own)
    found: dict[str, float] = defaultdict(float)
    for other, many in connection.execute(
        "SELECT other.path, other.many FROM commit_files AS mine JOIN commit_files AS other USING "
        "(seq) WHERE mine.path = ?1 AND other.path <> ?1",
        (path,),
    ):
        found[str(other)] += 1 / math.log2(1 + many)
    best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:most]
    return {other: score / (total + 1) for other, score in best}


def co_change_shares(
    connection: apsw.Connection, leaders: Collection[str], paths: Collection[str]
) -> dict[str, dict[str, float]]:
    """For each of `leaders`, the `paths` that changed with it: in which share of their own commits, large
    ones and files of few counting less.
    """
    sql = "SELECT path, seq, many FROM commit_files WHERE path IN (SELECT value FROM json_each(?))"
    commits: dict[str, dict[int, float]] = {path: {} for path in [*leaders, *paths]}
    for path, seq, many in connection.execute(sql, (json.dumps(list(commits)),)):
        commits[path][seq] = 1 / math.log2(1 + many)
    found: dict[str, dict[str, float]] = {}
    for leader in leaders:
        both = {
            path: sum(amount for seq, amount in commits[path].items() if seq in commits[leader])
            for path in paths
        }
        found[leader] = {
            path: amount / (sum(commits[path].values()) + _FEW) for path, amount in both.items() if amount
        }
    return found
