"""Search: the retrievers that rank every file by the index, with the best part of each, and that read the
files themselves (grep).
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import apsw

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.calls import RetrievalStep
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.language.code_tokens import query_words
from kestrel_lab.retrieval.hits import Hit, Retrieval
from kestrel_lab.retrieval.indexing.file_list import SKIPPED_FOLDERS, is_secret, read_text, ripgrep_program
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.ranking import LEAST_SHARE, Ranked, Ranking, Weights, rank_files
from kestrel_lab.retrieval.semantic import SemanticScorer

MAX_LISTED = 100
"""Number of files listed in a trace after the chosen ones, and of files that hardly match."""
FAINT = f"under {LEAST_SHARE:.1%} of the best score: next to nothing of the question is in it"
PATH_FIRST = Weights(
    body=0.2,
    title=0.3,
    path=1.0,
    base=1.0,
    symbols=0.6,
    chunk=0.1,
    said=0.0,
    lately=0.0,
    together=0.0,
    imported=0.0,
    folder=0.0,
)
"""For a second search: names of files and symbols weigh more than contents."""
_SHOWN_LINES = 12
_WORDS = {
    "body": "text",
    "title": "title",
    "path": "path",
    "base": "file name",
    "symbols": "symbols",
    "chunk": "one part",
    "m_path": "named as a file",
    "m_frame": "in the traceback",
    "m_module": "named as a module",
    "m_dotted": "named in full",
    "m_identifier": "defines a name",
    "said": "commit messages",
    "lately": "changed lately",
    "alike": "meaning",
    "together": "changes together with the best",
    "imported": "imported by the best",
    "folder": "in the folder of the best",
}


class Search:
    """A `Retriever` over an index: words of texts, titles, paths and symbols, explicit names, commit
    messages.
    """

    name = "search"

    def __init__(
        self,
        index: CodeIndex,
        weights: Weights = Weights(),  # noqa: B008
        meaning: SemanticScorer | None = None,
    ) -> None:  # frozen
        self._index = index
        self._weights = weights
        self._alike = None if meaning is None else partial(meaning, folder=index.workspace)

    def __call__(self, query: str, top_k: int = 10) -> Retrieval:
        """See `Retriever`."""
        began = time.perf_counter()
        return self.answer(self.ranking(query, top_k), query, top_k, began)

    def answer(self, ranking: Ranking, query: str, top_k: int, began: float) -> Retrieval:
        """The first `top_k` files of a ranking for `query` that was begun at a time of `perf_counter`."""
        hits = self.hits(ranking.hits[:top_k], query)
        step = step_of(self.name, query, ranking, top_k, time.perf_counter() - began)
        return Retrieval(query=query, hits=tuple(hits), steps=(step,), stopped="limit" if hits else "nothing")

    def ranking(self, query: str, top_k: int = 1) -> Ranking:
        """Rank every file that matches `query`."""
        check_query(query, top_k)
        return self._index.read(lambda connection: rank_files(connection, query, self._weights, self._alike))

    def hits(self, files: Iterable[Ranked], query: str) -> list[Hit]:
        """Return the best place of each file; none for a deleted or binary file."""
        found = []
        words = query_words(query)
        for one in files:
            text = read_text(self._index.workspace, one.path)
            if isinstance(text, str):
                continue
            place = self._place(one)
            first, last = place[:2] if place else (1, _SHOWN_LINES)
            hit = file_excerpt(one.path, text, first, last, words)
            what = f"{place[2]} {place[3]}" if place and place[3] else ""
            seen = [word for word in words if word in hit.text.lower()][:4]
            why = ": ".join(filter(None, (what, hit_reason(one, self._weights, seen))))
            found.append(replace(hit, how=self.name, why=why, score=one.score, parts=one.parts))
        return found

    def _place(self, one: Ranked) -> tuple[Any, ...] | None:
        if not one.chunks:
            return None
        rows = self._index.rows(
            "SELECT first, last, kind, name FROM chunks WHERE id = ?", (one.chunks[0][0],)
        )
        return rows[0] if rows else None


def check_query(query: str, top_k: int) -> None:
    """Raise `UsageError` for a query without words, or a wrong `top_k`."""
    if not query_words(query):
        raise UsageError(f"there is no word to search for in {one_line(query, 60)!r}: name at least one word")
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise UsageError(f"top_k must be a number from 1 on, not {top_k!r}")


def file_excerpt(path: str, text: tuple[str, bytes], first: int, last: int, words: Iterable[str]) -> Hit:
    """Return the lines of a file with most of `words`, all within `first` to `last`."""
    lines = text[0].split("\n")
    first, last = max(1, min(first, len(lines))), max(1, min(last, len(lines)))
    if last - first >= _SHOWN_LINES:
        within = "\n".join(lines[first - 1 : last]).lower()
        telling = {word for word in words if word in within}
        sums = [0, *accumulate(sum(word in line for word in telling) for line in within.split("\n"))]
        best = max(
            range(len(sums) - _SHOWN_LINES),
            key=lambda at: (sums[at + _SHOWN_LINES] - sums[at] + 2 * (at == 0), -at),
        )
        first, last = first + best, first + best + _SHOWN_LINES - 1
    return Hit(
        path=path,
        first=first,
        last=last,
        text="\n".join(line[:300] for line in lines[first - 1 : last]),
        hash=hashlib.sha256(text[1]).hexdigest(),
        how="",
        why="",
    )


def hit_reason(one: Ranked, weights: Weights, seen: Sequence[str] = ()) -> str:
    """Return why a file was found: names in the question, words in the excerpt, else strongest signals."""
    if one.named:
        return "the question names " + ", ".join(one.named[:3])
    if seen:
        return "has " + ", ".join(seen)
    most = sorted(one.parts, key=lambda name: -one.parts[name] * getattr(weights, name))[:2]
    return " and ".join(_WORDS[name] for name in most)


def score_text(parts: Mapping[str, float], weights: Weights, factor: float = 1.0) -> str:
    """Return the parts of a score in words, greatest first."""
    weighed = sorted(((getattr(weights, name) * part, name) for name, part in parts.items()), reverse=True)
    text = " + ".join(f"{_WORDS[name]} {amount:.2f}" for amount, name in weighed if amount >= 0.005)
    return f"({text or '0'}) × {factor:g}" if factor != 1 else text or "0"


def step_of(
    name: str, query: str, ranking: Ranking, top_k: int, seconds: float, **arguments: Any
) -> RetrievalStep:
    """Return a ranking as a step of a trace."""
    behind = enumerate(ranking.hits[top_k : top_k + MAX_LISTED], top_k + 1)
    faint = ranking.files[ranking.clear : ranking.clear + MAX_LISTED]
    dropped: dict[str, Json] = {
        **{one.path: f"ranked {place}: behind the {top_k} asked for" for place, one in behind},
        **{one.path: FAINT for one in faint},
    }
    return RetrievalStep(
        step="",
        retriever=name,
        query=query,
        arguments={"top_k": top_k, **arguments},
        found=ranking.clear,
        chosen=[one.path for one in ranking.hits[:top_k]],
        dropped=dropped,
        seconds=round(seconds, 4),
    )


def words_found(connection: apsw.Connection, files: Iterable[int], words: Iterable[str]) -> set[str]:
    """Return those of `words`, as the index stores them, that any of these files has."""
    numbers, found = list(files), set()
    for word in words:
        for number in numbers:
            if connection.execute(
                "SELECT 1 FROM file_words WHERE file_words MATCH ? AND rowid = ?", (f'"{word}"', number)
            ).fetchone():
                found.add(word)
                break
    return found


_MOST_WORDS = 24
_SECONDS = 20.0
_FLAGS = (
    *(
        "--fixed-strings",
        "--ignore-case",
        "--only-matching",
        "--no-heading",
        "--line-number",
        "--with-filename",
        "--null",
        "--color=never",
    ),
    *(
        "--hidden",
        "--no-follow",
        "--no-require-git",
        "--no-config",
        "--no-ignore-global",
        "--no-ignore-parent",
        "--no-messages",
    ),
    *("--max-filesize=1M", "--max-count=200"),
)


class Grep:
    """A `Retriever` that reads every file: those with more different words of the question come first."""

    name = "grep"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, query: str, top_k: int = 10) -> Retrieval:
        """See `Retriever`; the longest words of a long question only."""
        check_query(query, top_k)
        began = time.perf_counter()
        words = sorted(query_words(query), key=lambda word: (-len(word), word))[:_MOST_WORDS]
        found = self._found(words)
        rare = Counter(word for lines in found.values() for word in lines)
        ranked = sorted(found, key=lambda path: (-sum(1 / rare[word] for word in found[path]), path))
        hits = [hit for path in ranked[:top_k] if (hit := self._hit(path, found[path], words)) is not None]
        behind = enumerate(ranked[top_k : top_k + MAX_LISTED], top_k + 1)
        step = RetrievalStep(
            step="",
            retriever=self.name,
            query=query,
            arguments={"top_k": top_k, "words": list(words)},
            found=len(ranked),
            chosen=[hit.path for hit in hits],
            dropped={path: f"ranked {place}: behind the {top_k} asked for" for place, path in behind},
            seconds=round(time.perf_counter() - began, 4),
        )
        return Retrieval(query=query, hits=tuple(hits), steps=(step,), stopped="limit" if hits else "nothing")

    def _found(self, words: Iterable[str]) -> dict[str, dict[str, int]]:
        skip = [f"--glob=!**/{name}/" for name in SKIPPED_FOLDERS]
        argv = [
            ripgrep_program(self._folder),
            *_FLAGS,
            *skip,
            *(f"--regexp={word}" for word in words),
            "--",
            ".",
        ]
        try:
            run = subprocess.run(
                argv,
                cwd=self._folder,
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=_SECONDS,
            )
            said = run.stdout
        except subprocess.TimeoutExpired as error:
            # What was found in time is better than nothing.
            said = error.stdout or b""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for line in split_lines(said.decode("utf-8", "replace")):
            name, _, rest = line.partition("\0")
            number, _, word = rest.partition(":")
            path = name.removeprefix("./")
            # Ripgrep reads hidden files too.
            if number.isdigit() and not is_secret(path):
                found[path].setdefault(word.lower(), int(number))
        return found

    def _hit(self, path: str, lines: dict[str, int], words: Iterable[str]) -> Hit | None:
        text = read_text(self._folder, path)
        if isinstance(text, str):
            return None
        first = min(lines.values())
        return replace(
            file_excerpt(path, text, first, first + 11, words),
            how=self.name,
            why="has " + ", ".join(sorted(lines)[:4]),
            score=float(len(lines)),
        )


def check_hits(folder: Path, hits: Iterable[Hit], query: str) -> tuple[list[Hit], dict[str, str]]:
    """Read each hit's file again; return the valid hits, and the others with the reason."""
    words, kept, dropped = query_words(query), [], {}
    for hit in hits:
        text = read_text(folder, hit.path)
        if isinstance(text, str):
            dropped[hit.path] = f"not there when it was read: {text}"
        elif hit.text and hit.text.split("\n")[0] not in text[0]:
            dropped[hit.path] = "it changed while it was searched"
        elif not hit.parts and not any(word in text[0].lower() or word in hit.path.lower() for word in words):
            dropped[hit.path] = "read, and no word of the question is in it or its path"
        else:
            kept.append(hit)
    return kept, dropped
