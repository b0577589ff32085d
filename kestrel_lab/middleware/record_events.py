"""Calls become events: a model call when asked and answered, a tool call when it begins and when it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kestrel_lab.core.calls import Call, Problem, Result
from kestrel_lab.core.errors import DependencyError, ModelError, RunError
from kestrel_lab.core.events.union import (
    Event,
    ModelAnswered,
    ModelCalled,
    ModelEscalated,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart, ToolRequest, TriedModel
from kestrel_lab.core.protocols import Handler
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.core.usage import IdleTime

Emit = Callable[[Event], Any]


def _return_false(_: Call) -> bool:
    return False


def _request_fields(request: ToolRequest) -> dict[str, Json]:
    body: dict[str, Json] = {
        "id": request.id,
        "name": request.name,
        "args": request.args,
        "problem": request.problem,
    }
    return body | ({"signature": request.signature} if request.signature else {})


class RecordAnswer(Struct, frozen=True):
    """The outermost layer of a tool call: it records one `tool_answered`, whatever happened."""

    emit: Emit
    render: Callable[[Call, Any], str]
    max_chars: Callable[[Call], int]
    begun: Callable[[Call], bool]
    """True if the tool was started."""
    keeps: Callable[[Call], bool] = _return_false
    """True if the run itself uses the answer as JSON."""
    store: Callable[[str], tuple[str, int]] | None = None
    """Keeps a text whole; returns its name, empty if it could not, and how many characters are kept."""
    interrupted: Callable[[], bool] = bool
    """True if the run continues later when the call is cancelled; the resumed run handles the call."""
    reader: str = ""
    """Tool for reading on in a stored answer; empty if the model has none."""

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Proceed and record the answer; a signal, an interrupt or a log error leaves the call open."""
        try:
            result = await proceed(call)
        except asyncio.CancelledError:
            if self.interrupted():
                raise
            how = "while it ran; it may have taken effect in part" if self.begun(call) else "before it began"
            problem = Problem(kind="cancelled", message=f"{call.target} was cancelled {how}")
            self.answered(call, Result(error=problem))
            raise
        self.answered(call, result)
        return result

    def answered(self, call: Call, result: Result) -> None:
        """Record the answer of a call."""
        failed = result.error is not None and result.value is None
        whole = (
            f"error: {result.error.message}"
            if failed and result.error is not None
            else self.render(call, result.value)
        )
        most = self.max_chars(call)
        text, cut = head_tail(whole, most)
        name, chars = result.whole, result.chars
        if cut and not name and self.store is not None and not self.keeps(call):
            name, chars = self.store(whole)
            text += self._kept_whole(name, chars, most * 2 // 3, len(whole)) if name else ""
        elif name:
            text += self._kept_whole(name, chars, 0, chars)
        if result.note:
            text += f"\n\n[{result.note}]"
        self.emit(
            ToolAnswered(
                call=call.id,
                step=call.step,
                tool=call.target,
                text=text,
                error=None if result.error is None else result.error.as_json(),
                seconds=result.seconds,
                queued=result.queued,
                cached=result.cached,
                cacheable=result.cacheable,
                truncated=cut or result.truncated or bool(name),
                whole=name,
                chars=chars,
                knows={**result.knows},
                changed=result.changed,
                touched=result.touched,
                before={**result.before},
                images=self._kept_images(result.images) if result.images else [],
                value=result.value
                if not (cut or isinstance(result.value, str)) or self.keeps(call)
                else None,
            )
        )

    def _kept_images(self, images: tuple[ImagePart, ...]) -> list[dict[str, Json]]:
        """Store the images next to the log; return what the event keeps of them."""
        return (
            [] if self.store is None else [image.as_json() for image in images if self.store(image.data)[0]]
        )

    def _kept_whole(self, name: str, chars: int, offset: int, of: int) -> str:
        """Return the note for the model about a text that is kept whole."""
        if not self.reader:
            return ""
        kept = (
            f"{chars:,} characters in all"
            if of == chars
            else f"{of:,} characters, of which the first {chars:,} are kept"
        )
        return (
            f'\n[{kept}; read on with {self.reader}(id="{name}", '
            f"offset={min(offset, max(chars - 1, 0))}), or find something in it with a pattern]"
        )


class RecordIntent(Struct, frozen=True):
    """Innermost around a tool call: `tool_called` is written before the tool begins.

    A call that is not `pure` waits until that event is on disk, so that after a crash no effect is
    without a trace.
    """

    emit: Emit
    on_disk: Callable[[], Awaitable[None]]

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Record that the call begins, then proceed."""
        self.emit(
            ToolCalled(
                call=call.id,
                step=call.step,
                tool=call.target,
                args=call.args,
                danger=call.danger.name,
                effect=call.effect,
                attempt=call.attempt,
                sandbox=call.sandbox,
                leave=call.approved_by,
            )
        )
        if call.effect != "pure":
            await self.on_disk()
        began = time.perf_counter()
        result = await proceed(call)
        return result if result.seconds else replace(result, seconds=time.perf_counter() - began)


class RecordModel(Struct, frozen=True):
    """Around a model call: `model_called`, then `model_answered` with what it consumed or why it failed.

    Each model that was asked before the one that answered has a `model_answered` of its own, with its error
    and what it consumed, and a `model_escalated`.
    """

    emit: Emit
    cycle: int
    idle: IdleTime = field(default_factory=IdleTime)
    """Waiting time of the call, if its maker reports it."""

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Record the question, proceed, record the answer."""
        request = call.request
        messages, tools = (len(request.messages), len(request.tools)) if request is not None else (0, 0)
        self.emit(
            ModelCalled(
                call=call.id,
                step=call.step,
                model=call.target,
                cycle=self.cycle,
                messages=messages,
                tools=tools,
            )
        )
        began = time.perf_counter()
        try:
            result = await proceed(call)
        except (RunError, asyncio.CancelledError) as error:
            stopped = isinstance(error, asyncio.CancelledError)
            kind, text = ("cancelled", "the call was cancelled") if stopped else ("failed", str(error))
            self._tried(call, error.tried if isinstance(error, ModelError | DependencyError) else ())
            problem = Problem(kind=kind, message=text).as_json()
            seconds = time.perf_counter() - began
            failed = ModelAnswered(
                call=call.id, step=call.step, model=call.target, error=problem, seconds=seconds
            )
            self.emit(replace(failed, queued=self.idle.queued, backoff=self.idle.backoff))
            raise
        answer = result.answer
        if answer is not None:
            usage = answer.usage
            self._tried(call, answer.tried)
            self.emit(
                ModelAnswered(
                    call=call.id,
                    step=call.step,
                    model=answer.model or call.target,
                    text=answer.text,
                    calls=[_request_fields(one) for one in answer.calls],
                    tokens_in=usage.tokens_in,
                    tokens_out=usage.tokens_out,
                    tokens_cached=usage.tokens_cached,
                    tokens_cache_written=usage.tokens_cache_written,
                    tokens_reasoning=usage.tokens_reasoning,
                    thinking=[part.as_json() for part in answer.thinking] if answer.thinking else [],
                    metered=not usage.unmetered,
                    cost_usd=None if usage.unpriced else usage.cost_usd,
                    seconds=time.perf_counter() - began,
                    queued=self.idle.queued,
                    backoff=self.idle.backoff,
                    finish=answer.finish,
                    cached=result.cached,
                    routed=answer.routed,
                    replayed=answer.replayed,
                )
            )
        return result

    def _tried(self, call: Call, tried: tuple[TriedModel, ...]) -> None:
        for one in tried:
            used = one.usage
            self.emit(
                ModelAnswered(
                    call=call.id,
                    step=call.step,
                    model=one.model,
                    error=Problem(kind="escalated", message=f"{one.model}: {one.reason}").as_json(),
                    tokens_in=used.tokens_in,
                    tokens_out=used.tokens_out,
                    cost_usd=None if used.unpriced else used.cost_usd,
                    tokens_cached=used.tokens_cached,
                    tokens_cache_written=used.tokens_cache_written,
                    tokens_reasoning=used.tokens_reasoning,
                )
            )
            self.emit(ModelEscalated(step=call.step, source=one.model, target=one.then, reason=one.reason))
