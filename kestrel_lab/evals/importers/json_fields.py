"""Read what other tools recorded field by field: one of another type costs itself and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, Final, TypeVar

from kestrel_lab.core.sanitize import one_line

_Read = TypeVar("_Read")

UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What readers raise for a record of another shape than theirs."""
# JSON's numbers are doubles: above it whole numbers are not exact.
MOST_EXACT: Final = 1 << 53
# Calendars end with the year 9999: a later time cannot be shown as a date.
_END_OF_CALENDAR: Final = 253_402_300_800.0
_LONGEST_NUMBER: Final = 400
"""Digits: the largest double has 309, and Python converts at most 4,300."""
_REASONING: Final = frozenset(
    "reasoning thinking redacted_thinking reasoning_content thought reasoning_text summary_text".split()
)
"""Types of the parts of a message in which a model thinks and does not answer."""
LONGEST_LINE: Final = 32_000_000
"""Bytes of a line of a recording. What is made of a line takes up to twenty times its size in memory."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A record, or a part of one, that cannot be read; those beside it can."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True, slots=True)
class MessageContent:
    """What a message says, and what its model thought before."""

    text: str = ""
    thinking: str = ""


def parse_json(content: bytes | str) -> Any:
    """Return the value of JSON as other tools write it; raises `ValueError` for anything else.

    A number that no double holds (NaN, 1e999, 5,000 digits) is an `UnreadNumber`: it costs the field that it
    stands in, and nothing else.
    """
    try:
        return json.loads(
            content, parse_int=_whole_number, parse_float=_finite_number, parse_constant=UnreadNumber
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, each cut behind the byte that makes it too long."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        yield number, line
        while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE + 1)


def parse_line(line: bytes, place: str) -> Any:
    """Return the value of a line of JSON, or what is wrong with the line."""
    if len(line) > LONGEST_LINE:
        limit = LONGEST_LINE // 1_000_000
        return Broken(place, f"not read: the line is longer than {limit} MB; make several of its record")
    try:
        return parse_json(line)
    except ValueError as error:
        return Broken(place, f"not JSON: {one_line(str(error), 100)}")


class UnreadNumber(str):
    """The text of a number that no double holds: neither number nor text to the fields of a recording, and
    a text where JSON is kept as it is, in the arguments of a call for instance.
    """

    __slots__ = ()


def _whole_number(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else UnreadNumber(digits)


def _finite_number(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else UnreadNumber(digits)


def describe_type(value: Any) -> str:
    """Return what a value is, for a message about a field."""
    if isinstance(value, UnreadNumber):
        return f"the number {one_line(value, 20)}"
    return "nothing" if value is None else f"of type {type(value).__name__}"


class JsonFields(Mapping[str, Any]):
    """An object of a recording, of which each field is read by itself.

    A field that is absent, or null, is empty or `None`. So is one of another type than its reader asks for,
    and that is noted in `left_out` with its place. As a mapping it has the values as they were recorded.
    """

    __slots__ = ("_join", "_value", "left_out", "place")

    def __init__(self, value: Any, place: str, left_out: list[Broken], *, whole: bool = False) -> None:
        """Take an object; `whole` says that `place` is a file or a line of one, and not a part of a record.

        Raises `TypeError` for a value that is no object.
        """
        if not isinstance(value, Mapping):
            raise TypeError(f"it is no object, but {describe_type(value)}")
        self._value: Mapping[str, Any] = value._value if isinstance(value, JsonFields) else value
        self.place, self.left_out = place, left_out
        self._join = " " if whole else "."

    def __getitem__(self, name: str) -> Any:
        return self._value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def place_of(self, name: str) -> str:
        """Return the place of a field."""
        return f"{self.place}{self._join}{name}"

    def note(self, name: str, reason: str) -> None:
        """Note that a field is left out."""
        self.left_out.append(Broken(self.place_of(name), f"left out: {reason}"))

    def text(self, *names: str) -> str:
        """Return the first of the fields that has a text; empty where none has."""
        return self._first(names, _read_text) or ""

    def label(self, *names: str) -> str:
        """Return the first of the fields that has a name or a number as an identifier."""
        return self._first(names, _read_label) or ""

    def flag(self, *names: str) -> bool | None:
        """Return the first of the fields that is true or false."""
        return self._first(names, _read_flag)

    def amount(self, *names: str) -> float | None:
        """Return the first of the fields that has an amount: a finite number that is not negative."""
        return self._first(names, read_amount)

    def count(self, *names: str) -> int | None:
        """Return the first of the fields that has a whole number that is not negative."""
        return self._first(names, read_count)

    def number(self, *names: str) -> float | None:
        """Return the first of the fields that has a finite number."""
        return self._first(names, read_number)

    def time(self, *names: str) -> float | None:
        """Return the first of the fields that has a time in ISO form, as seconds since 1970."""
        return self._first(names, read_time)

    def seconds(self, name: str, *, scale: float = 1.0) -> float | None:
        """Return a time since 1970 that is a number of units, `scale` of which are a second."""
        return self._first((name,), lambda value: read_seconds(read_number(value) / scale))

    def fields(self, *names: str) -> JsonFields:
        """Return the first of the fields that has an object; an empty one where none has."""
        for name in names:
            if (value := self._first((name,), _read_object)) is not None:
                return JsonFields(value, self.place_of(name), self.left_out)
        return JsonFields({}, self.place_of(names[0]), self.left_out)

    def parts(self, *names: str) -> list[tuple[str, Any]]:
        """Return the items of the first of the fields that has a list, each with its place."""
        for name in names:
            if (value := self._first((name,), _read_list)) is not None:
                return [(f"{self.place_of(name)}[{index}]", item) for index, item in enumerate(value)]
        return []

    def objects(self, *names: str) -> list[JsonFields]:
        """Return the objects in the first of the fields that has a list; other items are noted."""
        objects = []
        for place, item in self.parts(*names):
            if isinstance(item, Mapping):
                objects.append(JsonFields(item, place, self.left_out))
            else:
                self.left_out.append(Broken(place, f"left out: it is no object, but {describe_type(item)}"))
        return objects

    def texts(self, *names: str) -> list[str]:
        """Return the texts in the first of the fields that has a list; other items are noted."""
        texts = []
        for place, item in self.parts(*names):
            if isinstance(item, str) and not isinstance(item, UnreadNumber):
                texts.append(item)
            else:
                self.left_out.append(Broken(place, f"left out: it is no text, but {describe_type(item)}"))
        return texts

    def content(self, *names: str, skip: Collection[str] = ()) -> MessageContent:
        """Return what the first of the fields that has a text, or parts of one, says; parts of a type in
        `skip` are read elsewhere.
        """
        for name in names:
            value = self._value.get(name)
            if value is None:
                continue
            if isinstance(value, str | list) and not isinstance(value, UnreadNumber):
                return read_content(value, self.place_of(name), self.left_out, skip)
            self.note(name, f"it is neither a text nor parts of one, but {describe_type(value)}")
        return MessageContent()

    def read(self, name: str, reader: Callable[[Any], _Read]) -> _Read | None:
        """Return what a reader makes of a field; `None` where it is absent, or where that is noted."""
        return self._first((name,), reader)

    def _first(self, names: tuple[str, ...], reader: Callable[[Any], _Read]) -> _Read | None:
        for name in names:
            value = self._value.get(name)
            if value is None:
                continue
            try:
                return reader(value)
            except UNREADABLE as error:
                self.note(name, one_line(str(error), 100))
        return None


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, UnreadNumber):
        raise TypeError(f"it is no text, but {describe_type(value)}")
    return value


def _read_label(value: Any) -> str:
    if isinstance(value, bool | UnreadNumber) or not isinstance(value, str | int):
        raise TypeError(f"it is no name, but {describe_type(value)}")
    return str(value)


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"it is neither true nor false, but {one_line(repr(value), 40)}")
    return value


def _read_object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"it is no object, but {describe_type(value)}")
    return value


def _read_list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"it is no list, but {describe_type(value)}")
    return list(value)


def read_number(value: Any) -> float:
    """Return a finite number; raises `TypeError` for anything else, true and false among it."""
    # A whole number above the largest double has no value as one.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1.7e308:
        raise TypeError(f"it is no number: {one_line(repr(value), 40)}")
    return float(value)


def read_amount(value: Any) -> float:
    """Return a finite number that is not negative; raises `TypeError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_EXACT:
        raise TypeError(f"it is no amount: {one_line(repr(value), 40)}")
    return value


def read_count(value: Any) -> int:
    """Return a whole number that is not negative; raises `TypeError` for anything else."""
    amount = read_amount(value)
    if amount != int(amount):
        raise TypeError(f"it is no whole number: {one_line(repr(value), 40)}")
    return int(amount)


def read_seconds(value: float | None) -> float | None:
    """Return a time in seconds since 1970, or `None`; raises `ValueError` for one outside of the calendar."""
    if value is not None and (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 <= value < _END_OF_CALENDAR
    ):
        raise ValueError(f"its time is none of the calendar: {one_line(repr(value), 40)}")
    return value


def read_time(stamp: Any) -> float | None:
    """Return a time in ISO form as seconds since 1970; `None` where there is none. One without a zone is UTC.

    Raises `TypeError` or `ValueError` for another form.
    """
    if stamp in (None, ""):
        return None
    if not isinstance(stamp, str):
        raise TypeError(f"it is no time, but {describe_type(stamp)}")
    parsed = datetime.fromisoformat(stamp)
    zoned = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return read_seconds(zoned.timestamp())


def read_content(
    value: Any, place: str, left_out: list[Broken], skip: Collection[str] = ()
) -> MessageContent:
    """Return text and thinking of a message: a text, or parts, of which one without a text is named.

    Reasoning is no part of the text, whatever the tool calls it. Parts of a type in `skip` are passed over;
    one that is neither text nor object is noted in `left_out`.
    """
    if isinstance(value, str):
        return MessageContent(value)
    if not isinstance(value, list):
        return MessageContent()
    texts: list[str] = []
    thoughts: list[str] = []
    for index, part in enumerate(value):
        if isinstance(part, str) and not isinstance(part, UnreadNumber):
            texts.append(part)
        elif not isinstance(part, Mapping):
            reason = f"left out: it is no part of a message, but {describe_type(part)}"
            left_out.append(Broken(f"{place}[{index}]", reason))
        elif part.get("type") in skip:
            continue
        else:
            fields = JsonFields(part, f"{place}[{index}]", left_out)
            kind, text = fields.text("type"), fields.text("text")
            if is_reasoning(part):
                thoughts.append(reasoning_text(part) or fields.text("thinking", "reasoning"))
            elif isinstance(part.get("text"), str):
                texts.append(text)
            elif part.get("text") is None:
                texts.append(f"[{kind or 'part'}]")
    return MessageContent("\n\n".join(texts), "\n\n".join(filter(None, thoughts)))


def is_reasoning(part: Mapping[str, Any]) -> bool:
    """Return whether a part of a message is what its model thought."""
    kind = part.get("type")
    return (isinstance(kind, str) and kind in _REASONING) or part.get("thought") is True


def reasoning_text(part: Mapping[str, Any]) -> str:
    """Return the words of a part in which a model thought; of one that is encrypted, its summary if any."""
    names = ("summary",) if part.get("redacted") else ("thinking", "reasoning", "text", "content", "summary")
    for name in (*names, "reasoning_content"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("text")
        if isinstance(value, list):
            inner = [item.get("text") if isinstance(item, Mapping) else item for item in value]
            value = "\n\n".join(item for item in inner if isinstance(item, str))
        if isinstance(value, str) and value:
            return value
    return ""
