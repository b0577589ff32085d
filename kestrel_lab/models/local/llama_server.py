"""Starting llama.cpp inside this process without letting it disturb the process."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import ModelError, boundary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SIGACTION_BYTES = 1024
"""More than `struct sigaction` takes on any system."""


def start_server(weights: Path, *, context_tokens: int, cores: int) -> Any:
    """Load `weights` and return an `xllamacpp.Server`, which prints nothing; raises `ModelError`.

    The server also listens on a port of 127.0.0.1, which cannot be turned off: a random key that nobody is told closes it
    to other users of the machine.
    """
    # Over 100 MB of native code, and an optional one: loaded with the first call to the model.
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx = context_tokens
    params.n_parallel = 1
    # Small batches: between two of them a cancelled call is noticed.
    params.n_batch = 128
    params.n_ubatch = 128
    # Threads wait for each other in a busy loop: with one per core, any other work on the machine slows the model down
    # five to ten times.
    params.cpuparams.n_threads = max(1, cores - 1)
    params.cpuparams_batch.n_threads = max(1, cores - 1)
    params.warmup = False
    params.fit_params = False
    params.cache_ram_mib = 0
    params.verbosity = -1
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [secrets.token_hex(32)]
    params.n_threads_http = 1
    params.ui = False
    params.endpoint_slots = False
    with boundary(ModelError, f"loading {weights.name}"), _own_signals():
        return xllamacpp.Server(params)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's reaction to Ctrl-C and to termination.

    llama.cpp takes over SIGINT and SIGTERM when its server starts: the first Ctrl-C would silently stop the model and the
    second one end the process, in a notebook the kernel. Python's `signal` can restore handlers on the main thread only,
    and the model is loaded on another, hence the C function.
    """
    if os.name != "posix":
        yield
        return
    libc = ctypes.CDLL(None)
    before = {number: ctypes.create_string_buffer(_SIGACTION_BYTES) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, action in before.items():
        libc.sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in before.items():
            libc.sigaction(int(number), action, None)
