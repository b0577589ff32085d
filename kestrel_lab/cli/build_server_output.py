r"""What is printed where a build server reads along: text of models and tools gives it no orders.

GitHub, Azure and TeamCity take lines such as `::add-mask::x`, `##[group]` and `##vso[task…]` for commands of
a workflow. What is printed into a pipe or a file passes through here: one character of
such a beginning is written as `\u003a` or `\u005b`, which within JSON still means the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_COMMAND = re.compile(
    r"(?:^|[\r\n\v\f\x85\u2028\u2029])[^\S\r\n]*:(?=(:))|##(?:vso|teamcity)?(?=(\[))", re.IGNORECASE
)
_KEPT = 16
"""Characters of an unfinished line that are looked at again with what follows."""


class HarmlessStream:
    """A text stream whose lines build servers do not take for commands; else like the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._line = stream, ""

    def write(self, text: str) -> int:
        """Write `text`; what begins a command together with what was written before counts too."""
        before, parts, at = self._line, [], 0
        joined = before + text
        for found in _COMMAND.finditer(joined):
            place = found.end()
            if place >= len(before):
                parts += [joined[max(at, len(before)) : place], f"\\u{ord(joined[place]):04x}"]
                at = place + 1
        self._stream.write("".join([*parts, joined[max(at, len(before)) :]]))
        self._line = _unfinished_line(joined)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _unfinished_line(text: str) -> str:
    """What of the last line matters for what comes next: whether it is blank so far, and its end."""
    line = re.split(r"[\r\n\v\f\x85\u2028\u2029]", text)[-1]
    if not line.replace(":", "").strip() and line.count(":") < 2:
        return "".join(line.split())
    return f"x{line[-_KEPT:]}"


@contextmanager
def harmless_output() -> Iterator[None]:
    """Standard output and error that obey nobody, where they are no terminal."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        stream if stream is None or stream.isatty() else HarmlessStream(stream) for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
