"""Words of prose: tokens, stop words and stems, for search in notes and tools and for recall by a goal."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Between the words of `readFile` and `HTTPServer`, and before digits.
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=\d)")
_GOAL_WORD: Final = re.compile(r"[^\W\d_][\w.-]*[\w]|\d[\w.-]*\w")
STOP_WORDS: Final = frozenset(
    """
a about after all also am an and any are as at be because been before being both but by can could did do \
does doing done during each either
else ever every few for from get gets give given go goes going got had has have having he her here hers him \
his how i if in into is it its
just know let like made make makes many may me might mine more most much must my no nor of off on once one \
only or other our out over own
please s said same say says see shall she should since so some such t than that the their theirs them then \
there these they this those
through to too under until up us use used using very want was way we well went were what when where which \
while who whom whose why will
with would you your yours
""".split()
)
"""English words that say nothing about the subject of a text."""
COMMON: Final = STOP_WORDS | {"kind", "show", "sort", "tell", "time", "type"}
"""Words that say nothing about the subject of a note or a tool."""
_GOAL_COMMON: Final = STOP_WORDS | {"find", "list", "not", "show", "tell", "two", "write"}
NEGATIONS: Final = frozenset(
    {
        "no",
        "not",
        "never",
        "without",
        "cannot",
        "neither",
        "nor",
        "none",
        "nothing",
        "stop",
        "dont",
        "isnt",
        "wont",
        "doesnt",
    }
)
# The first one that fits is removed, so `ings` comes before `s`.
_ENDINGS: Final = ("ings", "ing", "edly", "ed", "ies", "es", "s", "ly")


def words_in(text: str) -> list[str]:
    """Return the words of `text` in lower case, in order."""
    return [match[0].replace("’", "'").lower() for match in _WORD.finditer(text)]


def content_words(text: str) -> list[str]:
    """Return the words that are neither common nor single letters; all words where nothing else is left."""
    found = [word.removesuffix("'s") for word in words_in(text)]
    return [word for word in found if word not in COMMON and (len(word) > 1 or word.isdigit())] or found


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Return `word` without its ending: the same for most forms of one word."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            short = word[: -len(ending)]
            # `stopped` and `stop` have the same stem: a doubled letter goes, too.
            return short[:-1] if len(short) > 3 and short[-1] == short[-2] else short.removesuffix("e")
    return word.removesuffix("e") if len(word) > 3 else word


def stems(text: str) -> frozenset[str]:
    """Return the stems of the words of `text`, common words left out."""
    return frozenset(map(stem, content_words(text)))


def name_parts(name: str) -> list[str]:
    """Return the words that names are made of, in lower case: `readFile`, `read_file` and `read-file` are
    `read` and `file`.
    """
    return [word.lower() for piece in _WORD.findall(name) for word in _CAMEL.split(piece) if word]


def normal_form(text: str) -> str:
    """Return a form that is equal for texts which differ in spaces, capitals and the last full stop only."""
    return " ".join(text.casefold().split()).rstrip(".!")


def goal_terms(text: str, most: int = 24) -> tuple[str, ...]:
    """Return the first `most` distinct words of `text` in lower case, common ones and single characters left
    out.
    """
    found = (match[0].casefold() for match in _GOAL_WORD.finditer(text))
    return tuple(dict.fromkeys(word for word in found if word not in _GOAL_COMMON))[:most]
