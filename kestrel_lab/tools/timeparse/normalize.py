"""English time expressions in one spelling: lower case, and numbers that are written out in digits."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

MONTH_NAMES = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
WEEKDAY_NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = {name.lower()[:size]: number for number, name in enumerate(MONTH_NAMES, 1) for size in (3, 9)} | {
    "sept": 9
}
"""Number of a month, 1 to 12, by its name or a short form of it."""
WEEKDAYS = {name.lower()[:size]: number for number, name in enumerate(WEEKDAY_NAMES) for size in (3, 9)}
"""Number of a weekday, 0 for Monday, by its name or a short form of it."""
WEEKDAYS |= {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}


def _number_words(words: str, first: int = 1, step: int = 1) -> dict[str, int]:
    return {word: (first + place) * step for place, word in enumerate(words.split())}


_ONES = _number_words("one two three four five six seven eight nine")
_TEENS = _number_words("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen", 10)
_TENS = _number_words("twenty thirty forty fifty sixty seventy eighty ninety", 2, 10)
_FIRSTS = _number_words("first second third fourth fifth sixth seventh eighth ninth")
_TENTHS = (
    "tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth "
    "nineteenth twentieth"
)
_ORDINALS = _FIRSTS | _number_words(_TENTHS, 10) | {"thirtieth": 30}
_A_UNIT_FOLLOWS = re.compile(r"[+-]?\d[\d.]*|an?|this|per|half|every")
"""Words after which `second` is a unit of time."""
_HYPHEN = (
    rf"\b({'|'.join([*_TENS, *_TEENS, *_FIRSTS, *_ONES])})"
    rf"-(?={'|'.join([*_TENS, *_ONES, *_TEENS, *_ORDINALS])})"
)
_NUMBERS = _ONES | _TEENS | _TENS
_WRITTEN = (
    rf"(?<!\S)(?:({'|'.join(_TENS)}) "
    rf"({'|'.join([*_ONES, *_FIRSTS])})|({'|'.join([*_NUMBERS, *_ORDINALS])}))(?=[,.;]*(?:\s|$))"
)
"""A number in words on its own; not read across commas."""


@cache
def lazy_pattern(pattern: str, flags: int = re.ASCII) -> re.Pattern[str]:
    """Compile a pattern on first use: compiling all takes longer than importing the grammar."""
    return re.compile(pattern, flags)


def canonical_text(text: str) -> str:
    """Return `text` in the spelling that the rules of the grammar know."""
    text = unicodedata.normalize("NFKC", text).casefold()
    for odd, plain in (("’", "'"), ("–", "-"), ("—", "-"), ("−", "-")):
        text = text.replace(odd, plain)
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text)
    text = " ".join(lazy_pattern(_HYPHEN).sub(r"\1 ", text).split())
    return lazy_pattern(_WRITTEN).sub(_in_digits, text).strip(" .?!,;|")


def ordinal(number: int) -> str:
    """Return the number of a place, such as 1st, 2nd, 3rd, 11th."""
    tail = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tail}"


def _in_digits(found: re.Match[str]) -> str:
    tens, rest, alone = found.groups()
    if tens:
        return ordinal(_TENS[tens] + _FIRSTS[rest]) if rest in _FIRSTS else str(_TENS[tens] + _ONES[rest])
    if alone in _ORDINALS:
        before = found.string[: found.start()].split()
        is_unit = (
            alone == "second" and before and (before[-1] in _NUMBERS or _A_UNIT_FOLLOWS.fullmatch(before[-1]))
        )
        return alone if is_unit else ordinal(_ORDINALS[alone])
    return str(_NUMBERS[alone])
