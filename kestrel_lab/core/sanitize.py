"""Making foreign text harmless and short: what a terminal, a notebook and a model may be shown; and the lines of a text."""

import codecs
import io
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves, screen clearing
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, hyperlinks, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"
)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters other than tab and newline
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, bidirectional
    "\ud800-\udfff"  # lone surrogates: not encodable
    "\U000e0000-\U000e0fff]"  # tag characters: text that only a model reads
)


AS_TEXT = 'class="mathjax_ignore tex2jax_ignore"'
"""On every HTML element with foreign text in it: notebooks set what stands between dollar signs as formulas, with links of its own."""


def sanitize_text(text: str) -> str:
    r"""`text` with terminal escapes removed and hidden characters shown as `\u{…}`."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", text)


def escape_surrogates(text: str) -> str:
    r"""`text` with lone surrogates, which no encoding knows and no kernel can send, written as `\udXXX`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def head_tail(text: str, limit: int) -> tuple[str, bool]:
    """At most about `limit` characters: the beginning and the end, with a line between that says how much is left out.

    Returns the text and whether something was left out.
    """
    if len(text) <= limit:
        return text, False
    head = limit * 2 // 3
    tail = limit - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n… {left_out:,} characters left out …\n{text[len(text) - tail :]}", True


def one_line(text: str, limit: int = 80) -> str:
    """`text` on one line of at most `limit` characters."""
    line = " ".join(sanitize_text(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shown_folder(path: str | Path) -> str:
    """The folder as people in it or above it would call it: a saved output need not say where on a machine that is."""
    shown = shown_path(Path(path))
    return "this folder" if shown == "." else shown


def shown_path(path: Path) -> str:
    """The path as people in this folder would write it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)


# Bytes of a file as text: which encoding they are in, or that they are no text.

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
    """Decode content by its byte order mark; return `None` without one, or where the content is not in that encoding."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            try:
                return Text(content.decode(encoding), encoding)
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
        return Text(content.decode("latin-1"), "latin-1")


# `str.splitlines` also breaks at form feeds, vertical tabs and separators such as U+2028, which stand within lines of source code and of
# JSON: every number of a line behind one of them would be wrong.


def lines_with_ends(text: str) -> list[str]:
    """Return the lines of a text with their ends, counted as files and editors count them."""
    return [*io.StringIO(text, newline="\n")]


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text without their ends, `\n` or `\r\n`; what ends with one has no empty line behind it."""
    return [line.removesuffix("\n").removesuffix("\r") for line in lines_with_ends(text)]
