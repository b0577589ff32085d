"""Patterns for arguments in permission rules: real paths, addresses by host and path, texts, numbers."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote

from kestrel_lab.core.json_types import Json
from kestrel_lab.permissions.command_patterns import Match
from kestrel_lab.tools.files.glob import compile_pattern
from kestrel_lab.tools.web.urls import Url, read_url

_COMPARED = re.compile(r"(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)")
_ADDRESS = re.compile(
    r"(?:(https?)://)?(\*|(?:\*\.)?[^/:*?\[\]]+|\[[0-9a-fA-F:]+\])(?::(\d{1,5}))?(/[^?]*)?(?:\?(.*))?"
)
_AMBIGUOUS = re.compile(r"%2[ef]|%5c|;|/\.\.?(?:/|$)", re.IGNORECASE)
"""In a path: what some servers read as another path."""


@dataclass(frozen=True, slots=True)
class ValuePattern:
    """A pattern of one argument: `allows` is for rules that allow, `concerns` for rules that ask or deny."""

    text: str
    allows: Callable[[Json, str], bool]
    """Return true if a single value surely matches; the text is the run's folder. Lists are checked item by
    item.
    """
    concerns: Callable[[Json, str], Match]
    """Return whether the value, or a value nested in it, matches or may match."""


def path_pattern(text: str) -> ValuePattern:
    """Return a pattern for paths, relative to the run's folder (`docs/**`, `*.pem`) or absolute (`/etc/**`).

    Real paths are compared: `..` is resolved and links are followed. Raises `ValueError` for a pattern that
    cannot be read.
    """
    # File systems may ignore case and Unicode forms: denying patterns must match every spelling, allowing
    # ones only the exact.
    strict, broad = _path_expression(text), _path_expression(unicodedata.normalize("NFC", text).casefold())

    def allows(value: Json, root: str) -> bool:
        return isinstance(value, str) and all(
            _fits_path(strict, name) for name in _names(value, root, absolute=text.startswith("/"))
        )

    def concerns(value: Json, root: str) -> Match:
        if not isinstance(value, str):
            # Which of the values in an object is a path is not known.
            return Match.MAYBE if isinstance(value, dict) else Match.NO
        names = _names(value, root, absolute=text.startswith("/"))
        return (
            Match.YES
            if any(_fits_path(broad, unicodedata.normalize("NFC", name).casefold()) for name in names if name)
            else Match.NO
        )

    return _of_each(text, allows, concerns)


def _path_expression(text: str) -> re.Pattern[str]:
    plain = text.removeprefix("./").rstrip("/") or "/"
    return compile_pattern(f"{plain}/**" if text.endswith("/") else plain)


def _fits_path(expression: re.Pattern[str], name: str) -> bool:
    """Return whether a path fits; a pattern of everything in a folder fits the folder too."""
    return bool(name) and (
        expression.fullmatch(name) is not None or expression.fullmatch(f"{name}/") is not None
    )


def _names(path: str, root: str, *, absolute: bool) -> list[str]:
    """Return the path as written and its real path; empty texts if it is outside of `root`."""
    # No file has such a name, and `realpath` raises for it.
    if "\0" in path:
        return [""]
    base = os.path.realpath(root)
    written = posixpath.normpath(posixpath.join(root, path))
    beside = posixpath.normpath(posixpath.join(base, path))
    real = os.path.realpath(beside)
    if absolute:
        return [beside, real]
    found = [
        posixpath.relpath(written, root) if posixpath.isabs(path) else posixpath.normpath(path),
        posixpath.relpath(real, base),
    ]
    return ["" if name == ".." or name.startswith("../") else name for name in found]


@dataclass(frozen=True, slots=True)
class _Address:
    """The parts of a pattern of addresses; `None` for any."""

    scheme: str | None
    host: str
    port: str | None
    path: str | None
    query: str | None

    def concerns(self, url: Url) -> bool:
        """Return whether scheme, host, port and path fit, whatever the query."""
        if self.scheme not in (None, url.scheme) or self.port not in (None, str(url.port)):
            return False
        path = url.target.partition("?")[0]
        # As it is sent, and as a server may take it.
        readings = (path, posixpath.normpath(unquote(path)))
        fits = self.path is None or any(compile_pattern(self.path).fullmatch(one) for one in readings)
        return fits and fnmatchcase(url.host, self.host.lower().strip("[]"))

    def allows(self, url: Url) -> bool:
        """Return true if every part matches. Without a port only the default port does, and the path must
        have one meaning for every server.
        """
        if not self.concerns(url) or (self.port is None and not url.usual_port):
            return False
        path, asks, query = url.target.partition("?")
        if self.path is None:
            return True
        if _AMBIGUOUS.search(path) or compile_pattern(self.path).fullmatch(path) is None:
            return False
        return not asks if self.query is None else fnmatchcase(query, self.query)


def address_pattern(text: str) -> ValuePattern:
    """Addresses: `[SCHEME://]HOST[:PORT][/PATH[?QUERY]]`, with `*.example.org` for what is below a host, not
    itself.

    Without a path any path and query; with one, the query must fit too. Raises `ValueError` for a pattern
    that cannot be read.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a pattern of an address: write it like *.example.org/api/**")
    wanted = _Address(*found.groups())

    def allows(value: Json, _: str) -> bool:
        try:
            return isinstance(value, str) and wanted.allows(read_url(value))
        except ValueError:
            return False

    def concerns(value: Json, _: str) -> Match:
        try:
            return Match.YES if isinstance(value, str) and wanted.concerns(read_url(value)) else Match.NO
        except ValueError:
            # What cannot be read here may still be sent: a rule that denies must not let it pass.
            return Match.MAYBE

    return _of_each(text, allows, concerns)


def plain_pattern(wanted: str | float | bool) -> ValuePattern:
    """Return a pattern for other values: text with `*` and `?`, a number, a boolean, or a comparison (`<=
    3`).
    """
    compared = _COMPARED.fullmatch(wanted.strip()) if isinstance(wanted, str) else None

    def fits(value: Json) -> bool:
        if compared is not None:
            # `True` is 1 to Python; a bound for numbers does not mean it.
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            bound = float(compared[2])
            return {"<": value < bound, "<=": value <= bound, ">": value > bound, ">=": value >= bound}[
                compared[1]
            ]
        if isinstance(wanted, str):
            return isinstance(value, str) and fnmatchcase(value, wanted)
        return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted

    text = wanted if isinstance(wanted, str) else str(wanted).lower()
    return _of_each(
        text, lambda value, _: fits(value), lambda value, _: Match.YES if fits(value) else Match.NO
    )


def _of_each(
    text: str, allows: Callable[[Json, str], bool], concerns: Callable[[Json, str], Match]
) -> ValuePattern:
    """Return a pattern of single values that concerns a list, too, if it concerns one value in it."""
    return ValuePattern(
        text,
        allows,
        lambda value, root: max((concerns(one, root) for one in _singles(value)), default=Match.NO),
    )


def _singles(value: Json) -> Iterator[Json]:
    if isinstance(value, list):
        for one in value:
            yield from _singles(one)
    else:
        yield value
