"""Layers around a tool call: order in the turn, approval and time limit; and their composition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Call, Danger, Problem, Result
from kestrel_lab.core.errors import KestrelError, RunError, Signal, error_text, stops_task
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.core.protocols import Handler, Middleware
from kestrel_lab.host.user import decider


class TurnOrder:
    """Lets a call start once every earlier call that it could clash with has ended.

    Two calls clash unless both are in `together`. Approval comes before this layer, so all questions of
    a turn are asked at once while only the running is ordered. A call that clashes with a
    postponed one is postponed too.

    Calls in `alone` hold `lock`, which other turns share, from their start until `end`.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        together: Collection[str],
        alone: Collection[str] = (),
        lock: asyncio.Lock | None = None,
    ) -> None:
        self._alone, self._lock = alone, lock
        self._has: set[str] = set()
        self._left: dict[str, Signal] = {}
        self._before = {
            call.id: [
                earlier.id
                for earlier in calls[:place]
                if not (call.id in together and earlier.id in together)
            ]
            for place, call in enumerate(calls)
            if place
        }
        self._ended = {earlier: asyncio.Event() for earlier in set().union(*self._before.values())}
        """Calls that others wait for."""

    @property
    def matters(self) -> bool:
        """True if a call waits for another of this turn or of another step."""
        return bool(self._ended or self._alone)

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Wait for this call's place, then proceed; raises the signal of an earlier call that was left."""
        alone = self._lock is not None and call.id in self._alone
        before = self._before.get(call.id)
        if not before and not alone:
            return await proceed(call)
        asked = time.perf_counter()
        # In the order of the turn; the lock comes last, so nobody holds it while waiting for another call.
        for earlier in before or ():
            await self._ended[earlier].wait()
            if earlier in self._left:
                raise self._left[earlier]
        if self._lock is not None and alone:
            await self._lock.acquire()
            self._has.add(call.id)
        queued = time.perf_counter() - asked
        return replace(await proceed(call), queued=queued)

    def leave(self, call: Call, signal: Signal) -> None:
        """Record that `call` was postponed, and the signal that later calls raise."""
        self._left[call.id] = signal

    def end(self, call: Call) -> None:
        """Record that `call` ended, in any way."""
        if self._lock is not None and call.id in self._has:
            self._has.discard(call.id)
            self._lock.release()
        if (ended := self._ended.get(call.id)) is not None:
            ended.set()


Decide = Callable[[Call], Awaitable[ApprovalGiven | None]]
"""The decision on a call; `None` when none is needed."""


class Approval(Struct, frozen=True):
    """Ask `decide` before proceeding; a person may have changed the arguments."""

    decide: Decide

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Proceed once approved; a denied call is answered with the reason, a question with the person's
        words.
        """
        decision = await self.decide(call)
        if decision is None:
            return await proceed(call)
        if not decision.granted:
            return Result(error=_denial(call, decision))
        if decision.answer is not None:
            return Result(value=decision.answer)
        if decision.args is None:
            if decision.sandbox:
                call = replace(call, sandbox=decision.sandbox, danger=Danger[decision.danger])
            return await proceed(replace(call, approved_by=_decision_text(decision)))
        # A preview is of the model's arguments: edited code has to run.
        sandbox = IN_KERNEL if call.sandbox == PREVIEWED else call.sandbox
        return await proceed(
            replace(call, args=decision.args, sandbox=sandbox, approved_by=_decision_text(decision))
        )


def _decision_text(decision: ApprovalGiven) -> str:
    because = f": {decision.reason}" if decision.reason and decision.how != "policy" else ""
    return f"{decision.by}{because}"


def _denial(call: Call, decision: ApprovalGiven) -> Problem:
    because = f": {decision.reason}" if decision.reason else ""
    if call.attempt > 1:
        text = (
            f"an earlier session ended while {call.target} ran; whether it took effect is not known, "
            f"and {decider(decision.by)} "
            f"chose not to run it again{because}. Look at the state of things before going on."
        )
        return Problem(kind="unknown_outcome", message=text)
    text = (
        f"{call.target} was denied by {decider(decision.by)}{because}. Do not repeat this call; find another "
        "way or explain what is needed."
    )
    return Problem(kind="denied", message=text)


@dataclass(frozen=True, slots=True)
class Timeout:
    """Bounds each call by the seconds that `allowance` returns; `None` is no bound."""

    allowance: Callable[[Call], float | None]
    in_thread: Callable[[Call], bool] = lambda _call: False
    """True if a call runs in a thread: it cannot be stopped and is abandoned at the limit."""

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Proceed, for so long at most."""
        seconds = self.allowance(call)
        if seconds is None:
            return await proceed(call)
        try:
            async with asyncio.timeout(seconds) as bound:
                return await proceed(call)
        except TimeoutError:
            # Not our limit: the tool itself raised it.
            if not bound.expired():
                raise
            text = f"{call.target} was stopped after {seconds:g} s"
            if self.in_thread(call):
                text = (
                    f"{call.target} did not end within {seconds:g} s and was given up; it cannot be "
                    "stopped, so it may still "
                    "go on in the background and take effect"
                )
            return Result(error=Problem(kind="timeout", message=text, transient=True), seconds=seconds)


class GuardedLayer(Struct, frozen=True):
    """A middleware of the user's. What it raises itself, or returns in place of a result, is a `RunError`
    that names it; an error of what it wraps passes through it unchanged.
    """

    layer: Middleware

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Answer the call; raises `RunError`."""
        name = getattr(self.layer, "__name__", type(self.layer).__name__)
        passing: BaseException | None = None

        async def proceed_within(inner: Call) -> Result:
            nonlocal passing
            try:
                return await proceed(inner)
            except BaseException as error:
                passing = error
                raise

        try:
            result: object = await self.layer(call, proceed_within)
        except BaseException as error:
            if error is passing or isinstance(error, KestrelError) or stops_task(error):
                raise
            raise RunError(f"the middleware {name!r} failed: {error_text(error)}") from error
        if not isinstance(result, Result):
            raise RunError(
                f"the middleware {name!r} returned a value of type {type(result).__name__} for "
                f"{call.target}; it has to return the result of proceed(call), or a Result of its own"
            )
        return result


def compose_layers(handler: Handler, *layers: Middleware) -> Handler:
    """Wrap `handler` in `layers`; the first one listed sees the call first."""
    for layer in reversed(layers):
        handler = _wrap_layer(layer, handler)
    return handler


def _wrap_layer(layer: Middleware, proceed: Handler) -> Handler:
    return lambda call: layer(call, proceed)
