"""`@check`: a Python function as a check of a suite that is built in Python, or a shipped check by its
name.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import overload

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.checks.python_function import awaited, score_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Check, Trial
from kestrel_lab.core.scores import Score

Verdict = bool | float | tuple[bool | float, str] | Score
"""What a function may say: whether it passed, a number from 0 to 1 (1 passes), either with a reason, or a
score.
"""
Judging = Callable[[Trial], Verdict | Awaitable[Verdict]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionCheck:
    """A function of this process judges the trial; `python_check` runs one in a sandboxed process of its
    own.
    """

    function: Judging
    needs: str = "the workspace"
    """Empty where the function looks at goal, answer, records and expectation only: it can judge stored runs.
    """

    @property
    def label(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", "check")

    def definition(self) -> dict[str, Json]:
        """Return what a stored score depends on: the source of the function."""
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):  # defined where no source is kept, as by exec
            source = (
                self.function.__code__.co_code.hex()
                if inspect.isfunction(self.function)
                else repr(type(self.function))
            )
        return {"source": hashlib.sha256(source.encode()).hexdigest()[:16], "needs": self.needs}

    async def __call__(self, trial: Trial) -> Score:
        """Return the function's verdict; raises `CheckError` for a value that is none, and what the function
        raises.
        """
        return score_of(self.label, await awaited(self.function(trial)))


@overload
def check(function: Judging, /) -> FunctionCheck: ...


@overload
def check(*, needs: str) -> Callable[[Judging], FunctionCheck]: ...  # type: ignore[overload-overlap]  # no shipped check is called needs


@overload
def check(**shipped: Json) -> Check: ...


def check(function: Judging | None = None, /, **words: Json) -> object:
    """Make a check of a function, or name a shipped one as a suite file does: `check(answer_contains="42")`.

    The function takes the `Trial` (`goal`, `answer`, `records`, `workspace`, `expected`) and returns, or is
    awaited for, `True` or `False`, a number from 0 to 1 (1 passes), either with a reason behind it as a pair,
    or a `Score`. It runs in this process, so it must not execute what the agent wrote:
    `check(python_check="checks:function")` has a sandbox. With `@check(needs="")` it says that it reads no
    files: then it can judge stored and imported runs. Raises `UsageError` for an unknown check, with the
    nearest name, and for more than one.
    """
    if function is not None:
        return FunctionCheck(function=function)
    if set(words) == {"needs"}:
        needs = str(words["needs"])
        return lambda wrapped: FunctionCheck(function=wrapped, needs=needs)
    if len(words) != 1:
        raise UsageError(
            f"check() names one check with its value, as check(answer_contains='42'), not {len(words)}"
        )
    return parse_check(dict(words))
