"""Models that search the web themselves: `provider/model+web`, only where litellm's own table says that the model can."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.models.litellm.model import LiteLLMModel, searches_web
from kestrel_lab.models.litellm.web_sources import with_sources

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import Model, ModelKind, OnDelta

WEB: Final = "+web"
"""At the end of a model's name: it is to search the web before it answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroundedModel:
    """`model`, which searches the web; the pages that its provider names stand at the end of each answer.

    See `models.sources` for the form. An answer that names none says so.
    """

    model: Model

    @property
    def name(self) -> str:
        """The wrapped model's name and `+web`."""
        return f"{self.model.name}{WEB}"

    @property
    def kind(self) -> ModelKind:
        """The wrapped model's kind."""
        return self.model.kind

    @property
    def native_tools(self) -> bool:
        """Whether the wrapped model calls tools itself."""
        return bool(getattr(self.model, "native_tools", True))

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; whole and not in pieces, as the pages are told with the whole answer."""
        answer = await self.model(replace(request, stream=False), lambda _: None)
        if answer.calls:
            return answer
        text = with_sources(answer.text, answer.sources)
        on_delta(text)
        return replace(answer, text=text)


def grounded(model: LiteLLMModel) -> GroundedModel:
    """`model` with its own web search; raises `UsageError` for a model of which it is not known that it has one."""
    if model.api_base is not None:
        msg = f"{model.name}{WEB}: whether the server at {model.api_base} searches the web is not known; leave {WEB} out"
        raise UsageError(msg)
    if not searches_web(model.name):
        msg = (
            f"litellm can ask for no web search of the model {model.name!r}: leave {WEB} (or --grounded) out, or name a model that has one"
        )
        raise UsageError(msg)
    return GroundedModel(model=replace(model, extra={**model.extra, "web_search_options": {"search_context_size": "medium"}}))
