"""Provenance of arguments: text they share with the user's words and with tool answers.

Shown to the approver; decides nothing, since a model can paraphrase what it read.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import cast
from urllib.parse import unquote

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.runtime.security.argument_texts import Passage, strip_punctuation, texts_in
from kestrel_lab.runtime.security.taint import Taint

_RUN = 16
"""Characters in a row that two texts do not share by chance."""
_CORE, _STEP = 12, 4
"""Length and distance of searched pieces: any `_RUN` characters in a row contain one."""
_MOST_LOOKS = 500
"""Most searches of an argument in one text; longer ones are searched less densely."""
_MOST_ARGUMENTS, _MOST_SOURCES = 40, 4
_MOST_READ, _MOST_PASSAGE, _MOST_ARGUMENT = 400_000, 50_000, 20_000
"""Characters that are looked at: of all passages, the newest first, of one, and of one argument."""
_PIECE = 80
_SPELLED = 6
"""Letters and digits of a word that is searched ignoring the characters between them."""
_TELLING = re.compile(r"(?=[\w.-]*\d)[\w.-]{6,}|[\w.-]{14,}")
"""Words that are seldom the same by chance."""
_NUMBERS = re.compile(r"(?:\b\d{2,3}\b[\s,;]*){6,}")
_CODED = re.compile(r"[A-Za-z0-9+/_-]{12,}={0,2}")


_Known = tuple[str, str, str]
"""Source, kind, and the text to look in."""


def argument_origins(
    args: Mapping[str, Json], taint: Taint, filled: Mapping[str, str] | None = None
) -> list[dict[str, Json]]:
    """Return for each text in `args` `{arg, from: [{source, kind, piece}]}`, longest piece first.

    `kind` is `goal` for the user's words, else `untrusted`, `private` or both, comma-separated; `from` is
    empty if nothing is shared. `filled` tells what filled in arguments that are not the model's; their kind
    is `filled`.
    """
    found = []
    for name, value in args.items():
        if (source := (filled or {}).get(name)) is not None:
            whence: Json = [{"source": source, "kind": "filled", "piece": ""}]
            found += [
                {"arg": one_line(place, 80), "from": whence}
                for place, text in texts_in({name: value})
                if text.strip()
            ]
    own: Json = {name: value for name, value in args.items() if name not in (filled or {})}
    texts = [(place, text[:_MOST_ARGUMENT]) for place, text in texts_in(own) if text.strip()][
        :_MOST_ARGUMENTS
    ]
    known = list(_known_texts(taint)) if texts else []
    more = [
        {"arg": one_line(place, 80), "from": cast("Json", _sources(text, known))} for place, text in texts
    ]
    return found[:_MOST_ARGUMENTS] + more


def private_sources(args: Mapping[str, Json], taint: Taint, but: Container[str] = ()) -> list[str]:
    """Return the sources of private text in `args` that the user did not say, except tools in `but`.

    A shared piece counts if it is long, or has a word that is rarely equal by chance, besides the user's
    words; unless a public page has it too.
    """
    passages = [one for one in taint.passages[-_MOST_LOOKS:] if one.private and one.tool not in but]
    texts = (
        [text[:_MOST_ARGUMENT] for _, text in texts_in(dict(args)) if text.strip()][:_MOST_ARGUMENTS]
        if passages
        else []
    )
    if not texts:
        return []
    said = {word.casefold() for word in taint.said}
    public = [_comparable_text(one.text[:_MOST_PASSAGE]) for one in taint.passages if not one.private]
    forms = [
        form
        for text in texts
        for form in {*_decoded_forms(text), codecs.encode(_comparable_text(text), "rot13")}
    ]
    found = dict[str, None]()
    for passage in passages:
        words = _comparable_text(passage.text[:_MOST_PASSAGE])
        pieces = [piece for form in forms for piece in _pieces(form, words)] + _spelled_apart(texts, words)
        if any(_is_telling(piece, said) and not any(piece in page for page in public) for piece in pieces):
            found[passage.source] = None
    return list(found)


def _is_telling(piece: str, said: set[str]) -> bool:
    left = " ".join(word for word in piece.split() if strip_punctuation(word) not in said)
    return len(left) >= _RUN or _TELLING.search(left) is not None


def _spelled_apart(texts: Iterable[str], words: str) -> list[str]:
    """Return distinctive words of `words` that occur in `texts` with other characters between the letters."""
    spelt = ["".join(filter(str.isalnum, text.casefold())) for text in texts]
    telling = {word: "".join(filter(str.isalnum, word)) for word in _TELLING.findall(words)}
    return [
        word
        for word, letters in telling.items()
        if len(letters) >= _SPELLED and any(letters in one for one in spelt)
    ]


def _known_texts(taint: Taint) -> Iterator[_Known]:
    for words in taint.words:
        yield "the goal", "goal", _comparable_text(words[:_MOST_PASSAGE])
    left = _MOST_READ
    for passage in reversed(taint.passages):
        text = passage.text[:_MOST_PASSAGE]
        left -= len(text)
        if left < 0:
            return
        yield passage.source, _kind(passage), _comparable_text(text)


def _kind(passage: Passage) -> str:
    return (
        ", ".join(
            word for word, holds in (("private", passage.private), ("untrusted", passage.untrusted)) if holds
        )
        or "tool"
    )


def _sources(text: str, known: Iterable[_Known]) -> list[dict[str, Json]]:
    found: dict[tuple[str, str], str] = {}
    forms = list(_decoded_forms(text))
    for source, kind, words in known:
        piece = max((_longest_shared(form, words) for form in forms), key=len)
        if len(piece) > len(found.get((source, kind), "")):
            found[source, kind] = piece
    best = sorted(found.items(), key=lambda item: (item[0][1] != "goal", -len(item[1])))
    return [
        {"source": source, "kind": kind, "piece": one_line(piece, _PIECE)}
        for (source, kind), piece in best[:_MOST_SOURCES]
    ]


def _longest_shared(text: str, words: str) -> str:
    """The longest piece of `text` that is found in `words`; a single word only if it is a telling one."""
    if len(text) > 2 and text in words and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", words):
        return text
    pieces = list(_pieces(text, words))
    long = max(pieces, key=len, default="")
    return long if len(long) >= _RUN else next(iter(pieces), "")


def _pieces(text: str, words: str) -> Iterator[str]:
    """The pieces of `text` that are found in `words`: long ones, then telling words."""
    start = 0
    step = max(_STEP, len(text) // _MOST_LOOKS)
    while start + _CORE <= len(text):
        at = words.find(text[start : start + _CORE])
        if at >= 0:
            piece = _extend_match(text, start, words, at)
            start += max(step, len(piece) - _CORE)
            if len(piece) >= _RUN:
                yield piece
        else:
            start += step
    yield from (word for word in _TELLING.findall(text) if word in words)


def _extend_match(text: str, start: int, words: str, at: int) -> str:
    """Return the longest common piece around a position."""
    end, behind = start + _CORE, at + _CORE
    while end < len(text) and behind < len(words) and text[end] == words[behind]:
        end, behind = end + 1, behind + 1
    while start > 0 and at > 0 and text[start - 1] == words[at - 1]:
        start, at = start - 1, at - 1
    return text[start:end]


def _decoded_forms(text: str) -> Iterator[str]:
    """Return the text and what it may encode: percent signs, base64, hexadecimal, character codes, reversed
    text.
    """
    plain = _comparable_text(text)
    yield plain
    if (decoded := _comparable_text(unquote(text))) != plain:
        yield decoded
    for word in _CODED.findall(text)[:20]:
        for decode in (_base64, bytes.fromhex):
            try:
                inner = decode(word).decode()
            except (ValueError, binascii.Error):
                continue
            if inner.isprintable() or "\n" in inner:
                yield _comparable_text(inner)
    for run in _NUMBERS.findall(text)[:20]:
        yield _comparable_text("".join(chr(int(number)) for number in re.findall(r"\d+", run)))
    if len(plain) >= _CORE:
        yield plain[::-1]


def _base64(word: str) -> bytes:
    return base64.b64decode(
        word.rstrip("=").translate(str.maketrans("-_", "+/")) + "=" * (-len(word.rstrip("=")) % 4),
        validate=True,
    )


def _comparable_text(text: str) -> str:
    return " ".join(text.casefold().split())
