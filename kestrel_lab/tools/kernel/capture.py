"""Captures, within bounds, what code in a shell prints, displays, returns and raises."""

from __future__ import annotations

import base64
import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from kestrel_lab.core.sanitize import head_tail, one_line, overwrite_lines
from kestrel_lab.tools.kernel.state.boundary import read_or

MOST_PRINTED = 200_000
"""Most characters of printed text that are kept."""
MOST_REPORTED = 4_000
"""Most characters of one report while code runs; of more, the last ones."""
MOST_IMAGES = 20
MOST_IMAGE_BYTES = 4_000_000
IMAGES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
"""Media types of images that are kept, with the bytes that each begins with."""
SPARE = 20
"""Reports that may follow each other at once; further ones come ten times a second, so that a loop of prints
stays cheap.
"""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class Output:
    """Output of a piece of code."""

    printed: list[tuple[str, str]] = field(default_factory=list)
    """Stream and text, in order."""
    displayed: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    """Display data with metadata, in order."""
    value: Any = None
    """Value of its last expression."""
    error: str = ""
    """Kind and message of the exception; empty if none was raised."""
    traceback: str = ""
    kept: int = 0
    """Characters that were printed and kept."""
    dropped: int = 0
    """Characters that were printed beyond the bound."""

    def printing(self, stream: str, text: str) -> None:
        """Keep a printed text, as far as there is room."""
        # What is beyond the bound is counted, not kept: a loop may print gigabytes.
        kept = text[: MOST_PRINTED - self.kept]
        self.kept += len(kept)
        self.dropped += len(text) - len(kept)
        if kept and self.printed and self.printed[-1][0] == stream:
            self.printed[-1] = (stream, self.printed[-1][1] + kept)
        elif kept:
            self.printed.append((stream, kept))

    @property
    def text(self) -> str:
        """Everything that was printed."""
        text = overwrite_lines("".join(text for _, text in self.printed))
        return f"{text}\n… {self.dropped:,} more characters were printed" if self.dropped else text

    @property
    def images(self) -> list[tuple[str, bytes]]:
        """Media type and bytes of the images in the display data; invalid images are skipped."""
        found = []
        for data, _ in self.displayed:
            for media, beginning in IMAGES.items():
                content = data.get(media)
                if isinstance(content, str):
                    content = base64.b64decode(content)
                if (
                    isinstance(content, bytes)
                    and content.startswith(beginning)
                    and len(content) <= MOST_IMAGE_BYTES
                ):
                    found.append((media, content))
        return found[:MOST_IMAGES]

    @property
    def texts(self) -> list[str]:
        """The plain text of display data that are no images."""
        return [
            str(data["text/plain"])
            for data, _ in self.displayed
            if "text/plain" in data and not any(media in data for media in IMAGES)
        ]


class _Report:
    """Reports output while code runs, as whole lines and not too often."""

    def __init__(self, send: Callable[[str], object]) -> None:
        self._send, self._thread = send, threading.get_ident()
        self._new, self._spare, self._at = "", float(SPARE), time.monotonic()

    def take(self, text: str) -> None:
        """Take a piece; a finished line goes out."""
        self._new = (self._new + text)[-MOST_REPORTED:]
        if text.endswith("\n"):
            self.flush()

    def flush(self) -> None:
        """Report what is new, unless much was reported just now; then the next piece brings it."""
        now = time.monotonic()
        self._spare = min(float(SPARE), self._spare + (now - self._at) * 10)
        self._at = now
        # Listeners must be called on the thread of the run; output of other threads goes out with the next
        # piece.
        if self._new and self._spare >= 1 and threading.get_ident() == self._thread:
            self._spare -= 1
            text, self._new = self._new, ""
            self._send(text)


class _Stream(io.TextIOBase):
    """A text stream that keeps what is written to it, up to a bound."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, name: str, output: Output, report: _Report) -> None:
        self.name = f"<{name}>"
        self._kind, self._output, self._report = name, output, report

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._output.printing(self._kind, text)
        self._report.take(text)
        return len(text)

    def flush(self) -> None:
        self._report.flush()


@contextmanager
def _joined(stream: Any, captured: _Stream) -> Iterator[None]:
    """Redirect writes to a kernel's own stream to `captured`: handlers of `logging` keep that stream."""
    if not hasattr(stream, "pub_thread"):
        # Not a kernel's stream but that of a terminal or a test: code that keeps it means that one.
        yield
        return
    stream.write = captured.write
    try:
        yield
    finally:
        del stream.write


@contextmanager
def capture_output(shell: Any, report: Callable[[str], object] = lambda _: None) -> Iterator[Output]:
    """Collect what code in the block prints, displays and returns in `shell`; front ends get nothing.

    `report` gets what is printed while the code runs.
    """
    from IPython.core import displayhook, displaypub

    publisher: Any = displaypub.DisplayPublisher
    hook: Any = displayhook.DisplayHook
    output = Output()

    class Publisher(publisher):  # type: ignore[misc]
        # What a publisher registers with IPython's events would stay registered after this block.
        _setup_execution_tracking = staticmethod(lambda: None)

        def publish(self, data: Any, metadata: Any = None, source: Any = None, **_: Any) -> None:
            output.displayed.append((dict(data), dict(metadata or {})))

        def clear_output(self, wait: bool = False) -> None:  # as IPython declares it
            output.displayed.clear()

    class Hook(hook):  # type: ignore[misc]
        def __call__(self, result: Any = None) -> None:
            if result is not None and not self.quiet():
                output.value = result
                self.update_user_ns(result)

    def show(kind: Any = None, error: Any = None, trace: TracebackType | None = None, **_: Any) -> None:
        _keep_error(shell, output, kind, error, trace)

    def show_traceback(exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        show(*(exc_tuple or sys.exc_info()))

    def show_syntax(*_: Any, **__: Any) -> None:
        show(*sys.exc_info())

    streams = sys.stdout, sys.stderr
    hooks = shell.display_pub, shell.displayhook, shell.display_trap.hook, sys.displayhook
    shell.display_pub, shell.displayhook = Publisher(shell=shell), _keeping_results(shell, Hook)
    # Both: in a cell that awaits, IPython's trap has already put its hook into `sys`.
    shell.display_trap.hook = sys.displayhook = shell.displayhook
    own = {name: shell.__dict__.get(name) for name in ("showtraceback", "showsyntaxerror")}
    shell.showtraceback, shell.showsyntaxerror = show_traceback, show_syntax
    reporter = _Report(report)
    sys.stdout, sys.stderr = captured = (
        _Stream("stdout", output, reporter),
        _Stream("stderr", output, reporter),
    )
    try:
        with _joined(streams[0], captured[0]), _joined(streams[1], captured[1]):
            yield output
    finally:
        sys.stdout, sys.stderr = streams
        shell.display_pub, shell.displayhook, shell.display_trap.hook, sys.displayhook = hooks
        # Methods of the class were hidden by attributes of the object: deleting those brings them back.
        for name, before in own.items():
            if before is None:
                shell.__dict__.pop(name, None)
            else:
                shell.__dict__[name] = before


def _keeping_results(shell: Any, hook: Any) -> Any:
    """Make a display hook and keep `_`, `__` and `___`, which IPython empties when it makes one."""
    earlier = {name: shell.user_ns[name] for name in ("_", "__", "___") if name in shell.user_ns}
    made = hook(shell=shell)
    shell.user_ns.update(earlier)
    return made


def _keep_error(shell: Any, output: Output, kind: Any, error: Any, trace: TracebackType | None) -> None:
    output.error = f"{getattr(kind, '__name__', kind)}: {read_or('its text cannot be read', str, error)}"
    _cut_hidden(trace)
    try:
        lines = shell.InteractiveTB.structured_traceback(kind, sys.exc_info()[1], trace, tb_offset=1)
        output.traceback = head_tail(COLOURS.sub("", "\n".join(lines)), 6_000)[0]
    except BaseException:  # an exception whose own text fails  # noqa: BLE001
        output.traceback = output.error


def _cut_hidden(trace: TracebackType | None) -> None:
    """Cut trailing frames with `__tracebackhide__` from a traceback: signal handlers raise on top of user
    code.
    """
    while trace is not None and trace.tb_next is not None:
        if "__tracebackhide__" in trace.tb_next.tb_frame.f_locals:
            trace.tb_next = None
        trace = trace.tb_next


FRAME_ROWS: Final = 20
FRAME_COLUMNS: Final = 12
_CELL_CHARS: Final = 60


def frame_table(value: object) -> list[list[str]]:
    """Return the beginning of a pandas frame as texts: headings, then row by row; empty for anything else.

    Made from the frame's data, never from its HTML, which a subclass may invent.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame):
        return []
    try:
        shown = value.iloc[:FRAME_ROWS, :FRAME_COLUMNS]
        rows = [["", *map(_cell_text, shown.columns)]]
        for name, *cells in shown.itertuples(name=None):
            rows.append([_cell_text(name), *map(_cell_text, cells)])
    except Exception:  # objects whose own text fails  # noqa: BLE001
        return []
    if shown.shape != value.shape:
        size = f"{value.shape[0]:,} rows × {value.shape[1]:,} columns"
        rows.append([f"… of {size}", *[""] * shown.shape[1]])
    return rows if len(rows) > 1 else []


def _cell_text(value: object) -> str:
    return one_line(f"{value:.6g}" if isinstance(value, float) else str(value), _CELL_CHARS)


def show_drawn() -> None:
    """Make matplotlib's inline backend display its figures now instead of at the end of the cell."""
    backend = sys.modules.get("matplotlib_inline.backend_inline")
    if backend is not None:
        backend.flush_figures()


def add_open_figures(output: Output) -> None:
    """Add the open figures of matplotlib that no front end would show by itself, as PNG, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or "inline" in str(sys.modules["matplotlib"].get_backend()):
        return
    for number in pyplot.get_fignums():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png")
        output.displayed.append(({"image/png": content.getvalue(), "text/plain": f"<Figure {number}>"}, {}))
        pyplot.close(number)
