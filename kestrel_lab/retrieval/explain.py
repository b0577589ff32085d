"""Explanations of retrieval: why a file is among the hits, or why it is not."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from kestrel_lab.core.events.calls import RetrievalStep
from kestrel_lab.host.git import run_git
from kestrel_lab.retrieval.hits import Retrieval
from kestrel_lab.retrieval.indexing.file_list import SKIPPED_FOLDERS, file_stamp, files_of, skip_reason
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.ranking import Ranking, Weights
from kestrel_lab.retrieval.search import FAINT, Search, score_text

NO_UTF8 = "its name is not UTF-8, which the index cannot keep: such files are left out"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileExplanation:
    """The fate of one file in a search."""

    path: str
    state: str
    """`found`, `dropped`, `behind`, `unmatched`, `unread`, `ignored`, `waiting` or `missing`."""
    reason: str
    """The whole story, in a sentence or two."""
    place: int | None = None
    """Its rank among all matches, if ranked."""
    parts: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.path}: {self.state}: {self.reason}"


def explain_rank(
    index: CodeIndex, query: str, path: str, retrieval: Retrieval | None = None, top_k: int = 10
) -> FileExplanation:
    """Explain what becomes of `path`, relative to the folder or absolute, when `query` is asked; any path can
    be explained.

    With `retrieval`, which must be the answer to `query`, its steps are explained as well. Raises
    `UsageError` like a `Retriever`.
    """
    asked = index_path(index.workspace, path)
    if (why := explain_missing(index, asked)) is not None:
        return why
    ranking = Search(index).ranking(query, top_k)
    place = ranking.places.get(asked)
    if place is None:
        return _in_steps(retrieval, asked) or FileExplanation(
            path=asked, state="unmatched", reason=_explain_unmatched(ranking)
        )
    one = ranking.files[place - 1]
    made = (
        f"ranked {place} of {len(ranking.files)} with {one.score:.2f} = "
        f"{score_text(one.parts, Weights(), one.factor)}"
    )
    if (step := _in_steps(retrieval, asked)) is not None:
        return FileExplanation(
            path=asked, state=step.state, reason=f"{step.reason}; {made}", place=place, parts=one.parts
        )
    if place > ranking.clear:
        return FileExplanation(
            path=asked, state="dropped", reason=f"{made}; {FAINT}", place=place, parts=one.parts
        )
    state = "found" if place <= top_k else "behind"
    end = "" if state == "found" else f"; only the first {top_k} were asked for"
    return FileExplanation(path=asked, state=state, reason=made + end, place=place, parts=one.parts)


def explain_missing(index: CodeIndex, path: str) -> FileExplanation | None:
    """Explain why a file is not in the index; return `None` for one that is."""
    if not path.isprintable() and path.encode("utf-8", "replace").decode() != path:
        return FileExplanation(path=repr(path), state="missing", reason=NO_UTF8)
    rows = index.rows("SELECT skipped FROM files WHERE path = ?", (path,))
    if rows:
        return (
            FileExplanation(path=path, state="unread", reason=f"it is not read: {rows[0][0]}")
            if rows[0][0]
            else None
        )
    place = index.workspace / path
    if path.startswith("../") or path == ".." or posixpath.isabs(path):
        return FileExplanation(
            path=path, state="missing", reason=f"it is outside the folder {index.workspace}"
        )
    if (closed := _unreadable_folder(index.workspace, path)) is not None:
        why = f"it is not listed: the folder {closed} may not be read by you, so what is in it is not known"
        return FileExplanation(path=path, state="unread", reason=f"{why}; allow it: chmod u+rx {closed}")
    if place.is_dir():
        return FileExplanation(path=path, state="missing", reason="it is a folder; files are what is found")
    if not os.path.lexists(place):
        names = [str(row[0]) for row in index.rows("SELECT path FROM files")]
        alike = "".join(f"; did you mean {name}?" for name in get_close_matches(path, names, n=1, cutoff=0.6))
        return FileExplanation(
            path=path, state="missing", reason=f"there is no such file in {index.workspace}{alike}"
        )
    now = file_stamp(index.workspace, path)
    if isinstance(now, str):
        return FileExplanation(path=path, state="unread", reason=f"it is not read: {now}")
    if path in files_of(index.workspace):
        # It is not indexed yet, but the index will leave it out.
        if why := skip_reason(path, now.size):
            return FileExplanation(path=path, state="unread", reason=f"it is not read: {why}")
        return FileExplanation(
            path=path,
            state="waiting",
            reason="it is not in the index yet: the index is still being built, or the file is new",
        )
    return FileExplanation(path=path, state="ignored", reason=_explain_unlisted(index.workspace, path))


def _explain_unmatched(ranking: Ranking) -> str:
    text = (
        f"it is in the index, but none of the words that are looked up is in it: {', '.join(ranking.looked)}"
    )
    left = [word for word in ranking.question.weights if word not in ranking.looked]
    return text + (
        f". Not looked up in texts, since too many files have them or nothing has: {', '.join(left)}"
        if left
        else ""
    )


def _unreadable_folder(folder: Path, path: str) -> str | None:
    """Return the first unreadable folder on the way to a file, relative to `folder`."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        parent = folder.joinpath(*parts[:depth])
        try:
            with os.scandir(parent):
                os.lstat(parent / parts[depth])
        except PermissionError:
            return "/".join(parts[:depth])
        except OSError:
            return None
    return None


def _explain_unlisted(folder: Path, path: str) -> str:
    skipped = [part for part in path.split("/")[:-1] if part in SKIPPED_FOLDERS]
    if skipped:
        return f"it is not listed: folders called {skipped[0]} are left out"
    done = run_git(folder, "check-ignore", "--verbose", "--", path)
    rule = done.stdout.decode("utf-8", "replace").split("\t")[0] if done.returncode == 0 else ""
    if rule:
        return f"it is not listed: ignored by the rule {rule}"
    parents = [folder.joinpath(*path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]
    if link := next((parent for parent in parents if parent.is_symlink()), None):
        return f"it is not listed: {link.relative_to(folder)} is a symbolic link, which is not followed"
    if inner := next((parent for parent in parents if (parent / ".git").exists()), None):
        return f"it is not listed: it belongs to another repository, {inner.relative_to(folder)}"
    return (
        "it is not listed: neither git nor rg names it among the files here, as they do with what an "
        "ignore file names"
    )


def _in_steps(retrieval: Retrieval | None, path: str) -> FileExplanation | None:
    if retrieval is None:
        return None
    for hit in retrieval.hits:
        if hit.path == path:
            return FileExplanation(
                path=path, state="found", reason=f"{hit.place}, by {hit.how}: {hit.why}", parts=hit.parts
            )
    return last_step_about(retrieval.steps, path)


def last_step_about(steps: tuple[RetrievalStep, ...], path: str) -> FileExplanation | None:
    """Return what the last step that names a file says about it; `None` if none does."""
    for number, step in reversed(list(enumerate(steps, 1))):
        if path in step.dropped:
            why = str(step.dropped[path])
            return FileExplanation(
                path=path,
                # The search writes this of files that match, but less than the ones asked for.
                state="behind" if why.startswith("ranked ") else "dropped",
                reason=f"step {number}, {step.retriever}: {why}",
            )
        if path in step.chosen:
            reason = (
                f"step {number}, {step.retriever}: chosen there, and left out of what was found in the end"
            )
            return FileExplanation(path=path, state="dropped", reason=reason)
    return None


def index_path(folder: Path, path: str) -> str:
    """Return `path` as the index writes it."""
    given = path.replace(os.sep, "/")
    if posixpath.isabs(given):
        given = os.path.relpath(given, folder).replace(os.sep, "/")
    return posixpath.normpath(given)
