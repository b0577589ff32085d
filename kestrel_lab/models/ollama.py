"""The models of an Ollama server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        rest = rest.rstrip("/").replace("0.0.0.0", "127.0.0.1")  # noqa: S104  # nothing is bound here
        return cls(address=f"{scheme}://{rest if ':' in rest else rest + ':11434'}")

    def models(self) -> list[str]:
        """Return the names of its chat models, latest first; empty when it does not run."""
        reply = self._ask("GET", "/api/tags", None)
        names = [str(entry.get("name", "")) for entry in reply.get("models") or ()]
        return [name for name in names if name and "embed" not in name]

    def calls_tools(self, model: str) -> bool:
        """Return whether `model` has tool calling; true where the server does not say."""
        capabilities = self._ask("POST", "/api/show", {"model": model}).get("capabilities")
        return capabilities is None or "tools" in capabilities

    def _ask(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        import httpx  # a tenth of a second to load, and most sessions never look for an Ollama

        try:
            # No proxy from the environment: what is asked for is on this machine or named outright.
            reply = httpx.request(method, self.address + path, json=body, timeout=PROBE_S, trust_env=False)
            answer = reply.json() if reply.is_success else {}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}
