"""Checks of what a run used up: money, time, tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kestrel_lab.core.durations import working_time
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events import ModelAnswered
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score


@dataclass(frozen=True, kw_only=True, slots=True)
class CostAtMost:
    """The model calls of the run cost no more than `usd` US dollars; answers from a store cost nothing."""

    needs: ClassVar[str] = ""

    usd: float

    def __post_init__(self) -> None:
        _require_bound("cost_at_most", self.usd)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"cost at most ${self.usd:g}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass within the bound; raises `CheckError` when it seems kept but some calls have no known price."""
        answers = _model_answers(trial)
        cost = sum(answer.cost_usd or 0.0 for answer in answers)
        unknown = sum(answer.cost_usd is None and answer.error is None for answer in answers)
        if unknown and cost <= self.usd:
            msg = f"the price of {unknown} of {len(answers)} model calls is not known, so cost_at_most cannot be judged"
            raise CheckError(msg)
        return _score(self.label, cost, self.usd, f"it cost ${cost:.4f}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondsAtMost:
    """The run worked no longer than `seconds`; waiting for a person does not count."""

    needs: ClassVar[str] = ""

    seconds: float

    def __post_init__(self) -> None:
        _require_bound("seconds_at_most", self.seconds)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"at most {self.seconds:g} s"

    async def __call__(self, trial: Trial) -> Score:
        """Pass within the bound; beyond, `value` is the bound over the time taken."""
        taken = working_time(trial.records)
        return _score(self.label, taken, self.seconds, f"it took {taken:.2f} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensAtMost:
    """The models of the run read and wrote no more than `n` tokens together; answers from a store count none."""

    needs: ClassVar[str] = ""

    n: int

    def __post_init__(self) -> None:
        _require_bound("tokens_at_most", self.n)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"at most {self.n} tokens"

    async def __call__(self, trial: Trial) -> Score:
        """Pass within the bound; beyond, `value` is the bound over the tokens used."""
        used = sum(answer.tokens_in + answer.tokens_out for answer in _model_answers(trial))
        return _score(self.label, used, self.n, f"it used {used} tokens")


def _require_bound(name: str, bound: float) -> None:
    if not 0 < bound < math.inf:
        msg = f"{name} must be a positive number, not {bound}"
        raise UsageError(msg)


def _score(label: str, used: float, bound: float, reason: str) -> Score:
    passed = used <= bound
    return Score(check=label, passed=passed, value=1.0 if passed else bound / used, reason="" if passed else reason)


def _model_answers(trial: Trial) -> list[ModelAnswered]:
    events = (record.event for record in trial.records)
    return [event for event in events if isinstance(event, ModelAnswered) and not (event.cached or event.given)]
