"""Classification of errors, which decides about retries, and advice on each kind.

`transient` may pass by itself, `dependency` passes once something outside works again, `budget` means a limit
was reached, and `logic` is everything else, where a retry gives the same error. Errors of libraries are
classified by the names of their classes, so that no library has to be imported.
"""

from __future__ import annotations

import errno
import socket
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from kestrel_lab.core.calls import Problem
from kestrel_lab.core.errors import (
    CheckError,
    DependencyError,
    LimitError,
    ModelError,
    RunError,
    StoreError,
    UsageError,
    stops_task,
)
from kestrel_lab.core.run_types import EARLY_STOPPING
from kestrel_lab.models.litellm.errors import error_causes

FailureClass = Literal["transient", "dependency", "logic", "budget"]
RECOVERABLE: frozenset[FailureClass] = frozenset({"transient", "dependency"})
"""The kinds that are retried, within limits, where a repetition does no harm."""

_PASSING_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_DOWN = frozenset(
    {
        *(
            "ConnectError",
            "ConnectTimeout",
            "ClientConnectorError",
            "ConnectorError",
        ),  # httpx, aiohttp: nobody is there
        *(
            "ClosedResourceError",
            "BrokenResourceError",
            "EndOfStream",
            "IncompleteReadError",
        ),  # anyio, asyncio: the other end of a pipe is gone
        "NoSuchProcess",
    }
)
_PASSING = frozenset(
    {
        *(
            "ReadError",
            "WriteError",
            "CloseError",
            "RemoteProtocolError",
            "ReadTimeout",
            "WriteTimeout",
            "PoolTimeout",
        ),  # httpx
        *(
            "ClientPayloadError",
            "ServerDisconnectedError",
            "ClientOSError",
            "ServerTimeoutError",
            "SocketTimeoutError",
        ),  # aiohttp
        *("BusyError", "LockedError"),  # apsw
        *(
            "RateLimitError",
            "ServiceUnavailableError",
            "InternalServerError",
            "APITimeoutError",
            "Timeout",
            "TimeoutExpired",
        ),
    }
)
_MCP_ERRORS = frozenset({"MCPError", "McpError"})
_OUT_OF_BUDGET = frozenset({"BudgetExceededError"})
_DOWN_ERRNO = frozenset(
    {
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EPIPE,
        errno.ESRCH,
        errno.ECHILD,
        errno.EHOSTDOWN,
    }
)
_PASSING_ERRNO = frozenset(
    {
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.ENETRESET,
    }
)
_MCP: dict[object, FailureClass] = {-32000: "dependency", -32001: "transient", 408: "transient"}
"""Codes of MCP: connection closed, request timed out (twice: the second is that of its first versions)."""
_PROBLEMS: dict[str, FailureClass] = {"timeout": "transient", "limit": "budget"}


def classify_failure(error: BaseException | Problem) -> FailureClass:
    """Return the kind of failure of `error`.

    An error of this package without a kind of its own has that of its cause. Of several errors raised
    together the least recoverable one decides.
    """
    if isinstance(error, Problem):
        return _PROBLEMS.get(error.kind, "transient" if error.transient else "logic")
    if isinstance(error, BaseExceptionGroup):
        kinds = {classify_failure(one) for one in error.exceptions}
        return next(kind for kind in _LEAST_FIRST if kind in kinds)
    if isinstance(error, ModelError) and error.transient:
        return (
            "dependency"
            if any(_direct_class(cause) == "dependency" for cause in error_causes(error, suppressed=False))
            else "transient"
        )
    if isinstance(error, ModelError) and error.caller:
        return "logic"
    # Only errors of this package stand for their cause.
    chain = error_causes(error, suppressed=False) if isinstance(error, RunError) else iter([error])
    return next((kind for cause in chain if (kind := _direct_class(cause)) is not None), "logic")


_LEAST_FIRST: tuple[FailureClass, ...] = ("logic", "budget", "dependency", "transient")


def _direct_class(error: BaseException) -> FailureClass | None:  # a table of conditions, one per line  # noqa: C901
    """Return the kind of `error` without its causes; `None` when it has none."""
    name = type(error).__name__
    status = _status(error)
    match error:
        case LimitError():
            return "budget"
        case DependencyError():
            return "dependency"
        case UsageError() | StoreError() | CheckError():
            return "logic"
        case subprocess.CalledProcessError():
            # Killed by a signal.
            return "dependency" if error.returncode < 0 else "logic"
        case socket.gaierror():
            return "transient" if error.errno == socket.EAI_AGAIN else "dependency"
        case TimeoutError():
            return "transient"
        case OSError() if error.errno in _DOWN_ERRNO or isinstance(
            error, ConnectionRefusedError | BrokenPipeError | ProcessLookupError
        ):
            return "dependency"
        case OSError() if error.errno in _PASSING_ERRNO or isinstance(error, ConnectionError):
            return "transient"
    if name in _OUT_OF_BUDGET:
        return "budget"
    if name in _DOWN:
        return "dependency"
    if name in _PASSING or status in _PASSING_STATUS:
        return "transient"
    if any(kind.__name__ in _MCP_ERRORS for kind in type(error).__mro__):
        code = _attribute(_attribute(error, "error"), "code")
        return _MCP.get(code, "logic") if isinstance(code, int) else "logic"
    return "logic" if status is not None else None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of `error` or of its response."""
    # litellm gives the status 500 to whatever it did not expect, its own defects included.
    if type(error).__name__ == "APIConnectionError":
        return None
    for holder in (error, _attribute(error, "response")):
        status = _attribute(holder, "status_code") or _attribute(holder, "status")
        if isinstance(status, int):
            return status
    return None


def _attribute(holder: object, name: str) -> Any:
    """Return an attribute of a foreign error, whose properties may raise; `None` if there is none."""
    try:
        return getattr(holder, name, None)
    except BaseException as failed:  # foreign code
        if stops_task(failed):
            raise
        return None


_ADVICE: dict[FailureClass, str] = {
    "transient": "It may pass by itself: run it again in a moment, or resume the run.",
    "dependency": "Bring back what it depends on, then resume the run; kestrel doctor shows what is not in "
    "order.",
    "budget": "Raise the limit, or make the goal smaller.",
    "logic": "Trying again gives the same: change what the message names.",
}
_LIMITS = {
    "cycles": "Allow more model turns (cycles), or make the goal smaller.",
    "cost_usd": "Allow a higher cost (cost_usd), or choose a cheaper model.",
    "seconds": "Allow more seconds, or make the goal smaller.",
    "tokens": "Allow more tokens, or make the goal smaller.",
    "wall_seconds": "Allow more seconds in all (wall_seconds), or look what it waited for: kestrel show "
    "says.",
    "messages": "Allow more messages, or make the goal smaller.",
    EARLY_STOPPING: "Its checks cannot pass any more: leave early stopping out to see the rest.",
}


def failure_advice(error: BaseException | Problem) -> str:
    """Return what to do about `error`, in one or two sentences."""
    kind = classify_failure(error)
    match error:
        case LimitError() if error.limit in _LIMITS:
            return _LIMITS[error.limit]
        case DependencyError():
            return (
                f"Bring {error.dependency} back, then resume the run; kestrel doctor shows what is not "
                "in order."
            )
        case ModelError(retry_after_s=float(seconds)) if kind == "transient":
            return f"Wait {seconds:.0f} s as the provider asks, then resume the run."
        case ModelError(caller=True):
            return (
                "Change what the message names (the key, the name of the model, the conversation), or "
                "choose another model."
            )
        case _:
            return _ADVICE[kind]


Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryBudget:
    """How often and how long a step of a stage is retried."""

    attempts: int = 3
    """Most attempts, the first one included."""
    first_wait_s: float = 0.5
    """Before the second attempt; doubled each time, unless a provider asks for longer."""
    longest_wait_s: float = 30.0
    total_wait_s: float = 120.0
    """Most seconds of waiting per step; a wait that would exceed it is not begun."""
    gate_s: float = 10.0
    """Seconds that an attempt waits for the dependencies of the step."""

    def wait(self, error: RunError, attempt: int) -> float:
        """Return the seconds to wait after `attempt` failed."""
        asked = (
            error.retry_after_s
            if isinstance(error, ModelError)
            else error.retry_in_s
            if isinstance(error, DependencyError)
            else None
        )
        return max(min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(attempt - 1, 60)), asked or 0.0)
