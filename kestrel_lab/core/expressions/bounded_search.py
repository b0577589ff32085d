"""Search for patterns that a user's file gives: several repetitions can take exponential time, so each search
has an end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    import regex

SEARCH_SECONDS: Final = 1.0
_REPETITION: Final = re.compile(r"[*+?{]")


def search_in_time(pattern: re.Pattern[str], text: str) -> re.Match[str] | regex.Match[str] | None:
    """Return the first match; raises `TimeoutError` that names the pattern after `SEARCH_SECONDS`."""
    if not _REPETITION.search(pattern.pattern):
        return pattern.search(text)  # without a repetition each search ends
    import regex  # loaded on use: it takes longer than most searches

    try:
        return regex.search(pattern.pattern, text, timeout=SEARCH_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(_message(pattern)) from error


def replace_in_time(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """Return a text with each match replaced; raises `TimeoutError` as `search_in_time` does."""
    if not _REPETITION.search(pattern.pattern):
        return pattern.sub(replacement, text)
    import regex  # loaded on use

    try:
        replaced: str = regex.sub(pattern.pattern, replacement, text, timeout=SEARCH_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(_message(pattern)) from error
    return replaced


def _message(pattern: re.Pattern[str]) -> str:
    return (
        f"the pattern {one_line(pattern.pattern, 60)!r} did not end within {SEARCH_SECONDS:g} s; use fewer "
        "repetitions"
    )
