"""The words of code and prose as the index keeps them: names whole and in their parts."""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]\w*|_\w+")
_SPLIT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=\d)|_+")
_LONGEST = 80
_DIGITS = 6
"""Longer numbers are measurements and hashes, which nobody asks for by all their digits."""
_COMMON = """
a about after all also although always am an and another any are as at be because been before being below between both bug but by can
cannot could did do does doing done each either else etc even every expected few first following for from get gets give given go goes
got had has have having he her here him his how however i if in instead into is issue it its just know let like make makes many may
maybe me might more most much must my need no nor now of off ok on once one only or other our out over own please problem q really
reproduce run s same say see seems shall she should since so some something still such sure t than that the their them then there these
they thing things think this those though through thus to too try trying two under until up us use used uses using version very want was way
we well went were what when where whether which while who why will with within without work works would yes you your
"""
COMMON = frozenset(_COMMON.split())
"""Words that say nothing about where something is."""


def parts(name: str) -> list[str]:
    """The words that a name is made of, in lower case: `readFile` and `read_file` are `read` and `file`."""
    return [piece.lower() for piece in _SPLIT.split(name) if piece]


class _Kept(dict[str, str]):
    """What a word is written as in the index, worked out once for each."""

    def __missing__(self, word: str) -> str:
        pieces = parts(word) if len(word) <= _LONGEST and not (word.isdigit() and len(word) > _DIGITS) else []
        found = " ".join(pieces if len(pieces) <= 1 else [*pieces, _whole(word)])
        if len(self) > 500_000:
            self.clear()
        self[word] = found
        return found


_kept = _Kept()


def _whole(name: str) -> str:
    """A name of several parts as one word, the same however it is written: `readFile` is `read_file` is `readfile`."""
    return "x".join(("", *parts(name)))


def indexed(text: str) -> str:
    """`text` as the index keeps it: each name in its parts, and whole if it has several."""
    return " ".join(map(_kept.__getitem__, WORD.findall(text)))


def terms(text: str) -> dict[str, int]:
    """What a question is looked up by: words as the index has them and how often each is said, common ones left out.

    All of them where nothing else is left.
    """
    counted: dict[str, int] = {}
    for word in indexed(text).split():
        counted[word] = counted.get(word, 0) + 1
    telling = {word: many for word, many in counted.items() if word not in COMMON and (len(word) > 1 or not word.isascii())}
    return telling or counted


def spoken(text: str) -> tuple[str, ...]:
    """The distinct telling words of a question as a person wrote them, in order, lower case."""
    found = dict.fromkeys(word.lower() for word in WORD.findall(text))
    telling = tuple(word for word in found if word not in COMMON and len(word) > 1)
    return telling or tuple(found)
