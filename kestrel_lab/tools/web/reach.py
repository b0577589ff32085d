"""What the web tools may reach, and through which proxy."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from kestrel_lab.tools.web.address import refusal
from kestrel_lab.tools.web.urls import Url, is_number

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The numeric addresses of a host, at least one; raises `OSError` for a host that has none."""


async def resolve_name(host: str, port: int) -> list[str]:
    """What this machine's resolver says."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Public addresses at `ports`, and what `also` adds.

    There is no setting, environment variable or argument of a tool that adds to either: only the program that
    makes the tools can. Where the environment names a proxy (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`)
    requests go through it. It then resolves names anew, so it has to keep private addresses out itself;
    those that are written as numbers, or are private to this machine's resolver too, are refused here already.
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
            msg = f"{url.origin} was not asked: only ports {' and '.join(map(str, sorted(self.ports)))} may be reached"
            raise PermissionError(msg)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where to connect for a host: looked up once, each address checked, so that no later answer can differ.

        Raises `PermissionError` if any of them must not be reached, and `OSError` if there is none.
        """
        found = [host] if is_number(host) else await self.resolve(host, port)
        if (host, port) in self.also:
            return found
        for address in found:
            if why := refusal(address):
                named = "" if address == host else f" ({address})"
                msg = f"{host}{named} was not asked: it {why}"
                raise PermissionError(msg)
        return found

    def proxy(self, url: Url) -> str:
        """The address of the proxy for a URL; empty for none. Raises `ValueError` for a kind that is not supported."""
        if _direct(url, self._variable("no_proxy")):
            return ""
        found = self._variable(f"{url.scheme}_proxy") or self._variable("all_proxy")
        if not found:
            return ""
        found = found if "://" in found else f"http://{found}"
        if not found.lower().startswith(("http://", "https://")):
            msg = "the proxy that the environment names is no HTTP proxy: the web tools can use no other"
            raise ValueError(msg)
        return found

    def _variable(self, name: str) -> str:
        return (self.env.get(name) or self.env.get(name.upper()) or "").strip()


def _direct(url: Url, exceptions: str) -> bool:
    """Whether `NO_PROXY` names the host, or a domain it is in."""
    for entry in (part.strip().lower() for part in exceptions.split(",")):
        host, _, port = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
        name = host.removeprefix("*").lstrip(".")
        if entry == "*" or (name and (not port or port == str(url.port)) and (url.host == name or url.host.endswith(f".{name}"))):
            return True
    return False
