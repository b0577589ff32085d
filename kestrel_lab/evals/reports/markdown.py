"""Markdown for a pull request's comment, in which foreign text stays text.

Foreign text stands in code spans: there GitHub and its like render no HTML, image or link and notify nobody.
What could end a span or a table's cell is replaced by a character that looks alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote, urlsplit

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line

SHOWN: Final = 20
"""Rows of a list in a comment; how many more there are is said."""
_LOOK_ALIKES: Final = str.maketrans({"`": "ˋ", "|": "¦"})


def code(text: object, limit: int = 120) -> str:
    """Return foreign text on one line as a code span; a dash for none."""
    line = one_line(str(text), limit).translate(_LOOK_ALIKES)
    return f"`{line}`" if line else "–"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already: made here, or by `code`."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def linked(text: str, address: str) -> str:
    """Return `text`, which is Markdown already, as a link; without an address the text alone.

    Raises `UsageError` for an address that is neither a path nor begins with http or https.
    """
    if not address:
        return text
    try:
        scheme = urlsplit(address).scheme
    except ValueError:
        scheme = "none"
    if scheme not in ("", "http", "https"):
        raise UsageError(f"a link to a report begins with http:// or https://, or is a path, not {one_line(address)!r}")
    return f"[{text}]({quote(address, safe='/:?#@!$&=+,;%~-._', errors='replace')})"


def joined(parts: Iterable[str]) -> str:
    """Join paragraphs, tables and headings to one document."""
    return "\n\n".join(part for part in parts if part) + "\n"
