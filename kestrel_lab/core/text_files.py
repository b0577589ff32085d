"""Text files of others: decode, and write back with the same encoding and line ends."""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from dataclasses import dataclass

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig", "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32", "utf-32-le"),  # before UTF-16: its mark begins with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32", "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16", "utf-16-be"),
)
_CODECS = {mark: codec for mark, _, codec in _MARKS}
_LOOKED_AT = 8_192
_END = re.compile(r"\r\n|\n|\r")
_END_NAMES = {"\n": "LF", "\r\n": "CRLF", "\r": "CR", "mixed": "mixed"}


@dataclass(frozen=True, slots=True)
class Text:
    """Decoded text, with what turns it back into the same bytes."""

    text: str
    encoding: str
    mark: bytes = b""
    """The byte order mark that the file begins with; not part of the text."""

    def encode(self, text: str, path: str) -> bytes:
        """`text` in the file's encoding, with its mark; `ValueError` for a character that it lacks."""
        return self.mark + encode_text(text, _CODECS.get(self.mark, self.encoding), path, name=self.encoding)


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a file holds once its whole text was replaced."""

    content: bytes
    text: str
    notes: tuple[str, ...] = ()
    """What could not be kept of the file as it was."""


def content_version(content: bytes) -> str:
    """Return the name of what a file holds, as the log has it."""
    return hashlib.sha256(content).hexdigest()[:32]


def decode_marked(content: bytes) -> Text | None:
    """Decode content by its byte order mark; `None` without a mark or if the content does not match it."""
    for mark, encoding, codec in _MARKS:
        if content.startswith(mark):
            try:
                return Text(content[len(mark) :].decode(codec), encoding, mark)
            except UnicodeDecodeError:
                return None
    return None


def decode_text(content: bytes, name: str) -> Text:
    """UTF-8, or what a byte order mark says, else Latin-1, in which every byte is a character.

    Raises `ValueError` that says so for content with NUL bytes: it is not text.
    """
    if (marked := decode_marked(content)) is not None:
        return marked
    if b"\0" in content[:_LOOKED_AT]:
        raise ValueError(f"{name} is a binary file ({len(content):,} bytes), not text")
    try:
        return Text(content.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        # Latin-1 has a character for each byte: decoding never fails and writes back the same bytes.
        return Text(content.decode("latin-1"), "latin-1")


def encode_text(text: str, encoding: str, path: str, *, name: str = "") -> bytes:
    """`text` in `encoding`, called `name` in messages; `ValueError` for a character that it does not have."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        missing = text[error.start : error.start + 1]
        msg = (
            f"{path} is {name or encoding}, which has no {missing!r}: use another character, or "
            "replace the whole file"
        )
        raise ValueError(msg) from None


def line_end(text: str) -> str:
    r"""How `text` ends its lines: `"\n"`, `"\r\n"`, `"\r"` or `"mixed"`; empty for a single line.

    A lone CR counts only where there is no LF at all. In any other text it is a character of its line.
    """
    windows = text.count("\r\n")
    unix = text.count("\n") - windows
    if windows and unix:
        return "mixed"
    return "\r\n" if windows else "\n" if unix else "\r" if "\r" in text else ""


def end_pattern(text: str) -> str:
    """A regular expression that matches each whole line end of `text`."""
    return r"\r" if line_end(text) == "\r" else r"\r\n|(?<!\r)\n"


def lines_with_ends(text: str) -> list[str]:
    """Return the lines of a text with their ends, counted as files and editors count them.

    `str.splitlines` also breaks at form feeds, vertical tabs and separators such as U+2028, which stand
    within lines of source code and of JSON: every number of a line behind one of them would be wrong.
    """
    return list(io.StringIO(text, newline="\r" if line_end(text) == "\r" else "\n"))


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without line ends; a final line end adds no empty line."""
    if line_end(text) == "\r":
        return [line.removesuffix("\r") for line in lines_with_ends(text)]
    return [line.removesuffix("\n").removesuffix("\r") for line in lines_with_ends(text)]


def with_line_ends(text: str, ends: list[str], *, lone: bool) -> str:
    """`text` with `ends` as line ends, the last one repeated; `lone`: a lone CR is a line end."""
    taken = iter(ends)

    def end(found: re.Match[str]) -> str:
        if found[0] == "\r" and not lone:
            return found[0]
        return next(taken, ends[-1])

    return _END.sub(end, text)


def replace_text(before: Text | None, text: str, path: str) -> Replacement:
    """Return what a file holds after `text` replaced all of it; `before` is `None` where there is no text to
    go by.

    Encoding and byte order mark stay. Line ends stay where `text` has plain newlines. What cannot stay is in
    the notes. Raises `ValueError` for a text that cannot be written at all.
    """
    if before is None:
        return Replacement(encode_text(text, "utf-8", path), text)
    notes = []
    text = text.removeprefix("\ufeff") if before.mark else text
    had, has = line_end(before.text), line_end(text)
    if has == "\n" and had in {"\r\n", "\r"}:
        text = text.replace("\n", had)
    elif had and has and had != has:
        notes.append(f"its line ends were {_END_NAMES[had]} and are {_END_NAMES[has]} now")
    try:
        content = before.encode(text, path)
    except ValueError:
        content = encode_text(text, "utf-8", path)
        notes.append(
            f"its encoding was {before.encoding}, which does not have all of these characters, and is "
            "utf-8 now"
        )
    return Replacement(content, text, tuple(notes))
