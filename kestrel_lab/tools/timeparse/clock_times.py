"""Times of day in English: 8pm, 20:15, half past eight in the evening, tomorrow morning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.normalize import compiled
from kestrel_lab.tools.timeparse.types import Question, refuse

PARTS = {"morning": (6, 12), "afternoon": (12, 18), "evening": (18, 24), "night": (18, 24)}
"""Hours of the parts of a day, where no clock time is given."""
_TWELVE = {"morning": range(1, 12), "afternoon": range(1, 8), "evening": range(4, 12), "night": range(6, 12), "tonight": range(6, 12)}
"""Hours on a twelve-hour clock that can be meant in each part; others are refused."""
_FULL = {
    "morning": range(12),
    "afternoon": range(12, 20),
    "evening": range(16, 24),
    "night": (*range(18, 24), *range(6)),
    "tonight": range(17, 24),
}
"""The same on a clock of 24 hours."""

_DAWN = time(5)
_HALF = r"(?:\s?(?P<half>[ap]m))"
_CLOCKS = (
    rf"(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?{_HALF}?(?: o'?clock)?",
    rf"(?P<hour>\d{{1,2}})[. ](?P<minute>[0-5]\d)(?:[. ](?P<second>[0-5]\d))?{_HALF}",
    rf"(?P<hour>\d{{1,2}})(?: o'?clock)?{_HALF}",
    rf"(?P<count>\d{{1,2}}|half|a quarter|quarter)(?: ?min(?:ute)?s?)? (?P<side>past|after|to|before|of|till) (?P<hour>\d{{1,2}})(?: o'?clock)?{_HALF}?",
)
_BARE = re.compile(r"(?P<hour>\d{1,2})(?P<clock> ?o'?clock)?", re.ASCII)
_ABOUT = re.compile(r"\b(?:around|about|approximately|approx\.?|roughly|circa)\b ?")
_PART = (
    rf"(?:,? ?\b(?:in|during) the |,? ?\bat )?\b(?P<lead>this |last |late |early )?(?P<part>{'|'.join(PARTS)})\b|\b(?P<tonight>tonight)\b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """A time of day, on a clock of 24 hours."""

    at: time
    precision: str
    """`hour`, `minute` or `second`: how exactly it is written."""
    next_day: bool = False
    """24:00: the end of the day."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """A time expression taken apart."""

    day: str
    """What is left without the time of day."""
    clock: Clock | None = None
    part: str = ""
    """The part of the day, where it is written."""
    notes: tuple[str, ...] = ()


def take_apart(text: str, asked: Question) -> Pieces:
    """Separate the time of day from the day; what is not understood stays in `day`."""
    text, roughly = _ABOUT.subn("", text)
    notes = ("an approximate time: it was read as if it were exact",) if roughly else ()
    text, part = _take_part(text, asked)
    words = text.split(" ")
    counts = range(min(len(words), 7), 0, -1)  # the longest first, at the end and then at the beginning
    splits = [(words[-count:], words[:-count]) for count in counts] + [(words[:count], words[count:]) for count in counts]
    for piece, rest in splits:
        if (clock := _clock(_bare(" ".join(piece)), part, asked)) is not None:
            return Pieces(day=_bare(" ".join(rest)), clock=clock, part=part, notes=(*notes, *clock.notes))
    return Pieces(day=_bare(text), part=part, notes=notes)


def _take_part(text: str, asked: Question) -> tuple[str, str]:
    found = compiled(_PART).search(text)
    if found is None:
        return text, ""
    lead, tonight = found["lead"] or "", found["tonight"] or ""
    if lead in {"late ", "early "}:
        refuse(asked.text, f"{lead}{found['part']} has no clock time", "a clock time")
    if lead == "last " and found["part"] != "night":
        refuse(asked.text, f"last {found['part']} may be today's or yesterday's", f"yesterday {found['part']} or this {found['part']}")
    if (tonight or lead == "last ") and time() < asked.now.time() < _DAWN:  # midnight itself is how a mere date is given
        refuse(asked.text, f"it is {asked.now:%H:%M}, and the night that is ending or the next may be meant", "a date and a time")
    day = " today " if tonight or lead == "this " else " yesterday " if lead else " "
    return " ".join((text[: found.start()] + day + text[found.end() :]).split()), tonight or found["part"]


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
    if (found := _BARE.fullmatch(piece)) is None:
        return None
    if part:
        return _read({"hour": found["hour"]}, part, asked)
    if found["clock"]:
        hour = found["hour"]
        refuse(asked.text, f"{hour} o'clock may be before or after noon", f"{hour}am, {hour}pm or 24 hours with minutes")
    return None


def _read(groups: dict[str, str | None], part: str, asked: Question) -> Clock:
    hour, minute, second = (int(groups.get(name) or 0) for name in ("hour", "minute", "second"))
    count, half = groups.get("count"), groups.get("half")
    precision = "second" if groups.get("second") else "minute" if groups.get("minute") or count else "hour"
    if hour > 24 or (half and not 1 <= hour <= 12):
        raise UsageError(f"there is no hour {hour}{half or ''} in {asked.text!r}: write 8pm or 20:00")
    notes: tuple[str, ...] = ()
    if half or part:
        hour = _by_half(hour, half, part, asked) if half else _by_part(hour, part, asked)
    elif 1 <= hour <= 12 and not (count is None and (groups["hour"] or "").startswith("0")):
        if count is not None:
            refuse(asked.text, "it may be before or after noon", "am or pm behind it, or a clock time such as 20:15")
        if hour < 12:
            notes = (f"read on a clock of 24 hours; for the afternoon write {hour}:{minute:02d}pm",)
    if count is not None:
        far = 30 if count == "half" else 15 if "quarter" in count else int(count)
        hour, minute = divmod((hour * 60 + (far if groups["side"] in {"past", "after"} else -far)) % (24 * 60), 60)
    if hour < 24:
        return Clock(at=time(hour, minute, second), precision=precision, notes=notes)
    if minute or second:
        raise UsageError(f"24:00 is the end of a day: there is no {hour}:{minute:02d} in {asked.text!r}")
    return Clock(at=time(), precision=precision, next_day=True)


def _by_half(hour: int, half: str, part: str, asked: Question) -> int:
    """Return the hour on a clock of 24 hours; 8am in the evening is refused."""
    hour = hour % 12 + (12 if half == "pm" else 0)
    if part and hour not in _FULL[part]:
        refuse(asked.text, f"{hour % 12 or 12}{half} is not {part}", "one of the two")
    return hour


def _by_part(hour: int, part: str, asked: Question) -> int:
    """Return the hour on a clock of 24 hours that is meant in a part of the day."""
    if hour > 12 or hour == 0:
        _by_half(hour % 12 or 12, "am" if hour % 24 < 12 else "pm", part, asked)
        return hour
    if part == "afternoon" and hour == 12:
        return 12
    if hour not in _TWELVE[part]:
        when = "at night" if part in {"night", "tonight"} else f"in the {part}"
        refuse(asked.text, f"{hour} {when} is not a clear time", f"{hour}am or {hour}pm")
    return hour if part == "morning" else hour + 12
