"""Models behind an API, called through litellm, which is imported by the first real call.

Importing litellm takes seconds and much memory. An own server that speaks the OpenAI protocol gets `messages`
and `tools` through `extra_body`: the bytes on the wire are the same, but the client does not walk through the
whole conversation on every turn. OpenAI itself is not called that way, because litellm must see the tools to
send some models to another endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from kestrel_lab.core.errors import KestrelError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.models.chat_format import Dialect, messages_to_wire, response_format, tools_to_wire
from kestrel_lab.models.litellm.cost import price_of, usage_of
from kestrel_lab.models.litellm.errors import model_error
from kestrel_lab.models.litellm.library import (
    close_clients_with_loop,
    import_litellm,
    is_loaded,
    litellm_library,
)
from kestrel_lab.models.litellm.response import Response, completion_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kestrel_lab.core.json_types import Json
    from kestrel_lab.core.messages import ModelAnswer
    from kestrel_lab.core.protocols import ModelKind, OnDelta


_COMPATIBLE = ("openai/", "hosted_vllm/")
_WANTS_REASONING = frozenset(
    {"dashscope", "deepseek", "minimax", "moonshot", "volcengine", "xiaomi_mimo", "zai"}
)
"""Providers whose models go on with their own `reasoning_content` in a conversation with tools, also behind
an own server that names them in its model's path. Others refuse a message that has it.
"""


@dataclass(frozen=True, slots=True)
class LiteLLMModel:
    """The model that litellm calls `name` (`provider/model`), without retries: see `with_retries`.

    Settings that a provider does not know (a seed, a temperature) are left out. Token counts are the
    provider's; where it sends none they are estimated. A model that cannot call tools goes into
    `TextToolModel`.
    """

    name: str
    api_base: str | None = field(default=None, kw_only=True)
    """Address of an own server, up to and including `/v1`."""
    api_key: str | None = field(default=None, kw_only=True, repr=False)
    """The API key; by default litellm reads the provider's environment variable."""
    temperature: float | None = field(default=None, kw_only=True)
    """Used if a request sets none."""
    timeout_s: float = field(default=120.0, kw_only=True)
    """Seconds of silence after which a call fails."""
    sees: bool | None = field(default=None, kw_only=True)
    """True if the model takes images; by default from litellm's table."""
    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Further arguments of litellm's `acompletion`, e.g. `{"reasoning_effort": "low"}`."""
    kind: ClassVar[ModelKind] = "real"
    preparing: ClassVar[str] = "loading litellm, once in this process"

    @property
    def context_tokens(self) -> int | None:
        """Tokens of its context by litellm's table; `None` for a model that is not in it, and before the
        first call has loaded the table.
        """
        if not is_loaded():
            return None
        table = litellm_library().model_cost
        known = table.get(self.name) or table.get(self.name.partition("/")[2]) or {}
        return known.get("max_input_tokens") or None

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; text goes to `on_delta` as it comes, or whole if the request does not stream.

        Raises `ModelError`.
        """
        await import_litellm()
        await close_clients_with_loop()
        litellm = litellm_library()
        incoming = Response(on_delta, signed=dialect_of(self.name).signed_thinking)
        try:
            if request.stream:
                await incoming.follow(await litellm.acompletion(**self._arguments(request)))
            else:
                incoming.take(await self._whole(litellm, request))
        except KestrelError:
            raise
        except Exception as error:
            provider = self.name.partition("/")[0].upper()
            raise model_error(
                error, model=self.name, api_base=self.api_base, key_name=f"{provider}_API_KEY"
            ) from error
        answer = incoming.answer(request)
        usage = usage_of(litellm, self.name, request, answer.text, incoming.usage)
        return replace(answer, usage=usage, model=incoming.model or self.name)

    @property
    def ready(self) -> bool:
        """True once litellm is imported."""
        return is_loaded()

    @property
    def priced(self) -> bool | None:
        """True if the cost of its calls can be counted; `None` before the first call has loaded litellm."""
        return _has_price(self.name) if is_loaded() else None

    async def prepare(self) -> None:
        """Return once litellm is imported."""
        await import_litellm()

    async def _whole(self, litellm: Any, request: ModelRequest) -> Any:
        """Return an unstreamed answer: litellm's object, or the server's JSON where litellm refuses it."""
        received: dict[str, Any] = {}

        def note(details: dict[str, Any]) -> None:
            received.update(body=details.get("original_response"))

        try:
            return await litellm.acompletion(**self._arguments(request), logger_fn=note)
        except (litellm.InternalServerError, litellm.APIConnectionError):
            # Litellm parses arguments of calls, and refuses what it cannot; here the model is told of it.
            completion = completion_of(received.get("body"))
            if completion is None:
                raise
            return completion

    @property
    def _sees(self) -> bool | None:
        return self.sees if self.sees is not None else _known_to_see(self.name)

    def dialect(self, request: ModelRequest) -> Dialect:
        """Return what the provider accepts besides text, for `request`."""
        own = dialect_of(self.name)
        # Writing to the provider's cache costs extra, and pays only if the prompt is sent again: that is, if
        # the conversation continues with tool calls.
        return replace(own, sees=self._sees, cache_marks=own.cache_marks and bool(request.tools))

    def settings(self, request: ModelRequest) -> dict[str, Any]:
        """Return the parameters of `request` that are set, in OpenAI's names."""
        temperature = request.temperature if request.temperature is not None else self.temperature
        if request.reasoning_effort not in (None, "none") and dialect_of(self.name).signed_thinking:
            # With thinking, Anthropic refuses any temperature but its default.
            temperature = None
        wanted = {
            "temperature": temperature,
            "top_p": request.top_p,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stop": [*request.stop] or None,
            "reasoning_effort": request.reasoning_effort,
            "response_format": request.response_format
            if request.schema is None
            else response_format(request.schema),
        }
        return {name: value for name, value in wanted.items() if value is not None}

    @property
    def _compatible(self) -> bool:
        return (
            self.api_base is not None
            and self.name.startswith(_COMPATIBLE)
            and urlsplit(self.api_base).hostname != "api.openai.com"
        )

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        dialect = self.dialect(request)
        messages = messages_to_wire(request.messages, dialect)
        tools = tools_to_wire(request.tools, dialect)
        counted: dict[str, Json] = {"stream_options": {"include_usage": True}} if request.stream else {}
        arguments: dict[str, Any] = {
            "model": self.name,
            "stream": request.stream,
            "timeout": request.timeout_s or self.timeout_s,
            "max_retries": 0,
            "drop_params": True,
            # Otherwise litellm imports its MCP gateway for any request that offers tools.
            "_skip_mcp_handler": True,
            **self.settings(request),
            **self.extra,
        }
        if self.api_base is not None:
            arguments["api_base"] = self.api_base
        if self.api_key is not None or self._compatible:
            # The client refuses to work without a key, even if the server needs none.
            arguments["api_key"] = self.api_key or "none"
        if not self._compatible:
            if any("reasoning_content" in message for message in messages):
                # Litellm leaves it out of the messages that it writes for some of these providers.
                arguments["extra_body"] = {"messages": messages, **self.extra.get("extra_body", {})}
            return arguments | {"messages": messages, **counted, **({"tools": tools} if tools else {})}
        body: dict[str, Json] = {"messages": [*messages], **({"tools": [*tools]} if tools else {}), **counted}
        body |= self.extra.get("extra_body", {})
        return arguments | {"messages": [{"role": "user", "content": ""}], "extra_body": body}


def litellm_providers() -> frozenset[str]:
    """Return the prefixes of all providers that litellm knows; imports litellm."""
    return frozenset(
        str(getattr(provider, "value", provider)) for provider in litellm_library().provider_list
    )


def searches_web(name: str) -> bool:
    """Return whether the model `name` has a web search, and litellm sends the option to it; imports litellm.

    For some models with a web search litellm leaves the option out of the request: such a model would answer
    from memory.
    """
    litellm = litellm_library()
    passed = litellm.get_supported_openai_params(model=name) or ()
    return bool(litellm.supports_web_search(model=name)) and "web_search_options" in passed


@cache
def dialect_of(name: str) -> Dialect:
    """Return what the provider of the model `name` accepts besides text and tool calls."""
    provider, claude = name.partition("/")[0], "claude" in name.lower()
    return Dialect(
        signed_thinking=claude,
        reasoning_text=not _WANTS_REASONING.isdisjoint(name.lower().split("/")[:-1]),
        call_signatures=provider in ("gemini", "vertex_ai"),
        cache_marks=claude,
        tool_images=claude,
    )


@cache
def _has_price(name: str) -> bool:
    litellm = litellm_library()
    usage = litellm.Usage(prompt_tokens=1, completion_tokens=1, total_tokens=2)
    return price_of(litellm, name, usage) is not None


@cache
def _known_to_see(name: str) -> bool | None:
    """Return whether the model takes images by litellm's table; `None` for an unknown model."""
    litellm = litellm_library()
    try:
        return bool(litellm.get_model_info(name).get("supports_vision"))
    except Exception:  # litellm raises a bare Exception for a model that it does not know  # noqa: BLE001
        return None
