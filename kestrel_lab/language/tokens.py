"""The words of a text that say what it is about, cut down so that forms of one word are equal."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=\d)")
_WORDS = """
a about after all also am an and any are as at be because been before being both but by can could did do does doing done
during each either else ever every few for from get gets give given go goes going got had has have having he her here hers
him his how i if in into is it its just kind know let like made make makes many may me might mine more most much must my
no nor of off on once one only or other our out over own please s said same say says see shall she should show since so some such
sort t tell than that the their theirs them then there these they this those through time to too type under until up us
use used using very want was way we well went were what when where which while who whom whose why will with would you your
yours
"""
COMMON = frozenset(_WORDS.split())
NEGATIONS = frozenset(
    {"no", "not", "never", "without", "cannot", "neither", "nor", "none", "nothing", "stop", "dont", "isnt", "wont", "doesnt"}
)
_ENDINGS = ("ings", "ing", "edly", "ed", "ies", "es", "s", "ly")


def words(text: str) -> list[str]:
    """The words of `text` in lower case, in order."""
    return [match[0].replace("’", "'").lower() for match in _WORD.finditer(text)]


def content_words(text: str) -> list[str]:
    """Those that are neither common nor single letters; all of them when nothing else is left."""
    found = [word.removesuffix("'s") for word in words(text)]
    telling = [word for word in found if word not in COMMON and (len(word) > 1 or word.isdigit())]
    return telling or found


def stem(word: str) -> str:
    """`word` without its ending: the same for most forms of one word."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            short = word[: -len(ending)]
            return short[:-1] if len(short) > 3 and short[-1] == short[-2] else short.removesuffix("e")
    return word.removesuffix("e") if len(word) > 3 else word


def stems(text: str) -> frozenset[str]:
    """What the words of `text` are forms of, common words left out."""
    return frozenset(map(stem, content_words(text)))


def parts(name: str) -> list[str]:
    """The words that a name is made of: `readFile`, `read_file` and `read-file` are `read` and `file`."""
    return [word.lower() for piece in _WORD.findall(name) for word in _CAMEL.split(piece) if word]


def normal(text: str) -> str:
    """Equal for texts that differ in spaces, capitals and the last full stop only."""
    return " ".join(text.casefold().split()).rstrip(".!")
