"""Turns of an agent that a scenario gives to its trials as their past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.yaml.validation import Declared, WrittenAs
from kestrel_lab.evals.suite_forms import Many, Name
from kestrel_lab.runtime.context.history import PastCall, PastTurn


class GivenCall(Declared):
    """A call of a tool before a trial begins, with its answer."""

    tool: Annotated[str, WrittenAs(Name)]
    args: Mapping[str, Any] = {}
    result: str = ""


class GivenTurn(Declared):
    """A turn of the agent before a trial begins: what it said, and its calls with their answers."""

    text: str = ""
    calls: Many[GivenCall] = ()

    def definition(self) -> dict[str, Json]:
        """Return all of it as JSON."""
        return self.model_dump(mode="json")

    @property
    def past(self) -> PastTurn:
        """The turn as a run takes it."""
        return PastTurn(text=self.text, calls=tuple(PastCall(**dict(call)) for call in self.calls))
