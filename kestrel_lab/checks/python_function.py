"""A check that is a Python function, named by its import path."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import CheckError, RunError, UsageError, error_boundary, stops_task
from kestrel_lab.core.protocols import Check, Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score, plain_number


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonCheck:
    """The function `module:function` judges the trial.

    The module is a file in the suite's own folder (`checks.py`, `lib/checks.py` as `lib.checks`) or belongs
    to an installed package; nothing else is imported. The function takes the `Trial` and returns, or is
    awaited for, `True` or `False`, a number from 0 to 1 (1 passes), either with a reason behind it as a pair,
    or a `Score`.
    """

    function: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", self.function):
            raise UsageError(
                "python_check names a function as module:function, such as checks:is_sorted, not "
                f"{one_line(self.function)!r}"
            )

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.function} agrees"

    async def __call__(self, trial: Trial) -> Score:
        """Return the function's verdict; raises `CheckError` for a value that is none, and what the function
        raises.
        """
        if trial.function is None:
            raise CheckError(
                f"python_check {self.function} works in a suite only, which says where its functions are"
            )
        return score_of(self.label, await awaited(trial.function(self.function)(trial)), self.function)


async def judge(check: Check, trial: Trial, label: str = "") -> Score:
    """Return the score of a check, called `label` or as it calls itself; raises `CheckError` for whatever
    goes wrong in it, and for a value that is no verdict.
    """
    name = label or check.label
    what = f"the check {name!r}"
    try:
        with error_boundary(CheckError, what):
            return score_of(name, await awaited(check(trial)))
    except CheckError:
        raise
    except RunError as error:  # of a model that it asked, for example
        raise CheckError(f"{what} failed: {error}") from error


async def awaited(said: object) -> object:
    """Return what a function said, or what that gives when it is awaited."""
    while inspect.isawaitable(said):
        said = await said
    return said


def score_of(label: str, said: object, function: str = "") -> Score:
    """Return what a function said as a score of the check called `label`; raises `CheckError` for a value
    that is no verdict.

    Numbers may be those of any library. What a `Score`, or a class that is derived from it, has as its parts
    is read as carefully as any other value.
    """
    name, value, reason, scored = function or label, said, "", isinstance(said, Score)
    if isinstance(said, Score):
        label, value, reason = str(said.check), said.value, said.reason
    elif isinstance(said, tuple) and len(said) == 2:
        value, reason = said
    number = plain_number(value)
    passed = plain_number(said.passed) if isinstance(said, Score) else number == 1
    if (
        number is None
        or passed is None
        or not math.isfinite(number)
        or (not scored and not (0 <= number <= 1 and isinstance(reason, str | None)))
    ):
        raise CheckError(
            f"{name} returned {_shown(said)}; a check returns True, False, a number from 0 to 1, a "
            "pair with a reason, or a Score"
        )
    text = "" if reason is None else str(reason)
    if isinstance(said, Score):
        usage = said.usage if isinstance(said.usage, Usage) else None
        judge = {str(k): str(v) for k, v in said.judge.items()} if isinstance(said.judge, Mapping) else None
        return Score(
            check=label,
            passed=bool(passed),
            value=float(number),
            reason=text,
            usage=usage,
            judge=judge,
            name=str(said.name),
            weight=float(said.weight),
        )
    return Score(
        check=label,
        passed=bool(passed),
        value=float(number),
        reason="" if passed else text or f"it said {number!r}",
    )


def _shown(value: object) -> str:
    try:
        return one_line(repr(value))
    except BaseException as error:  # foreign code
        if stops_task(error):
            raise
        return f"a value of type {type(value).__name__} that cannot be shown"
