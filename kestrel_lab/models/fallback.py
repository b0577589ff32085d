"""Several models as one: the next one is asked when one fails or its answer will not do.

Spelled `"a > b"` wherever a model is named. What will not do is told from facts about an answer (it is empty,
cut off, or asks for a tool with arguments that cannot be read), never guessed from what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import DependencyError, ModelError
from kestrel_lab.core.messages import ModelAnswer, Tried
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelRequest
    from kestrel_lab.core.protocols import Model, ModelKind, OnDelta

BETWEEN = " > "
"""Stands between the names of models, first to last."""
Unsure = Callable[[ModelAnswer], str]
"""Why an answer will not do; empty when it will."""


def empty(answer: ModelAnswer) -> str:
    """An answer that says nothing and asks for nothing."""
    return "" if answer.calls or answer.text.strip() else "its answer is empty"


def cut_off(answer: ModelAnswer) -> str:
    """An answer that ends at the model's output limit."""
    return "its answer was cut off at its output limit" if answer.finish == "length" else ""


def unreadable(answer: ModelAnswer) -> str:
    """An answer that asks for a tool with arguments that cannot be read."""
    return next((f"it asked for {call.name} with arguments that cannot be read" for call in answer.calls if call.problem), "")


def plainly_unsure(answer: ModelAnswer) -> str:
    """The first of `empty`, `cut_off` and `unreadable` that has something to say."""
    return empty(answer) or cut_off(answer) or unreadable(answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class EscalatingModel:
    """`models`, asked first to last until one gives an answer that will do; the last one's answer always will.

    An error of the caller's side (a key, a request that is refused) is raised: another model would not mend it.
    Where all later models fail, the last answer that was given stands. As long as another model may still
    take over nothing is streamed; an answer that is taken comes whole.
    """

    models: tuple[Model, ...]
    unsure: Unsure = plainly_unsure

    @property
    def name(self) -> str:
        """All names, first to last."""
        return BETWEEN.join(model.name for model in self.models)

    @property
    def kind(self) -> ModelKind:
        """`real` only if all of them are."""
        return next((model.kind for model in self.models if model.kind != "real"), "real")

    @property
    def native_tools(self) -> bool:
        """Whether all of them call tools themselves."""
        return all(getattr(model, "native_tools", True) for model in self.models)

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; `tried` says who was asked before, and why they were not enough. Raises what the last one raises."""
        tried: list[Tried] = []
        stands: tuple[int, ModelAnswer] | None = None
        *others, last = self.models
        for model, following in zip(others, self.models[1:], strict=True):
            try:
                answer = await model(replace(request, stream=False), _unheard)
            except (ModelError, DependencyError) as error:
                if isinstance(error, ModelError) and error.caller:
                    raise _with(error, tried) from error
                tried.append(Tried(model=model.name, reason=one_line(str(error), 300), then=following.name))
                continue
            reason = self.unsure(answer)
            if not reason:
                return _said(answer, tried, on_delta)
            stands = (len(tried), answer)
            tried.append(Tried(model=model.name, reason=reason, then=following.name, usage=answer.usage))
        try:
            return replace(await last(request, on_delta), tried=(*tried,))
        except (ModelError, DependencyError) as error:
            if stands is None or (isinstance(error, ModelError) and error.caller):
                raise _with(error, tried) from error
            place, answer = stands
            kept = replace(tried[place], usage=Usage())  # counted with the answer that it gave
            tried = [*tried[:place], kept, *tried[place + 1 :]]
            tried.append(Tried(model=last.name, reason=one_line(str(error), 300), then=kept.model))
            return _said(answer, tried, on_delta)


def _unheard(_: str) -> None:
    """Nobody listens while another model may take over."""


def _said(answer: ModelAnswer, tried: list[Tried], on_delta: OnDelta) -> ModelAnswer:
    if answer.text:
        on_delta(answer.text)
    return replace(answer, tried=(*tried,))


def _with(error: ModelError | DependencyError, tried: list[Tried]) -> ModelError | DependencyError:
    """`error` with the names and reasons of those that were asked before."""
    if not tried:
        return error
    before = "; ".join(f"{one.model}: {one.reason}" for one in tried)
    message = f"{error} (asked before: {before})"
    if isinstance(error, DependencyError):
        return DependencyError(error.dependency, error.state, message, retry_in_s=error.retry_in_s, tried=(*tried,))
    return ModelError(
        message,
        transient=error.transient,
        retry_after_s=error.retry_after_s,
        caller=error.caller,
        rate_limited=error.rate_limited,
        tried=(*tried,),
    )
