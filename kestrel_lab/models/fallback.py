"""Fallback: several models as one, where the next model is called when one fails or gives an unusable answer.

Spelled `"a > b"` wherever a model is named. An answer is unusable when it is empty, cut off, or calls a tool
with arguments that cannot be parsed; its content is never judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import DependencyError, ModelError, UsageError
from kestrel_lab.core.messages import ModelAnswer, TriedModel
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.models.wrapper import drop_text

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelRequest
    from kestrel_lab.core.protocols import Model, ModelKind, OnDelta

BETWEEN = " > "
"""The separator between the names of models, first to last."""
Unsure = Callable[[ModelAnswer], str]
"""Returns why an answer is unusable; empty when it is not."""


def empty(answer: ModelAnswer) -> str:
    """Refuse an answer without text and tool calls."""
    return "" if answer.calls or answer.text.strip() else "its answer is empty"


def cut_off(answer: ModelAnswer) -> str:
    """Refuse an answer that ends at the model's output limit."""
    return "its answer was cut off at its output limit" if answer.finish == "length" else ""


def unreadable(answer: ModelAnswer) -> str:
    """Refuse an answer that calls a tool with arguments that cannot be parsed."""
    return next(
        (
            f"it asked for {call.name} with arguments that cannot be read"
            for call in answer.calls
            if call.problem
        ),
        "",
    )


def plainly_unsure(answer: ModelAnswer) -> str:
    """Refuse an answer by the first of `empty`, `cut_off` and `unreadable` that applies."""
    return empty(answer) or cut_off(answer) or unreadable(answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class EscalatingModel:
    """Calls `models` in order until one gives a usable answer; the last answer is always taken.

    Errors on the caller's side (key, refused request) are raised, as another model would not help. If all
    later models fail, the last unusable answer is returned. Only the last model streams.
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

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; `tried` of the answer names the models before it and why they did not serve.

        Raises the last model's error.
        """
        tried: list[TriedModel] = []
        usable: tuple[int, ModelAnswer] | None = None
        """The last answer that was not sure enough, and its place in `tried`."""
        *others, last = self.models
        for model, following in zip(others, self.models[1:], strict=True):
            try:
                answer = await model(replace(request, stream=False), drop_text)
            except (ModelError, DependencyError) as error:
                if isinstance(error, ModelError) and error.caller:
                    raise _error_with_tried(error, tried) from error
                tried.append(
                    TriedModel(model=model.name, reason=one_line(str(error), 300), then=following.name)
                )
                continue
            reason = self.unsure(answer)
            if not reason:
                return _with_tried(answer, tried, on_delta)
            usable = (len(tried), answer)
            tried.append(TriedModel(model=model.name, reason=reason, then=following.name, usage=answer.usage))
        try:
            return replace(await last(request, on_delta), tried=(*tried,))
        except (ModelError, DependencyError) as error:
            if usable is None or (isinstance(error, ModelError) and error.caller):
                raise _error_with_tried(error, tried) from error
            place, answer = usable
            # Its usage is counted with the answer, which is returned after all; here it would count twice.
            kept = replace(tried[place], usage=Usage())
            tried = [*tried[:place], kept, *tried[place + 1 :]]
            tried.append(TriedModel(model=last.name, reason=one_line(str(error), 300), then=kept.model))
            return _with_tried(answer, tried, on_delta)


def _with_tried(answer: ModelAnswer, tried: list[TriedModel], on_delta: OnDelta) -> ModelAnswer:
    if answer.text:
        on_delta(answer.text)
    return replace(answer, tried=(*tried,))


def _error_with_tried(
    error: ModelError | DependencyError, tried: list[TriedModel]
) -> ModelError | DependencyError:
    """Return `error` with the names of the models that were tried before, and why they did not serve."""
    if not tried:
        return error
    before = "; ".join(f"{one.model}: {one.reason}" for one in tried)
    message = f"{error} (asked before: {before})"
    if isinstance(error, DependencyError):
        return DependencyError(
            error.dependency, error.state, message, retry_in_s=error.retry_in_s, tried=(*tried,)
        )
    return ModelError(
        message,
        transient=error.transient,
        retry_after_s=error.retry_after_s,
        caller=error.caller,
        rate_limited=error.rate_limited,
        received=error.received,
        tried=(*tried,),
    )


def names_several(spec: str) -> bool:
    """Return whether the name of a model is that of several, first to last."""
    return BETWEEN.strip() in spec.split()


def model_of_several(spec: str, choose: Callable[[str], Model]) -> EscalatingModel:
    """Return several models as one; `choose` finds each. Raises `UsageError` for a name that is empty or
    there twice.
    """
    names = [name.strip() for name in f" {spec} ".split(BETWEEN)]
    if "" in names or len(set(names)) < len(names):
        raise UsageError(f"{spec!r} must name different models, first to last: 'ollama/qwen3 > openai/gpt-5'")
    return EscalatingModel(models=tuple(choose(name) for name in names))
