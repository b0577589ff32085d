"""Which endpoint a model is behind, and whether it answers, where asking costs nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.local.model import NAME, LocalModel, local_extra_missing

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Model

_OLLAMA = "ollama_chat/"


def endpoint_of(model: Model) -> str:
    """A name for what answers: the model's, with the address where it is an own server. Equal endpoints have equal names."""
    leaf = _leaf(model)
    address = leaf.api_base if isinstance(leaf, LiteLLMModel) else None
    return f"{leaf.name} at {address}" if address else leaf.name


def probe_of(model: Model) -> Callable[[], Awaitable[None]] | None:
    """What raises `ModelError` when the endpoint of `model` is not in order; `None` where asking would cost something.

    An Ollama is asked for its models, `model` among them; any other own server whether it answers at all; the
    local model is in order when it could be loaded.
    """
    leaf = _leaf(model)
    if isinstance(leaf, LocalModel):
        return _local
    if not isinstance(leaf, LiteLLMModel) or leaf.api_base is None:
        return None
    return partial(_ollama if leaf.name.startswith(_OLLAMA) else _server, leaf.name, leaf.api_base.rstrip("/"), leaf.api_key)


def _leaf(model: Model) -> Model:
    while (inner := wrapped(model)) is not None:
        model = inner
    return model


def wrapped(model: Model) -> Model | None:
    """The model inside one that adds something to it, retries or settings for example; such a one calls it `model`."""
    inner: Model | None = getattr(model, "model", None)
    return inner if callable(inner) else None


async def _local() -> None:
    if missing := local_extra_missing():
        msg = f"{NAME} needs {' and '.join(missing)}: pip install 'kestrel-lab[local]'"
        raise UsageError(msg)


async def _server(_: str, address: str, key: str | None) -> None:
    await _get(f"{address}/models", key)


async def _ollama(name: str, address: str, key: str | None) -> None:
    reply = await _get(f"{address}/api/tags", key)
    wanted = name.removeprefix(_OLLAMA)
    entries = (reply.json() if reply.is_success else {}).get("models") or ()
    names = [str(entry.get("name", "")) for entry in entries]
    if not any(found in {wanted, f"{wanted}:latest"} for found in names):
        msg = f"the Ollama at {address} does not have {wanted}: ollama pull {wanted}"
        raise ModelError(msg)


async def _get(url: str, key: str | None) -> Any:
    """The reply of a server that is in order: a refusal is one, too."""
    import httpx  # a tenth of a second to load, and most sessions never probe

    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(headers=headers) as client:
            reply = await client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        msg = f"{url} does not answer ({type(error).__name__}: {error})"
        raise ModelError(msg, transient=True) from error
    if reply.is_server_error:
        msg = f"{url} answers with status {reply.status_code}"
        raise ModelError(msg, transient=True)
    return reply
