"""Distances told from a moment: in 3 weeks, two days ago, a week from Friday, two days from tomorrow, two Mondays later."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from kestrel_lab.tools.timeexpr.days import day_or_period
from kestrel_lab.tools.timeexpr.offsets import Offset, move_day, read_offset, vague
from kestrel_lab.tools.timeexpr.question import Question, Span, one_day, refuse
from kestrel_lab.tools.timeexpr.words import WEEKDAY_NAMES, WEEKDAYS, compiled

_FORWARD = re.compile(
    r"in (?P<far>.+?)(?:'?s?'? time| from now)?|(?P<behind>.+?) (?:from (?:now|today)|later|hence|away|after (?:now|today))"
)
_BACKWARD = re.compile(r"(?P<far>.+?) (?:ago|earlier|back|before (?:now|today))")
_SIGNED = re.compile(r"[+-].+")
_ANCHORED = re.compile(r"(?P<far>.+?) (?P<side>from|after|before) (?P<anchor>.+)")
_FULL_NAMES = "|".join(name.lower() for name in WEEKDAY_NAMES)
_WEEKDAYS_ON = rf"(?:in )?(?P<count>\d{{1,2}}) (?P<weekday>{_FULL_NAMES})s? (?P<side>later|from now|ago|hence)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """A distance from the reference."""

    offset: Offset

    @property
    def whole_days(self) -> bool:
        """Whether it moves from day to day, without hours."""
        return self.offset.whole_days


def read_shift(text: str, asked: Question) -> Shift | None:
    """The distance from the reference that `text` names; raises `UsageError` for one without a number or a direction."""
    if (forward := _FORWARD.fullmatch(text)) is not None:
        far, sign = forward["far"] or forward["behind"], 1
    elif (backward := _BACKWARD.fullmatch(text)) is not None:
        far, sign = backward["far"], -1
    elif _SIGNED.fullmatch(text):
        far, sign = text, 1
    else:
        if read_offset(text) is not None:
            refuse(asked.text, "it has no direction", f"'in {text}' or '{text} ago'")
        return None
    far = far.removeprefix("in ")
    offset = read_offset(far)
    if offset is None:
        if (word := vague(far)) and read_offset(far.replace(word, "2", 1).removeprefix("a ")) is not None:
            refuse(asked.text, f"{word!r} is no number", f"how many, such as '{text.replace(f'a {word}', word).replace(word, '3', 1)}'")
        return None
    if not _SIGNED.fullmatch(text) and re.search(r"[+-]", far):
        refuse(asked.text, "it has a sign and a direction", f"'+…' or '-…' alone, or '{'in …' if sign > 0 else '… ago'} without a sign")
    return Shift(offset=offset if sign > 0 else -offset)


def shifted_day(text: str, asked: Question) -> Span | None:
    """The day at a distance in whole days from today or from another day."""
    if (counted := compiled(_WEEKDAYS_ON).fullmatch(text)) is not None:
        return _weekdays_on(counted, asked)
    if (shift := read_shift(text, asked)) is not None:
        if not shift.whole_days:
            return None
        day, notes = move_day(asked.today, shift.offset)
        return one_day(day, f"{shift.offset.said} from {asked.today}", *notes)
    if (anchored := _ANCHORED.fullmatch(text)) is None:
        return None
    offset, anchor = read_offset(anchored["far"]), day_or_period(anchored["anchor"].removeprefix("the day of "), asked)
    if offset is None or anchor is None or not anchor.is_day or not offset.whole_days:
        return None
    day, notes = move_day(anchor.first, -offset if anchored["side"] == "before" else offset)
    said = f"{offset.said} {'before' if anchored['side'] == 'before' else 'after'} {anchor.first}, {anchor.said}"
    return one_day(day, said, *anchor.notes, *notes, relative=anchor.relative)


def _weekdays_on(found: re.Match[str], asked: Question) -> Span:
    """The second Monday from now: today does not count."""
    weekday, count, back = WEEKDAYS[found["weekday"]], int(found["count"]), found["side"] == "ago"
    if count == 0:
        refuse(asked.text, "none is counted", "a number from 1")
    ahead = (weekday - asked.today.weekday()) % 7 or 7
    behind = (asked.today.weekday() - weekday) % 7 or 7
    days = -(behind + 7 * (count - 1)) if back else ahead + 7 * (count - 1)
    name = WEEKDAY_NAMES[weekday]
    return one_day(
        asked.today + timedelta(days=days), f"the {name} number {count} {'before' if back else 'after'} today, which does not count"
    )
