"""The litellm library: imported once, in the background where somebody will need it soon, as that takes seconds."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from functools import cache
from typing import Any

_begun = threading.Event()


def litellm_library() -> Any:
    """Return litellm, quiet, with the price table it ships and without reading a `.env` file."""
    _begun.set()
    return _import_quietly()


@cache
def _import_quietly() -> Any:
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


def is_loaded() -> bool:
    """Return whether `litellm_library` returns at once."""
    return _import_quietly.cache_info().currsize > 0


async def import_litellm() -> None:
    """Return once litellm is imported; the import happens in a thread."""
    if not is_loaded():
        await asyncio.to_thread(litellm_library)


def load_in_background() -> bool:
    """Begin to import litellm in a thread; returns whether this call began it."""
    if _begun.is_set():
        return False
    _begun.set()
    # A daemon: a process that ends meanwhile does not wait for it.
    threading.Thread(target=litellm_library, name="kestrel loads litellm", daemon=True).start()
    return True
