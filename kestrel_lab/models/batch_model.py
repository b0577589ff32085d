"""A model whose requests wait until somebody sends them in one batch with others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.core.usage import IdleTime
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.wrapper import ModelWrapper, inner_model, leaf_models

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import Model, OnDelta

Ask = Callable[[LiteLLMModel, "ModelRequest"], "Awaitable[ModelAnswer | None]"]
"""Returns the answer of a batch; `None` if the model is to be asked directly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchModel(ModelWrapper):
    """`model`, asked by `ask` in a batch. The time until the answer is idle time: no limit counts it."""

    model: Model
    leaf: LiteLLMModel
    """The same model without anything around it."""
    ask: Ask = field(repr=False)
    idle: IdleTime = field(default_factory=IdleTime)

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises the model's error."""
        with self.idle.queueing():
            answer = await self.ask(self.leaf, request)
        if answer is None:
            return await self.model(request, on_delta)
        on_delta(answer.text)
        return answer


def in_batches(model: Model, ask: Ask) -> Model:
    """Return `model` with each model of a provider in it asked by `ask`; scripts, local models and agents
    stay as they are.
    """
    if isinstance(model, LiteLLMModel):
        return BatchModel(model=model, leaf=model, ask=ask)
    if callable(over := getattr(model, "over", None)):
        return cast("Model", over(lambda one: in_batches(one, ask)))
    parts: dict[str, Any] = {}
    if several := getattr(model, "models", None):
        parts = {"models": tuple(in_batches(one, ask) for one in several)}
    elif (inner := inner_model(model)) is not None:
        parts = {"model": in_batches(inner, ask)}
    return cast("Model", replace(model, **parts)) if parts and is_dataclass(model) else model


def provider_models(model: Model) -> Iterator[LiteLLMModel]:
    """Yield the models of providers in `model`."""
    return (leaf for leaf in leaf_models(model) if isinstance(leaf, LiteLLMModel))
