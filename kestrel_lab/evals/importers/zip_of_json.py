"""JSON in zip files, one entry at a time: stored, deflated or compressed with Zstandard."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.json_fields import parse_json

MAX_ENTRY: Final = 1 << 30
"""Bytes of an entry after it was unpacked: more is refused before any of it is."""
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_BROKEN: Final = (BadZipFile, OSError, EOFError, zlib.error, struct.error)


class ZipOfJson:
    """A zip file whose entries are JSON.

    Raises `UsageError` that names file and entry for anything that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("rb")
        try:
            entries = ZipFile(self._file).infolist()
        except _BROKEN as error:
            self._file.close()
            raise UsageError(
                f"{shown_path(path)}: not a whole zip file ({one_line(str(error), 100)}): was it cut "
                "off, or is it still being written?"
            ) from error
        self._entries = {
            entry.filename: entry for entry in entries
        }  # of two with one name the later one holds
        self.names: tuple[str, ...] = tuple(self._entries)
        """The entries, in the order of the file."""

    def read(self, name: str) -> Any:
        """The value in the entry `name`."""
        entry = self._entries[name]
        try:
            if max(entry.file_size, entry.compress_size) > MAX_ENTRY:
                raise BadZipFile(f"it has {entry.file_size:,} bytes, more than {MAX_ENTRY:,}")
            content = self._content(entry)
            if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
                raise BadZipFile("its checksum is wrong")
            return parse_json(content)
        except (*_BROKEN, ValueError) as error:
            raise UsageError(
                f"{shown_path(self._path)}: its part {name!r} cannot be read: {one_line(str(error), 100)}"
            ) from error

    def _content(self, entry: ZipInfo) -> bytes:
        self._file.seek(entry.header_offset)
        magic, name, extra = _LOCAL_HEADER.unpack(self._file.read(_LOCAL_HEADER.size))
        if magic != b"PK\x03\x04" or entry.flag_bits & 1:
            raise BadZipFile("it is encrypted" if entry.flag_bits & 1 else "it is not where the file says")
        self._file.seek(name + extra, 1)
        return _decompress(entry.compress_type, self._file.read(entry.compress_size), entry.file_size + 1)

    def __enter__(self) -> ZipOfJson:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _decompress(method: int, packed: bytes, most: int) -> bytes:
    """What `packed` holds, at most so many bytes of it: a small entry may claim to be small and unpack to
    anything.
    """
    if method == ZIP_STORED:
        return packed[:most]
    if method == ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most)
    # The zip format's number for Zstandard, which `zipfile` knows from Python 3.14 on.
    if method == 93:
        import zstandard

        try:
            return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read(most)
        except zstandard.ZstdError as error:
            raise BadZipFile(str(error)) from error
    raise BadZipFile(f"it is compressed with method {method}, which is not known here")
