"""Health probes of model endpoints, for endpoints where a check costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.local import INSTALL, NAME, LocalModel, local_extra_missing, native_library
from kestrel_lab.models.wrapper import inner_model

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Model

_OLLAMA = "ollama_chat/"


def endpoint_of(model: Model) -> str:
    """Return the name of a model's endpoint: the model's, with the address of an own server.

    Equal endpoints have equal names.
    """
    leaf = _leaf_model(model)
    address = leaf.api_base if isinstance(leaf, LiteLLMModel) else None
    return f"{leaf.name} at {address}" if address else leaf.name


def probe_of(model: Model) -> Callable[[], Awaitable[None]] | None:
    """Return a probe that raises `ModelError` if the endpoint of `model` fails; `None` if a probe costs
    money.

    An Ollama must list the model, other own servers must answer, and the local model's library must load.
    """
    leaf = _leaf_model(model)
    if isinstance(leaf, LocalModel):
        return _local
    if not isinstance(leaf, LiteLLMModel) or leaf.api_base is None:
        return None
    return partial(
        _ollama if leaf.name.startswith(_OLLAMA) else _server,
        leaf.name,
        leaf.api_base.rstrip("/"),
        leaf.api_key,
    )


def _leaf_model(model: Model) -> Model:
    while (inner := inner_model(model)) is not None:
        model = inner
    return model


async def _local() -> None:
    if missing := local_extra_missing():
        raise UsageError(f"{NAME} needs {' and '.join(missing)}: {INSTALL}")
    await asyncio.to_thread(native_library)


async def _server(_: str, address: str, key: str | None) -> None:
    await _get(f"{address}/models", key)


async def _ollama(name: str, address: str, key: str | None) -> None:
    reply = await _get(f"{address}/api/tags", key)
    wanted = name.removeprefix(_OLLAMA)
    entries = (reply.json() if reply.is_success else {}).get("models") or ()
    names = [str(entry.get("name", "")) for entry in entries]
    if not any(found in {wanted, f"{wanted}:latest"} for found in names):
        raise ModelError(f"the Ollama at {address} does not have {wanted}: ollama pull {wanted}")


async def _get(url: str, key: str | None) -> Any:
    """Return the reply of a server that is in order, a refusal included; raises `ModelError` otherwise."""
    # A tenth of a second to load, and most sessions never probe.
    import httpx

    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(headers=headers) as client:
            reply = await client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelError(
            f"{url} does not answer ({type(error).__name__}: {error})", transient=True
        ) from error
    if reply.is_server_error:
        raise ModelError(f"{url} answers with status {reply.status_code}", transient=True)
    return reply
