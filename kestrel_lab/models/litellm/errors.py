"""Converts provider errors to `ModelError`: what to do, and whether a retry may help."""

from __future__ import annotations

import math
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.sanitize import full_stop, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_CALLER = frozenset({400, 401, 402, 403, 404, 413, 422})
"""The caller has to change something."""
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_UNANSWERED = frozenset({408, 504})
"""Status codes of a timeout: litellm gives the first to those of the client, too."""
_RATE_LIMITS = frozenset({429, 529})
"""Status codes of a provider that asks for fewer calls."""


def model_error(error: Exception, *, model: str, api_base: str | None, key_name: str) -> ModelError:
    """Return the failure as a `ModelError` whose message says what to do."""
    status = getattr(error, "status_code", None)
    said = one_line(_without_wrapping(str(error)), 400)
    where = api_base or "the provider"
    if _unreachable(error):
        reason = _system_reason(error) or said
        return ModelError(
            f"{model}: no connection to {where} ({reason}). Is it running, and is the address right?",
            transient=True,
            received=False,
        )
    if _is_connection_lost(error):
        reason = _system_reason(error) or said
        return ModelError(
            f"{model}: {where} dropped the connection before its answer was whole ({reason})",
            transient=True,
            received=None,
        )
    if type(error).__name__ == "APIConnectionError":
        # litellm's name for whatever it did not expect, its own faults included: no reason to try again.
        return ModelError(f"{model}: the call failed before or after the provider was reached: {said}")
    if "missing credentials" in said.lower() or "api_key client option must be set" in said.lower():
        return ModelError(
            f"{model} needs a key: set {key_name} in the environment, or choose another model (kestrel "
            "models)",
            caller=True,
        )
    if "LLM Provider NOT provided" in str(error):
        return ModelError(
            f"litellm knows no provider for {model!r}: write it as provider/name, e.g. openai/{model}",
            caller=True,
        )
    if status == 429 and "insufficient_quota" in (getattr(error, "code", None), getattr(error, "type", None)):
        # Said with the status of a rate limit, and does not pass.
        status = 402
    advice = {
        400: "The request was refused; a shorter conversation or another model may help.",
        401: f"Check the key in {key_name}.",
        402: "The account has no credit left.",
        403: f"The key in {key_name} may not use this model.",
        404: f"Is the name of the model right, and does {where} serve it?",
        429: "Too many requests or tokens: wait, or lower the number of runs at once.",
        408: "No answer in time.",
    }.get(status if isinstance(status, int) else 0, "")
    kind = f"{status} " if isinstance(status, int) else ""
    message = f"{model}: {kind}from {where}: {said}"
    if advice:
        message = f"{full_stop(message)} {advice}"
    return ModelError(
        message,
        transient=status in _PASSING or bool(getattr(error, "passes", False)),
        retry_after_s=_retry_after(error),
        caller=status in _CALLER,
        rate_limited=status in _RATE_LIMITS,
        received=None if status in _UNANSWERED else True,
    )


def _without_wrapping(text: str) -> str:
    """Return `text` without the class names that litellm puts before the provider's message."""
    head, dash, rest = text.partition("Exception - ")
    return rest if dash and head.startswith("litellm.") and rest.strip() else text.removeprefix("litellm.")


def error_causes(error: BaseException, *, suppressed: bool = True) -> Iterator[BaseException]:
    """Yield `error` and its causes; with `suppressed` also those hidden by `raise … from None`, as litellm
    does.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (
            None if cause.__suppress_context__ and not suppressed else cause.__context__
        )


def _unreachable(error: Exception) -> bool:
    """Return whether no connection was made. Litellm calls one that was lost a `ConnectError`, too."""
    causes = [*error_causes(error)]
    if any(_is_refusal(cause) for cause in causes):
        return True
    return not _is_connection_lost(error) and any(type(cause).__name__ == "ConnectError" for cause in causes)


def _is_refusal(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ConnectionRefusedError | socket.gaierror) or not names.isdisjoint(
        {"ClientConnectorError", "ConnectTimeout"}
    )


def _system_reason(error: Exception) -> str:
    """Return what the operating system said of a failure; empty if it said nothing."""
    for cause in reversed([*error_causes(error)]):
        if text := _of_system(cause):
            return text
    return ""


def _of_system(error: BaseException) -> str:
    """Return the operating system's message of a failure, without the client library's objects around it."""
    if isinstance(error, socket.gaierror):
        return error.strerror or ""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""


def _is_connection_lost(error: Exception) -> bool:
    """Return true for a broken connection; classes of httpx, httpcore and aiohttp are recognised by name."""
    broken = {
        "ReadError",
        "WriteError",
        "RemoteProtocolError",
        "ClientPayloadError",
        "ServerDisconnectedError",
        "ClientOSError",
    }
    return any(
        isinstance(cause, ConnectionError) or type(cause).__name__ in broken for cause in error_causes(error)
    )


def _retry_after(error: Exception) -> float | None:
    headers = (
        getattr(error, "litellm_response_headers", None)
        or getattr(getattr(error, "response", None), "headers", None)
        or {}
    )
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(milliseconds / 1000, 0.0)
    said = headers.get("retry-after")
    seconds = _number(said)
    return _seconds_until(said) if seconds is None else max(seconds, 0.0)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _seconds_until(date: str | None) -> float | None:
    # With all of `email`: for a header that few answers have.
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    return max((when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
