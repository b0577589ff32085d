"""Whether a text is somewhere word for word, or is there but for one thing that was changed.

Prose is compared by its words alone, code by its tokens: how it is broken into lines, marked up or punctuated is the writer's affair.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

_GAP: Final = re.compile(r"\s*(?:\.\.\.|…|\[\.\.\.\]|\[…\])\s*")
_HOLE: Final = re.compile(r"\{[^{}\n]*\}|%\([\w]+\)[a-z]|%[srdif]")
_STRING: Final = re.compile(r"\"([^\"\n]{6,})\"|'([^'\n]{6,})'")
_TOKEN: Final = re.compile(
    r"[rbfuRBFU]{0,2}(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')|\d[\w.]*|[A-Za-z_]\w*|\.\.\.|…|[-+*/%=!<>&|^~@:]+|[^\s\w]"
)
_NEAR: Final = 0.7
"""The share of words in the same order from which on one text is a changed form of another."""
_LOOKED_THROUGH: Final = 400_000
"""Characters of a text that is searched for something like a quote."""


def spoken(text: str) -> list[str]:
    """The words of a text in lower case: what a quote has to keep."""
    return re.findall(r"\w+", text.lower())


@lru_cache(maxsize=128)
def said_in(text: str) -> str:
    """The words of a file's text, strings and comments that go on over lines put together."""
    text = re.sub(r"\n\s*(?:#+|//+|\*|>|\.\.)[ \t]?", " ", text)
    text = re.sub(r"[\"']\s*\\?\n\s*[fbru]{0,2}[\"']", "", text).replace("\\n", " ")
    return f" {' '.join(spoken(text))} "


def quoted_in(quote: str, texts: Iterable[str]) -> bool:
    """Whether the words of the quote stand in one of the texts, what it leaves out or fills in aside."""
    parts = [
        " ".join(words) for part in _GAP.split(_HOLE.sub("…", quote)) if len(words := spoken(part)) > 1 or (words and len(words[0]) > 3)
    ]
    return any(all(f" {part} " in said_in(text) for part in parts) or _filled(quote, text) for text in texts)


def _filled(quote: str, text: str) -> bool:
    """Whether the quote is what a template of the text becomes with something put in."""
    words = " " + " ".join(spoken(re.sub(r"^[A-Z][A-Za-z]+(?:Error|Exception|Warning): ", "", quote)))
    return any(template.fullmatch(words) for template in _templates(text))


@lru_cache(maxsize=128)
def _templates(text: str) -> tuple[re.Pattern[str], ...]:
    """The texts in quotation marks that have places to be filled in, as what their words may become."""
    joined = re.sub(r"[\"']\s*\n\s*[fbru]{0,2}[\"']", "", text)
    found = [match[1] or match[2] for match in _STRING.finditer(joined)]
    every = [[" ".join(spoken(part)) for part in _HOLE.split(one)] for one in found if _HOLE.search(one)]
    return tuple(
        re.compile(r"(?: \w+){0,8}".join(f" {part}" if part else "" for part in parts))
        for parts in every
        if sum(len(part.split()) for part in parts) >= 2
    )


def nearly_in(quote: str, texts: Iterable[str]) -> str:
    """What stands in one of the texts that the quote is a changed form of; empty if there is nothing like it."""
    words = spoken(quote)
    if len(words) < 4:
        return ""
    wanted, size = Counter(words), len(words)
    for text in texts:
        known = said_in(text[:_LOOKED_THROUGH]).split()
        window = Counter(known[:size])
        for place in range(max(1, len(known) - size + 1)):
            if place:
                window[known[place - 1]] -= 1
                window[known[place + size - 1]] += 1
            if sum(min(count, window[word]) for word, count in wanted.items()) >= _NEAR * size:
                found = known[place : place + size]
                if SequenceMatcher(None, words, found, autojunk=False).ratio() >= _NEAR:
                    return " ".join(found)
    return ""


@lru_cache(maxsize=4096)
def tokens(code: str) -> tuple[str, ...]:
    """The tokens of a piece of code, `self.` and the like, comments and commas at the end left out, all strings in one kind of marks."""
    found: list[str] = []
    every = _TOKEN.findall(code)
    place = 0
    while place < len(every):
        part, following = every[place], every[place + 1] if place + 1 < len(every) else " "
        place += 1
        if following == "." and part.isidentifier():
            place += 1
        elif part == "," and following in ")]}":
            pass
        elif part == "-" and following[0].isdigit() and (not found or not re.match(r"[\w)\]}]", found[-1][-1:])):
            found.append(f"-{following}")
            place += 1
        else:
            found.append(re.sub(r"^([A-Za-z]*)'(.*)'$", r'\1"\2"', part) if part[-1] == "'" else part)
    return tuple(found)


@lru_cache(maxsize=64)
def _of_file(text: str) -> tuple[tuple[str, ...], str]:
    found = tokens(re.sub(r"(?:^|(?<=\s))#[^\"'\n]*$", "", text[:_LOOKED_THROUGH], flags=re.MULTILINE))
    return found, f" {' '.join(found)} "


def coded_in(code: str, texts: Iterable[str]) -> bool:
    """Whether the tokens of the code stand in one of the texts one after the other, what it leaves out aside."""
    parts = [part for one in _GAP.split(code) if (part := " ".join(tokens(one)).rstrip(" ,:"))]
    names = {name for part in parts for name in re.findall(r"[A-Za-z_]\w+", part)}
    return any(all(f" {part}" in _of_file(text)[1] for part in parts) for text in texts if all(name in text for name in names))


def changed_in(code: str, texts: Iterable[str], known: Sequence[str] | frozenset[str] = ()) -> str:
    """What stands in one of the texts in place of the code, if they differ in just one value, operator or unheard-of name.

    `known` are names that may stand for others: a piece of code that only names something differently is no changed one.
    """
    wanted = tokens(code)
    if len(wanted) < 4 or _GAP.search(code):
        return ""
    names = {name for name in wanted if name.isidentifier()}
    for text in texts:
        if sum(name not in text for name in names) > 1:
            continue
        for found in _alike(wanted, _of_file(text)[0]):
            old, new = next((a, b) for a, b in zip(found, wanted, strict=True) if a != b)
            unheard = new.isidentifier() and old.isidentifier() and new not in known and not keyword.iskeyword(new)
            if unheard or (_is_value(old) and _is_value(new)):
                return " ".join(found)
    return ""


def _alike(wanted: tuple[str, ...], known: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Stretches of the same length that differ in one token."""
    size = len(wanted)
    first, second = wanted[0], wanted[1]
    for place in range(len(known) - size + 1):
        if known[place] != first and known[place + 1] != second:
            continue
        off = 0
        for a, b in zip(wanted, known[place : place + size], strict=True):
            off += a != b
            if off > 1:
                break
        if off == 1:
            yield known[place : place + size]


def _is_value(token: str) -> bool:
    return (
        token[-1:] in "\"'"
        or token.lstrip("-")[:1].isdigit()
        or token in ("True", "False", "None", "and", "or", "is", "in", "not")
        or not re.match(r"[\w\s()\[\]{},.:]", token)
    )
