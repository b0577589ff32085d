"""Where the arguments of a call come from: what they share with the user's words and with what tools answered.

This is told to whoever decides, and decides nothing itself: a model can write what it read in words of its own.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import cast
from urllib.parse import unquote

from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.text import one_line
from kestrel_lab.engine.taint import Passage, Taint, leaves

_RUN = 16
"""Characters in a row that two texts do not share by chance."""
_CORE, _STEP = 12, 4
"""What is looked for, and how far apart: any `_RUN` characters in a row hold one."""
_MOST_LOOKS = 500
"""How often an argument is looked for in one text; a long one less closely."""
_MOST_ARGUMENTS, _MOST_SOURCES = 40, 4
_MOST_READ, _MOST_PASSAGE, _MOST_ARGUMENT = 400_000, 50_000, 20_000
"""Characters that are looked at: of all passages, the newest first, of one, and of one argument."""
_PIECE = 80
_TELLING = re.compile(r"(?=[\w.-]*\d)[\w.-]{6,}|[\w.-]{14,}")
"""Words that are seldom the same by chance."""
_CODED = re.compile(r"[A-Za-z0-9+/_-]{12,}={0,2}")


_Known = tuple[str, str, str]
"""Source, kind, and the text to look in."""


def origins_of(args: Mapping[str, Json], taint: Taint) -> list[dict[str, Json]]:
    """For each text in `args`: `{arg, from: [{source, kind, piece}]}`, the longest piece first.

    `kind` is `goal` for the user's words, else `untrusted`, `private` or both with a comma between; `from` is empty where
    nothing is shared: the words are the model's own.
    """
    texts = [(place, text[:_MOST_ARGUMENT]) for place, text in leaves(dict(args)) if text.strip()][:_MOST_ARGUMENTS]
    known = list(_known(taint)) if texts else []
    return [{"arg": one_line(place, 80), "from": cast("Json", _sources(text, known))} for place, text in texts]


def _known(taint: Taint) -> Iterator[_Known]:
    for words in taint.words:
        yield "the goal", "goal", _even(words[:_MOST_PASSAGE])
    left = _MOST_READ
    for passage in reversed(taint.passages):
        text = passage.text[:_MOST_PASSAGE]
        left -= len(text)
        if left < 0:
            return
        yield passage.source, _kind(passage), _even(text)


def _kind(passage: Passage) -> str:
    return ", ".join(word for word, holds in (("private", passage.private), ("untrusted", passage.untrusted)) if holds) or "tool"


def _sources(text: str, known: Iterable[_Known]) -> list[dict[str, Json]]:
    found: dict[tuple[str, str], str] = {}
    forms = list(_forms(text))
    for source, kind, words in known:
        piece = max((_shared(form, words) for form in forms), key=len)
        if len(piece) > len(found.get((source, kind), "")):
            found[source, kind] = piece
    best = sorted(found.items(), key=lambda item: (item[0][1] != "goal", -len(item[1])))
    return [{"source": source, "kind": kind, "piece": one_line(piece, _PIECE)} for (source, kind), piece in best[:_MOST_SOURCES]]


def _shared(text: str, words: str) -> str:
    """The longest piece of `text` that is found in `words`; a single word only if it is a telling one."""
    if len(text) > 2 and text in words and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", words):
        return text
    best, start = "", 0
    step = max(_STEP, len(text) // _MOST_LOOKS)
    while start + _CORE <= len(text):
        at = words.find(text[start : start + _CORE])
        if at >= 0:
            piece = _grown(text, start, words, at)
            best = max(best, piece, key=len)
            start += max(step, len(piece) - _CORE)
        else:
            start += step
    if len(best) >= _RUN:
        return best
    return next((word for word in _TELLING.findall(text) if word in words), "")


def _grown(text: str, start: int, words: str, at: int) -> str:
    """The piece around a place where the two are alike, as long as they are."""
    end, behind = start + _CORE, at + _CORE
    while end < len(text) and behind < len(words) and text[end] == words[behind]:
        end, behind = end + 1, behind + 1
    while start > 0 and at > 0 and text[start - 1] == words[at - 1]:
        start, at = start - 1, at - 1
    return text[start:end]


def _forms(text: str) -> Iterator[str]:
    """The text as it is and as what it may be a code of: percent signs, base64, hexadecimal, backwards."""
    plain = _even(text)
    yield plain
    if (decoded := _even(unquote(text))) != plain:
        yield decoded
    for word in _CODED.findall(text)[:20]:
        for decode in (_base64, bytes.fromhex):
            try:
                inner = decode(word).decode()
            except (ValueError, binascii.Error):
                continue
            if inner.isprintable() or "\n" in inner:
                yield _even(inner)
    if len(plain) >= _RUN:
        yield plain[::-1]


def _base64(word: str) -> bytes:
    return base64.b64decode(word.rstrip("=").translate(str.maketrans("-_", "+/")) + "=" * (-len(word.rstrip("=")) % 4), validate=True)


def _even(text: str) -> str:
    return " ".join(text.casefold().split())
