"""Scrubbing of recordings: secrets, and values that differ at every recording."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.expressions.bounded_search import replace_in_time
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.redaction import KEY_LIKE, secret_values
from kestrel_lab.core.sanitize import one_line

SECRET: Final = "<secret>"  # what stands in its place  # noqa: S105
"""Replaces text that looks like a key, and values of secret environment variables."""
WORKSPACE: Final = "<kestrel:workspace>"
"""Replaces the path of the run's folder."""
VOLATILE: Final = "<volatile>"
"""Replaces text that a suite declares volatile."""


_OWN: Final = re.compile(
    r"(?m)(?<=^seconds: )\d+(?:\.\d+)?$|(?:(?<=^--- begin )|(?<=^--- end ))(artifact '.*') "
    r"[0-9a-f]{12}(?= ---$)"
)
"""Volatile values from this package: the duration of a command, and the hash of an artifact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrubber:
    """Replaces secrets and volatile text."""

    secrets: re.Pattern[str] | None = None
    """Matches the values of secret environment variables."""
    volatile: re.Pattern[str] | None = None

    @classmethod
    def of(cls, env: Mapping[str, str], volatile: Iterable[str] = ()) -> Scrubber:
        """Return the scrubber of an environment; `volatile` are regular expressions.

        Raises `UsageError` for an invalid one.
        """
        values = secret_values(env)
        patterns = [*volatile]
        for pattern in patterns:
            check_pattern(pattern)
        return cls(
            secrets=re.compile(
                "|".join(re.escape(value) for value in sorted(values, key=lambda value: (-len(value), value)))
            )
            if values
            else None,
            volatile=re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None,
        )

    def __call__(self, text: str) -> str:
        """Return a text of a request without secrets and volatile text."""
        text = _OWN.sub(
            lambda match: f"{match[1]} {VOLATILE}" if match[1] else VOLATILE, self.without_secrets(text)
        )
        if self.volatile is None:
            return text
        try:
            return replace_in_time(self.volatile, VOLATILE, text)
        except TimeoutError as error:
            raise ModelError(f"the recording cannot be compared: {error}") from error

    def without_secrets(self, text: str) -> str:
        """Return a text of an answer without secrets; everything else stays."""
        if self.secrets is not None:
            text = self.secrets.sub(SECRET, text)
        return KEY_LIKE.sub(SECRET, text)


def check_pattern(pattern: str) -> None:
    """Raise `UsageError` for a volatile pattern that is invalid or matches an empty text."""
    try:
        empty = re.compile(pattern).search("") is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{one_line(pattern, 60)!r} is not a regular expression: {error}") from error
    if empty:
        raise UsageError(f"{one_line(pattern, 60)!r} fits an empty text, so it would match everywhere")


def folder_hidden(folder: Path) -> Callable[[str], str]:
    """Return a function that replaces the path of `folder`, unless it is the root, by `WORKSPACE`."""
    paths = {str(folder.absolute()), os.path.realpath(folder)} - {"/"}
    longest = sorted(paths, key=len, reverse=True)

    def hide(text: str) -> str:
        # Hardly any text names the folder: the pattern is only compiled for one that does.
        for path in longest:
            if path in text:
                found = f"(?:{'|'.join(map(re.escape, longest))})(?![\\w-]|\\.\\w)"
                return re.sub(found, WORKSPACE, text)
        return text

    return hide


def folder_shown(folder: Path) -> Callable[[str], str]:
    """Return the inverse function, which replaces `WORKSPACE` by the path of `folder`."""
    path = str(folder.resolve())
    return lambda text: text.replace(WORKSPACE, path)


def map_texts(value: Json, change: Callable[[str], str]) -> Json:
    """Return `value` with `change` applied to every text in it, but not to keys of objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {key: map_texts(item, change) for key, item in value.items()}
    return value
