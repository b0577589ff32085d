"""The model providers that are known by name: their key, their default model and how their models are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """A provider that is used with a key."""

    prefix: str
    """What stands before the slash of its models' names."""
    keys: tuple[str, ...]
    """Environment variables that may hold its key; the first is the one to recommend."""
    model: str = ""
    """What is used where no model is named, without the prefix; empty where there is no obvious one."""
    begins: tuple[str, ...] = ()
    """How names of its models begin when they are written without a prefix."""
    gateway: bool = False
    """Whether it serves models of other providers, whose prefix then belongs to the name."""

    @property
    def default(self) -> str:
        """Full name of the default model."""
        return f"{self.prefix}/{self.model}"

    def key(self, env: Mapping[str, str]) -> str | None:
        """Its key, if `env` holds one."""
        return next((env[name] for name in self.keys if env.get(name)), None)


PROVIDERS = (
    Provider(prefix="openai", keys=("OPENAI_API_KEY",), model="gpt-6.1-sol", begins=("gpt-", "chatgpt-", "o1", "o3", "o4", "codex-")),
    Provider(prefix="anthropic", keys=("ANTHROPIC_API_KEY",), model="claude-sonnet-5-5", begins=("claude-",)),
    Provider(prefix="gemini", keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"), model="gemini-3.8-flash", begins=("gemini-",)),
    Provider(
        prefix="mistral",
        keys=("MISTRAL_API_KEY",),
        model="mistral-medium-latest",
        begins=("mistral-", "ministral-", "magistral-", "codestral-", "devstral-"),
    ),
    Provider(prefix="deepseek", keys=("DEEPSEEK_API_KEY",), model="deepseek-v4-flash", begins=("deepseek-",)),
    Provider(prefix="xai", keys=("XAI_API_KEY",), model="grok-4.7", begins=("grok-",)),
    Provider(prefix="groq", keys=("GROQ_API_KEY",), model="openai/gpt-oss-120b", gateway=True),
    Provider(prefix="openrouter", keys=("OPENROUTER_API_KEY",), gateway=True),
)
"""In the order in which they are tried where no model is named."""

FURTHER = frozenset(
    {
        "azure", "azure_ai", "bedrock", "cohere", "fireworks_ai", "hosted_vllm", "litellm_proxy", "lm_studio", "ollama",
        "ollama_chat", "perplexity", "sagemaker", "together_ai", "vertex_ai",
    }
)  # fmt: skip
"""Other prefixes in common use, known without asking litellm, which takes seconds to load."""


def provider_of(prefix: str) -> Provider | None:
    """The provider with that prefix."""
    return next((provider for provider in PROVIDERS if provider.prefix == prefix), None)


def owner_of(name: str) -> Provider | None:
    """The provider whose models' names begin like `name`, which has no prefix."""
    return next((provider for provider in PROVIDERS if name.startswith(provider.begins or ("\0",))), None)
