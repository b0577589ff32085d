"""Tools with a state of their own, made afresh for every trial: a mailbox, a file system that is none, a bank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Approver
from kestrel_lab.tools.tool import Tool


class Opened(Protocol):
    """The state of one trial; its checks get it as `Trial.environment`."""

    @property
    def tools(self) -> Sequence[Tool]:
        """What the agent may do in it, in place of all other tools."""
        ...

    @property
    def approver(self) -> Approver | None:
        """Who is asked about calls; `None` for nobody, as in any other trial."""
        ...


class Environment(Protocol):
    """What a scenario's tools act on."""

    @property
    def instructions(self) -> str:
        """Added to the instructions of the suite."""
        ...

    def definition(self) -> dict[str, Json]:
        """All that a trial's outcome depends on: equal for environments that behave equally."""
        ...

    def open(self) -> Opened:
        """A fresh state that shares nothing with that of other trials."""
        ...
