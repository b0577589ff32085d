"""A scripted agent, no model: it gives the answer of scenarios/made_up.jsonl, and the true one when it is told what is wrong with it.

And the check of the suite: whether somebody who reads the answer is misled.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from kestrel_lab.core.events.union import RunFinished
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Trial

_TABLE = Path(__file__).parents[2] / "scenarios" / "made_up.jsonl"
_REPAIR = "Put an answer to this goal right"
"""How the engine begins when it asks for a repair."""


def speaker(request: ModelRequest) -> ModelAnswer:
    """What the table has for the question; asked for a repair, what is true."""
    asked = next(message.text for message in request.messages if message.role == "user")
    row = next(row for question, row in _rows().items() if question in asked)
    return ModelAnswer(text=row["true" if _REPAIR in asked else "says"])


def not_misled(trial: Trial) -> tuple[bool, str]:
    """Whether what is made up is marked or was put right, and what is true came out unmarked."""
    end = next(record.event for record in reversed(trial.records) if isinstance(record.event, RunFinished))
    marks = [str(one["what"]) for one in end.concerns if one["severity"] != "minor"]
    made_up = trial.answer.strip() != trial.expected
    reason = (
        "it is made up, and nothing says so" if made_up else f"it is true, and is doubted: {'; '.join(marks)}"
    )
    return made_up == bool(marks), "" if made_up == bool(marks) else reason


@cache
def _rows() -> dict[str, dict[str, str]]:
    rows = map(json.loads, _TABLE.read_text(encoding="utf-8").splitlines())
    return {row["question"]: row for row in rows}
