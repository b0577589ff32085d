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
from kestrel_lab.core.sanitize import one_line
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
from kestrel_lab.views.formatting import format_duration

Emit = Callable[[Event], Any]
_FIRST_PAUSE_S, _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 0.2, 30.0
_RATE_LIMIT_PATIENCE_S = 60.0
"""How long a call waits for an endpoint that answers nobody but with rate limits."""
_SILENCE_S = 10.0
"""After so long without a piece of the answer the run says what it waits for."""
_ADVICE = "Is it running, and can it be reached? Or choose another model (kestrel models)."


def guard_model(
    model: Model,
    supervisor: RuntimeSupervisor,
    emit: Emit,
    *,
    patience_s: float = math.inf,
    idle: IdleTime | None = None,
    call_s: float | None = None,
    before_call: Callable[[Model], None] | None = None,
) -> Model:
    """Return `model` under supervision; changes of health and pauses are emitted to the run that makes the
    call.

    A call waits for at most `patience_s` for an endpoint that is away, and no longer than the supervisor
    allows. Time spent waiting, for a turn or between attempts, is added to `idle`. An attempt that takes
    longer than `call_s` fails. `before_call` is called with the model before each of its requests, once it
    is ready. A model made of several is supervised endpoint by endpoint, and only the last one is waited for.
    A script or a recording has no endpoint and is returned as it is.
    """
    idle = idle or IdleTime()
    over = partial(
        guard_model, supervisor=supervisor, emit=emit, idle=idle, call_s=call_s, before_call=before_call
    )
    if isinstance(model, EscalatingModel):
        *others, last = model.models
        return replace(
            model, models=(*(over(one, patience_s=0.0) for one in others), over(last, patience_s=patience_s))
        )
    if isinstance(model, RoutedModel):
        return model.over(lambda one: over(one, patience_s=patience_s))
    if (inner := inner_model(model)) is not None and is_dataclass(model) and _stands_for_several(inner):
        parts: dict[str, Any] = {"model": over(inner, patience_s=patience_s)}
        return cast("Model", replace(model, **parts))
    if model.kind != "real":
        return model
    endpoint = watch_model(model, supervisor)
    patience = patience_s if supervisor.patience_s is None else min(patience_s, supervisor.patience_s)
    guard = GuardedModel(model, endpoint, emit, patience, idle)
    refused_s = _RATE_LIMIT_PATIENCE_S if supervisor.patience_s is None else supervisor.patience_s
    refused_s = refused_s if patience_s > 0 else 0.0
    meter = partial(
        MeteredModel,
        endpoint=endpoint,
        emit=emit,
        patience_s=refused_s,
        idle=idle,
        call_s=call_s,
        before_call=before_call,
    )
    guard.model = _meter_innermost(model, meter, idle, guard.waits_for)
    return guard


def _stands_for_several(model: Model) -> bool:
    """Return whether `model`, without its wrappers, is made of several models."""
    while not isinstance(model, EscalatingModel | RoutedModel):
        if (inner := inner_model(model)) is None:
            return False
        model = inner
    return True


def _meter_innermost(
    model: Model, meter: Callable[[Model], Model], idle: IdleTime, waited_for: Callable[[ModelError], bool]
) -> Model:
    """Return `model` with its innermost one metered, so that pauses between attempts hold no slot."""
    inner = inner_model(model)
    if inner is None or not is_dataclass(model):
        return meter(model)
    parts: dict[str, Any] = {"model": _meter_innermost(inner, meter, idle, waited_for)}
    if isinstance(model, RetryingModel | BatchModel):
        parts["idle"] = idle
    if isinstance(model, RetryingModel):
        parts["waited_for"] = waited_for
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
    """`model`, called only while the breaker of `endpoint` admits it, and again for `patience_s` while it
    fails.

    Only failures that may pass are waited for, with announced pauses that grow. An address that never took a
    connection is not: it is probably wrong. A request that the endpoint may have received is repeated with a
    notice, because it may be paid for twice. Once an attempt has streamed text, further ones are not
    streamed, so that no reader sees a piece twice.
    """

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises the model's error, or `DependencyError` after waiting."""
        stream = Stream(on_delta)
        until, announced, pause = math.inf, "", _FIRST_PAUSE_S
        clock = asyncio.get_running_loop().time
        while True:
            try:
                answer = await self._once(request, stream)
            except RunError as error:
                failed_at = clock()
                until = min(until, failed_at + self._patience(error))
                wait = self._pause(error, pause)
                if wait is None:
                    raise
                if failed_at + wait > until:
                    raise self.endpoint.error() from error
                announced = self._announce(error, wait, announced)
            else:
                if announced:
                    self.emit(Progress(text=""))
                return answer
            if stream.begun:
                stream.mute()
            with self.idle.backing_off():
                await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _patience(self, error: RunError) -> float:
        """Return the seconds to wait at most; a pause that the provider asks for is always kept."""
        wished = (error.retry_after_s if isinstance(error, ModelError) else None) or 0.0
        return max(self.patience_s, wished) if wished <= LONGEST_WAIT_S else self.patience_s

    def _announce(self, error: RunError, wait: float, announced: str) -> str:
        """Tell the run what it waits for, unless that was `announced`; return the text."""
        name = self.endpoint.name
        if isinstance(error, ModelError) and error.received is None:
            notice = (
                f"{name} may have received a request that it did not answer: it is sent again, and may be "
                f"paid for twice ({one_line(str(error), 200)})"
            )
            self.emit(Progress(text=notice, lasting=True))
        text = f"waiting for {name}, next attempt in {format_duration(wait)}: {self.endpoint.health.reason}"
        if text != announced:
            self.emit(Progress(text=text))
        return text

    def waits_for(self, error: RunError) -> bool:
        """Return whether a call that failed with `error` is made again here, as long as the time allows."""
        if self.patience_s <= 0 or classify_failure(error) not in RECOVERABLE or _rate_limited(error):
            return False
        there = isinstance(error, ModelError) and error.received is not False
        return there or self.endpoint.health.was_ready

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
        if not self.waits_for(error):
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
class _Silence:
    """What a run is told of an endpoint that took a request and sends nothing."""

    endpoint: str
    stream: Stream
    emit: Emit
    told: bool = False

    def tell(self) -> None:
        """Say that nothing has come, if that is so."""
        if self.stream.heard:
            return
        self.told = True
        self.emit(Progress(text=f"{self.endpoint} has not answered for {_SILENCE_S:g} s, waiting"))

    def end(self) -> None:
        """Take the text back."""
        if self.told:
            self.emit(Progress(text=""))


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
    before_call: Callable[[Model], None] | None = None

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises the model's own error."""
        stream = Stream(on_delta)
        turns, refused_at = self.endpoint.turns, math.inf
        waiting = self.idle.queueing
        await self._prepare()
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

    async def _prepare(self) -> None:
        """Have the model load what a process loads once."""
        if isinstance(self.model, PreparableModel) and not self.model.ready:
            self.emit(Progress(text=self.model.preparing))
            # It is no time of this call.
            with self.idle.queueing():
                await self.model.prepare()
            self.emit(Progress(text=""))
        if self.before_call is not None:
            self.before_call(self.model)

    async def _in_time(self, request: ModelRequest, stream: Stream) -> ModelAnswer:
        silence = _Silence(self.endpoint.name, stream, self.emit)
        timer = asyncio.get_running_loop().call_later(_SILENCE_S, silence.tell)
        try:
            async with asyncio.timeout(self.call_s) as bound:
                return await self.model(request, stream)
        except TimeoutError as error:
            # A timeout of the model's own client is an error of the model, not of our bound.
            if not bound.expired():
                raise
            msg = (
                f"{self.name}: no whole answer from {self.endpoint.name} within {self.call_s:g} s "
                "(setting model_seconds): it hangs or is slow"
            )
            raise ModelError(msg, transient=True, received=None) from error
        finally:
            timer.cancel()
            silence.end()

    def _waits(self, error: ModelError, refused_at: float) -> bool:
        throttle = self.endpoint.turns.throttle
        until = max(refused_at, throttle.succeeded_at) + self.patience_s
        return (
            error.retry_after_s or 0.0
        ) <= LONGEST_WAIT_S and self.endpoint.now + throttle.retry_in <= until


def _rate_limited(error: BaseException) -> TypeGuard[ModelError]:
    return isinstance(error, ModelError) and error.rate_limited
