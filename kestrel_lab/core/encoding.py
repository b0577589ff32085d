"""Bytes of a file as text: which encoding they are in, or that they are no text."""

import codecs
from dataclasses import dataclass

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: its mark begins with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT = 8_192


@dataclass(frozen=True, slots=True)
class Text:
    """Decoded text and the codec that turns it back into the same bytes."""

    text: str
    encoding: str


def decode_marked(content: bytes) -> Text | None:
    """What a byte order mark says that the content is; `None` without one, or where it is not that."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            try:
                return Text(content.decode(encoding), encoding)
            except UnicodeDecodeError:
                return None
    return None


def decode(content: bytes, name: str) -> Text:
    """UTF-8, or what a byte order mark says, else Latin-1, in which every byte is a character.

    Raises `ValueError` that says so for content with NUL bytes: it is no text.
    """
    if (marked := decode_marked(content)) is not None:
        return marked
    if b"\0" in content[:_LOOKED_AT]:
        msg = f"{name} is a binary file ({len(content):,} bytes), not text"
        raise ValueError(msg)
    try:
        return Text(content.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return Text(content.decode("latin-1"), "latin-1")
