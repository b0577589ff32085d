"""Marks in rendered Markdown: claims underlined by the state of their evidence, numbers linked to the call that gave them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.language.numbers import NUMBER

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

STATES: Final = {
    "cited": "2px solid rgba(46,160,67,.85)",
    "uncited": "1px dotted rgba(127,127,127,.7)",
    "unknown": "2px dotted rgba(127,127,127,.95)",
    "changed": "2px dashed rgba(210,153,34,.95)",
    "wrong": "3px double rgba(248,81,73,.95)",
}
"""Line under a claim in each state: its form says the same as its colour."""
Claim = tuple[int, int, str, str]
_SIGNS: Final = ("⸨⸩", "⦅⦆", "⟬⟭", "⧘⧙")
"""Brackets that mark where claims begin and end while the text is parsed; punctuation, so that emphasis beside them stays emphasis."""


def marked_tokens(parser: MarkdownIt, text: str, claims: Sequence[Json], numbers: Mapping[str, str], *, styled: bool) -> list[Token]:
    """Return the tokens of `text` in which claims are spans and numbers are links.

    `claims` are start, end, state and evidence in words, in order; a claim whose marks would change what the Markdown means has none.
    `numbers` are the addresses of numbers as they are written.
    """
    plain = parser.parse(text)
    signs = next((pair for pair in _SIGNS if not set(pair) & set(text)), "")
    placed = [(one, *_inside(text, one[0], one[1])) for one in cast("Sequence[Claim]", claims)] if signs else []
    shape, tokens = [*_shape(plain, "")], plain
    if placed:
        tokens = parser.parse(_signed(text, placed, signs))
        if [*_shape(tokens, signs)] != shape:
            placed = [one for one in placed if [*_shape(parser.parse(_signed(text, [one], signs)), signs)] == shape]
            tokens = parser.parse(_signed(text, placed, signs))
            if [*_shape(tokens, signs)] != shape:
                placed, tokens = [], plain
    marker = _Marker([one for one, _, _ in placed], numbers, signs, styled=styled)
    for token in tokens:
        if token.type == "inline" and token.children:
            token.children = marker.marked(token.children)
    return tokens


def _inside(text: str, start: int, end: int) -> tuple[int, int]:
    """The place of a claim without the bars of a row of a table, which stand around its cells."""
    if text[start : start + 1] == "|":
        start += len(text[start:end]) - len(text[start:end].lstrip("| "))
        end -= len(text[start:end]) - len(text[start:end].rstrip("| "))
    return start, end


def _signed(text: str, placed: Sequence[tuple[Claim, int, int]], signs: str) -> str:
    parts, at = [], 0
    for _, start, end in placed:
        parts += [text[at:start], signs[0], text[start:end], signs[1]]
        at = end
    return "".join([*parts, text[at:]])


def _shape(tokens: Sequence[Token], signs: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield what the rendering of tokens depends on, without the signs."""
    for token in tokens:
        content = "" if token.type == "inline" else token.content.translate(dict.fromkeys(map(ord, signs)))
        if content or token.type != "text":  # a sign alone is a text of its own before code
            yield token.type, token.tag, content, str(token.attrs)
        yield from _shape(token.children or (), signs)


class _Marker:
    """Marks inline tokens, block after block: a claim may go on in the next cell of its row."""

    def __init__(self, claims: Sequence[Claim], numbers: Mapping[str, str], signs: str, *, styled: bool) -> None:
        self._claims, self._numbers, self._styled = iter(claims), numbers, styled
        self._signs = re.compile(f"([{signs}])") if signs else None
        self._begin = signs[:1]
        self._claim: Claim | None = None
        self._first = False

    def marked(self, children: Sequence[Token]) -> list[Token]:
        """Return the children of an inline token with their marks."""
        out: list[Token] = []
        start, linked = 0, 0
        for token in self._pieces(children):
            if isinstance(token, str):
                if token == self._begin:
                    self._claim, self._first, start = next(self._claims), True, len(out)
                else:
                    out[start:] = self._spanned(out[start:])
                    self._claim = None
                continue
            linked += token.nesting if token.tag == "a" else 0
            out += self._with_links(token) if token.type == "text" and not linked else [token]
        if self._claim is not None:
            out[start:] = self._spanned(out[start:])
        return out

    def _pieces(self, children: Sequence[Token]) -> Iterator[Token | str]:
        """Yield the tokens, texts divided at the signs, and the signs."""
        for token in children:
            if self._signs is None or not self._signs.search(token.content):
                yield token
            elif token.type != "text":  # the signs in code change nothing but its text
                signs = self._signs.findall(token.content)
                yield from (sign for sign in signs if sign == self._begin)
                yield token.copy(content=self._signs.sub("", token.content))
                yield from (sign for sign in signs if sign != self._begin)
            else:
                for part in self._signs.split(token.content):
                    if part and self._signs.fullmatch(part):
                        yield part
                    elif part:
                        yield token.copy(content=part)

    def _spanned(self, tokens: list[Token]) -> list[Token]:
        """Return the tokens of the claim within a span; where they are not whole elements, each text in a span of its own."""
        depth = [0]
        for token in tokens:
            depth.append(depth[-1] + token.nesting)
        if not any(token.content.strip() for token in tokens):
            return tokens
        if depth[-1] == 0 and min(depth) == 0:
            return [self._open(), *tokens, _token("span_close", "span", -1)]
        return [
            part
            for token in tokens
            for part in (
                [self._open(), token, _token("span_close", "span", -1)] if token.nesting == 0 and token.content.strip() else [token]
            )
        ]

    def _open(self) -> Token:
        _, _, state, told = self._claim or (0, 0, "uncited", "")
        attrs = {"class": f"kst-claim kst-{state}"}
        if self._styled:
            attrs["style"] = f"border-bottom:{STATES[state]}"
        if told:
            attrs["data-shown"] = told
        if told and self._first:  # one stop for the keyboard, one description for who listens
            attrs |= {"tabindex": "0", "role": "mark", "aria-description": told}
            self._first = False
        return _token("span_open", "span", 1, attrs)

    def _with_links(self, token: Token) -> Iterator[Token]:
        at = 0
        for match in NUMBER.finditer(token.content) if self._numbers else ():
            if (address := self._numbers.get(match[0])) is None:
                continue
            yield token.copy(content=token.content[at : match.start()])
            yield _token(
                "number_open", "a", 1, {"href": address, "class": "kst-number-from", "title": "show the call that gave this number"}
            )
            yield token.copy(content=match[0])
            yield _token("number_close", "a", -1)
            at = match.end()
        yield token.copy(content=token.content[at:])


def _token(kind: str, tag: str, nesting: Any, attrs: Mapping[str, str] | None = None) -> Token:
    from markdown_it.token import Token

    return Token(kind, tag, nesting, attrs=dict(attrs or {}))
