"""Authorisation of the local server: only holders of its token may use it, and no page of another site,
even with a browser's help.

Every other page that a browser shows can send requests to this machine, and a name of its own that suddenly
means this machine can even read the answers. So the name that was asked for, where the request comes from and
the token are all looked at, before anything else, and the token is never part of an address: addresses are
kept and passed on.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kestrel_lab.server.protocol import ErrorCode, Refused

TOKEN_BYTES: Final = 32
_FAILURES: Final = 20
"""Wrong tokens within `_WINDOW_S` after which others are refused unread; the right one always works."""
_WINDOW_S: Final = 60.0

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
        "'script'; trusted-types kestrel-sanitised"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every response."""


def new_token() -> str:
    """Return 256 random bits as text that fits into the fragment of an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def refusal_response(status: int, code: ErrorCode, message: str, todo: str = "", **headers: str) -> Response:
    """Return a response that refuses a request, with a message of the protocol as its body."""
    refused = Refused(code=code, message=message, todo=todo)
    return Response(refused.line(), status, headers=dict(headers), media_type="application/json")


class Guard:
    """Passes requests of this machine's user on to `app`; all others get a typed error and no effect."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        port: int,
        public: frozenset[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`public` are the paths that need no token: files that are the same for everybody."""
        names = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")]
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(names)
        self._origins = frozenset(f"http://{name}" for name in names)
        self._public = public
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=_FAILURES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request that is not authorised; pass any other on to the application."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        refused = self.refused(scope["method"], scope["path"], scope["query_string"], headers)

        async def with_headers(message: object) -> None:
            if isinstance(message, dict) and message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in known)]
            await send(message)  # type: ignore[arg-type]  # as it came

        await (self._app if refused is None else refused)(scope, receive, with_headers)

    def refused(self, method: str, path: str, query: bytes, headers: Headers) -> Response | None:
        """Return the refusal of a request that is not authorised; `None` for one that is."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return refusal_response(
                421,
                "wrong_host",
                "this server accepts requests to this machine's own name only",
                "use the address that it printed",
            )
        if (refused := self._foreign(method, path, headers)) is not None:
            return refused
        if path in self._public:
            return None
        if any(
            name.lower() in {"token", "access_token", "authorization"}
            for name, _ in parse_qsl(query.decode("latin-1"), True)
        ):
            return refusal_response(
                400,
                "bad_message",
                "a token must not be part of an address",
                "send it as Authorization: Bearer, and have the server make a new one",
            )
        return self._stranger(headers)

    def _foreign(self, method: str, path: str, headers: Headers) -> Response | None:
        """Return the refusal of a request that a page of another site has sent; `None` for any other."""
        origins, site = headers.getlist("origin"), headers.get("sec-fetch-site", "none")
        if any(origin not in self._origins for origin in origins):
            return refusal_response(403, "forbidden", "pages of other sites may not use this server")
        if site not in {"same-origin", "none"}:
            # Following a link to the page only reads a static file.
            followed = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
            if not (followed and headers.get("sec-fetch-dest") == "document"):
                return refusal_response(403, "forbidden", "pages of other sites may not use this server")
        return None

    def _stranger(self, headers: Headers) -> Response | None:
        given = headers.getlist("authorization")
        scheme, _, word = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() == "bearer" and secrets.compare_digest(word.strip().encode("latin-1"), self._token):
            return None
        now = self._clock()
        if len(self._failures) == _FAILURES and now - self._failures[0] < _WINDOW_S:
            return refusal_response(
                429, "too_many", "too many wrong tokens", "wait a minute", **{"Retry-After": "60"}
            )
        self._failures.append(now)
        return refusal_response(
            401,
            "unauthorized",
            "the token is missing or wrong",
            "send Authorization: Bearer with the token that the server printed when it started",
            **{"WWW-Authenticate": "Bearer"},
        )
