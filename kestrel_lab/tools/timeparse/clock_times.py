"""Times of day as people write them: 8pm, 20:15, half past eight in the evening, tomorrow morning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.normalize import compiled
from kestrel_lab.tools.timeparse.types import Question, refuse

PARTS = {"morning": (6, 12), "afternoon": (12, 18), "evening": (18, 24), "night": (18, 24)}
"""Hours of the parts of a day, where no clock time is given."""
_HALVES = {"morning": range(1, 12), "afternoon": range(1, 8), "evening": range(4, 12), "night": range(6, 12)}
"""Hours on a twelve-hour clock that can be meant in each part; others are refused."""

_DAWN = time(5)
_HALF = r"(?:\s?(?P<half>[ap]m))"
_CLOCKS = (
    rf"(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?{_HALF}?(?: o'?clock)?",
    rf"(?P<hour>\d{{1,2}})[. ](?P<minute>[0-5]\d)(?:[. ](?P<second>[0-5]\d))?{_HALF}",
    rf"(?P<hour>\d{{1,2}})(?: o'?clock)?{_HALF}",
    rf"(?P<count>\d{{1,2}}|half|a quarter|quarter)(?: ?min(?:ute)?s?)? (?P<side>past|after|to|before|of|till) (?P<hour>\d{{1,2}})(?: o'?clock)?{_HALF}?",
    r"(?P<noon>(?:12 )?noon|midday)",
    r"(?P<midnight>(?:12 )?midnight)",
)
_BARE = re.compile(r"(?P<hour>\d{1,2})(?: ?o'?clock)?", re.ASCII)
_ABOUT = re.compile(r"\b(?:around|about|approximately|approx\.?|roughly|circa)\b ?")
_PART = (
    rf"(?:,? ?\b(?:in|during) the |,? ?\bat )?\b(?P<lead>this |last |late |early )?(?P<part>{'|'.join(PARTS)})\b|\b(?P<tonight>tonight)\b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """A time of day, on a clock of 24 hours."""

    at: time
    precision: str
    """`hour`, `minute` or `second`: how exactly it was written."""
    next_day: bool = False
    """24:00: the end of the day."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """A time expression taken apart."""

    day: str
    """What is left when the time of day is taken away."""
    clock: Clock | None = None
    part: str = ""
    """The part of the day, where it was written."""
    notes: tuple[str, ...] = ()


def take_apart(text: str, asked: Question) -> Pieces:
    """Separate the time of day from the day; what was not understood is left in `day`."""
    text, roughly = _ABOUT.subn("", text)
    notes = ("an approximate time: it was read as if it were exact",) if roughly else ()
    text, part = _take_part(text, asked)
    for piece, rest in _splits(text):
        if (clock := _clock(piece, part, asked)) is not None:
            return Pieces(day=_bare(rest), clock=clock, part=part, notes=(*notes, *clock.notes))
    return Pieces(day=_bare(text), part=part, notes=notes)


def _take_part(text: str, asked: Question) -> tuple[str, str]:
    found = compiled(_PART).search(text)
    if found is None:
        return text, ""
    if found["lead"] in {"late ", "early "}:
        refuse(asked.text, f"{found['lead']}{found['part']} has no clock time", "a clock time")
    day = {"this ": " today ", "last ": " yesterday "}.get(found["lead"] or "", " today " if found["tonight"] else " ")
    if found["lead"] == "last " and found["part"] != "night":
        refuse(asked.text, f"last {found['part']} may be today's or yesterday's", f"yesterday {found['part']} or this {found['part']}")
    if (found["tonight"] or found["lead"] == "last ") and time() < asked.now.time() < _DAWN:  # midnight itself is how a mere date is given
        refuse(asked.text, f"it is {asked.now:%H:%M}, and the night that is ending or the next may be meant", "a date and a time")
    rest = text[: found.start()] + day + text[found.end() :]
    return " ".join(rest.split()), "tonight" if found["tonight"] else found["part"]


def _splits(text: str) -> list[tuple[str, str]]:
    """Ways to cut a clock time off the beginning or the end, with what is left; the longest first."""
    words = text.split(" ")
    most = min(len(words), 7)
    ends = [(" ".join(words[-count:]), " ".join(words[:-count])) for count in range(most, 0, -1)]
    starts = [(" ".join(words[:count]), " ".join(words[count:])) for count in range(most, 0, -1)]
    return [(_bare(piece), rest) for piece, rest in ends + starts]


def _bare(text: str) -> str:
    """`text` without the small words that join a day and a time."""
    text = text.strip(" ,;-")
    text = re.sub(r"^(?:(?:at|on|by|@)(?: |(?=\d)))+", "", text)
    return re.sub(r"[ ,]*\b(?:at|on|in the|the|-|,)$", "", text).strip(" ,;-")


def _clock(piece: str, part: str, asked: Question) -> Clock | None:
    for pattern in _CLOCKS:
        if (found := compiled(pattern).fullmatch(piece)) is not None:
            groups = found.groupdict()
            if groups.get("noon"):
                return Clock(at=time(12), precision="minute")
            if groups.get("midnight"):
                refuse(asked.text, "midnight begins one day and ends another", "00:00 or 24:00 with the day")
            return _read(groups, part, asked)
    if part and (found := _BARE.fullmatch(piece)) is not None:
        return _read(found.groupdict(), part, asked)
    if found := re.fullmatch(r"(?P<hour>\d{1,2}) ?o'?clock", piece, re.ASCII):
        refuse(
            asked.text,
            f"{found['hour']} o'clock may be before or after noon",
            f"{found['hour']}am, {found['hour']}pm or 24 hours with minutes",
        )
    return None


def _read(groups: dict[str, str | None], part: str, asked: Question) -> Clock:
    hour, minute, second = int(groups["hour"] or 0), int(groups.get("minute") or 0), int(groups.get("second") or 0)
    precision = "second" if groups.get("second") else "minute" if groups.get("minute") or groups.get("count") else "hour"
    count = groups.get("count")
    half = groups.get("half")
    if hour > 24 or (half and not 1 <= hour <= 12):
        msg = f"there is no hour {hour}{half or ''} in {asked.text!r}: write 8pm or 20:00"
        raise UsageError(msg)
    notes: tuple[str, ...] = ()
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
        _agree(hour, part, asked)
    elif part:
        hour = _by_part(hour, part, asked)
    elif 1 <= hour <= 12 and not (count is None and len(groups["hour"] or "") == 2 and hour < 10):
        if count is not None:
            refuse(asked.text, "it may be before or after noon", "am or pm behind it, or a clock time such as 20:15")
        if hour < 12:
            notes = (f"read on a clock of 24 hours; for the afternoon write {hour}:{minute:02d}pm",)
    if count is not None:
        hour, minute = _shifted(hour, count, groups["side"] or "")
    if hour == 24:
        if minute or second:
            msg = f"24:00 is the end of a day: there is no {hour}:{minute:02d} in {asked.text!r}"
            raise UsageError(msg)
        return Clock(at=time(), precision=precision, next_day=True)
    return Clock(at=time(hour, minute, second), precision=precision, notes=notes)


def _shifted(hour: int, count: str, side: str) -> tuple[int, int]:
    minutes = 30 if count == "half" else 15 if "quarter" in count else int(count)
    total = (hour * 60 + (minutes if side in {"past", "after"} else -minutes)) % (24 * 60)
    return total // 60, total % 60


def _agree(hour: int, part: str, asked: Question) -> None:
    """Refuse 8am in the evening."""
    twelve = hour % 12
    fits = {
        "": True,
        "morning": hour < 12,
        "afternoon": 12 <= hour < 20,
        "evening": hour >= 16,
        "night": hour >= 18 or hour < 6,
        "tonight": hour >= 17,
    }[part]
    if not fits:
        refuse(asked.text, f"{twelve or 12}{'am' if hour < 12 else 'pm'} is not {part}", "one of the two")


def _by_part(hour: int, part: str, asked: Question) -> int:
    """The hour on a clock of 24 hours that is meant in a part of the day."""
    if hour > 12 or hour == 0:
        _agree(hour % 24, part, asked)
        return hour
    if part == "afternoon" and hour == 12:
        return 12
    allowed = _HALVES["night" if part == "tonight" else part]
    if hour not in allowed:
        refuse(
            asked.text,
            f"{hour} {'at night' if part in {'night', 'tonight'} else 'in the ' + part} is no clear time",
            f"{hour}am or {hour}pm",
        )
    return hour if part == "morning" else hour + 12
