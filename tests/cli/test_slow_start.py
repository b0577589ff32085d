"""What takes long before anything is shown is said on standard error, once."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console
from waits import PATIENCE_S, until

from kestrel_lab.cli.slow_start import say_when_slow
from kestrel_lab.cli.terminal import TerminalDisplay
from kestrel_lab.core.events.union import Progress


def test_a_text_that_stays_is_said_once_and_an_empty_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text by itself, in the order in which they were waited for."""
    screen, text = io.StringIO(), [""]
    monkeypatch.setattr("sys.stderr", screen)
    looked = threading.Semaphore(0)

    def read() -> str:
        looked.release()
        return text[0]

    with say_when_slow(read, 0.01):
        for one in ("", "loading a", "", "loading b", "loading a"):
            text[0] = one
            for _ in range(5):
                assert looked.acquire(timeout=PATIENCE_S)
    assert screen.getvalue() == "loading a …\nloading b …\n"


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that ends before its patience does, also with an exception."""
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    with pytest.raises(ZeroDivisionError), say_when_slow(lambda: "loading", 3_600):
        raise ZeroDivisionError
    assert screen.getvalue() == ""


def test_a_run_that_waits_says_for_what_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the library of models that is loaded once: otherwise a piped command is silent for as long as that
    takes.
    """
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    display = TerminalDisplay(Console(file=io.StringIO()))
    with display.shown():
        display.tell(Progress(text="loading litellm, once in this process"))
        until(screen.getvalue)
        display.tell(Progress(text=""))
    assert screen.getvalue() == "loading litellm, once in this process …\n"
