"""Tool results: as JSON for the log and as text for the model."""

from __future__ import annotations

import json
from math import isfinite
from typing import cast

from kestrel_lab.core.json_types import Json


def to_json(value: object) -> Json:
    """`value` as JSON: dataclasses and pydantic models become objects, arrays lists, tables text.

    Raises `TypeError` for what has no JSON form. Infinities and NaN become their names, since JSON has none.
    """
    try:
        return _convert(value)
    except (ValueError, RecursionError) as error:
        # Pydantic's error is a ValueError.
        raise TypeError(
            f"a value of type {type(value).__name__} cannot be returned ({error}); "
            "return text, numbers, lists, dicts, dataclasses or pydantic models"
        ) from None


def _convert(value: object) -> Json:
    kind = type(value)
    if kind is str:
        return _encodable(value)  # type: ignore[arg-type]  # a cast is a call, and this is each answer of each tool
    if value is None or kind is bool or kind is int:
        return cast("Json", value)
    if kind is float:
        return _finite(cast("float", value))
    if kind is list:
        return [_convert(item) for item in cast("list[object]", value)]
    if kind is dict and all(type(key) is str for key in cast("dict[object, object]", value)):
        return {_encodable(key): _convert(item) for key, item in cast("dict[str, object]", value).items()}
    from pydantic_core import to_jsonable_python  # loaded on use

    converted = to_jsonable_python(value, fallback=_from_library)
    # A subclass that comes back as it was.
    for plain in (str, int, float):
        if isinstance(converted, plain) and not isinstance(converted, bool):
            return _convert(plain(converted))
    return _convert(converted)


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


def _from_library(value: object) -> object:
    """Arrays and tables of libraries that are not imported here."""
    # A table has both or the first, an array or a numpy number the second.
    for method in (
        "to_string",
        "tolist",
    ):
        if callable(convert := getattr(value, method, None)):
            return convert()
    raise ValueError(f"{type(value).__name__} has no JSON form")
