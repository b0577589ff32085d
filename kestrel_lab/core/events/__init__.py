"""Events: the facts that a log records, by what they are about; `union` names them all."""

from __future__ import annotations

from typing import ClassVar

from kestrel_lab.core.json_types import FrozenStruct, Json


class Event(FrozenStruct, frozen=True, kw_only=True):
    """A recorded fact.

    It carries what is needed to understand it alone, holds JSON values only, and is never changed. Fields are
    only ever added: a reader ignores fields it does not know and fills in defaults for fields that an older
    writer did not have.
    """

    type: ClassVar[str]
    """Its name in the log."""


class CallEvent(Event, frozen=True, kw_only=True):
    """A fact about a call."""

    call: str
    step: str


class AskedTool(CallEvent, frozen=True, kw_only=True):
    """A fact about the call of a tool that has not been made."""

    tool: str
    args: dict[str, Json]
