"""Words for a time zone inside a time expression: 15:00 UTC, 3pm Europe/Vienna, 9am New York time."""

from __future__ import annotations

import re

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeexpr.words import compiled
from kestrel_lab.tools.timeexpr.zones import ABBREVIATIONS, AMBIGUOUS, Zone, cities, zone_key, zone_named

_KEY = re.compile(r"(?<![\w/])[A-Za-z]+(?:/[A-Za-z][A-Za-z_+\-0-9]*)+(?![\w/])")
_DISTANCE = re.compile(r"\b(?:UTC|GMT)\s?[+-]\d{1,2}(?::?\d\d)?\b|(?<=:\d\d)\s?[+-]\d\d:?\d\d\b", re.IGNORECASE)
_UTC = re.compile(r"\b(?:UTC|GMT|Zulu)\b|(?<=\d)Z\b", re.IGNORECASE)
_SHORT = rf"\b(?:{'|'.join(sorted({*AMBIGUOUS, *ABBREVIATIONS}, key=len, reverse=True))})\b"
_LONG = "|".join(word for word in (*AMBIGUOUS, *ABBREVIATIONS) if len(word) > 2)
_AFTER_CLOCK = rf"(?<=[\dm])\s?(?:{_LONG})\b"  # in small letters only where no other word can be meant
_SPOKEN = {
    "eastern": ("America/New_York", "Australia/Sydney"),
    "central": ("America/Chicago", "Australia/Adelaide", "Europe/Berlin"),
    "mountain": ("America/Denver", "America/Phoenix"),
    "pacific": ("America/Los_Angeles", "America/Tijuana"),
    "atlantic": ("America/Halifax", "America/Puerto_Rico"),
}
_REGION = re.compile(rf"\b({'|'.join(_SPOKEN)})(?: (?:standard|daylight|summer))?(?: time)?\b", re.IGNORECASE)
_OWN = re.compile(r"\b(?:my|our|local) (?:local )?time\b", re.IGNORECASE)
_CITY = re.compile(
    r"(?:\bin )?((?:[A-Za-z.'-]+ ){0,2}[A-Za-z.'-]+)(?:'s)? time\b|\bin ((?:[A-Za-z.'-]+ ){0,2}[A-Za-z.'-]+)$", re.IGNORECASE
)


def take_zone(text: str) -> tuple[str, Zone | None]:
    """`text` without the words for a zone, and that zone, if there is one.

    Raises `UsageError` for one that is not known, means several, or stands beside another.
    """
    if (spoken := _REGION.search(text)) is not None:
        msg = f"{spoken[0]!r} does not say which zone is meant: write {' or '.join(_SPOKEN[spoken[1].lower()])}"
        raise UsageError(msg)
    text = _OWN.sub("", text)
    found: list[str] = []
    for pattern in (_DISTANCE, _KEY, _UTC, compiled(_SHORT), compiled(_AFTER_CLOCK, re.IGNORECASE)):
        for match in pattern.finditer(text):
            if pattern is not _KEY or zone_key(match[0]):
                found.append(match[0].strip())
                text = text.replace(match[0], " ", 1)
    rest, city = _take_city(text)
    if city:
        found.append(city)
        text = rest
    if len(found) > 1:
        msg = f"two time zones are named, {' and '.join(found)}: name one"
        raise UsageError(msg)
    return text, zone_named(found[0], "the text") if found else None


def _take_city(text: str) -> tuple[str, str]:
    match = _CITY.search(text.strip())
    if match is None:
        return text, ""
    words = (match[1] or match[2]).split()
    for count in range(len(words), 0, -1):
        name = "_".join(words[-count:]).casefold()
        keys = cities().get(name, ())
        if len(keys) == 1:
            stripped = re.sub(
                rf"(?:\bin )?{re.escape(' '.join(words[-count:]))}(?:'s)?(?: time\b)?", " ", text, count=1, flags=re.IGNORECASE
            )
            return stripped, keys[0]
        if len(keys) > 1:
            msg = f"{' '.join(words[-count:])!r} does not say which zone is meant: write {' or '.join(keys)}"
            raise UsageError(msg)
    return text, ""
