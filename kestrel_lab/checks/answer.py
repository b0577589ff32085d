"""Checks of the answer: its text, whether it says that it does not know, JSON that fits a schema, answer
contracts.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from kestrel_lab.answers.contracts import contract_named, is_abstention
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.json_types import Json, content_key, dumps, loads, values_in
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import ADDED_LATER, LogCheck, Score

Comparison = Literal["words", "caseless", "exact"]
"""How texts are compared: by `words` upper and lower case, compatibility characters and runs of white space
are taken as equal; `caseless` upper and lower case alone; `exact` nothing.
"""
MAX_MATCHED: Final = 10_000
"""Characters of an answer that are searched: half of them from its beginning and half from its end."""
MAX_PATTERN: Final = 1_000
MATCH_SECONDS: Final = 5.0
"""Processor time that the search for a pattern may take; some patterns would backtrack for ever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerContains(LogCheck):
    """The answer contains the texts, upper and lower case and runs of white space taken as equal."""

    texts: tuple[str, ...]
    mode: Literal["all", "any"] = "all"
    compare: Comparison = field(default="words", metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        if not self.texts or not all(comparable_text(text, self.compare) for text in self.texts):
            raise UsageError("answer_contains needs at least one text, and none of them empty")

    @property
    def label(self) -> str:
        """The check in words."""
        quoted = [repr(one_line(text, 40)) for text in self.texts]
        if len(quoted) == 1:
            return f"answer contains {quoted[0]}"
        return f"answer contains {self.mode} of {', '.join(quoted)}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the texts are there; `value` is the share of them that is."""
        answer = comparable_text(trial.answer, self.compare)
        missing = [text for text in self.texts if comparable_text(text, self.compare) not in answer]
        found = len(self.texts) - len(missing)
        passed = found > 0 if self.mode == "any" else not missing
        reason = (
            ""
            if passed
            else f"missing {', '.join(repr(one_line(text, 40)) for text in missing)}; {said_in(trial)}"
        )
        value = 1.0 if passed else found / len(self.texts)
        return Score(check=self.label, passed=passed, value=value, reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerEquals(LogCheck):
    """The answer is this text, but for upper and lower case, white space and a final full stop."""

    text: str
    compare: Comparison = field(default="words", metadata=ADDED_LATER)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"answer equals {one_line(self.text, 40)!r}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when both are equal."""
        answer, text = comparable_text(trial.answer, self.compare), comparable_text(self.text, self.compare)
        # A model ends a sentence with a full stop where the expected text has none.
        passed = answer == text or (self.compare == "words" and answer.rstrip(".") == text.rstrip("."))
        return Score(
            check=self.label,
            passed=passed,
            value=float(passed),
            reason="" if passed else said_in(trial),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerMatches(LogCheck):
    """The answer has a place that matches a regular expression of Python's `re`.

    Only the first and last 5,000 characters of a longer answer are searched.
    """

    pattern: str
    found: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    """What one of its groups has to be, or what it matches where it has none: any of these texts, upper and
    lower case taken as equal. Where empty, any match will do.
    """

    def __post_init__(self) -> None:
        if len(self.pattern) > MAX_PATTERN:
            raise UsageError(f"the pattern of answer_matches is longer than {MAX_PATTERN:,} characters")
        # Takes longer to load than all checks together.
        import regex

        try:
            re.compile(self.pattern)
            regex.compile(self.pattern)
        except (re.error, regex.error, OverflowError, RecursionError) as error:
            raise UsageError(
                f"answer_matches: {one_line(self.pattern, 60)!r} is not a regular expression: {error}"
            ) from error

    @property
    def label(self) -> str:
        """The check in words."""
        wanted = f" with {' or '.join(self.found)}" if self.found else ""
        return one_line(f"answer matches /{one_line(self.pattern, 60)}/{wanted}", 160)

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the pattern is found; raises `CheckError` when the search takes more than
        `MATCH_SECONDS`.
        """
        text = trial.answer
        if len(text) > MAX_MATCHED:
            # The line break keeps a pattern from matching across the gap.
            text = text[: MAX_MATCHED // 2] + "\n" + text[-MAX_MATCHED // 2 :]
        # Searches like `re`, and can be stopped: several repetitions can take exponential time.
        import regex

        try:
            found = await asyncio.to_thread(
                regex.search, self.pattern, text, timeout=MATCH_SECONDS, concurrent=True
            )
        except TimeoutError as error:
            raise CheckError(
                f"the pattern {one_line(self.pattern, 60)!r} did not finish on this answer in "
                f"{MATCH_SECONDS:g} s; use fewer repetitions"
            ) from error
        parts = () if found is None else found.groups() or (found[0],)
        wanted = {text.casefold() for text in self.found}
        passed = found is not None and (
            not wanted or any(part is not None and part.casefold() in wanted for part in parts)
        )
        return Score(
            check=self.label,
            passed=passed,
            value=float(passed),
            reason="" if passed else said_in(trial),
        )


def normalised_text(text: str) -> str:
    """Return `text` for comparisons: compatibility characters unified, case folded, each run of white space
    as one blank.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def comparable_text(text: str, how: Comparison) -> str:
    """Return `text` as it is compared."""
    if how == "words":
        return normalised_text(text)
    return text.casefold() if how == "caseless" else text


def said_in(trial: Trial) -> str:
    """Return the answer for a reason, shortened, or that there is none."""
    return f"answered {one_line(trial.answer, 120)!r}" if trial.answer.strip() else "there is no answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerAbstains(LogCheck):
    """The answer says that it does not know, for questions that nothing there answers.

    It is recognised by English phrases ("I do not know", "is not mentioned", "not enough information",
    "unknown") in its first two sentences; an empty answer is none. Write `answer_abstains: false` where it
    may not.
    """

    expected: bool = True

    @property
    def label(self) -> str:
        """The check in words."""
        return (
            "answer says that it does not know"
            if self.expected
            else "answer does not say that it does not know"
        )

    async def __call__(self, trial: Trial) -> Score:
        """Pass when it does as expected."""
        # An empty answer neither knows nor says that it does not.
        passed = is_abstention(trial.answer) == self.expected and bool(trial.answer.strip())
        return Score(
            check=self.label,
            passed=passed,
            value=float(passed),
            reason="" if passed else said_in(trial),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSchema(LogCheck):
    """The answer is JSON that fits a JSON Schema (2020-12), alone, in a fence or among words.

    Of several values the longest is meant. References to other documents are not followed.
    """

    schema: dict[str, Any]

    def __post_init__(self) -> None:
        # Loaded on use: a third of a second.
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            place = ".".join(map(str, error.absolute_path))
            raise UsageError(
                f"answer_schema: not a JSON Schema{f' at {place}' if place else ''}: "
                f"{one_line(error.message, 160)}"
            ) from error

    @property
    def label(self) -> str:
        """The check in words."""
        named = self.schema.get("title") or f"schema {content_key(self.schema)[:8]}"
        return f"answer fits {one_line(str(named), 40)}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the value fits; raises `CheckError` when a reference leads out of
        the schema.
        """
        from jsonschema import Draft202012Validator
        from referencing import Registry

        found = json_in(trial.answer)
        if not found:
            reason = f"there is no JSON in it; {said_in(trial)}" if trial.answer.strip() else said_in(trial)
            return Score(check=self.label, passed=False, value=0.0, reason=reason)
        # With a registry of its own the validator fetches nothing.
        validator = Draft202012Validator(self.schema, registry=Registry())
        problems = sorted(
            validator.iter_errors(found[0]), key=lambda error: list(map(str, error.absolute_path))
        )
        problems = [
            f"{'.'.join(map(str, error.absolute_path)) or 'the value'}: {error.message}"
            for error in problems[:5]
        ]
        return Score(
            check=self.label,
            passed=not problems,
            value=float(not problems),
            reason=one_line("; ".join(problems), 300),
        )


def json_in(text: str) -> list[Json]:
    """Return the JSON value of a text, the longest of several; empty where there is none."""
    try:
        return [loads(text.strip())]
    except ValueError:
        found = list(values_in(text, "{["))
    # Models quote small pieces of JSON on the way: the longest is the answer.
    return [max(found, key=lambda value: len(dumps(value)))] if found else []


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerForm:
    """The answer keeps a contract: `brief`, `plan`, `patch`, `explanation` or `research`; one that says that
    it does not know keeps all.
    """

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
        return Score(
            check=self.label,
            passed=not issues,
            value=1 / (1 + len(issues)),
            reason=one_line("; ".join(issues), 300),
        )
