"""Word runs: which text was made of which other text by hand, found by the runs of three words that both
have.

A sketch keeps the runs of a text with the smallest hashes. Of two texts the one with the sketch counts as a
source of the other if enough of the sketch is in the other, or enough of the other, as far as the sketch
reaches, is in the sketch.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass

from kestrel_lab.runtime.security.file_readings import readings

_KEPT = 64
"""Runs in a sketch; a text of fewer is known whole."""
_RUN = 3
_SHARE_OF_SOURCE, _SHARE_OF_TEXT = 0.2, 0.5
"""Least share of common runs for a text to count as made of a source: an edited whole, and an excerpt."""
_WHOLE = 0.8
_WORD = re.compile(r"[^\W぀-鿿가-힣]+|[぀-鿿가-힣]")
"""A word; in scripts that have no blanks between words, a sign."""


def word_runs(*parts: bytes) -> frozenset[int]:
    """Return hashes of all runs of three words in the texts of a file, or of parts of it, ignoring case and
    separators; see `file_readings`.
    """
    found = set[int]()
    for part in parts:
        for text in readings(part):
            words = _WORD.findall(text.casefold())
            runs = zip(*(words[start:] for start in range(_RUN)), strict=False)
            found.update(zlib.crc32(" ".join(run).encode()) for run in runs)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Sketch:
    """The runs of a text that are kept."""

    runs: frozenset[int]
    whole: bool
    """True if these are all runs of the text."""

    @classmethod
    def of(cls, runs: Collection[int]) -> Sketch:
        """Keep some of the runs."""
        return cls(frozenset(sorted(runs)[:_KEPT]), len(runs) <= _KEPT)

    def is_source_of(self, runs: Collection[int], common: int) -> bool:
        """Return true if a text with these runs, `common` of them shared, was made of this one."""
        if not self.runs or common < min(2, len(self.runs)):
            return False
        # A sketch has the smallest hashes: above its largest, nothing is known of the source.
        bound = max(self.runs)
        reached = len(runs) if self.whole else sum(run <= bound for run in runs)
        return common >= _SHARE_OF_SOURCE * len(self.runs) or common >= _SHARE_OF_TEXT * reached

    def is_within(self, runs: Collection[int]) -> bool:
        """Return whether a text with these runs has nearly all of this one."""
        return bool(self.runs) and len(self.runs & frozenset(runs)) >= _WHOLE * len(self.runs)
