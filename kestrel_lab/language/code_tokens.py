"""Words of code and prose for the full-text index of files: names whole and in their parts, and the terms of
a question.
"""

from __future__ import annotations

import re
from collections import Counter

from kestrel_lab.language.words import STOP_WORDS, name_parts

WORD = re.compile(r"[^\W_]\w*|_\w+")
_LONGEST = 80
_DIGITS = 6
"""Longer numbers are measurements and hashes, for which nobody searches by all their digits."""
COMMON = STOP_WORDS - {"during", "ever", "going", "made", "said", "says"} | {
    *"""
although always another below between bug cannot etc even expected first following however instead issue \
maybe need now ok problem q really
reproduce run seems something still sure thing things think though thus try trying two uses version whether \
within without work works yes
""".split()
}
"""Words that say nothing about where in a repository something is."""


class _Kept(dict[str, str]):
    """The form of each word in the index, computed once: its parts, and if it has several all of them as one
    word.
    """

    # A dict, because it is asked for each word of each file: `lru_cache` takes half as long again.
    def __missing__(self, word: str) -> str:
        pieces = (
            name_parts(word) if len(word) <= _LONGEST and not (word.isdigit() and len(word) > _DIGITS) else []
        )
        # Bounds the memory: generated files have any number of different words.
        if len(self) > 500_000:
            self.clear()
        # The last one is the same for `readFile` and `read_file`, and no word that a text has.
        self[word] = " ".join(pieces if len(pieces) <= 1 else [*pieces, "x".join(("", *pieces))])
        return self[word]


_kept = _Kept()


def index_text(text: str) -> str:
    """Return `text` as the index stores it: each name in its parts, and whole if it has several."""
    return " ".join(map(_kept.__getitem__, WORD.findall(text)))


def search_terms(text: str) -> dict[str, int]:
    """Return the search terms of a question as the index stores words, each with its count; common ones only
    where nothing else is left.
    """
    counted = Counter(index_text(text).split())
    telling = {
        word: many
        for word, many in counted.items()
        if word not in COMMON and (len(word) > 1 or not word.isascii())
    }
    return telling or counted


def query_words(text: str) -> tuple[str, ...]:
    """Return the distinct words of a question that are not common, in order and in lower case."""
    found = dict.fromkeys(word.lower() for word in WORD.findall(text))
    return tuple(word for word in found if word not in COMMON and len(word) > 1) or tuple(found)
