"""Retries of model calls after transient failures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.usage import IdleTime
from kestrel_lab.models.wrapper import ModelWrapper, Stream

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import Model, OnDelta

_QUIET = logging.NullHandler()
"""Without a handler Python prints stamina's retry notes on standard error; configured logging gets them."""
LONGEST_WAIT_S = 60.0
"""A provider that asks for a longer pause ends the run with its error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryingModel(ModelWrapper):
    """`model`, called up to `attempts` times while it fails with a transient `ModelError`.

    The pause grows from `first_wait_s`; a provider's own `Retry-After` goes before it. An attempt that has
    already streamed text is never repeated, so that no reader sees a piece twice: its error is raised as it
    is. So is the error of one that the provider may have received: repeated in silence, it may be paid twice.
    """

    model: Model
    attempts: int = 3
    first_wait_s: float = 0.5
    idle: IdleTime | None = None
    """Measures the pauses."""
    waited_for: Callable[[ModelError], bool] | None = None
    """Whether a wrapper around this one waits for an error to pass: such an error is raised at once."""

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises the last attempt's `ModelError`."""
        # Loads tenacity and asyncio machinery: only needed once a model is called.
        import stamina

        logging.getLogger("stamina").addHandler(_QUIET)
        stream = Stream(on_delta)
        attempts = stamina.retry_context(
            on=partial(self._pause, stream),
            attempts=self.attempts,
            timeout=None,
            wait_initial=self.first_wait_s,
            wait_max=LONGEST_WAIT_S / 4,
            wait_jitter=self.first_wait_s,
        )
        idle = self.idle or IdleTime()
        with ExitStack() as pause:
            async for attempt in attempts:
                pause.close()
                with attempt:
                    try:
                        return await self.model(request, stream)
                    except Exception:
                        pause.enter_context(idle.backing_off())
                        raise
        raise ModelError(f"{self.name} was not asked: attempts must be at least 1, not {self.attempts}")

    def _pause(self, stream: Stream, error: Exception) -> bool | float:
        """Return whether to try again after `error`, or after how many seconds."""
        if not isinstance(error, ModelError) or not error.transient or stream.begun:
            return False
        if error.received is None or (self.waited_for is not None and self.waited_for(error)):
            return False
        if error.retry_after_s is None:
            return True
        return error.retry_after_s if error.retry_after_s <= LONGEST_WAIT_S else False


def with_retries(model: Model, attempts: int = 3, *, first_wait_s: float = 0.5) -> RetryingModel:
    """Return `model` with retries after transient failures; see `RetryingModel`."""
    return RetryingModel(model=model, attempts=attempts, first_wait_s=first_wait_s)
