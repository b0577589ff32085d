"""What a command needs from the place it was typed in: a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Approver, Reporter
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.settings import Settings

Begin = Callable[[Lab, Approver | None], Run]
"""Starts or restarts a run on the running event loop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    """How a run is to be followed."""

    background: bool = False
    """Return at once instead of waiting for the end."""
    name: str = ""
    """Under which name to leave the run for later cells."""
    approval_timeout: float | None = None
    """Seconds after which a question nobody answered is answered with no."""
    as_json: bool = False
    """Print the run as JSON instead of showing it."""
    control: str = ""
    """`stdio`: tell what happens as JSON lines on standard output, and take decisions on standard input."""


@contextmanager
def files_named() -> Iterator[None]:
    """Turn what a file system refused, and a number that nothing can count to, into a `UsageError` of one line."""
    try:
        yield
    except OverflowError as error:
        msg = f"a number is too large: {error}"
        raise UsageError(msg) from error
    except OSError as error:
        if error.filename is None:
            raise
        msg = f"{error.filename}: {(error.strerror or 'refused').lower()}: name another place, or make it readable and writable"
        raise UsageError(msg) from error


class Face(Protocol):
    """Where commands are typed and results are shown."""

    @property
    def user(self) -> str:
        """Who types, for the record of decisions."""
        ...

    def lab(self) -> Lab:
        """The lab that commands work on."""
        ...

    def configure(self, key: str, value: str) -> Settings:
        """Change a setting, for as long as makes sense here; returns it as it is in force then."""
        ...

    def follow(self, begin: Begin, how: Following) -> Any:
        """Start a run, show it while it works, ask its questions; gives the run, or something to await for it."""
        ...

    def wait(self, work: Callable[[Reporter], Awaitable[Any]]) -> Any:
        """Do something long and show its progress; gives its result, or something to await for it."""
        ...
