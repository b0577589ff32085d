"""Checks of an answer's form: JSON that fits a schema, and answer contracts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

from kestrel_lab.answers.contracts import contract_named
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, content_key, dumps, loads, values_in
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import LogCheck, Score


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSchema(LogCheck):
    """The answer is JSON that fits a JSON Schema (2020-12), alone, in a fence or among words.

    Of several values the longest is meant. References to other documents are not followed.
    """

    schema: dict[str, Any]

    def __post_init__(self) -> None:
        from jsonschema import Draft202012Validator  # loaded on use: a third of a second
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            place = ".".join(map(str, error.absolute_path))
            msg = f"answer_schema: not a JSON Schema{f' at {place}' if place else ''}: {one_line(error.message, 160)}"
            raise UsageError(msg) from error

    @property
    def label(self) -> str:
        """The check in words."""
        named = self.schema.get("title") or f"schema {content_key(self.schema)[:8]}"
        return f"answer fits {one_line(str(named), 40)}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the value fits; raises `CheckError` through whoever judges when a reference leads out of the schema."""
        from jsonschema import Draft202012Validator
        from referencing import Registry

        found = _json_in(trial.answer)
        if not found:
            reason = f"there is no JSON in it; answered {one_line(trial.answer, 120)!r}" if trial.answer.strip() else "there is no answer"
            return Score(check=self.label, passed=False, value=0.0, reason=reason)
        # With a registry of its own the validator fetches nothing.
        validator = Draft202012Validator(self.schema, registry=Registry())
        problems = sorted(validator.iter_errors(found[0]), key=lambda error: list(map(str, error.absolute_path)))
        told = [f"{'.'.join(map(str, error.absolute_path)) or 'the value'}: {error.message}" for error in problems[:5]]
        return Score(check=self.label, passed=not told, value=float(not told), reason=one_line("; ".join(told), 300))


def _json_in(text: str) -> list[Json]:
    """Return the JSON value that `text` is or contains, if any."""
    try:
        return [loads(text.strip())]
    except ValueError:
        found = list(values_in(text, "{["))
    return [max(found, key=lambda value: len(dumps(value)))] if found else []


# A check that an answer has the form that its reader was promised.


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerForm:
    """The answer keeps a contract: `brief`, `plan`, `patch`, `explanation` or `research`; one that says that it does not know keeps all."""

    needs: ClassVar[str] = "the workspace"

    contract: str

    def __post_init__(self) -> None:
        contract_named(self.contract)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"the answer has the form {self.contract!r}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when nothing is wrong with its form."""
        issues = await asyncio.to_thread(contract_named(self.contract).issues, trial.answer, trial.workspace)
        return Score(check=self.label, passed=not issues, value=1 / (1 + len(issues)), reason=one_line("; ".join(issues), 300))
