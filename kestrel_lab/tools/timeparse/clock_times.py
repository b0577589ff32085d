"""Times of day in English: 8pm, 20:15, noon, 24:00."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.normalize import compiled
from kestrel_lab.tools.timeparse.types import Question, refuse

_HALF = r"(?:\s?(?P<half>[ap]m))"
_CLOCKS = (
    rf"(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?{_HALF}?(?: o'?clock)?",
    rf"(?P<hour>\d{{1,2}})[. ](?P<minute>[0-5]\d)(?:[. ](?P<second>[0-5]\d))?{_HALF}",
    rf"(?P<hour>\d{{1,2}})(?: o'?clock)?{_HALF}",
)
_O_CLOCK = re.compile(r"(?P<hour>\d{1,2}) ?o'?clock", re.ASCII)
_PART = re.compile(r",? ?\b(?:in the |(?P<today>this ))?(?P<part>morning|afternoon|evening|night)\b|\b(?P<tonight>tonight)\b")
_PARTS = {"morning": range(12), "afternoon": range(12, 20), "evening": range(16, 24), "night": range(18, 24)}
"""Hours that can be meant in a part of the day; any other is refused."""
_ABOUT = re.compile(r"\b(?:around|about|approximately|approx\.?|roughly|circa)\b ?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """A time of day, on a clock of 24 hours."""

    at: time
    precision: str
    """`hour`, `minute` or `second`: how exactly it is written."""
    next_day: bool = False
    """24:00: the end of the day."""
    notes: tuple[str, ...] = ()


def take_apart(text: str, asked: Question) -> tuple[str, Clock | None, tuple[str, ...]]:
    """Separate the day from the time of day; returns both and notes on how the time was read. What is not understood stays in the day."""
    text, roughly = _ABOUT.subn("", text)
    part = ""
    if (found := _PART.search(text)) is not None:
        part = found["part"] or "night"
        text = " ".join((text[: found.start()] + (" today " if found["today"] or found["tonight"] else " ") + text[found.end() :]).split())
    notes = ("an approximate time: it was read as if it were exact",) if roughly else ()
    words = text.split(" ")
    counts = range(min(len(words), 7), 0, -1)  # the longest first, at the end and then at the beginning
    splits = [(words[-count:], words[:-count]) for count in counts] + [(words[:count], words[count:]) for count in counts]
    for piece, rest in splits:
        if (clock := _clock(_bare(" ".join(piece)), part, asked)) is not None:
            return _bare(" ".join(rest)), clock, (*notes, *clock.notes)
    if part:
        refuse(asked.text, "a part of a day has no clock time", "a clock time")
    return _bare(text), None, notes


def _bare(text: str) -> str:
    """Return `text` without the small words that join a day and a time."""
    text = text.strip(" ,;-")
    text = re.sub(r"^(?:(?:at|on|by|@)(?: |(?=\d)))+", "", text)
    return re.sub(r"[ ,]*\b(?:at|on|in the|the|-|,)$", "", text).strip(" ,;-")


def _clock(piece: str, part: str, asked: Question) -> Clock | None:
    if piece in {"noon", "12 noon", "midday"}:
        return Clock(at=time(12), precision="minute")
    if piece in {"midnight", "12 midnight"}:
        refuse(asked.text, "midnight begins one day and ends another", "00:00 or 24:00 with the day")
    for pattern in _CLOCKS:
        if (found := compiled(pattern).fullmatch(piece)) is not None:
            return _read(found.groupdict(), part, asked)
    if part and piece.isdigit():
        return _read({"hour": piece}, part, asked)
    if (found := _O_CLOCK.fullmatch(piece)) is not None:
        hour = found["hour"]
        refuse(asked.text, f"{hour} o'clock may be before or after noon", f"{hour}am, {hour}pm or 24 hours with minutes")
    return None


def _read(groups: dict[str, str | None], part: str, asked: Question) -> Clock:
    hour, minute, second = (int(groups.get(name) or 0) for name in ("hour", "minute", "second"))
    half = groups.get("half")
    precision = "second" if groups.get("second") else "minute" if groups.get("minute") else "hour"
    if hour > 24 or (half and not 1 <= hour <= 12):
        raise UsageError(f"there is no hour {hour}{half or ''} in {asked.text!r}: write 8pm or 20:00")
    if hour == 24:
        if minute or second:
            raise UsageError(f"24:00 is the end of a day: there is no {hour}:{minute:02d} in {asked.text!r}")
        return Clock(at=time(), precision=precision, next_day=True)
    notes: tuple[str, ...] = ()
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    if part:
        meant = [one for one in ({hour} if half else {hour, hour + 12}) if one in _PARTS[part]]
        if len(meant) != 1:
            refuse(asked.text, f"that hour is not clearly {part}", "am or pm behind it, or a clock time such as 20:15")
        hour = meant[0]
    elif not half and 1 <= hour < 12 and not (groups["hour"] or "").startswith("0"):
        notes = (f"read on a clock of 24 hours; for the afternoon write {hour}:{minute:02d}pm",)
    return Clock(at=time(hour, minute, second), precision=precision, notes=notes)
