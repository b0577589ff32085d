"""The tool calls that a trial's model requested, by turn of the user and turn of the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from kestrel_lab.core.events.union import ModelAnswered, Prompted, Record, ToolAnswered
from kestrel_lab.core.json_types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenCall:
    """A call as the model wrote it."""

    tool: str
    args: dict[str, Json]


def calls_by_turn(records: Iterable[Record], *, denied: bool = True) -> list[list[list[WrittenCall]]]:
    """Return the calls of each answer of the model, by turn of the user; answers without calls are left out.

    Calls that were refused or failed are among them: what is judged is what was asked for. Those that could
    not be read are not, and those that were `denied` only if wanted: they never began.
    """
    records = list(records)
    ends = (record.event for record in records if isinstance(record.event, ToolAnswered) and not denied)
    left_out = {end.call for end in ends if end.error is not None and end.error.get("kind") == "denied"}
    turns: list[list[list[WrittenCall]]] = []
    for record in records:
        event = record.event
        if isinstance(event, Prompted):
            turns.append([])
        elif isinstance(event, ModelAnswered) and event.error is None:
            turns = turns or [[]]
            read = [
                call for call in event.calls if not call.get("problem") and call.get("id") not in left_out
            ]
            if calls := [
                WrittenCall(tool=str(call["name"]), args=cast("dict[str, Json]", call["args"]))
                for call in read
            ]:
                turns[-1].append(calls)
    return turns
