"""A check that is a Python function, named by its import path."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score

_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonCheck:
    """The function `module:function` judges the trial.

    The module is a file in the suite's own folder (`checks.py`, `lib/checks.py` as `lib.checks`) or belongs to
    an installed package; nothing else is imported. The function takes the `Trial` and returns, or is awaited for,
    `True` or `False`, a number from 0 to 1 (1 passes), either with a reason behind it as a pair, or a `Score`.
    """

    function: str

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.function):
            raise UsageError(f"python_check names a function as module:function, such as checks:is_sorted, not {one_line(self.function)!r}")

    @property
    def label(self) -> str:
        return f"{self.function} agrees"

    async def __call__(self, trial: Trial) -> Score:
        """Return the function's verdict; raises `CheckError` for a value that is none, and what the function raises."""
        if trial.function is None:
            raise CheckError(f"python_check {self.function} works in a suite only, which says where its functions are")
        said = trial.function(self.function)(trial)
        if inspect.isawaitable(said):
            said = await said
        return score_of(self.label, said, self.function)


def score_of(label: str, said: object, function: str = "") -> Score:
    """Return what a function said as a score of the check called `label`; raises `CheckError` for a value that is no verdict."""
    if isinstance(said, Score):
        return said
    value, reason = said if isinstance(said, tuple) and len(said) == 2 else (said, "")
    if not isinstance(value, bool | int | float) or not isinstance(reason, str) or math.isnan(value) or not 0 <= value <= 1:
        msg = f"{function or label} returned {one_line(repr(said))}; a check returns True, False, a number from 0 to 1, a pair with a reason, or a Score"
        raise CheckError(msg)
    passed = value == 1
    return Score(check=label, passed=passed, value=float(value), reason="" if passed else reason or f"it said {value!r}")
