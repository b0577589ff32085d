"""Trying a model call again when the failure is likely to pass."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.usage import Idle

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import Model, ModelKind, OnDelta

LONGEST_WAIT_S = 60.0
"""A provider that asks for a longer pause is not waited for: the run should rather end and say so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryingModel:
    """`model`, asked up to `attempts` times while it fails with a transient `ModelError`.

    The pause grows from `first_wait_s` and follows the provider's own wish where it states one. An attempt that has
    already streamed text is never repeated, so no reader sees a piece twice: its error is raised as it is.
    """

    model: Model
    attempts: int = 3
    first_wait_s: float = 0.5
    idle: Idle | None = None
    """Told of the pauses."""

    @property
    def name(self) -> str:
        """The wrapped model's name."""
        return self.model.name

    @property
    def kind(self) -> ModelKind:
        """The wrapped model's kind."""
        return self.model.kind

    @property
    def native_tools(self) -> bool:
        """Whether the wrapped model calls tools itself."""
        return bool(getattr(self.model, "native_tools", True))

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises the last attempt's `ModelError`."""
        import stamina  # loads tenacity and asyncio machinery: only needed once a model is called

        streamed: list[bool] = []

        def passed_on(piece: str) -> None:
            streamed.append(True)
            on_delta(piece)

        attempts = stamina.retry_context(
            on=partial(_pause, streamed),
            attempts=self.attempts,
            timeout=None,
            wait_initial=self.first_wait_s,
            wait_max=LONGEST_WAIT_S / 4,
            wait_jitter=self.first_wait_s,
        )
        idle = self.idle or Idle()
        with ExitStack() as pause:
            async for attempt in attempts:
                pause.close()
                with attempt:
                    try:
                        return await self.model(request, passed_on)
                    except Exception:
                        pause.enter_context(idle.backing_off())
                        raise
        msg = f"{self.name} was not asked: attempts must be at least 1, not {self.attempts}"
        raise ModelError(msg)


def _pause(streamed: list[bool], error: Exception) -> bool | float:
    """Whether to try again after `error`, or after how many seconds."""
    if not isinstance(error, ModelError) or not error.transient or streamed:
        return False
    if error.retry_after_s is None:
        return True
    return error.retry_after_s if error.retry_after_s <= LONGEST_WAIT_S else False


def with_retries(model: Model, attempts: int = 3, *, first_wait_s: float = 0.5) -> RetryingModel:
    """`model`, asked again after transient failures; see `RetryingModel`."""
    return RetryingModel(model=model, attempts=attempts, first_wait_s=first_wait_s)
