"""Imports litellm once, in the background if it will be needed soon: the import takes seconds."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import AsyncGenerator
from functools import cache
from inspect import isawaitable
from typing import Any
from weakref import WeakKeyDictionary

_begun = threading.Event()
_PAUSE_S = 0.3
_COLLECT_AFTER = 50_000
"""New objects after which the garbage collector looks for what nobody holds; Python's own number is 700."""
_NICE = 10
"""How far the thread that loads is below the process: the kernel, which answers keys, comes first."""
_LOWEST = 19
"""The lowest priority that there is."""


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
    warnings.filterwarnings(
        "ignore", message="Items? '.*' on TypedDict class '.*' (is|are) using the `ReadOnly` qualifier"
    )
    # Another one, about each answer that is not as the format says.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")
    before = gc.get_threshold()
    # Half a million objects, nearly all of which stay: looking through them again and again is a fifth of the
    # time that the import takes.
    gc.set_threshold(max(before[0], _COLLECT_AFTER), *before[1:])
    try:
        import litellm
    finally:
        gc.set_threshold(*before)
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
    """Begin to import litellm in a thread of low priority; returns whether this call began it."""
    if _begun.is_set():
        return False
    _begun.set()
    # A daemon: a process that ends meanwhile does not wait for it.
    threading.Thread(target=_load_out_of_the_way, name="kestrel loads litellm", daemon=True).start()
    return True


def _load_out_of_the_way() -> None:
    # What was just begun, the rest of a cell for example, has the interpreter for itself at first.
    time.sleep(_PAUSE_S)
    if sys.platform == "linux":  # where a thread has a priority of its own
        # From that of the process, which may be low already: it cannot be raised again.
        priority = os.getpriority(os.PRIO_PROCESS, 0) + _NICE
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(priority, _LOWEST))
    litellm_library()


_CLOSERS: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = WeakKeyDictionary()


async def close_clients_with_loop() -> None:
    """Have the HTTP clients that litellm keeps for the running event loop closed when that loop ends; without
    this their sockets stay open.
    """
    loop = asyncio.get_running_loop()
    # One client for every loop, by which Anthropic's models are asked; where the name is not set litellm
    # looks for the client of this loop.
    vars(litellm_library()).pop("module_level_aclient", None)
    if loop not in _CLOSERS:
        # `asyncio.run` and others close the asynchronous generators of a loop that ends: the only notice of
        # it that there is.
        _CLOSERS[loop] = closer = _close_clients_at_end()
        await anext(closer)


async def _close_clients_at_end() -> AsyncGenerator[None]:
    try:
        yield
    finally:
        kept = litellm_library().in_memory_llm_clients_cache
        ending = f"-{id(asyncio.get_running_loop())}"  # litellm ends its keys so
        for key in [key for key in kept.cache_dict if key.endswith(ending)]:
            client = kept.cache_dict[key]
            kept.delete_cache(key)
            if isawaitable(closing := client.close()):
                await closing
        # A transport closes a moment later.
        await asyncio.sleep(0)
