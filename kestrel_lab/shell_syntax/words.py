"""Words of a shell program: their text without quotes, or that only bash can expand them."""

from __future__ import annotations

import re

_EXPANSION = re.compile(r"[A-Za-z_0-9@*#?$!{(\[-]")
"""What after a dollar sign makes it more than a dollar sign."""
_UNQUOTED_GLOB = re.compile(r"[*?\[]|(?:^|[=:])~|\{[^{}]*(?:,|\.\.)[^{}]*\}|\{.*\{")
_IN_DOUBLE_QUOTES = '$`"\\\n'
_ANSI = {"a": 7, "b": 8, "e": 27, "E": 27, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63}
_ANSI_NUMBER = re.compile(r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})")


class Word:
    """One word: `text` without its quotes; `known` unless it is expanded, to other text or to any number of words."""

    __slots__ = ("_shape", "known", "text")

    def __init__(self, source: str) -> None:
        """Read `source`, a word as it stands in a program."""
        self.text, self._shape, self.known = "", "", True
        place = 0
        while place < len(source):
            place = self._piece(source, place)
        self.known = self.known and not _UNQUOTED_GLOB.search(self._shape)

    @property
    def value(self) -> str | None:
        """The text that a program is given; `None` where it is unknown."""
        return self.text if self.known else None

    def _piece(self, source: str, place: int) -> int:
        """Read what begins at `place`; gives the place behind it."""
        sign, after = source[place], source[place + 1 : place + 2]
        if sign == "\\":
            if after != "\n":
                self._quoted(after)
            return place + 2
        if sign == "'":
            return self._single(source, place + 1)
        if sign == '"' or (sign == "$" and after == '"'):
            return self._double(source, place + (1 if sign == '"' else 2))
        if sign == "$" and after == "'":
            return self._ansi(source, place + 2)
        if sign == "`" or (sign == "$" and _EXPANSION.match(after)) or (sign in "<>" and after == "("):
            self.known = False
        self.text += sign
        self._shape += sign
        return place + 1

    def _quoted(self, text: str) -> None:
        self.text += text
        self._shape += "x" * len(text)

    def _single(self, source: str, place: int) -> int:
        end = source.find("'", place)
        if end < 0:
            self.known, end = False, len(source)
        self._quoted(source[place:end])
        return end + 1

    def _double(self, source: str, place: int) -> int:
        while place < len(source) and source[place] != '"':
            sign, after = source[place], source[place + 1 : place + 2]
            if sign == "\\" and after and after in _IN_DOUBLE_QUOTES:
                self._quoted("" if after == "\n" else after)
                place += 2
                continue
            if sign == "`" or (sign == "$" and _EXPANSION.match(after)):
                self.known = False
            self._quoted(sign)
            place += 1
        self.known = self.known and place < len(source)
        return place + 1

    def _ansi(self, source: str, place: int) -> int:
        """`$'…'` with its escapes. Bytes that are no ASCII and NUL are left unknown: what they become depends on more than the text."""
        while place < len(source) and source[place] != "'":
            if source[place] != "\\":
                self._quoted(source[place])
                place += 1
                continue
            if (number := _ANSI_NUMBER.match(source, place + 1)) is not None:
                code = int(next(filter(None, number.groups())), 8 if number[4] else 16)
                wide = number[2] or number[3]
                self.known = self.known and 0 < code < (0x110000 if wide else 0x80)
                self._quoted(chr(code) if 0 < code < 0x110000 else "")
                place = number.end()
                continue
            after = source[place + 1 : place + 2]
            self.known = self.known and after in _ANSI
            self._quoted(chr(_ANSI[after]) if after in _ANSI else after)
            place += 2
        self.known = self.known and place < len(source)
        return place + 1
