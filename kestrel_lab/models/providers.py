"""Known model providers: keys, default models and the names of their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """A provider that needs a key."""

    prefix: str
    """The part of its models' names before the slash."""
    keys: tuple[str, ...]
    """Environment variables that may hold its key; the first is the one to recommend."""
    model: str = ""
    """Default model without the prefix; empty if there is no obvious one."""
    begins: tuple[str, ...] = ()
    """Beginnings of its models' names when written without a prefix."""
    gateway: bool = False
    """True if it serves other providers' models, whose prefix is part of the name."""

    @property
    def default(self) -> str:
        """Full name of the default model."""
        return f"{self.prefix}/{self.model}"

    def key(self, env: Mapping[str, str]) -> str | None:
        """Return its key from `env`, if there is one."""
        return next((env[name] for name in self.keys if env.get(name)), None)


PROVIDERS = (
    Provider(
        prefix="openai",
        keys=("OPENAI_API_KEY",),
        model="gpt-6-luna",
        begins=("gpt-", "chatgpt-", "o1", "o3", "o4", "codex-"),
    ),
    Provider(prefix="anthropic", keys=("ANTHROPIC_API_KEY",), model="claude-haiku-5-5", begins=("claude-",)),
    Provider(
        prefix="mistral",
        keys=("MISTRAL_API_KEY",),
        model="mistral-small-latest",
        begins=("mistral-", "ministral-", "magistral-", "codestral-", "devstral-"),
    ),
    Provider(prefix="groq", keys=("GROQ_API_KEY",), model="openai/gpt-oss-120b", gateway=True),
    Provider(prefix="deepseek", keys=("DEEPSEEK_API_KEY",), model="deepseek-v4-flash", begins=("deepseek-",)),
    Provider(
        prefix="gemini",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        model="gemini-3.8-flash",
        begins=("gemini-",),
    ),
    Provider(prefix="xai", keys=("XAI_API_KEY",), model="grok-4.7", begins=("grok-",)),
    Provider(prefix="openrouter", keys=("OPENROUTER_API_KEY",), gateway=True),
)
"""Providers, in the order tried if no model is named: a default is never dearer than those behind it."""

FURTHER = frozenset(
    {
        "azure",
        "azure_ai",
        "bedrock",
        "cohere",
        "fireworks_ai",
        "hosted_vllm",
        "litellm_proxy",
        "lm_studio",
        "ollama",
        "ollama_chat",
        "perplexity",
        "sagemaker",
        "together_ai",
        "vertex_ai",
    }
)
"""Other prefixes in common use, known without asking litellm, which takes seconds to load."""


def provider_of(prefix: str) -> Provider | None:
    """Return the provider with that prefix."""
    return next((provider for provider in PROVIDERS if provider.prefix == prefix), None)


def owner_of(name: str) -> Provider | None:
    """Return the provider whose model names start like `name`, which has no prefix."""
    return next((provider for provider in PROVIDERS if name.startswith(provider.begins or ("\0",))), None)


PROBE_S = 0.2
"""Seconds to wait for an Ollama that may not run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ollama:
    """An Ollama server, running or not."""

    address: str

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Ollama:
        """Return the server of `OLLAMA_HOST`, else the usual one on this machine."""
        host = env.get("OLLAMA_HOST", "") or "127.0.0.1:11434"
        scheme, mark, rest = host.partition("://")
        scheme, rest = (scheme, rest) if mark else ("http", host)
        # A server that listens on all addresses is reached on the loopback.
        rest = rest.rstrip("/").replace("0.0.0.0", "127.0.0.1")  # nothing is bound here  # noqa: S104
        return cls(address=f"{scheme}://{rest if ':' in rest else rest + ':11434'}")

    def models(self) -> list[str]:
        """Return the names of its chat models, latest first; empty when it does not run."""
        reply = self._ask("GET", "/api/tags", None)
        names = [str(entry.get("name", "")) for entry in reply.get("models") or ()]
        return [name for name in names if name and "embed" not in name]

    def calls_tools(self, model: str) -> bool:
        """Return true if `model` can call tools, or the server does not say."""
        capabilities = self._ask("POST", "/api/show", {"model": model}).get("capabilities")
        return capabilities is None or "tools" in capabilities

    def _ask(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        # A tenth of a second to load, and most sessions never look for an Ollama.
        import httpx

        try:
            # No proxy from the environment: what is asked for is on this machine or named outright.
            reply = httpx.request(method, self.address + path, json=body, timeout=PROBE_S, trust_env=False)
            answer = reply.json() if reply.is_success else {}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}
