"""Supervised model calls: circuit breaker, rate limits and call times per endpoint."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, TypeGuard, cast

from kestrel_lab.core.errors import DependencyError, ModelError, RunError
from kestrel_lab.core.events.union import Event, Progress
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Model, OnDelta
from kestrel_lab.core.usage import IdleTime
from kestrel_lab.models.batch_model import BatchModel
from kestrel_lab.models.fallback import EscalatingModel
from kestrel_lab.models.health_probe import endpoint_of, probe_of
from kestrel_lab.models.retry import LONGEST_WAIT_S, RetryingModel
from kestrel_lab.models.router import RoutedModel
from kestrel_lab.models.wrapper import ModelWrapper, PreparableModel, Stream, inner_model
from kestrel_lab.runtime.supervision.dependency import Dependency
from kestrel_lab.runtime.supervision.failure_kinds import RECOVERABLE, classify_failure
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor

Emit = Callable[[Event], Any]
_FIRST_PAUSE_S, _SHORTEST_PAUSE_S = 0.5, 0.2
_ADVICE = "Is it running, and can it be reached? Or choose another model (kestrel models)."


def guard_model(
    model: Model,
    supervisor: RuntimeSupervisor,
    emit: Emit,
    *,
    patience_s: float | None = None,
    idle: IdleTime | None = None,
    call_s: float | None = None,
) -> Model:
    """Return `model` under supervision; changes of health and pauses are emitted to the run that makes the
    call.

    Time spent waiting, for a turn or between attempts, is added to `idle`. An attempt that takes longer than
    `call_s` fails. A model made of several is supervised endpoint by endpoint, and only the last one is
    waited for. A script or a recording has no endpoint and is returned as it is.
    """
    idle = idle or IdleTime()
    over = partial(guard_model, supervisor=supervisor, emit=emit, idle=idle, call_s=call_s)
    patience = supervisor.patience_s if patience_s is None else patience_s
    if isinstance(model, EscalatingModel):
        *others, last = model.models
        return replace(
            model, models=(*(over(one, patience_s=0.0) for one in others), over(last, patience_s=patience))
        )
    if isinstance(model, RoutedModel):
        return model.over(lambda one: over(one, patience_s=patience))
    if (inner := inner_model(model)) is not None and is_dataclass(model) and _stands_for_several(inner):
        parts: dict[str, Any] = {"model": over(inner, patience_s=patience)}
        return cast("Model", replace(model, **parts))
    if model.kind != "real":
        return model
    endpoint = watch_model(model, supervisor)
    meter = partial(MeteredModel, endpoint=endpoint, emit=emit, patience_s=patience, idle=idle, call_s=call_s)
    return GuardedModel(_meter_innermost(model, meter, idle), endpoint, emit, patience, idle)


def _stands_for_several(model: Model) -> bool:
    """Return whether `model`, without its wrappers, is made of several models."""
    while not isinstance(model, EscalatingModel | RoutedModel):
        if (inner := inner_model(model)) is None:
            return False
        model = inner
    return True


def _meter_innermost(model: Model, meter: Callable[[Model], Model], idle: IdleTime) -> Model:
    """Return `model` with its innermost one metered, so that pauses between attempts hold no slot."""
    inner = inner_model(model)
    if inner is None or not is_dataclass(model):
        return meter(model)
    parts: dict[str, Any] = {"model": _meter_innermost(inner, meter, idle)}
    if isinstance(model, RetryingModel | BatchModel):
        parts["idle"] = idle
    return cast("Model", replace(model, **parts))


def watch_model(model: Model, supervisor: RuntimeSupervisor) -> Dependency:
    """Return the endpoint of `model` as a dependency, watched from the first call on."""
    name = endpoint_of(model)
    return supervisor.get(name) or supervisor.watch(name, "model", probe_of(model), advice=_ADVICE)


@contextmanager
def limit_concurrency(model: Model, supervisor: RuntimeSupervisor, calls: int) -> Iterator[None]:
    """Limit the calls of each endpoint of `model` at once to `calls` while the block runs."""
    with ExitStack() as stack:
        for one in model.models if isinstance(model, EscalatingModel) else (model,):
            if one.kind == "real":
                stack.enter_context(watch_model(one, supervisor).turns.bounded(calls))
        yield


async def wait_for_model(
    model: Model,
    supervisor: RuntimeSupervisor,
    *,
    timeout: float,  # noqa: ASYNC109
) -> None:  # as `ready`
    """Return once `model` may be called, probing where that costs nothing; raise `DependencyError` after
    `timeout` seconds.

    Of fallback models one is enough; of routed models the one for everything else.
    """
    while isinstance(model, RoutedModel) or (
        _stands_for_several(model) and not isinstance(model, EscalatingModel)
    ):
        model = model.otherwise if isinstance(model, RoutedModel) else inner_model(model) or model
    *others, last = model.models if isinstance(model, EscalatingModel) else (model,)
    for one in others:
        if one.kind != "real":
            return
        endpoint = watch_model(one, supervisor)
        if endpoint.health.usable and await endpoint.look():
            return
    if last.kind == "real":
        await supervisor.ready(watch_model(last, supervisor).name, timeout=timeout)


@dataclass(slots=True, eq=False)
class _Supervised(ModelWrapper):
    model: Model
    endpoint: Dependency
    emit: Emit
    patience_s: float
    idle: IdleTime = field(default_factory=IdleTime)
    """The time that it waits is added."""


@dataclass(slots=True, eq=False)
class GuardedModel(_Supervised):
    """`model`, called only while the breaker of `endpoint` admits it, and again for `patience_s` if the
    endpoint worked before.

    Only failures that may pass are waited for. An endpoint that never worked is not: its address is probably
    wrong. Once an attempt has streamed text, further ones are not streamed, so that no reader sees a piece
    twice.
    """

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises the model's error, or `DependencyError` after waiting for an open breaker."""
        stream = Stream(on_delta)
        until, reported, pause = math.inf, "", _FIRST_PAUSE_S
        while True:
            try:
                answer = await self._once(request, stream)
            except RunError as error:
                until = min(until, time.monotonic() + self.patience_s)
                wait = self._pause(error, pause)
                if wait is None:
                    raise
                if time.monotonic() + wait > until:
                    raise self.endpoint.error() from error
            else:
                if reported:
                    self.emit(Progress(text=""))
                return answer
            if (waiting := f"waiting for {self.endpoint.name}: {self.endpoint.health.reason}") != reported:
                self.emit(Progress(text=waiting))
                reported = waiting
            if stream.begun:
                stream.mute()
            with self.idle.backing_off():
                await asyncio.sleep(wait)
            pause *= 2

    async def _once(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        permit = self.endpoint.admit()
        try:
            answer = await self.model(request, on_delta)
        except Exception as error:
            # A rate limit says that the endpoint works; its throttle decides how many calls it gets.
            if classify_failure(error) in RECOVERABLE and not _rate_limited(error):
                self._tell(self.endpoint.failure(error, permit))
            else:
                self.endpoint.release(permit)
            raise
        except BaseException:
            # Cancelled: nothing is known about the endpoint, and the permit must not be lost.
            self.endpoint.release(permit)
            raise
        self._tell(self.endpoint.success(permit))
        return answer

    def _pause(self, error: RunError, usual: float) -> float | None:
        """Return the seconds until another attempt; `None` for no other attempt."""
        if (
            not self.endpoint.health.was_ready
            or self.patience_s <= 0
            or classify_failure(error) not in RECOVERABLE
            or _rate_limited(error)
        ):
            return None
        if isinstance(error, DependencyError):
            return None if error.retry_in_s is None else max(error.retry_in_s, _SHORTEST_PAUSE_S)
        wished = error.retry_after_s if isinstance(error, ModelError) else None
        # The windows of an open breaker grow by themselves; the usual pause is for a closed one.
        return max(wished or 0.0, self.endpoint.health.breaker.retry_in) or usual

    def _tell(self, changes: list[Any]) -> None:
        for change in changes:
            self.emit(change)


@dataclass(slots=True, eq=False)
class MeteredModel(_Supervised):
    """`model`, called when the throttle of `endpoint` allows it, and again when the endpoint refused it with
    a rate limit.

    Refused calls wait as long as the endpoint answered any call within the last `patience_s`, unless it asks
    for a pause of more than `LONGEST_WAIT_S`; an attempt that has streamed text is not repeated. An attempt
    of more than `call_s` fails, whatever it streams: an endpoint that sends a token now and then is never
    silent.
    """

    call_s: float | None = None

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises the model's own error."""
        stream = Stream(on_delta)
        turns, refused_at = self.endpoint.turns, math.inf
        waiting = self.idle.queueing
        if isinstance(self.model, PreparableModel) and not self.model.ready:
            self.emit(Progress(text=self.model.preparing))
            # What a process does once is no time of this call.
            with waiting():
                await self.model.prepare()
            self.emit(Progress(text=""))
        while True:
            with waiting():
                ticket = await turns.enter()
            began = time.monotonic()
            try:
                answer = await self._in_time(request, stream)
            except BaseException as error:
                # Only a refusal for too many calls says anything about the rate limit.
                # An endpoint that hangs uses up no time of the agent.
                if isinstance(error, ModelError) and error.transient:
                    self.idle.lose(time.monotonic() - began)
                if not _rate_limited(error):
                    turns.released()
                    raise
                turns.refused(
                    ticket, None if error.retry_after_s is None else min(error.retry_after_s, LONGEST_WAIT_S)
                )
                reported, refused_at = refused_at < math.inf, min(refused_at, self.endpoint.now)
                if stream.begun or not self._waits(error, refused_at):
                    raise
            else:
                turns.succeeded(ticket)
                if refused_at < math.inf:
                    self.emit(Progress(text=""))
                return answer
            if not reported:
                self.emit(Progress(text=f"waiting for {self.endpoint.name}: {self.endpoint.slowed}"))
            waiting = self.idle.backing_off

    async def _in_time(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        try:
            async with asyncio.timeout(self.call_s) as bound:
                return await self.model(request, on_delta)
        except TimeoutError as error:
            # A timeout of the model's own client is an error of the model, not of our bound.
            if not bound.expired():
                raise
            msg = (
                f"{self.name}: no whole answer from {self.endpoint.name} within {self.call_s:g} s "
                "(setting model_seconds): it hangs or is slow"
            )
            raise ModelError(msg, transient=True) from error

    def _waits(self, error: ModelError, refused_at: float) -> bool:
        throttle = self.endpoint.turns.throttle
        until = max(refused_at, throttle.succeeded_at) + self.patience_s
        return (
            error.retry_after_s or 0.0
        ) <= LONGEST_WAIT_S and self.endpoint.now + throttle.retry_in <= until


def _rate_limited(error: BaseException) -> TypeGuard[ModelError]:
    return isinstance(error, ModelError) and error.rate_limited
