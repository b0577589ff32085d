"""How a step asks its model for something that has a form, and insists on it a limited number of times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

from kestrel_lab.answers.lenient_json import fit_to_schema
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.events.union import Prompted
from kestrel_lab.core.json_types import Json, dumps, loads, values_in
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.agent.loop import run_agent
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.run_context import RunContext

T = TypeVar("T")
RETRIES = 2
"""How often an answer that cannot be used goes back to the model."""


class UnusableAnswer(ModelError):
    """A model's answer did not have the required form, not even after the model was asked to correct it."""


class Dialogue:
    """Questions of one step to its model, each with an answer that passed a check.

    What was asked and answered before a crash is not asked again: the n-th question takes the n-th answer of
    the log.
    """

    def __init__(self, step: Step, ctx: RunContext, approvals: RunApprovals) -> None:
        self._step, self._ctx, self._approvals = step, ctx, approvals
        self._asked = 0

    async def ask(self, text: str, check: Callable[[str], T]) -> T:
        """Return the answer to `text`, as `check` makes it; tools are the step's.

        `check` raises `UsageError` for an unusable answer; the model gets the reason and two more tries.
        Raises `UnusableAnswer` when it then still cannot be used, and what `run_agent` raises.
        """
        # Checks use it; importing it earlier would delay the first output.
        await asyncio.to_thread(import_module, "jsonschema")
        answer = await self._said(text)
        for _ in range(RETRIES):
            try:
                return check(answer)
            except UsageError as error:
                answer = await self._said(
                    f"This answer cannot be used: {error}\n\nAnswer again, all of it, with that put right."
                )
        try:
            return check(answer)
        except UsageError as error:
            msg = f"the model's answer could not be used after {RETRIES + 1} attempts: {error}"
            raise UnusableAnswer(msg) from error

    async def _said(self, text: str) -> str:
        number, self._asked = self._asked, self._asked + 1
        conversation = self._ctx.state.conversation(self._step.id)
        if len(conversation.replies) > number:
            return conversation.replies[number].strip()
        if conversation.prompts == number:
            self._ctx.emit(Prompted(step=self._step.id, text=text, system=self._ctx.system_of(self._step)))
        return await run_agent(self._step, self._ctx, self._approvals)


def read_json(text: str, schema: dict[str, Json] | None = None) -> Json:
    """Return the JSON value in a model's answer, alone or in a fence or among words; raises `UsageError` if
    there is none or it does not fit.

    It is read leniently, see `answers.lenient_json`; several values that fit and differ are refused. A value
    that is no object may be that of the key `value`, as providers want it; a text may be the answer as it
    stands.
    """
    if schema is None:
        return _largest_json(text)
    import jsonschema  # a third of a second: not at import

    fits = jsonschema.Draft202012Validator(schema)
    if fits.is_valid(text.strip()):
        return text.strip()
    values = [_as_asked(value, schema, fits) for value in _json_values(text)]
    fitting = [value for value in values if fits.is_valid(value)]
    if any(value != fitting[0] for value in fitting):
        raise UsageError(f"there are {len(fitting)} different answers in it: give one")
    if fitting:
        return fitting[0]
    value = _largest(values)
    problems = sorted(fits.iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
    raise UsageError(
        "; ".join(f"{_place(error.absolute_path)}{error.message[:300]}" for error in problems[:5])
    )


def _as_asked(value: Json, schema: dict[str, Json], fits: Any) -> Json:
    """The value as it is where it fits, else that of the key `value`, else as the schema has it."""
    if fits.is_valid(value):
        return value
    if (
        isinstance(value, dict)
        and value.keys() == {"value"}
        and "value" not in cast("dict[str, Json]", schema.get("properties") or {})
    ):
        value = value["value"]
    return value if fits.is_valid(value) else fit_to_schema(value, schema)


def read_typed(text: str, schema: dict[str, Json] | None, fits: Callable[[Json], object] | None) -> Json:
    """Return the JSON value of an answer that also `fits` a type, which raises `UsageError` if not."""
    value = read_json(text, schema)
    if fits is not None:
        fits(value)
    return value


def _place(path: object) -> str:
    where = ".".join(map(str, path))  # type: ignore[call-overload]  # a deque of keys and numbers
    return f"{where}: " if where else ""


def _json_values(text: str) -> list[Json]:
    """The JSON values in an answer; raises `UsageError` where there is none."""
    try:
        return [loads(text.strip())]
    except ValueError:
        # Models put prose or a fence around the JSON; the value in it is looked for.
        found = list(values_in(text, "{["))
    if not found:
        raise UsageError("there is no JSON in it")
    return found


def _largest_json(text: str) -> Json:
    return _largest(_json_values(text))


def _largest(values: list[Json]) -> Json:
    return max(values, key=lambda value: len(dumps(value)))
