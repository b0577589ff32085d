"""Models that providers of promptfoo name, by the names that they have here."""

from __future__ import annotations

from typing import Any, Final

_PROVIDERS: Final = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "gemini",
    "vertex": "vertex_ai",
    "ollama": "ollama_chat",
    "openrouter": "openrouter",
    "azure": "azure",
    "azureopenai": "azure",
    "mistral": "mistral",
    "groq": "groq",
    "deepseek": "deepseek",
    "bedrock": "bedrock",
    "xai": "xai",
    "cohere": "cohere",
    "perplexity": "perplexity",
    "cerebras": "cerebras",
    "togetherai": "together_ai",
    "fireworks": "fireworks_ai",
    "cloudflare-ai": "cloudflare",
    "litellm": "",
    **{
        name: name
        for name in (
            *("ai21", "databricks", "deepinfra", "fireworks_ai", "github", "huggingface", "hyperbolic"),
            *(
                "nebius",
                "novita",
                "nscale",
                "replicate",
                "sagemaker",
                "sambanova",
                "snowflake",
                "together_ai",
            ),
            *("vertex_ai", "vllm", "voyage", "watsonx"),
        )
    },
}
"""Their providers by the names that litellm has for them."""
_OTHER_KINDS: Final = frozenset(
    {
        *("embedding", "embeddings", "realtime", "image", "video", "audio", "speech", "transcription"),
        *("moderation", "assistant", "text-classification", "token-classification", "feature-extraction"),
        *("sentence-similarity", "agents", "knowledge-base", "codex-sdk", "claude-agent-sdk"),
    }
)
"""Kinds of providers that write no text, or are agents of their own."""


def model_of(given: Any) -> str:
    """Return the model that a provider's id names; empty where ours has none such."""
    name = str(given.get("id", "")) if isinstance(given, dict) else str(given or "")
    maker, *rest = name.split(":")
    if rest and rest[0] in ("chat", "messages", "completion", "responses", "text", "text-generation"):
        rest = rest[1:]
    known = _PROVIDERS.get(maker)
    if known is None or not rest or rest[0] in _OTHER_KINDS:
        return ""
    return f"{known}/{':'.join(rest)}".removeprefix("/")
