"""The index of a repository: entries marked as unchanged, whose changes git does not show."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_ASSUMED, _EXTENDED, _SKIPPED = 0x8000, 0x4000, 0x4000
_NAME_BITS = 0xFFF


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry, and the positions of its flags."""

    name: str
    flags_at: int
    flags: int
    extended_flags: int
    """0 without extended flags, which follow the others."""
    end: int

    @property
    def mark(self) -> str:
        """How it is marked as unchanged; empty if it is not."""
        if self.flags & _ASSUMED:
            return "assume-unchanged"
        return "skip-worktree" if self.extended_flags & _SKIPPED else ""


def hidden_entries(content: bytes) -> dict[str, str]:
    """Return the files that an index marks as unchanged, each with the mark; empty if it is no index."""
    return {entry.name: entry.mark for entry in _read_entries(content)[0] if entry.mark}


def cleared_marks(content: bytes, names: Collection[str]) -> bytes | None:
    """Return an index without the marks of these files; `None` if it is a part of an index in two parts,
    whose names hold its hash.
    """
    entries, hash_bytes = _read_entries(content)
    if not entries or _is_part(content, entries, hash_bytes):
        return None
    cleared = bytearray(content)
    for entry in entries:
        if entry.name in names:
            struct.pack_into(">H", cleared, entry.flags_at, entry.flags & ~_ASSUMED)
            if entry.flags & _EXTENDED:
                struct.pack_into(">H", cleared, entry.flags_at + 2, entry.extended_flags & ~_SKIPPED)
    # Of zeros where the setting `index.skipHash` leaves it out.
    if any(cleared[-hash_bytes:]):
        kind = "sha1" if hash_bytes == 20 else "sha256"
        cleared[-hash_bytes:] = hashlib.new(kind, cleared[:-hash_bytes]).digest()
    return bytes(cleared)


def _is_part(content: bytes, entries: list[_Entry], hash_bytes: int) -> bool:
    """Return whether an extension of the index names another index, which has the rest."""
    position = entries[-1].end
    while position + 8 <= len(content) - hash_bytes:
        signature, size = struct.unpack_from(">4sI", content, position)
        if signature == b"link":
            return True
        position += 8 + size
    return False


def _read_entries(content: bytes) -> tuple[list[_Entry], int]:
    """Return the entries, and the length of a hash; no entries if it is no index."""
    for hash_bytes in (20, 32):
        try:
            return list(_parse_entries(content, hash_bytes)), hash_bytes
        except (ValueError, struct.error, IndexError):
            continue
    return [], 20


def _parse_entries(content: bytes, hash_bytes: int) -> Iterator[_Entry]:
    """Yield the entries, see gitformat-index(5); raises `ValueError` or `struct.error` if invalid."""
    signature, version, count = struct.unpack_from(">4sII", content)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    position, name = 12, b""
    for _ in range(count):
        begin = position
        flags_at = position + 40 + hash_bytes
        (flags,) = struct.unpack_from(">H", content, flags_at)
        position += 42 + hash_bytes
        extended = 0
        if flags & _EXTENDED:
            (extended,) = struct.unpack_from(">H", content, position)
            position += 2
        if version == 4:
            cut, position = _read_varint(content, position)
            name = name[: len(name) - cut]
            end = content.index(b"\0", position)
            name, position = name + content[position:end], end + 1
        else:
            end = content.index(b"\0", position)
            name = content[position:end]
            position = begin + (end - begin + 8) // 8 * 8
        if flags & _NAME_BITS != min(len(name), _NAME_BITS):
            raise ValueError("not an index")
        yield _Entry(name.decode("utf-8", "replace"), flags_at, flags, extended, position)


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    value = content[position] & 0x7F
    while content[position] & 0x80:
        position += 1
        value = ((value + 1) << 7) | (content[position] & 0x7F)
    return value, position + 1
