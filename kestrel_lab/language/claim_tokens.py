"""Words that say what a text is about, names taken apart, endings taken off."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_COMMON_TEXT: Final = """a about above after again all also am an and any are aren't as at be because been before being below between both but by can can't
    cannot could couldn't did didn't do does doesn't doing don't down during each either else even ever few for from further get gets got
    had hadn't has hasn't have haven't having he he'd he'll he's her here hers herself him himself his how i i'd i'll i'm i've if in into is
    isn't it it's its itself just let's like may me might more most much must my myself no nor not of off oh on once only or other our ours out
    over own really same say says she so some such t than that that's the their theirs them then there there's these they they're this those
    through to too under until up us very was wasn't we we're were what when where which while who whom why will with would yeah yes you
    you're your yours well know think lot s d m re ve ll"""
COMMON: Final = frozenset(_COMMON_TEXT.split())
_ENDINGS: Final = ("ings", "ing", "edly", "ed", "ies", "es", "s", "ly", "er", "or", "ion", "ment")
_PLAIN_WORDS_TEXT: Final = (
    "line lines file files code function method class module package set define call return value default name use see string number"
)


def words(text: str) -> list[str]:
    """The words of `text` in lower case, in order."""
    return [match[0].lower().replace("’", "'") for match in _WORD.finditer(text)]


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """`word` without its ending: the same for most forms of one word."""
    word = word.removesuffix("'s")
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)].rstrip("e")
    return word.rstrip("e") if len(word) > 3 else word


_PLAIN_STEMS: Final = frozenset(map(stem, _PLAIN_WORDS_TEXT.split()))


def telling(text: str, but: Iterable[str] = ()) -> frozenset[str]:
    """Stems of the words that say what a text is about; names are taken apart, and those of `but` left out."""
    for left_out in but:
        text = text.replace(left_out, " ")
    parts: list[str] = []
    for word in _WORD.findall(text.replace("_", " ")):
        parts += [word] if word.islower() else _CAMEL.split(word)
    found = {stem(part.lower()) for part in parts if part.lower() not in COMMON and len(part) > 2 and not part.isdigit()}
    return frozenset(found - _PLAIN_STEMS)
