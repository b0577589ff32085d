"""Live output of commands: shown ten times a second at most, bounded in size and without secrets."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Callable

from kestrel_lab.core.redaction import Redactor

INTERVAL_S = 0.1
KEPT = 16_384
"""Most bytes of one stream that wait to be shown; beyond them the oldest are dropped."""
MOST = 4_000
"""Most characters of one piece."""
_OPEN_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_LINES = re.compile(r"\r\n?")


class LiveOutput:
    """Collects the output of one call from several streams, on a running event loop.

    Redacts it, and cuts neither characters, terminal escapes, nor possible secrets; carriage returns become
    newlines. It reports how much was left out.
    """

    def __init__(self, report: Callable[[str], None], redactor: Redactor) -> None:
        """`report` gets each piece, on the loop."""
        self._report, self._redactor = report, redactor
        self._streams: list[_Stream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = 0.0

    def stream(self) -> Callable[[bytes], None]:
        """Return a sink for one more stream."""
        one = _Stream(self._redactor)
        self._streams.append(one)

        def take(piece: bytes) -> None:
            one.take(piece)
            if self._timer is None:
                wait = max(0.0, self._sent_at + INTERVAL_S - time.monotonic())
                self._timer = asyncio.get_running_loop().call_later(wait, self._flush)

        return take

    def close(self) -> None:
        """Show the rest."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush(last=True)

    def _flush(self, *, last: bool = False) -> None:
        self._timer, self._sent_at = None, time.monotonic()
        if text := "".join(stream.ready(last=last) for stream in self._streams):
            left_out = len(text) - MOST
            self._report(
                text if left_out <= 0 else f"… {left_out:,} characters not shown …\n{text[left_out:]}"
            )


class _Stream:
    """The bytes of one stream that are not shown yet."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._new = bytearray()
        self._skipped = 0
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, piece: bytes) -> None:
        self._new += piece
        if len(self._new) > 2 * KEPT:
            self._skipped += len(self._new) - KEPT
            del self._new[:-KEPT]

    def ready(self, *, last: bool) -> str:
        """Return what can be shown by now, all of it if it is the `last`."""
        note = ""
        if self._skipped:
            note, self._skipped, self._held = f"… {self._skipped:,} bytes not shown …\n", 0, ""
            self._decoder.reset()
            text = self._decoder.decode(bytes(self._new), final=last)
            # Dropping bytes may have cut a secret, and its rest cannot be recognised: everything that may
            # belong to it is left out.
            place = min(self._redactor.margin, len(text))
            text = text[
                max(
                    [
                        place,
                        *(
                            found.end()
                            for found in self._redactor.found(text)
                            if found.start() < place < found.end()
                        ),
                    ]
                ) :
            ]
        else:
            text = self._held + self._decoder.decode(bytes(self._new), final=last)
        self._new.clear()
        cut = len(text) if last else self._redactor.settled(text)
        if not last and (found := _OPEN_ESCAPE.search(text, max(0, cut - 256), cut)) is not None:
            cut = found.start()
        # The line feed of a CR LF may be in the next piece.
        if not last and text[:cut].endswith("\r"):
            cut -= 1
        self._held = text[cut:]
        return note + _LINES.sub("\n", self._redactor.text(text[:cut]))


# The output of a process kept in bounded memory: its beginning and its end.


class Capture:
    """Bytes fed piece by piece, of which at most `keep` are given back: two thirds from the beginning, the
    rest from the end.

    Without secrets, as far as `redactor` knows them; what is left out in between does not begin or end within
    one.
    """

    def __init__(self, keep: int, redactor: Redactor | None = None) -> None:
        self._keep_head = keep * 2 // 3
        self._keep_tail = keep - self._keep_head
        self._redactor = redactor or Redactor()
        # A margin beyond both borders: a secret across one can be recognised only as a whole. A character has
        # up to four bytes.
        margin = 4 * self._redactor.margin
        self._head_room = self._keep_head + margin
        self._tail_room = self._keep_tail + margin
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """Bytes fed so far."""

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.total += len(piece)
        room = self._head_room - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:] if room < len(piece) else b""
        # Deleting from the front moves the rest, so it is done once per full buffer and not at every piece.
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    @property
    def truncated(self) -> bool:
        """True if some of it is left out."""
        return self.total > self._keep_head + self._keep_tail

    def text(self) -> str:
        """Return the kept text, with a line on how much is left out in the middle."""
        redacted, content = self._redactor.text, bytes(self._head + self._tail)
        if not self.truncated:
            return redacted(content.decode("utf-8", "replace"))
        left_out = self.total - self._keep_head - self._keep_tail
        before, after = self._keep_head, len(content) - self._keep_tail
        # Move the borders out of secrets. Latin-1 has one character per byte, so positions in the text are
        # positions in bytes.
        for found in self._redactor.found(content.decode("latin-1")):
            if found.start() < before < found.end():
                before = found.start()
            if found.start() < after < found.end():
                after = found.end()
        # `ignore` leaves out a character that the border has cut in two.
        head = content[:before].decode("utf-8", "ignore")
        tail = content[after:].decode("utf-8", "ignore")
        return f"{redacted(head)}\n… {left_out:,} bytes left out …\n{redacted(tail)}"
