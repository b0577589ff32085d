"""Models behind an API, called through litellm, which is imported by the first real call.

Importing litellm takes seconds and much memory. An own server that speaks the OpenAI protocol gets `messages` and `tools`
through `extra_body`: the bytes on the wire are the same, but the client does not walk through the whole conversation on every
turn. OpenAI itself is not called that way, because litellm must see the tools to send some models to another endpoint.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kestrel_lab.core.errors import KestrelError
from kestrel_lab.core.messages import ModelAnswer
from kestrel_lab.models.chat_format import CallPieces, from_wire, messages_to_wire, response_format, tools_to_wire
from kestrel_lab.models.litellm.cost import usage_of
from kestrel_lab.models.litellm.errors import model_error
from kestrel_lab.models.litellm.web_sources import Source, sources_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kestrel_lab.core.json_types import Json
    from kestrel_lab.core.messages import ModelRequest
    from kestrel_lab.core.protocols import ModelKind, OnDelta

_COMPATIBLE = ("openai/", "hosted_vllm/")


@dataclass(frozen=True, slots=True)
class LiteLLMModel:
    """The model that litellm calls `name` (`provider/model`), without retries: see `with_retries`.

    Settings that a provider does not know (a seed, a temperature) are left out. Token counts are the provider's; where it
    sends none they are estimated. A model that cannot call tools goes into `TextToolModel`.
    """

    name: str
    api_base: str | None = field(default=None, kw_only=True)
    """Address of an own server, up to and including `/v1`."""
    api_key: str | None = field(default=None, kw_only=True, repr=False)
    """The API key; by default litellm reads the provider's environment variable."""
    temperature: float | None = field(default=None, kw_only=True)
    """Used where a request asks for none."""
    timeout_s: float = field(default=120.0, kw_only=True)
    """Seconds of silence after which a call fails."""
    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Further arguments of litellm's `acompletion`, e.g. `{"reasoning_effort": "low"}`."""

    @property
    def context_tokens(self) -> int | None:
        """Tokens of its context by litellm's table; `None` for a model that is not in it, and before the first call has loaded the table."""
        if not _litellm.cache_info().currsize:
            return None
        table = _litellm().model_cost
        known = table.get(self.name) or table.get(self.name.partition("/")[2]) or {}
        return known.get("max_input_tokens") or None

    @property
    def kind(self) -> ModelKind:
        """A real model."""
        return "real"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; text goes to `on_delta` as it comes, or whole if the request does not stream. Raises `ModelError`."""
        # Importing litellm takes seconds, so the first call does it in a thread.
        litellm = _litellm() if _litellm.cache_info().currsize else await asyncio.to_thread(_litellm)
        incoming = _Incoming(on_delta)
        try:
            answered = await litellm.acompletion(**self._arguments(request))
            if request.stream:
                await incoming.follow(answered)
            else:
                incoming.take(answered)
        except KestrelError:
            raise
        except Exception as error:
            provider = self.name.partition("/")[0].upper()
            raise model_error(error, model=self.name, api_base=self.api_base, key_name=f"{provider}_API_KEY") from error
        return ModelAnswer(
            text=incoming.text,
            calls=from_wire(incoming.calls.requests(), request.tools),
            usage=usage_of(litellm, self.name, request, incoming.text, incoming.usage),
            model=incoming.model or self.name,
            finish=incoming.finish,
            sources=incoming.sources,
        )

    @property
    def _compatible(self) -> bool:
        return self.api_base is not None and self.name.startswith(_COMPATIBLE) and urlsplit(self.api_base).hostname != "api.openai.com"

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        messages = messages_to_wire(request.messages)
        tools = tools_to_wire(request.tools)
        counted: dict[str, Json] = {"stream_options": {"include_usage": True}} if request.stream else {}
        arguments: dict[str, Any] = {
            "model": self.name,
            "stream": request.stream,
            "timeout": self.timeout_s,
            "max_retries": 0,
            "drop_params": True,
            # Otherwise litellm imports its MCP gateway for any request that offers tools.
            "_skip_mcp_handler": True,
            **_settings(request, self.temperature),
            **self.extra,
        }
        if self.api_base is not None:
            arguments["api_base"] = self.api_base
        if self.api_key is not None or self._compatible:
            # The client insists on a key even where the server does not.
            arguments["api_key"] = self.api_key or "none"
        if not self._compatible:
            return arguments | {"messages": messages, **counted, **({"tools": tools} if tools else {})}
        body: dict[str, Json] = {"messages": [*messages], **({"tools": [*tools]} if tools else {}), **counted}
        body |= self.extra.get("extra_body", {})
        return arguments | {"messages": [{"role": "user", "content": ""}], "extra_body": body}


class _Incoming:
    """The part of an answer that has come in."""

    def __init__(self, on_delta: OnDelta) -> None:
        self.calls = CallPieces()
        self.finish = "stop"
        self.model = ""
        self.usage: Any = None
        self.sources: tuple[Source, ...] = ()
        self._on_delta = on_delta
        self._pieces: list[str] = []
        self._last: Any = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def follow(self, stream: Any) -> None:
        """Take the chunks of a stream as they come."""
        try:
            async for chunk in stream:
                self.add(chunk)
            # Usage that was asked for through `extra_body` is added by litellm when a stream is over.
            self._count(getattr(self._last, "_hidden_params", {}).get("usage"))
        finally:
            await stream.aclose()

    def take(self, answer: Any) -> None:
        """Take an answer that came whole."""
        self.model = answer.model or self.model
        self.sources = sources_of(answer)
        self._count(getattr(answer, "usage", None))
        for choice in answer.choices[:1]:
            self._add(choice, choice.message)

    def add(self, chunk: Any) -> None:
        """Take one chunk of a stream."""
        self._last = chunk
        self.model = chunk.model or self.model
        self._count(getattr(chunk, "usage", None))
        for choice in chunk.choices[:1]:
            self._add(choice, choice.delta)

    def _add(self, choice: Any, said: Any) -> None:
        self.finish = choice.finish_reason or self.finish
        if text := said.content:
            self._pieces.append(text)
            self._on_delta(text)
        for place, call in enumerate(said.tool_calls or ()):  # only the calls of a stream have an index
            self.calls.add(getattr(call, "index", place), call.id, call.function.name, call.function.arguments)

    def _count(self, usage: Any) -> None:
        # All zero means that the server sent none.
        if usage is not None and usage.total_tokens:
            self.usage = usage


def litellm_providers() -> frozenset[str]:
    """Return the prefixes of all providers that litellm knows; imports litellm."""
    return frozenset(str(getattr(provider, "value", provider)) for provider in _litellm().provider_list)


def searches_web(name: str) -> bool:
    """Return whether the model `name` has a web search, and litellm sends the option to it; imports litellm.

    For some models with a web search litellm leaves the option out of the request: such a model would answer from memory.
    """
    litellm = _litellm()
    passed = litellm.get_supported_openai_params(model=name) or ()
    return bool(litellm.supports_web_search(model=name)) and "web_search_options" in passed


def _settings(request: ModelRequest, temperature: float | None) -> dict[str, Any]:
    """Return the settings of a request as arguments of litellm."""
    wanted = {
        "temperature": request.temperature if request.temperature is not None else temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "response_format": response_format(request.schema) if request.schema is not None else None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


@cache
def _litellm() -> Any:
    """Return litellm, quiet, with the price table it ships and without reading a `.env` file."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # In its default mode litellm loads the nearest `.env`: a workspace could set keys and addresses that way.
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    # A remark of pydantic's about litellm's own types, shown at the first call.
    warnings.filterwarnings("ignore", message="Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_hf_tokenizer_download = True
    return litellm
