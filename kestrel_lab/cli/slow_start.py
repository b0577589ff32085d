"""Progress of slow starts of runs: a library that loads, an endpoint of a model that wakes up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 2.0
"""Seconds of silence after which a line says what is waited for."""
_LOOK_S = 0.2


@contextmanager
def say_when_slow(text: Callable[[], str], patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Say on standard error what `text()` returns once it has returned the same for `patience_s`; empty says
    nothing, and each text is said once.

    From a thread: what takes long, an import, holds up the event loop.
    """
    over = threading.Event()
    watching = threading.Thread(
        target=_watch, args=(text, patience_s, over), name="kestrel says what is slow", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(text: Callable[[], str], patience_s: float, over: threading.Event) -> None:
    said, last, since = set[str](), "", 0.0
    while not over.wait(min(_LOOK_S, patience_s)):
        since = since + min(_LOOK_S, patience_s) if (now := text()) == last else 0.0
        last = now
        if now and now not in said and since >= patience_s:
            said.add(now)
            sys.stderr.write(f"{now} …\n")
            sys.stderr.flush()
