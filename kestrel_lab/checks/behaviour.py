"""Checks of a run's behaviour, from its events: tools used, turns, cost, time, tokens."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from typing import Literal

from kestrel_lab.checks.trajectory import MadeCall, is_wanted, made_calls, missing_tool
from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.tool_kinds import KINDS, ToolKind
from kestrel_lab.core.events.union import ModelAnswered, ModelCalled, ToolAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Trial, TrialStart
from kestrel_lab.core.scores import ADDED_LATER, LogCheck, Score
from kestrel_lab.core.usage import working_time


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCheck(LogCheck):
    """A check of the calls of a tool, or of any tool of a kind.

    Tools of one kind have other names in other agents: `kind: command` is true of `bash`, of Claude Code's
    `Bash` and of Codex's `command_execution`.
    """

    name: str = ""
    kind: Literal["", ToolKind] = ""

    def __post_init__(self) -> None:
        if bool(self.name) == bool(self.kind):
            check = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
            raise UsageError(
                f"{check} names a tool or a kind of tools: write {check}: bash, or {check}: {{kind: "
                f"{'|'.join(KINDS)}}}"
            )

    @property
    def what(self) -> str:
        """The tool in words."""
        return self.name or f"a tool of the kind {self.kind}"

    def definition(self) -> dict[str, Json]:
        """Return what it asks for."""
        # Stored results know a check by its fields: one with a name has no kind, and the other way round.
        return {key: value for one in fields(self) if (value := getattr(self, (key := one.name))) != ""}

    def calls(self, trial: Trial) -> list[MadeCall]:
        """Return the calls of the tool that were answered, from a store or with an error as well."""
        return [one for one in made_calls(trial.records) if is_wanted(one, self.name, self.kind)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolUsed(ToolCheck):
    """A tool, or any of a kind, was called and at least one of its calls did what it was asked."""

    final = "pass"

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.what} used"

    def out_of_reach(self, start: TrialStart) -> str:
        """Return that the agent is not offered the tool, where it is not."""
        return missing_tool(start, self.name, self.kind)

    async def __call__(self, trial: Trial) -> Score:
        """Pass on one call without an error; a cached answer counts."""
        calls = self.calls(trial)
        passed = any(call.ok for call in calls)
        what = self.name or f"the kind {self.kind}"
        reason = (
            f"all {len(calls)} calls of {what} failed"
            if calls
            else f"{what} was not called; {_called_text(trial)}"
        )
        return Score(check=self.label, passed=passed, value=float(passed), reason="" if passed else reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolNotUsed(ToolCheck):
    """A tool, or any of a kind, was not called, not even in vain."""

    final = "fail"

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.what} not used"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the model never asked for the tool."""
        count = len(self.calls(trial))
        reason = f"{self.what} was called {format_count(count, 'time')}" if count else ""
        return Score(check=self.label, passed=not count, value=float(not count), reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolAtMost(ToolCheck):
    """A tool, or tools of a kind together, were called no more than `n` times, calls that failed among
    them.
    """

    final = "fail"
    n: int

    def __post_init__(self) -> None:
        # `super()` does not find a class that `slots=True` made anew.
        ToolCheck.__post_init__(self)
        if self.n < 1:
            raise UsageError(
                f"tool_at_most allows at least 1 call, not {self.n}: for none at all, write "
                f"tool_not_used: {self.name or {'kind': self.kind}}"
            )

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.what} used at most {self.n} times"

    async def __call__(self, trial: Trial) -> Score:
        """Pass within `n` calls; beyond, `value` is `n` over the number of calls."""
        count = len(self.calls(trial))
        return _score(self.label, count, self.n, f"{self.what} was called {count} times")


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsAtMost(LogCheck):
    """The model was asked no more than `n` times."""

    final = "fail"
    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"turns_at_most must be at least 1, not {self.n}")

    @property
    def label(self) -> str:
        """The check in words."""
        return f"at most {self.n} turns"

    async def __call__(self, trial: Trial) -> Score:
        """Pass within `n` turns; beyond, `value` is `n` over the number of turns."""
        turns = sum(isinstance(record.event, ModelCalled) for record in trial.records)
        return _score(self.label, turns, self.n, f"it took {turns} turns")


def _called_text(trial: Trial) -> str:
    names = sorted({record.event.tool for record in trial.records if isinstance(record.event, ToolAnswered)})
    return f"called: {', '.join(names)}" if names else "no tool was"


Per = Literal["trial", "call"]
"""What a bound is of: the whole trial, or each call of a model in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostAtMost(LogCheck):
    """The model calls of the run cost no more than `usd` US dollars; answers from a store cost nothing."""

    final = "fail"
    usd: float
    per: Per = field(default="trial", metadata=ADDED_LATER)
    """`call` for the most expensive call of a model."""

    def __post_init__(self) -> None:
        _require_bound("cost_at_most", self.usd)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"cost at most ${self.usd:g}" + _per_text(self.per)

    async def __call__(self, trial: Trial) -> Score:
        """Pass within the bound; raises `CheckError` when it seems kept but some calls have no known
        price.
        """
        answers = _model_answers(trial)
        costs = [answer.cost_usd or 0.0 for answer in answers]
        cost = sum(costs) if self.per == "trial" else max(costs, default=0.0)
        unknown = sum(answer.cost_usd is None and answer.error is None for answer in answers)
        # Where the known part is above the bound, the rest cannot change the verdict.
        if unknown and cost <= self.usd:
            raise CheckError(
                f"the price of {unknown} of {len(answers)} model calls is not known, so cost_at_most "
                "cannot be judged"
            )
        return _score(self.label, cost, self.usd, f"it cost ${cost:.4f}{_per_text(self.per)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondsAtMost(LogCheck):
    """The run worked no longer than `seconds`; waiting for a person does not count."""

    final = "fail"
    seconds: float
    per: Per = field(default="trial", metadata=ADDED_LATER)
    """`call` for the slowest call of a model."""

    def __post_init__(self) -> None:
        _require_bound("seconds_at_most", self.seconds)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"at most {self.seconds:g} s" + _per_text(self.per)

    async def __call__(self, trial: Trial) -> Score:
        """Pass within the bound; beyond, `value` is the bound over the time taken."""
        taken = (
            working_time(trial.records)
            if self.per == "trial"
            else max((answer.seconds for answer in _model_answers(trial)), default=0.0)
        )
        return _score(self.label, taken, self.seconds, f"it took {taken:.2f} s{_per_text(self.per)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensAtMost(LogCheck):
    """The models of the run read and wrote no more than `n` tokens together; answers from a store count
    none.
    """

    final = "fail"
    n: int

    def __post_init__(self) -> None:
        _require_bound("tokens_at_most", self.n)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"at most {self.n} tokens"

    async def __call__(self, trial: Trial) -> Score:
        """Pass within the bound; beyond, `value` is the bound over the tokens used. Raises `CheckError` when
        it seems kept but the tokens of some calls are not known.
        """
        answers = _model_answers(trial)
        used = sum(answer.tokens_in + answer.tokens_out for answer in answers)
        unknown = sum(not answer.metered and answer.error is None for answer in answers)
        if unknown and used <= self.n:
            raise CheckError(
                f"the tokens of {unknown} of {len(answers)} model calls are not known, so tokens_at_most "
                "cannot be judged"
            )
        return _score(self.label, used, self.n, f"it used {used} tokens")


def _per_text(per: Per) -> str:
    return " per call" if per == "call" else ""


def _require_bound(name: str, bound: float) -> None:
    if not 0 < bound < math.inf:
        raise UsageError(f"{name} must be a positive number, not {bound}")


def _score(label: str, used: float, bound: float, reason: str) -> Score:
    passed = used <= bound
    return Score(
        check=label, passed=passed, value=1.0 if passed else bound / used, reason="" if passed else reason
    )


def _model_answers(trial: Trial) -> list[ModelAnswered]:
    events = (record.event for record in trial.records)
    return [
        event for event in events if isinstance(event, ModelAnswered) and not (event.cached or event.given)
    ]
