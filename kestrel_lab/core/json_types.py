"""JSON values: types, canonical text, content keys, and frozen structs of them."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from math import isfinite
from typing import Any, NoReturn

from msgspec import NODEFAULT, Struct

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""Any JSON value."""


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_READABLE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_SORTED = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)


def dumps(value: object) -> str:
    """Compact JSON text in ASCII; raises `TypeError` or `ValueError` for what JSON cannot say.

    ASCII, because a lone surrogate (a model may send one) cannot be stored in any other way.
    """
    return _ENCODER.encode(value)


def readable(value: object) -> str:
    """Compact JSON for people and models: only lone surrogates are escaped. Raises like `dumps`."""
    return _READABLE.encode(value).encode("utf-8", "backslashreplace").decode()


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _no_number(digits)


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number, parse_float=_finite)
_TRIES = 10_000
"""Places in a text where JSON may begin that are tried: each may cost as much time as the text is long."""


def loads(text: str) -> Json:
    """The value of a JSON text; raises `ValueError` if it is invalid, has a NaN or is nested too deeply."""
    try:
        value: Json = _DECODER.decode(text)
    except RecursionError as error:
        # The decoder recurses once per level, and text from a model may be deeper than the stack.
        raise ValueError("it is nested too deeply") from error
    return value


def loads_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; raises `ValueError` if it is invalid, too deep or has too long numbers."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        # tomllib recurses once per level, like json.
        raise ValueError("it is nested too deeply") from error


def values_in(text: str, opening: str = "{") -> Iterator[Json]:
    """The JSON values in `text` that start with a character of `opening`, in order; skips other text."""
    at = -1
    for _ in range(_TRIES):
        at = min((place for sign in opening if (place := text.find(sign, at + 1)) >= 0), default=-1)
        if at < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            # A bracket in prose begins no JSON: look further on.
            continue
        yield value
        at = end - 1


def sorted_json(value: object) -> str:
    """JSON text that is equal for equal content, whatever the order of keys."""
    return _SORTED.encode(value)


def content_key(*parts: object) -> str:
    """A hash that is equal for equal JSON content, whatever the order of keys (SHA-256, 32 hex digits)."""
    return text_key(sorted_json(parts))


def text_key(text: str) -> str:
    """The hash that `content_key` has for the content whose `sorted_json` is `text`."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# Structs are defined, made and encoded in C. As frozen dataclasses the classes of events alone were a third
# of the time that an import of the package takes, and making and encoding events a good part of what a turn
# costs.


class _DataclassFields:
    """Lets `dataclasses.fields`, `replace` and `asdict` take structs, too."""

    def __get__(self, struct: object, kind: type[FrozenStruct]) -> dict[str, Field[Any]]:
        return _fields(kind)


class FrozenStruct(Struct, frozen=True, kw_only=True):
    """Base class of immutable structs, compared by value; copy with `msgspec.structs.replace`."""

    __dataclass_fields__ = _DataclassFields()


@cache
def _fields(kind: type[FrozenStruct]) -> dict[str, Field[Any]]:
    def same(default: Any) -> Any:
        made = getattr(default, "factory", None)
        return (
            field(default=MISSING if default is NODEFAULT else default)
            if made is None
            else field(default_factory=made)
        )

    names = kind.__struct_fields__
    defaults = (*(NODEFAULT for _ in names[len(kind.__struct_defaults__) :]), *kind.__struct_defaults__)
    kinds: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        kinds |= vars(base).get("__annotations__", {})
    parts = [(name, kinds[name], same(default)) for name, default in zip(names, defaults, strict=True)]
    return {one.name: one for one in fields(make_dataclass(kind.__name__, parts, kw_only=True))}
