"""A call that takes too long is stopped and answered with an error."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kestrel_lab.core.calls import Call, Problem, Result
from kestrel_lab.core.protocols import Handler


@dataclass(frozen=True, slots=True)
class Timeout:
    """Give each call the seconds that `allowance` says; `None` means no bound."""

    allowance: Callable[[Call], float | None]

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Proceed, for so long at most."""
        seconds = self.allowance(call)
        if seconds is None:
            return await proceed(call)
        try:
            async with asyncio.timeout(seconds) as bound:
                return await proceed(call)
        except TimeoutError:
            if not bound.expired():
                raise
            return Result(
                error=Problem(kind="timeout", message=f"{call.target} was stopped after {seconds:g} s", transient=True), seconds=seconds
            )
