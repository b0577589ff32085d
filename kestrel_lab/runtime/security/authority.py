"""Authority by provenance: whether a person's rule, or what the model stated before it read anything foreign,
asks for a call.

Such a call passes if its recipients, paths, amounts and other values that bear authority come from the user's
goal or answers, too. Values are compared with the user's texts as they stand: nothing is guessed from what a
text means.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from kestrel_lab.core.calls import Call
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.argument_schema import properties_of

if TYPE_CHECKING:
    from kestrel_lab.permissions.policy import Ruling
    from kestrel_lab.runtime.security.taint import Taint
    from kestrel_lab.tools.tool import Tool

_SHORTEST: Final = 3
"""Least number of letters of a text searched in the user's words; shorter ones match by chance."""
_DATE = re.compile(r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])(?:[ T](\d\d):(\d\d)(?::00)?)?")
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_CLOCK = re.compile(r"\b\d{1,2}:\d\d\b")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])")
_SCHEME = re.compile(r"(?i)\bhttps?://")
_IBAN = re.compile(r"\b[A-Z]{2}\d\d(?: [A-Z\d]{4}){2,7}(?: [A-Z\d]{1,3})?\b")
"""An account number in groups of four, as ISO 13616 prints it."""
_PLACE = re.compile(r"\S+@\S+|\w+://\S+|(?:[\w-]+\.)+[a-z]{2,}(?:[:/]\S*)?")
"""Matches mail addresses, web addresses and hosts."""
_TELLING = re.compile(r"(?=[\w.-]*\d)[\w.-]{6,}")
"""Words with digits that are seldom the same by chance, such as account numbers."""
_EDGE: Final = "\"'`<>()[]{},;:!?."


def stated_effects(args: Mapping[str, Json]) -> Iterator[tuple[str, int, list[Json]]]:
    """Return tool, number of calls and stated argument values of each entry of a call of `state_effects`."""
    for one in cast("list[Mapping[str, Json]]", args.get("effects") or []):
        times = one.get("times")
        yield (
            str(one.get("tool")),
            times if isinstance(times, int) else 1,
            list(values_of(one.get("arguments"))),
        )


def further_calls(contained: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Return the further calls that a question of containment is about."""
    return cast("list[Mapping[str, Json]]", contained.get("wants") or [])


def further_call_text(wanted: Mapping[str, Json]) -> Call:
    """Return such a further call, as the question shows it."""
    args = cast("dict[str, Json]", wanted.get("args") or {})
    return Call(id=str(wanted.get("call")), kind="tool", target=str(wanted.get("tool")), args=args)


def is_authorised(call: Call, tool: Tool, taint: Taint, ruling: Ruling | None) -> bool:
    """Return true if a call of an author who read untrusted text needs no approval; such a call counts as
    made.

    `ruling` is the verdict of the run's rules.
    """
    asked_for = (
        _is_allowed_by_rule(call, tool, taint, ruling)
        or _was_stated(call, tool, taint)
        or is_like_allowed(call, tool, taint)
    )
    if asked_for:
        taint.count(call)
    return asked_for


def authority_arguments(call: Call, tool: Tool) -> dict[str, Json]:
    """Return the arguments that bear authority: all except declared content and defaults."""
    properties, content = properties_of(tool.schema), content_arguments(tool)
    return {
        name: value
        for name, value in call.args.items()
        if name not in content and not _default(properties.get(name, {}), value)
    }


def content_arguments(tool: Tool) -> frozenset[str]:
    """Return the arguments that its author, or a `contentMediaType` in its schema, declares as content."""
    declared = (name for name, one in properties_of(tool.schema).items() if "contentMediaType" in one)
    return frozenset((*tool.content, *declared))


def _default(schema: Mapping[str, Json], value: Json) -> bool:
    return "default" in schema and schema["default"] == value


def _is_allowed_by_rule(call: Call, tool: Tool, taint: Taint, ruling: Ruling | None) -> bool:
    """Return true if a person's rule allows the call with named or user-given values, and it is the first
    such call.
    """
    if ruling is None or ruling.verdict != "allow" or not taint.made(call) <= {call.id}:
        return False
    mine = {name: value for name, value in authority_arguments(call, tool).items() if name not in ruling.args}
    return _values_are_given(mine, taint) and not _carried_texts(call, tool, taint)


def _values_are_given(args: Mapping[str, Json], taint: Taint, stated: Collection[Json] = ()) -> bool:
    """Return true if all values were given by the user, stated before, or belong to what the user named."""
    return all(
        value in stated or is_from_user(value, taint.words) or _belongs_to_named(name, value, taint)
        for name, one in args.items()
        for value in values_of(one)
    )


def _belongs_to_named(name: str, value: Json, taint: Taint) -> bool:
    """Return true if `value` is in an object that the user named by a text that others cannot write.

    Texts of the object are more names of it and fit any argument; numbers and lists fit the argument of their
    name only. If the user's words name several different objects, none counts.
    """
    for own, rows in taint.rows.items():
        named = [row for row in rows if any(_key(row[one], taint) for one in own)]
        for one in own:
            held = named[0][one] if named else None
            fits = (
                value == held
                if isinstance(held, str)
                else one == name and value in (held if isinstance(held, list) else [held])
            )
            if fits and all(row[one] == held for row in named):
                return True
    return False


def _key(value: Json, taint: Taint) -> bool:
    """Return true if the goal mentions this text; dates do not count."""
    return isinstance(value, str) and _DATE.fullmatch(value) is None and is_from_user(value, taint.words)


def _was_stated(call: Call, tool: Tool, taint: Taint) -> bool:
    """Return true if the model stated this call before it read untrusted text, and the call matches."""
    if taint.stated.get(tool.name, 0) <= len(taint.calls_of.get(tool.name, set()) - {call.id}):
        return False
    return _values_are_given(
        authority_arguments(call, tool), taint, taint.stated_values.get(tool.name, ())
    ) and not _carried_texts(call, tool, taint)


def is_like_allowed(call: Call, tool: Tool, taint: Taint, *, reads: bool = False) -> bool:
    """Return true if a person allowed all calls like one of this tool, and `call` is like it.

    It may differ in content, in what the user said, and in values with the same origin: a field that others
    cannot write or, for a call that only `reads`, an address in the same text.
    """
    mine = authority_arguments(call, tool)
    return not _carried_texts(call, tool, taint) and any(
        all(
            _values_are_given({name: value}, taint)
            or any(_has_same_origin(value, seen, taint, reads=reads) for seen in values_of(shown.get(name)))
            for name, given in mine.items()
            for value in values_of(given)
        )
        for shown in taint.liked.get(tool.name, ())
    )


def _has_same_origin(value: Json, seen: Json, taint: Taint, *, reads: bool) -> bool:
    """Return true if a value is the one a person saw, or has the same origin."""
    fields = [list(values_of([row[one] for row in rows])) for own, rows in taint.rows.items() for one in own]
    texts = [[passage.text] for passage in taint.passages if reads]
    return (
        value == seen
        or any({seen, value} <= {*held} for held in fields)
        or any(is_from_user(seen, one) and is_from_user(value, one) for one in texts)
    )


def open_stated_calls(taint: Taint) -> dict[str, Json]:
    """Return by tool how many calls the model stated, before it read anything foreign, and has not made."""
    left = {tool: times - len(taint.calls_of.get(tool, ())) for tool, times in taint.stated.items()}
    return {tool: times for tool, times in left.items() if times > 0}


def _carried_texts(call: Call, tool: Tool, taint: Taint) -> list[str]:
    """Return addresses that the user did not name, and distinctive words of what was read, in content
    arguments.
    """
    content = content_arguments(tool)
    text = " ".join(
        value
        for name, one in call.args.items()
        if name in content
        for value in values_of(one)
        if isinstance(value, str)
    )
    places = addresses_in(text)
    telling = [
        found.strip(_EDGE) for found in _TELLING.findall(text.casefold()) if not _DATE.fullmatch(found)
    ]
    read = [passage.text.casefold() for passage in taint.passages]
    return [
        word
        for word in dict.fromkeys(
            [*places, *(word for word in telling if any(word in passage for passage in read))]
        )
        if word and not is_from_user(word, taint.words)
    ]


def addresses_in(text: str) -> list[str]:
    """Return the mail addresses, addresses of the web and hosts in a text, in lower case."""
    return [found.strip(_EDGE) for found in _PLACE.findall(text.casefold())]


def is_from_user(value: Json, words: Iterable[str]) -> bool:
    """Return true if `value` is in a user's text: texts as whole words, numbers as numbers, dates in any
    usual form.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return any(
            float(found.replace(",", "")) == float(value) for text in words for found in _NUMBER.findall(text)
        )
    text = _comparable_text(str(value)).rstrip("/")
    if (date := _DATE.fullmatch(text)) is not None:
        return any(_named_date(date, one.casefold()) for one in words)
    if len(text) < _SHORTEST or text.isdigit():
        return False
    whole = re.compile(rf"(?<![\w@./-]){re.escape(text)}(?![\w@-])(?![./:]\w)")
    return any(whole.search(_comparable_text(one)) for one in words)


def without_scheme(text: str) -> str:
    """Return an address of the web without its scheme."""
    return _SCHEME.sub("", text)


def _comparable_text(text: str) -> str:
    """Return a text in the form in which texts are compared: without schemes, runs of blanks, and blanks
    inside of account numbers.
    """
    return " ".join(
        _IBAN.sub(lambda found: found[0].replace(" ", ""), without_scheme(text)).casefold().split()
    )


def _named_date(date: re.Match[str], text: str) -> bool:
    """Return true if a text names the day, in digits or with the English month, and the hour if any."""
    year, month, day, hour, minute = date.groups()
    names = rf"(?:{calendar.month_name[int(month)]}|{calendar.month_abbr[int(month)]})\.?".casefold()
    number = rf"0?{int(day)}(?:st|nd|rd|th)?"
    if not re.search(
        rf"\b{year}-{month}-{day}\b|\b{names} {number}\b|\b{number} (?:of )?{names}(?!\w)", text
    ):
        return False
    years = set(_YEAR.findall(text))
    if years and year not in years:
        return False
    return not hour or not _CLOCK.search(text) or re.search(rf"\b0?{int(hour)}:{minute}\b", text) is not None


def values_of(value: Json | Mapping[str, Json]) -> Iterator[Json]:
    """Return every text and number in `value`, without keys of inner objects; null and booleans bear no
    authority.
    """
    if isinstance(value, Mapping):
        for one in value.values():
            yield from values_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from values_of(one)
    elif value is not None and not isinstance(value, bool) and value != "":
        yield value
