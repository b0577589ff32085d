"""Makes foreign text harmless and short before a terminal, a notebook or a model gets it."""

import re
from pathlib import Path

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves, screen clearing
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, hyperlinks, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters other than tab and newline
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, bidirectional
    "\ud800-\udfff"  # lone surrogates: not encodable
    "\U000e0000-\U000e0fff]"  # tag characters: text that only a model reads
)


AS_TEXT = 'class="mathjax_ignore tex2jax_ignore"'
"""Class of HTML elements with foreign text: notebooks would typeset `$…$` in them as formulas with links."""


def sanitize_text(text: str) -> str:
    r"""`text` with terminal escapes removed and hidden characters shown as `\u{…}`."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", text)


def last_shown(line: str) -> str:
    """Return what a terminal shows of a line in the end: no escapes, and nothing that was overwritten."""
    pieces = [_CONTROLS.sub("", piece) for piece in _ESCAPES.sub("", line).split("\r")]
    return next((piece for piece in reversed(pieces) if piece.strip()), "")


def overwrite_lines(text: str, before: str = "") -> str:
    """Return `before` followed by `text` as a terminal shows them: a carriage return overwrites the current
    line, as progress bars do.
    """
    for number, piece in enumerate(text.replace("\r\n", "\n").split("\r")):
        if number and piece and not piece.startswith("\n"):
            before = before[: before.rfind("\n") + 1]
        before += piece
    return before


def is_utf8(text: str) -> bool:
    """Whether a text can be stored and sent. Python gives file names that are not UTF-8 lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escape_surrogates(text: str) -> str:
    r"""`text` with lone surrogates, which no encoding knows and no kernel can send, written as `\udXXX`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def head_tail(text: str, limit: int) -> tuple[str, bool]:
    """Shorten `text` to about `limit` characters: its beginning and end, and a line between them that says
    how much is left out.

    Return the text and whether something was left out.
    """
    if len(text) <= limit:
        return text, False
    head = limit * 2 // 3
    tail = limit - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n… {left_out:,} characters left out …\n{text[len(text) - tail :]}", True


def full_stop(text: object) -> str:
    """Return a text with exactly one full stop at its end."""
    return f"{str(text).rstrip().rstrip('.')}."


def one_line(text: str, limit: int = 80) -> str:
    """`text` on one line of at most `limit` characters."""
    line = " ".join(sanitize_text(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shown_folder(path: str | Path) -> str:
    """Return the folder relative to the current one if possible, so that saved outputs show no full path."""
    shown = shown_path(Path(path))
    return "this folder" if shown == "." else shown


def shown_path(path: Path) -> str:
    """The path as people in this folder would write it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)
