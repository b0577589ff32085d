"""HTTP client for untrusted addresses: checked addresses, checked redirects, bounded in time and size."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from kestrel_lab.host.version import __version__
from kestrel_lab.tools.web.urls import Url, address_refusal, is_number, join_url, read_url

if TYPE_CHECKING:
    from httpcore import AsyncConnectionPool, AsyncNetworkStream, Request, Response


# What the web tools may reach, and through which proxy.

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The numeric addresses of a host, at least one; raises `OSError` for a host that has none."""


async def resolve_name(host: str, port: int) -> list[str]:
    """Return the addresses from this machine's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Public addresses at `ports`, and what `also` adds.

    There is no setting, environment variable or argument of a tool that adds to either: only the program that
    makes the tools can. Where the environment names a proxy (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`,
    `NO_PROXY`) requests go through it. It then resolves names anew, so it has to keep private addresses out
    itself; those that are written as numbers, or are private to this machine's resolver too, are refused here
    already.
    """

    also: frozenset[tuple[str, int]] = frozenset()
    """Hosts, as they are written in URLs, with the port: reached whatever their address is."""
    ports: frozenset[int] = frozenset({80, 443})
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    resolve: Resolve = resolve_name
    seconds: float = 30.0
    """From the first look-up to the last byte, redirects included."""
    most_bytes: int = 5_000_000
    """Of an answer, unpacked."""
    redirects: int = 5

    def check_port(self, url: Url) -> None:
        """Raise `PermissionError` for a port that is not for the web."""
        if url.port not in self.ports and (url.host, url.port) not in self.also:
            raise PermissionError(
                f"{url.origin} was not asked: only ports {' and '.join(map(str, sorted(self.ports)))} "
                "may be reached"
            )

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the checked addresses of a host, resolved once so that no later answer can differ.

        Raises `PermissionError` if one is forbidden, and `OSError` if there is none.
        """
        # Resolved once: a second lookup could return a private address (DNS rebinding).
        found = [host] if is_number(host) else await self.resolve(host, port)
        if (host, port) in self.also:
            return found
        for address in found:
            if why := address_refusal(address):
                named = "" if address == host else f" ({address})"
                raise PermissionError(f"{host}{named} was not asked: it {why}")
        return found

    def proxy(self, url: Url) -> str:
        """Return the address of the proxy for a URL; empty for none.

        Raises `ValueError` for a kind that is not supported.
        """
        if _bypasses_proxy(url, self._variable("no_proxy")):
            return ""
        found = self._variable(f"{url.scheme}_proxy") or self._variable("all_proxy")
        if not found:
            return ""
        found = found if "://" in found else f"http://{found}"
        if not found.lower().startswith(("http://", "https://")):
            raise ValueError(
                "the proxy that the environment names is not an HTTP proxy: the web tools can use no other"
            )
        return found

    def _variable(self, name: str) -> str:
        return (self.env.get(name) or self.env.get(name.upper()) or "").strip()


def _bypasses_proxy(url: Url, exceptions: str) -> bool:
    """Return whether `NO_PROXY` names the host, or a domain it is in."""
    for entry in (part.strip().lower() for part in exceptions.split(",")):
        host, _, port = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
        name = host.removeprefix("*").lstrip(".")
        if entry == "*" or (
            name
            and (not port or port == str(url.port))
            and (url.host == name or url.host.endswith(f".{name}"))
        ):
            return True
    return False


_TEXT = re.compile(
    r"text/[\w.+-]+|application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-yaml|javascript|ndjson|x-ndjson|xhtml\+xml|vnd\.github(?:\.v3)?\.diff)"
)
_MOVED = frozenset({301, 302, 303, 307, 308})
_OURS = frozenset(
    {
        *(
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "keep-alive",
            "upgrade",
            "te",
            "trailer",
            "expect",
        ),
        *("accept-encoding", "proxy-authorization", "proxy-connection"),
    }
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Answer of a server."""

    url: Url
    """Of the last request, behind all redirects."""
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""
    body: bytes = b""
    left_out: str = ""
    """Why the body was not read; the request was made in any case."""

    @property
    def kind(self) -> str:
        """The media type in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def said(self) -> str:
        """The status in words, e.g. `404 Not Found`."""
        known = self.status in HTTPStatus.__members__.values()
        return f"{self.status} {HTTPStatus(self.status).phrase}" if known else str(self.status)


async def request(
    reach: Reach,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    follow: bool = True,
) -> Answer:
    """Make a request; `follow` follows redirects, each checked like the first, without `headers` where
    another host is asked.

    No cookie is kept, no password of this machine used. Raises `ValueError` for a URL or header that is not
    in order and for too many redirects, `PermissionError` for what must not be reached, `TimeoutError` when
    the time of `reach` is up, `ConnectionError` when nobody answers or the answer is broken.
    """
    where = read_url(url)
    sent = _check_headers(headers or {})
    try:
        async with asyncio.timeout(reach.seconds):
            for _ in range(reach.redirects + 1):
                answer = await _send(reach, where, _prepare(method, where, sent, body))
                if not (follow and answer.status in _MOVED and "location" in answer.headers):
                    return answer
                before, where = where, join_url(where, answer.headers["location"])
                if where.origin != before.origin:
                    sent = {}
    except TimeoutError:
        raise TimeoutError(
            f"{where.origin} did not finish its answer within {reach.seconds:g} seconds{_unknown(method)}"
        ) from None
    raise ValueError(f"{url} was not fetched: it redirects more than {reach.redirects} times")


def _prepare(method: str, url: Url, headers: Mapping[str, str], body: bytes) -> Request:
    # A tenth of a second to load, and most runs never ask the web.
    import httpcore

    ours = {
        "Host": url.authority,
        "User-Agent": f"kestrel-lab/{__version__}",
        "Accept-Encoding": "gzip",
        "Connection": "close",
    }
    if body or method in {"POST", "PUT"}:
        ours["Content-Length"] = str(len(body))
    port = None if url.usual_port else url.port
    target = httpcore.URL(
        scheme=url.scheme.encode(), host=url.host.encode(), port=port, target=url.target.encode()
    )
    sent = [(name.encode(), value.encode()) for name, value in {"Accept": "*/*", **headers, **ours}.items()]
    return httpcore.Request(method, target, headers=sent, content=body or None)


async def _send(reach: Reach, url: Url, request: Request) -> Answer:
    import httpcore

    reach.check_port(url)
    method = request.method.decode()
    async with AsyncExitStack() as stack:
        try:
            pool = await stack.enter_async_context(await _pool(reach, url))
            response = await pool.handle_async_request(request)
            stack.push_async_callback(response.aclose)
            return await _read(reach, url, response)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, zlib.error) as error:
            raise ConnectionError(
                f"{url.origin} gave no proper answer ({type(error).__name__}: {error}){_unknown(method)}"
            ) from None
        except httpcore.TimeoutException:
            raise TimeoutError(f"{url.origin} could not be reached in time{_unknown(method)}") from None


async def _pool(reach: Reach, url: Url) -> AsyncConnectionPool:
    import httpcore

    # The methods count, not the class, which would have to be loaded.
    backend = cast("Any", _CheckedNetwork(reach))
    tls = _tls(reach.env.get("SSL_CERT_FILE", ""))
    proxy = reach.proxy(url)
    if not proxy:
        return httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=backend)
    try:
        await reach.addresses(url.host, url.port)
    except PermissionError:
        raise
    except OSError:
        # Only the proxy knows the name.
        if is_number(url.host):
            raise
    parts = urlsplit(proxy)
    auth = (
        (unquote(parts.username).encode(), unquote(parts.password or "").encode()) if parts.username else None
    )
    plain = f"{parts.scheme}://{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    return httpcore.AsyncHTTPProxy(plain, proxy_auth=auth, ssl_context=tls)


@dataclass(frozen=True, slots=True)
class _CheckedNetwork:
    """Connects to the address that was checked; the name is used for `Host` and the certificate."""

    reach: Reach

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        **options: Any,
    ) -> AsyncNetworkStream:  # httpcore's signature
        import httpcore

        try:
            addresses = await self.reach.addresses(host, port)
        except PermissionError:
            raise
        except OSError:
            raise httpcore.ConnectError(f"the name {host} is not known") from None
        network = httpcore.AnyIOBackend()
        for address in addresses[:-1]:
            try:
                return await network.connect_tcp(address, port, timeout=min(timeout or 5.0, 5.0), **options)
            # The next address of the host may answer, as when IPv6 does not work here.
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await network.connect_tcp(addresses[-1], port, timeout=timeout, **options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@cache
def _tls(authorities: str) -> ssl.SSLContext:
    """Verifies certificates; `authorities` is a file of further ones."""
    import httpcore

    context = httpcore.default_ssl_context()
    if authorities:
        context.load_verify_locations(authorities)
    return context


async def _read(reach: Reach, url: Url, response: Response) -> Answer:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    answer = Answer(url=url, status=response.status, headers=headers)
    if response.status in _MOVED and "location" in headers:
        return answer
    packed = headers.get("content-encoding", "").strip().lower()
    if packed not in {"", "identity", "gzip", "x-gzip"}:
        return replace(answer, left_out=f"it is packed as {packed[:40]!r}, which was not asked for")
    if answer.kind and not _TEXT.fullmatch(answer.kind):
        return replace(answer, left_out=f"its type is {answer.kind[:80]}, not text")
    # A body that says it is too large is not read at all.
    declared = headers.get("content-length", "")
    too_large = f"it is larger than {reach.most_bytes:,} bytes"
    if declared.isdecimal() and int(declared) > reach.most_bytes:
        return replace(answer, left_out=too_large)
    body = await (_read_unpacked if "gzip" in packed else _read_plain)(
        response.aiter_stream(), reach.most_bytes
    )
    if body is None:
        return replace(answer, left_out=too_large)
    return replace(answer, body=body)


async def _read_plain(pieces: AsyncIterator[bytes], most: int) -> bytes | None:
    taken = bytearray()
    async for piece in pieces:
        taken += piece
        if len(taken) > most:
            return None
    return bytes(taken)


async def _read_unpacked(pieces: AsyncIterator[bytes], most: int) -> bytes | None:
    """Return the body unpacked, at most one byte more than `most`; raises `zlib.error` if invalid."""
    taken, reader = bytearray(), zlib.decompressobj(wbits=31)
    async for packed in pieces:
        piece = packed
        while piece:
            if reader.eof:  # gzip files may consist of several members
                reader = zlib.decompressobj(wbits=31)
            # Bounded while unpacking: a small answer may unpack to gigabytes.
            taken += reader.decompress(piece, most + 1 - len(taken))
            if len(taken) > most:
                return None
            piece = reader.unused_data if reader.eof else b""
    if taken and not reader.eof:
        raise zlib.error("the packed answer is cut off")
    return bytes(taken)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or re.search(r"[^\t\x20-\x7e]", value):
            raise ValueError(f"the header {name[:60]!r} has characters that headers must not have")
        if name.lower() in _OURS:
            raise ValueError(f"the header {name!r} cannot be chosen: leave it out")
    return dict(headers)


def _unknown(method: str) -> str:
    return "" if method == "GET" else f"; whether the {method} took effect is not known"
