"""Tool results: as JSON for the log and as text for the model."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from io import IOBase
from itertools import islice
from math import isfinite
from typing import Final, cast

from kestrel_lab.core.errors import error_text, stops_task
from kestrel_lab.core.json_types import Json

MOST_DEPTH: Final = 100
"""Levels of lists and objects that stay values; readers of JSON recurse."""
_MOST_BITS: Final = 14_000
"""Of an integer that is a number in JSON: some 4,200 digits. Python itself reads no more than 4,300."""
_MOST_ITEMS: Final = 100_000
"""Items that are taken of an iterator, which may have no end."""
_MOST_OBJECTS: Final = 300_000
"""Objects that are written: a few lists that stand in each other many times have no bound."""


def to_json(value: object) -> Json:
    """Return `value` as JSON: dataclasses and pydantic models become objects, arrays lists, tables text.

    What has no JSON form becomes text that a model can read: a tool has acted by then, so its result is never
    lost. Infinities and NaN become their names, an integer of thousands of digits its hexadecimal text, an
    object that shows nothing of itself the name of its class. Of what contains itself, or is nested too
    deeply, the inner part is text.
    """
    # Most tools return a text: there is nothing to walk through.
    if type(value) is str:
        return _encodable(value)
    return _convert(value, _Walk())


@dataclass(slots=True)
class _Walk:
    """Where a conversion is within a value."""

    above: list[int] = field(default_factory=list)
    """Identities of the objects around this one."""
    objects: int = 0
    """Converted so far. One that stands in many places counts, and is written, as often."""


def _convert(value: object, walk: _Walk) -> Json:
    kind = type(value)
    if kind is str:
        return _encodable(value)  # type: ignore[arg-type]  # a cast is a call, and this is each answer of each tool
    if value is None or kind is bool:
        return cast("Json", value)
    if kind is int:
        number = cast("int", value)
        return number if number.bit_length() <= _MOST_BITS else hex(number)
    if kind is float:
        return _finite(cast("float", value))
    return _convert_object(value, walk)


_CONTAINERS: Final = (list, dict, tuple, set, frozenset, deque, range, Mapping, Iterator)


def _convert_object(value: object, walk: _Walk) -> Json:
    """Return a container, or an object of any other class by its own JSON form, else as text."""
    walk.objects += 1
    if id(value) in walk.above:
        return f"(this {type(value).__name__} contains itself)"
    if len(walk.above) >= MOST_DEPTH or walk.objects > _MOST_OBJECTS:
        return _too_large(value)
    walk.above.append(id(value))
    try:
        # A file is an iterator, too, and may be the end of a pipe that nobody writes to.
        if isinstance(value, _CONTAINERS) and not isinstance(value, IOBase):
            if isinstance(value, Mapping):
                return _convert_mapping(value, walk)
            return _convert_items(value, walk)
        form = _form_of(value)
        # A subclass of a plain type, which comes back as it was.
        for plain in (str, int, float):
            if isinstance(form, plain) and not isinstance(form, bool):
                return _convert(plain(form), walk)
        return _text_of(value) if form is value else _convert(form, walk)
    except RecursionError:
        return _too_large(value)
    except BaseException as error:  # the class of the value is code of others
        if stops_task(error):
            raise
        return _text_of(value)
    finally:
        walk.above.pop()


def _convert_mapping(value: Mapping[object, object], walk: _Walk) -> Json:
    """Return a mapping as an object, or as a list of pairs where two of its keys have the same text."""
    items = list(value.items())
    converted = {_key_text(key): _convert(item, walk) for key, item in items}
    if len(converted) == len(items):
        return converted
    return [[_convert(key, walk), _convert(item, walk)] for key, item in items]


def _key_text(key: object) -> str:
    if type(key) is str:
        return _encodable(key)
    form = _convert(key, _Walk())
    return form if isinstance(form, str) else json.dumps(form, ensure_ascii=False)


def _convert_items(items: Iterable[object], walk: _Walk) -> Json:
    if isinstance(items, range) and len(items) > _MOST_ITEMS:
        return repr(items)
    if not isinstance(items, Iterator):
        return [_convert(item, walk) for item in items]
    converted: list[Json] = []
    try:
        # One by one: what came before an error is kept.
        for item in islice(items, _MOST_ITEMS):
            converted.append(_convert(item, walk))  # noqa: PERF401
        if len(converted) == _MOST_ITEMS:
            converted.append(f"(after {_MOST_ITEMS:,} items no more were taken)")
    except BaseException as error:  # an iterator is code of the tool that works only now
        if stops_task(error):
            raise
        converted.append(f"(after {len(converted):,} items it failed: {error_text(error)})")
    return converted


def _form_of(value: object) -> object:
    """Return what pydantic, or else the value's library, makes of it; may raise anything."""
    from pydantic_core import to_jsonable_python  # loaded on use

    if isinstance(value, memoryview):
        return bytes(value)
    # What stands in fields of its own is converted level by level.
    if is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "__pydantic_validator__"):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    try:
        return to_jsonable_python(value, fallback=_from_library)
    except ValueError:  # pydantic's error is one: something in it has no JSON form
        dump = getattr(value, "model_dump", None)
        return dump() if callable(dump) else _from_library(value)


def _from_library(value: object) -> object:
    """Return what arrays and tables of libraries that are not imported here make of themselves; the value
    itself where its class has no such method.
    """
    # A table has both or the first, an array or a numpy number the second.
    for method in ("to_string", "tolist"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    return _text_of(value)


def _too_large(value: object) -> str:
    # Its text would be as large, and Python recurses to write it.
    return f"({type(value).__name__}, nested too deeply or too large to be shown)"


def _text_of(value: object) -> str:
    """Return a value as text. Never raises."""
    kind, name = type(value), type(value).__name__
    if issubclass(kind, bytes | bytearray):
        return repr(bytes(cast("bytes | bytearray", value)))
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return f"<{name} object>"  # its address would be another one each time
    try:
        return _encodable(str(value))
    except BaseException as error:  # the class of the value is code of others
        if stops_task(error):
            raise
        return f"<{name} object, which cannot be shown: {type(error).__name__}>"


def render_result(value: Json) -> str:
    """Return the text for a model: texts as they are, objects with long texts as blocks, else JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and any(isinstance(item, str) and "\n" in item for item in value.values()):
        return _blocks(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else json.dumps(value, ensure_ascii=False, indent=1)


def _blocks(value: dict[str, Json]) -> str:
    """Return short entries as `key: value`, then each long text under its key, without escaped newlines."""
    short = {key: item for key, item in value.items() if not (isinstance(item, str) and "\n" in item)}
    lines = [
        f"{key}: {item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)}"
        for key, item in short.items()
    ]
    long = [f"{key}:\n{item}" for key, item in value.items() if key not in short]
    return "\n".join(lines + long)


def _finite(number: float) -> float | str:
    if isfinite(number):
        return number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"


def _encodable(text: str) -> str:
    """`text` with lone surrogates, which no file can hold, replaced."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
