"""The output of a process kept in bounded memory: its beginning and its end."""

from __future__ import annotations


class Capture:
    """Bytes fed piece by piece, of which at most `keep` are held: two thirds from the beginning, the rest from the end."""

    def __init__(self, keep: int) -> None:
        self._head_room = keep * 2 // 3
        self._tail_room = keep - self._head_room
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
        """Whether some of it is not held."""
        return self.total > self._head_room + self._tail_room

    def text(self) -> str:
        """What is held as text, with a line that says how much is left out between beginning and end."""
        if not self.truncated:
            return (self._head + self._tail).decode("utf-8", "replace")
        left_out = self.total - self._head_room - self._tail_room
        head = self._head.decode("utf-8", "ignore")  # a character cut in two at the border is left out
        tail = self._tail[-self._tail_room :].decode("utf-8", "ignore")
        return f"{head}\n… {left_out:,} bytes left out …\n{tail}"
