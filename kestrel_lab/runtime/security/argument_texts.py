"""Texts of a run: those in the arguments of a call with their places, and those that came into the run, from
tools or with the system message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line

_AROUND: Final = "\"'`<>()[]{},;!?"


def call_label(tool: str, args: Mapping[str, Json]) -> str:
    """A call in a few words: the tool, and the first text it was given."""
    first = next((text for _, text in texts_in(dict(args)) if text.strip()), "")
    return one_line(f"{tool} {first}".strip(), 120)


def texts_in(value: Json, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in `value` with its path, such as `edits[0].new`; keys count as texts."""
    # A stack instead of recursion: arguments are read for every call, and hardly any are nested.
    stack: list[tuple[str, Json]] = [(place, value)]
    while stack:
        place, value = stack.pop()
        if isinstance(value, str):
            yield place, value
        elif isinstance(value, list):
            stack += [(f"{place}[{number}]", item) for number, item in enumerate(value)][::-1]
        elif isinstance(value, dict):
            for key in reversed(value):
                inner = f"{place}.{key}" if place else key
                stack.append((inner, value[key]))
                if place:
                    stack.append((f"{inner} (its name)", key))
        elif isinstance(value, int | float) and not isinstance(value, bool) and len(str(value)) > 3:
            yield place, str(value)


def strip_punctuation(word: str) -> str:
    """Return a word without the punctuation around it: `(https://a.example/x).` is the address."""
    return word.lstrip(_AROUND).rstrip(f"{_AROUND}.:")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that came into the run, and its source."""

    source: str
    text: str
    private: bool
    untrusted: bool
    tool: str = ""
    """Which tool answered it."""


def workspace_prompt_texts(event: RunStarted, *, strict: bool) -> Iterator[Passage]:
    """Yield texts of the workspace in the system message: files that every agent has read; `strict` as in
    `Taint`.
    """
    for one in cast("list[Mapping[str, Any]]", event.guidance):
        if not one.get("problem") and not one.get("own"):
            begin, end = one["at"]
            source = f"{one['path']} in the prompt" + (f": {one['tainted']}" if one.get("tainted") else "")
            yield Passage(
                source, event.system[begin:end], private=True, untrusted=strict or bool(one.get("tainted"))
            )
