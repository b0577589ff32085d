"""Checked arguments of operations, and what operations ask a model for: JSON Schemas and dialogues."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.runtime.agent.structured_output import Dialogue
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.execution.operation import Scope

TEXTS: dict[str, Json] = {"type": "array", "items": {"type": "string"}}


def closed_object(properties: dict[str, Json], *, optional: Collection[str] = ()) -> dict[str, Json]:
    """Return the JSON Schema of an object with these properties, all required but the `optional` ones."""
    required: list[Json] = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def step_dialogue(scope: Scope, **changes: Any) -> Dialogue:
    """Return a dialogue with the model of the step, with `changes` to the step's settings."""
    return Dialogue(replace(scope.step, **changes) if changes else scope.step, scope.ctx, scope.approvals)


def temperature_of(scope: Scope) -> float:
    """Return the temperature of the step, 0 where it names none."""
    return 0.0 if scope.step.temperature is None else scope.step.temperature


class Arguments:
    """The checked arguments of a step; a wrong one raises a `UsageError` that names it."""

    def __init__(self, scope: Scope, operation: str = "") -> None:
        """Take the arguments of the step; `operation` is its name in messages, the step's own by default."""
        self._scope, self._operation = scope, operation or scope.step.operation

    def text(self, name: str) -> str:
        """Return a text, stripped; empty where none is given."""
        return as_text(self._scope.args.get(name)).strip()

    def required(self, name: str) -> str:
        """Return a text that must not be empty."""
        if not (text := self.text(name)):
            raise UsageError(f"the operation {self._operation!r} needs a {name} in its args")
        return text

    def goal(self) -> str:
        """Return the `goal` of the step, or that of the run."""
        started = self._scope.ctx.state.started
        return self.text("goal") or ("" if started is None else started.goal)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._scope.args.get(name, default)
        if isinstance(value, bool):
            return value
        raise self._problem(name, "true or false", value)

    def whole(self, name: str, default: int, least: int, most: int | None = None) -> int:
        """Return a whole number between bounds."""
        value = self._scope.args.get(name, default)
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value >= least
            and (most is None or value <= most)
        ):
            return value
        raise self._problem(
            name, f"a whole number from {least}" + ("" if most is None else f" to {most}"), value
        )

    def share(self, name: str, default: float) -> float:
        """Return a number from 0 to 1."""
        value = self._scope.args.get(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return value
        raise self._problem(name, "a number from 0 to 1", value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; empty where none is given."""
        return self.as_texts(name, self._scope.args.get(name, []))

    def as_texts(self, name: str, value: Json) -> tuple[str, ...]:
        """Return `value` if it is a list of texts."""
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(cast("list[str]", value))
        raise self._problem(name, "a list of texts", value)

    def _problem(self, name: str, wanted: str, value: Json) -> UsageError:
        return UsageError(
            f"{name} of the operation {self._operation!r} must be {wanted}, not {one_line(repr(value), 60)}"
        )
