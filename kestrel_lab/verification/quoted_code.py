"""Pieces of code compared by their tokens: whether a text has one, or has it changed in one token."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

GAP: Final = re.compile(r"\s*(?:\.\.\.|…|\[\.\.\.\]|\[…\])\s*")
"""What stands for a part of a quote that is left out."""
_TOKEN: Final = re.compile(
    r"[rbfuRBFU]{0,2}(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')|\d[\w.]*|[A-Za-z_]\w*|\.\.\.|…|[-+*/%=!<>&|^~@:]+|[^\s\w]"
)
LOOKED_THROUGH: Final = 400_000
"""Most characters of a text that are searched for a changed form of a quote."""


@lru_cache(maxsize=4096)
def normalised_code(code: str) -> tuple[str, ...]:
    """The tokens of a piece of code, `self.` and the like, comments and commas at the end left out, all
    strings in one kind of marks.
    """
    found: list[str] = []
    every = _TOKEN.findall(code)
    place = 0
    while place < len(every):
        part, following = every[place], every[place + 1] if place + 1 < len(every) else " "
        place += 1
        if (
            following == "."
            and part.isidentifier()
            and every[place + 1 : place + 2]
            and every[place + 1].isidentifier()
        ):
            # `self.` and the like.
            place += 1
        elif part == "," and following in ")]}":
            pass
        elif (
            part == "-"
            and following[0].isdigit()
            and (not found or not re.match(r"[\w)\]}]", found[-1][-1:]))
        ):
            found.append(f"-{following}")
            place += 1
        else:
            found.append(re.sub(r"^([A-Za-z]*)'(.*)'$", r'\1"\2"', part) if part[-1] == "'" else part)
    return tuple(found)


@lru_cache(maxsize=64)
def _of_file(text: str) -> tuple[tuple[str, ...], str]:
    found = normalised_code(
        re.sub(r"(?:^|(?<=\s))#[^\"'\n]{0,400}$", "", text[:LOOKED_THROUGH], flags=re.MULTILINE)
    )
    return found, f" {' '.join(found)} "


def contains_code(code: str, texts: Iterable[str]) -> bool:
    """Return true if a text contains the code's tokens in sequence, apart from gaps."""
    parts = [part for one in GAP.split(code) if (part := " ".join(normalised_code(one)).rstrip(" ,:"))]
    names = {name for part in parts for name in re.findall(r"[A-Za-z_]\w+", part)}
    return any(
        all(f" {part}" in _of_file(text)[1] for part in parts)
        for text in texts
        if all(name in text for name in names)
    )


_FEWEST_TOKENS: Final = 3
"""Fewest tokens of code that is compared: a name, an operator and a value."""


def changed_code(code: str, texts: Iterable[str], known: Sequence[str] | frozenset[str] = ()) -> str:
    """Return the text in place of the code if they differ in one value, operator or unknown name.

    `known` names may replace others: code that only renames something is not different.
    """
    wanted = normalised_code(code)
    if len(wanted) < _FEWEST_TOKENS or GAP.search(code):
        return ""
    names = {name for name in wanted if name.isidentifier()}
    for text in texts:
        if sum(name not in text for name in names) > 1:
            continue
        for found, old, new in _similar_stretches(wanted, _of_file(text)[0]):
            unheard = (
                new.isidentifier() and old.isidentifier() and new not in known and not keyword.iskeyword(new)
            )
            if unheard or (_VALUE.fullmatch(old) and _VALUE.fullmatch(new)):
                return " ".join(found)
    return ""


def _similar_stretches(
    wanted: tuple[str, ...], known: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield equally long stretches that differ in one token, with that token and the `wanted` one."""
    size = len(wanted)
    first, second = wanted[0], wanted[1]
    for place in range(len(known) - size + 1):
        if known[place] != first and known[place + 1] != second:
            continue
        found = known[place : place + size]
        off = list(islice(((old, new) for old, new in zip(found, wanted, strict=True) if old != new), 2))
        if len(off) == 1:
            yield found, *off[0]


_OPERATOR: Final = re.compile(r"[-+*/%=!<>&|^~@]+")


def operator_changed_in(code: str, text: str) -> bool:
    """Return true if text and code differ in one operator; `**` for `*` may be prose marks."""
    wanted = normalised_code(code)
    changes = _similar_stretches(wanted, _of_file(text)[0]) if len(wanted) > 1 else ()
    return any(
        _OPERATOR.fullmatch(old) and _OPERATOR.fullmatch(new) and set(old) != set(new)
        for _, old, new in changes
    )


_VALUE: Final = re.compile(r".*[\"']|-*\d.*|True|False|None|and|or|is|in|not|[^\w\s()\[\]{},.:].*", re.DOTALL)
"""A token that is a string, a number, a constant or an operator."""
