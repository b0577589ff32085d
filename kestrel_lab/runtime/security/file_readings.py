"""Readings of a file: the texts that programs find in it, whatever its encoding, container or compression.

A text that was packed, encoded or stored in a database is in none of the bytes of its file, and its words are
in the output of the program that unpacks it.
"""

from __future__ import annotations

import base64
import bz2
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import unquote

MOST_BYTES: Final = 1 << 18
"""Bytes of a file, and of each of its unpacked parts, that are looked at."""
_DEPTH: Final = 3
"""Containers in containers that are opened."""
_MOST_PARTS: Final = 50
_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_WIDE: Final = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_SHOWN: Final = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]{12,}")
"""A run of bytes of a binary file that may be text."""
_BASE64: Final = re.compile(rb"(?:[A-Za-z0-9+/_-]{4}[\r\n \"',\\n]{0,6}){8,}(?:[A-Za-z0-9+/_-]{2,3})?={0,2}")
_HEX: Final = re.compile(rb"(?:[0-9A-Fa-f]{2}[\s:]?){24,}")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrt\"'\\/]))")
_OBJECT: Final = re.compile(rb"(blob|commit|tag) \d+\x00")
"""The beginning of an object of git; the names in a tree are no text."""


def readings(content: bytes, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the texts of a file, at least one for a file that holds any; each may hold parts of another."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            yield content.decode(encoding, "ignore")
            return
    unpack = next((unpack for begin, unpack in _UNPACKERS if content.startswith(begin)), None)
    if unpack is not None and depth:
        for part in _parts(unpack, content):
            yield from readings(_without_header(part), depth - 1)
        return
    if b"\0" not in content[:8_192]:
        yield from _text_readings(content, depth)
        return
    if (wide := _wide_text(content)) is not None:
        yield wide
        return
    for part in _parts(_untarred, content) if content[257:262] == b"ustar" and depth else ():
        yield from readings(part, depth - 1)
    yield "\n".join(run[0].decode("utf-8", "ignore") for run in _SHOWN.finditer(content))


def is_text_object(content: bytes) -> bool:
    """Return whether the beginning of a loose object of git is that of a file, a commit or a tag."""
    return _OBJECT.match(next(_parts(_inflated, content), b"")) is not None


def _text_readings(content: bytes, depth: int) -> Iterator[str]:
    text = content.decode("utf-8", "ignore")
    yield text
    if text.count("%") > 3 and (plain := unquote(text)) != text:
        yield plain
    if "\\" in text:
        yield _ESCAPE.sub(_unescaped, text)
    for pattern, decode in ((_BASE64, _from_base64), (_HEX, _from_hex)) if depth else ():
        for found in pattern.finditer(content):
            if decoded := decode(found[0]):
                yield from readings(decoded, depth - 1)


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else {"n": "\n", "r": "\r", "t": "\t"}.get(found[3], found[3])


def _from_base64(coded: bytes) -> bytes:
    letters = re.sub(rb"\\n|[^A-Za-z0-9+/_-]", b"", coded).translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(letters + b"=" * (-len(letters) % 4))
    except ValueError:
        return b""


def _from_hex(coded: bytes) -> bytes:
    return bytes.fromhex(re.sub(rb"[^0-9A-Fa-f]", b"", coded).decode("ascii"))


def _wide_text(content: bytes) -> str | None:
    """Return a text whose characters have two or four bytes each; `None` if it is none."""
    best, most = None, 0
    for encoding in _WIDE:
        text = content.decode(encoding, "ignore")
        blanks = sum(map(text.count, " \n"))
        shown = sum(sign.isprintable() or sign.isspace() for sign in text[:4_096])
        if blanks > most and shown > 0.95 * len(text[:4_096]):
            best, most = text, blanks
    return best


def _without_header(content: bytes) -> bytes:
    found = _OBJECT.match(content)
    return content[found.end() :] if found else content


def _parts(unpack: Callable[[bytes], Iterator[bytes]], content: bytes) -> Iterator[bytes]:
    """Yield unpacked parts until one cannot be read."""
    try:
        for count, part in enumerate(unpack(content)):
            if count >= _MOST_PARTS:
                return
            yield part
    except (OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError):
        return
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError):
        return


def _gunzipped(content: bytes) -> Iterator[bytes]:
    yield zlib.decompressobj(31).decompress(content, MOST_BYTES)


def _inflated(content: bytes) -> Iterator[bytes]:
    yield zlib.decompressobj().decompress(content, MOST_BYTES)


def _bunzipped(content: bytes) -> Iterator[bytes]:
    yield bz2.BZ2Decompressor().decompress(content, MOST_BYTES)


def _unlzmad(content: bytes) -> Iterator[bytes]:
    yield lzma.LZMADecompressor(memlimit=1 << 27).decompress(content, MOST_BYTES)


def _unzipped(content: bytes) -> Iterator[bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                yield file.read(MOST_BYTES)


def _untarred(content: bytes) -> Iterator[bytes]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for entry in archive:
            if (file := archive.extractfile(entry)) is not None:
                yield file.read(MOST_BYTES)


_UNPACKERS: Final[tuple[tuple[bytes, Callable[[bytes], Iterator[bytes]]], ...]] = (
    (b"\x1f\x8b", _gunzipped),
    (b"BZh", _bunzipped),
    (b"\xfd7zXZ\0", _unlzmad),
    (b"PK\x03\x04", _unzipped),
    *((bytes([0x78, level]), _inflated) for level in (0x01, 0x5E, 0x9C, 0xDA)),
)
