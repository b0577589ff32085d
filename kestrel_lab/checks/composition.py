"""Checks made of checks: one of several, all of several, the opposite of one, and one with a name, a weight
and a threshold of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kestrel_lab.checks.python_function import judge
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Check, Trial, TrialStart
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score, weighted_value

_LABEL = 160
"""Characters of the label of several checks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnyOf:
    """At least one of the checks passes; all of them are asked."""

    checks: tuple[Check, ...]

    def __post_init__(self) -> None:
        if not self.checks:
            raise UsageError(f"{type(self).__name__} needs at least one check: write a list of them")

    @property
    def needs(self) -> str:
        """What the checks need beside the log."""
        return needs_of(self.checks)

    @property
    def label(self) -> str:
        """The check in words."""
        return one_line(f"any of: {'; '.join(check.label for check in self.checks)}", _LABEL)

    def out_of_reach(self, start: TrialStart) -> str:
        """Return why no agent can pass any of the checks."""
        reasons = [out_of_reach(check, start) for check in self.checks]
        return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""

    async def __call__(self, trial: Trial) -> Score:
        """Pass when one passes; `value` is the best of their values."""
        scores = [await judge(check, trial) for check in self.checks]
        return self._score(
            scores, any(score.passed for score in scores), max(score.value for score in scores)
        )

    def _score(self, scores: Sequence[Score], passed: bool, value: float) -> Score:
        failed = [score for score in scores if not score.passed]
        reasons = (f"{score.check}: {score.reason}" if score.reason else score.check for score in failed)
        return Score(
            check=self.label,
            passed=passed,
            value=1.0 if passed else value,
            reason="" if passed else one_line("; ".join(reasons), 600),
            usage=usage_of(scores),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AllOf(AnyOf):
    """Every one of the checks passes: several that count as one, in `any_of` or `not`, or with one weight."""

    @property
    def label(self) -> str:
        """The check in words."""
        return one_line(f"all of: {'; '.join(check.label for check in self.checks)}", _LABEL)

    def out_of_reach(self, start: TrialStart) -> str:
        """Return why no agent can pass all of the checks."""
        return "; ".join(dict.fromkeys(filter(None, (out_of_reach(check, start) for check in self.checks))))

    async def __call__(self, trial: Trial) -> Score:
        """Pass when all pass; `value` is the mean of their values by their weights."""
        scores = [await judge(check, trial) for check in self.checks]
        passed = all(score.passed for score in scores if score.weight)
        return self._score(scores, passed, weighted_value(scores))


@dataclass(frozen=True, kw_only=True, slots=True)
class Not:
    """The check does not pass. Where it cannot be judged, neither can this."""

    inner: Check

    @property
    def needs(self) -> str:
        """What the check needs beside the log."""
        return needs_of((self.inner,))

    @property
    def label(self) -> str:
        """The check in words."""
        return f"not: {self.inner.label}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the check fails; `value` is what is missing in its own."""
        score = await judge(self.inner, trial)
        passed = not score.passed
        return Score(
            check=self.label,
            passed=passed,
            value=1.0 if passed else 1.0 - score.value,
            reason="" if passed else "it does",
            usage=score.usage,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedCheck:
    """A check with a name, a weight or a threshold: the keys `name`, `weight` and `at_least` beside it."""

    inner: Check
    name: str = ""
    """The column `score:NAME` of frames, and the metric of that name in summaries and gates."""
    weight: float = 1.0
    """How much its value counts in the score of a trial. One of weight 0 is measured and decides nothing."""
    at_least: float | None = None
    """The value from which on it passes, in place of its own rule."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise UsageError(f"the weight of a check is 0 or more, not {self.weight}")
        if self.at_least is not None and not 0 <= self.at_least <= 1:
            raise UsageError(f"at_least beside a check is from 0 to 1, not {self.at_least}")

    @property
    def needs(self) -> str:
        """What the check needs beside the log."""
        return needs_of((self.inner,))

    @property
    def label(self) -> str:
        """The name and the check in words."""
        return f"{self.name}: {self.inner.label}" if self.name else self.inner.label

    def out_of_reach(self, start: TrialStart) -> str:
        """Return why no agent can pass the check; one that decides nothing, or that a share of its
        value passes, is left open.
        """
        return "" if not self.weight or self.at_least is not None else out_of_reach(self.inner, start)

    async def __call__(self, trial: Trial) -> Score:
        """Return the score of the check, with this name and weight."""
        score = await judge(self.inner, trial)
        passed, reason = score.passed, score.reason
        if self.at_least is not None:
            # A bound of 2 / 3 may be written as .6667: rounding must not decide.
            passed = score.value >= self.at_least - 1e-9
            reason = (
                "" if passed else f"value {score.value:.3g}, needed {self.at_least:g}; {reason}".rstrip("; ")
            )
        return replace(
            score,
            check=f"{self.name}: {score.check}" if self.name else score.check,
            passed=passed,
            reason=reason,
            name=self.name,
            weight=self.weight,
        )


def each_check(checks: Iterable[Check]) -> Iterator[Check]:
    """Yield the checks, and after one that is made of others each of these."""
    for check in checks:
        yield check
        if isinstance(check, AnyOf):
            yield from each_check(check.checks)
        elif isinstance(check, Not | NamedCheck):
            yield from each_check((check.inner,))


def is_single(check: Check) -> bool:
    """Return whether a check is not made of others."""
    return not isinstance(check, AnyOf | Not | NamedCheck)


def out_of_reach(check: Check, start: TrialStart) -> str:
    """Return why no agent can pass a check in a trial that begins so, as far as the check itself says."""
    declared: Callable[[TrialStart], str] | None = getattr(check, "out_of_reach", None)
    return "" if declared is None else declared(start)


def needs_of(checks: Iterable[Check]) -> str:
    """Return what checks need beside the log: "a model" before "the workspace", empty for nothing."""
    found = {str(getattr(check, "needs", "the workspace")) for check in checks} - {""}
    return next((need for need in sorted(found) if need != "the workspace"), min(found, default=""))


def usage_of(scores: Iterable[Score]) -> Usage | None:
    """Return what graders used for several scores together; `None` where none was asked."""
    used = [score.usage for score in scores if score.usage is not None]
    return sum(used[1:], used[0]) if used else None
