"""Grep: finds the words of a question in the files themselves, and checks hits of the index against the files."""

from __future__ import annotations

import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kestrel_lab.language.code_tokens import spoken
from kestrel_lab.retrieval.hits import Hit, Retrieval, Step
from kestrel_lab.retrieval.indexing.file_list import SKIPPED_FOLDERS, is_secret, read_text, rg
from kestrel_lab.retrieval.search import checked, excerpt

_MOST_WORDS = 24
_SECONDS = 20.0
_FLAGS = (
    *("--fixed-strings", "--ignore-case", "--only-matching", "--no-heading", "--line-number", "--with-filename", "--null", "--color=never"),
    *("--hidden", "--no-follow", "--no-require-git", "--no-config", "--no-ignore-global", "--no-ignore-parent", "--no-messages"),
    *("--max-filesize=1M", "--max-count=200"),
)


class Grep:
    """A `Retriever` that reads every file: those with more different words of the question come first."""

    name = "grep"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, query: str, top_k: int = 10) -> Retrieval:
        """See `Retriever`; the longest words of a long question only."""
        checked(query, top_k)
        began = time.perf_counter()
        words = sorted(spoken(query), key=lambda word: (-len(word), word))[:_MOST_WORDS]
        found = self._found(words)
        rare = Counter(word for lines in found.values() for word in lines)
        ranked = sorted(found, key=lambda path: (-sum(1 / rare[word] for word in found[path]), path))
        hits = [hit for path in ranked[:top_k] if (hit := self._hit(path, found[path], words)) is not None]
        step = Step(
            retriever=self.name,
            query=query,
            arguments={"top_k": top_k, "words": list(words)},
            found=len(ranked),
            chosen=tuple(hit.path for hit in hits),
            dropped={
                path: f"ranked {place}: behind the {top_k} asked for" for place, path in enumerate(ranked[top_k : top_k + 100], top_k + 1)
            },
            seconds=round(time.perf_counter() - began, 4),
        )
        return Retrieval(query=query, hits=tuple(hits), steps=(step,), stopped="limit" if hits else "nothing")

    def _found(self, words: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return the first line of each word, by file."""
        skip = [f"--glob=!**/{name}/" for name in SKIPPED_FOLDERS]
        argv = [rg(self._folder), *_FLAGS, *skip, *(f"--regexp={word}" for word in words), "--", "."]
        try:
            done = subprocess.run(argv, cwd=self._folder, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=_SECONDS)
            said = done.stdout
        except subprocess.TimeoutExpired as error:
            said = error.stdout or b""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for line in said.decode("utf-8", "replace").splitlines():
            name, _, rest = line.partition("\0")
            number, _, word = rest.partition(":")
            path = name.removeprefix("./")
            if number.isdigit() and not is_secret(path):
                found[path].setdefault(word.lower(), int(number))
        return found

    def _hit(self, path: str, lines: dict[str, int], words: Iterable[str]) -> Hit | None:
        text = read_text(self._folder, path)
        if isinstance(text, str):
            return None
        first = min(lines.values())
        hit = excerpt(path, text, first, first + 11, words)
        return replace(hit, how=self.name, why="has " + ", ".join(sorted(lines)[:4]), score=float(len(lines)))


def checked_hits(folder: Path, hits: Iterable[Hit], query: str) -> tuple[list[Hit], dict[str, str]]:
    """Read each hit's file again; return the hits that still hold, and the others with the reason."""
    words, kept, dropped = spoken(query), [], {}
    for hit in hits:
        text = read_text(folder, hit.path)
        if isinstance(text, str):
            dropped[hit.path] = f"not there when it was read: {text}"
        elif hit.text and hit.text.split("\n")[0] not in text[0]:
            dropped[hit.path] = "it changed while it was searched"
        elif not _speaks(words, text[0].lower(), hit):
            dropped[hit.path] = "read, and no word of the question is in it or its path"
        else:
            kept.append(hit)
    return kept, dropped


def _speaks(words: Iterable[str], text: str, hit: Hit) -> bool:
    """Return whether a file has a word of the question, whole or as the index cuts it."""
    path = hit.path.lower()
    return bool(hit.parts) or any(word in text or word in path for word in words)
