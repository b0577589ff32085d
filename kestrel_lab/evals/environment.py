"""Environments: tools with a state of their own that is new in every trial, such as a mailbox or a bank."""

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
        """The tools of the agent, in place of all others."""
        ...

    @property
    def approver(self) -> Approver | None:
        """The approver of calls; `None` for nobody, as in any other trial."""
        ...


class Environment(Protocol):
    """The state that a scenario's tools act on."""

    @property
    def instructions(self) -> str:
        """Added to the instructions of the suite."""
        ...

    def definition(self) -> dict[str, Json]:
        """Return all that a trial's outcome depends on: equal for environments that behave equally."""
        ...

    def open(self) -> Opened:
        """Return a new state that shares nothing with that of other trials."""
        ...
