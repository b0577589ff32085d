"""Models with web search: `provider/model+web`, if litellm's table says that the model can."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.models.litellm.model import LiteLLMModel, searches_web
from kestrel_lab.models.litellm.web_sources import with_sources
from kestrel_lab.models.wrapper import ModelWrapper, drop_text

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import Model, OnDelta

WEB: Final = "+web"
"""The end of the name of a model that searches the web before it answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroundedModel(ModelWrapper):
    """`model` with its provider's web search; each answer ends with the provider's sources, or says there are
    none.

    See `models.litellm.web_sources` for the form.
    """

    model: Model

    @property
    def name(self) -> str:
        """The wrapped model's name and `+web`."""
        return f"{self.model.name}{WEB}"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer, not streamed, because the provider names the pages with the whole answer."""
        answer = await self.model(replace(request, stream=False), drop_text)
        if answer.calls:
            return answer
        text = with_sources(answer.text, answer.sources)
        on_delta(text)
        return replace(answer, text=text)


def with_web_search(model: LiteLLMModel) -> GroundedModel:
    """Return `model` with its provider's web search; raises `UsageError` for a model not known to have it."""
    if model.api_base is not None:
        raise UsageError(
            f"{model.name}{WEB}: whether the server at {model.api_base} searches the web is not known; "
            f"leave {WEB} out"
        )
    if not searches_web(model.name):
        raise UsageError(
            f"litellm can ask for no web search of the model {model.name!r}: leave {WEB} (or "
            "--grounded) out, or name a model that has one"
        )
    return GroundedModel(
        model=replace(model, extra={**model.extra, "web_search_options": {"search_context_size": "medium"}})
    )
