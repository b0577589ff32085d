"""Numbers of a text, and which outputs contain them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# No parts of versions, dates, paths and ranges, such as `1.2.3`, `2026-11-28` and `3-5`.
NUMBER: Final = re.compile(
    r"(?<![\w.,:/)\]'-])[-−]?(?:\d{1,3}(?:[,_'\u00a0\u202f]\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|[.,:/_'\u00a0\u202f-]\d)"
)
_SEPARATORS: Final = str.maketrans({"−": "-", **dict.fromkeys(",_'\u00a0\u202f")})
_ITEM: Final = re.compile(r"^[ \t]*\d+[.)]\s", re.MULTILINE)


def numbers_in(text: str) -> dict[str, str]:
    """Return the numbers of a text as they are written, each with its form without signs between
    thousands.
    """
    return {match[0]: match[0].translate(_SEPARATORS) for match in NUMBER.finditer(text)}


def number_origins(answer: str, outputs: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of an answer that outputs contain, with the places of all these outputs.

    Only equal numbers count: `1,188` is `1188`, but `0.5` is not `0.50` and no rounding is guessed. Numbers
    of list items, dates and ranges are left out.
    """
    held = [set(numbers_in(output).values()) for output in outputs]
    found = {
        said: [place for place, numbers in enumerate(held) if number in numbers]
        for said, number in numbers_in(_ITEM.sub("", answer)).items()
    }
    return {said: places for said, places in found.items() if places}
