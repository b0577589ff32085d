"""Paths into JSON values: a name, then any number of `.key` and `[0]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line

PATTERN = r"[^\W\d][\w-]*(?:\.[\w-]+|\[\d{1,9}\])*"
"""Names and keys have letters, digits, `_` and `-`; a name begins with a letter or `_`."""

MAX_LENGTH = 1_000
"""Characters of a path."""

_WHOLE = re.compile(PATTERN)
_PART = re.compile(r"\.?([\w-]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A parsed path: the first name, then keys of objects and places in lists."""

    root: str
    parts: tuple[str | int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse a path; raises `UsageError` for anything else."""
        if len(text) > MAX_LENGTH or not _WHOLE.fullmatch(text):
            raise UsageError(
                f"{_quote(text)} is not a path: write a name, then .key or [0] as often as needed"
            )
        first, *rest = _PART.findall(text)
        return cls(first[0], tuple(key or int(place) for key, place in rest))

    def find(self, scope: Mapping[str, Json]) -> Json:
        """Return the value in `scope`; attributes are never read.

        Raises `UsageError` that names the path, the last part that was found, and the value there.
        """
        if self.root not in scope:
            self._refuse_missing(f"there is no {_quote(self.root)}", self.root, scope)
        value = scope[self.root]
        for depth, part in enumerate(self.parts):
            if isinstance(value, dict) and isinstance(part, str):
                if part not in value:
                    self._refuse_missing(f"{self._until(depth)} has no {_quote(part)}", part, value)
                value = value[part]
            elif isinstance(value, list) and isinstance(part, int):
                if part >= len(value):
                    raise UsageError(
                        f"{self._named()}: {self._until(depth)} has {len(value)} items, counted from [0]"
                    )
                value = value[part]
            else:
                wanted = "a key of an object" if isinstance(part, str) else "a place in a list"
                raise UsageError(
                    f"{self._named()}: {self._until(depth)} is {json_type_name(value)}, and "
                    f"{self._until(depth + 1)} asks for {wanted}"
                )
        return value

    def __str__(self) -> str:
        return self.root + "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.parts
        )

    def _until(self, depth: int) -> str:
        return one_line(str(JsonPath(self.root, self.parts[:depth])), 100)

    def _named(self) -> str:
        return _quote(str(self))

    def _refuse_missing(self, what: str, word: str, there: Iterable[str]) -> NoReturn:
        raise UsageError(
            f"{self._named()}: {what}; {did_you_mean(word, [one_line(name) for name in islice(there, 30)])}"
        )


def json_type_name(value: Json) -> str:
    """Return the JSON type of `value` in words."""
    if value is None:
        return "null"
    # Before the numbers: a bool is an int in Python.
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else "a number"


def _quote(text: str) -> str:
    return repr(one_line(text, 100))
