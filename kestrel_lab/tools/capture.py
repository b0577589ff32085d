"""The output of a process kept in bounded memory: its beginning and its end."""

from __future__ import annotations

from kestrel_lab.core.redaction import Redactor


class Capture:
    """Bytes fed piece by piece, of which at most `keep` are given back: two thirds from the beginning, the rest from the end.

    With a redactor, without secrets, and what is left out in between does not begin or end within one.
    """

    def __init__(self, keep: int, redactor: Redactor | None = None) -> None:
        self._keep_head = keep * 2 // 3
        self._keep_tail = keep - self._keep_head
        self._redactor = redactor
        # A little more is held: a secret at the border can be told only as a whole. Up to four bytes a character.
        margin = 0 if redactor is None else 4 * redactor.margin
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
        if len(self._tail) > 2 * self._tail_room:  # cut now and then, not at every piece
            del self._tail[: -self._tail_room]

    @property
    def truncated(self) -> bool:
        """Whether some of it is not given back."""
        return self.total > self._keep_head + self._keep_tail

    def text(self) -> str:
        """What is kept as text, with a line that says how much is left out between beginning and end."""
        redacted = str if self._redactor is None else self._redactor.text
        if not self.truncated:
            return redacted((self._head + self._tail).decode("utf-8", "replace"))
        left_out = self.total - self._keep_head - self._keep_tail
        content = bytes(self._head + self._tail)
        after = len(content) - self._keep_tail
        if self._redactor is not None:
            before, after = self._borders(content, self._redactor)
        else:
            before = self._keep_head
        head = content[:before].decode("utf-8", "ignore")  # a character cut in two at the border is left out
        tail = content[after:].decode("utf-8", "ignore")
        return f"{redacted(head)}\n… {left_out:,} bytes left out …\n{redacted(tail)}"

    def _borders(self, content: bytes, redactor: Redactor) -> tuple[int, int]:
        """Where the beginning ends and the end begins, moved so that neither is within a secret."""
        before, after = self._keep_head, len(content) - self._keep_tail
        # Positions in bytes: a text of one character per byte has the same ones.
        for found in redactor.found(content.decode("latin-1")):
            if found.start() < before < found.end():
                before = found.start()
            if found.start() < after < found.end():
                after = found.end()
        return before, after
