"""Strict URL parser: one meaning or none, so that what is checked is what is requested."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import quote, urljoin

_LONGEST = 8_000
_SCHEMES = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_KEPT = "/%:@!$&'()*+,;=~-._?"


@dataclass(frozen=True, slots=True)
class Url:
    """An address on the web, in its one spelling."""

    scheme: str
    host: str
    """A name in lower-case ASCII, or a numeric address without brackets."""
    port: int
    target: str
    """Path and query, as they are sent."""

    @property
    def usual_port(self) -> bool:
        """True if the port is the scheme's default."""
        return self.port == _SCHEMES[self.scheme]

    @property
    def authority(self) -> str:
        """Host and port as in a `Host` header; the default port is omitted."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.usual_port else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return self.origin + self.target


def read_url(text: str) -> Url:
    """Return the URL that `text` is; raises `ValueError` that says why, for anything two programs might read
    differently.

    Refused: schemes other than http and https, user names and passwords, control characters, blanks,
    backslashes, percent signs in the host, and numbers that are an IP address only to some, such as 127.1.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"the URL is longer than {_LONGEST:,} characters")
    if found := re.search(r"[\x00-\x20\x7f-\x9f\\\u2028\u2029]", text):
        raise ValueError(f"{_quote(text)} contains {found[0]!r}, which a URL must not")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _SCHEMES:
        raise ValueError(f"{_quote(text)} is not a web address: it must begin with https:// or http://")
    end = re.search(r"[/?#]", rest)
    authority, path = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    if "@" in authority:
        raise ValueError(f"{scheme}://… carries a user name or password before its host: leave that out")
    found = _AUTHORITY.fullmatch(authority)
    port = int(found["port"]) if found and found["port"] else _SCHEMES[scheme]
    if found is None or not 0 < port < 65_536:
        raise ValueError(f"{_quote(text)} has no valid host and port")
    path = path.partition("#")[0]
    target = quote(path if path.startswith("/") else f"/{path}", safe=_KEPT)
    return Url(scheme, _host(found["host"]), port, target)


def join_url(base: Url, reference: str) -> Url:
    """Return the target of a link or redirect found at `base`; raises like `read_url`."""
    return read_url(urljoin(str(base), reference))


def is_number(host: str) -> bool:
    """Return whether a host, as `Url` has it, is a numeric address."""
    return ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except AddressValueError:
            raise ValueError(f"{_quote(text)} is not an IPv6 address") from None
    if "%" in text:
        raise ValueError(f"the host {_quote(text)} contains a percent sign")
    try:
        name = text if text.isascii() else text.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(f"{_quote(text)} is not a valid host name") from None
    name = name.lower().removesuffix(".")
    if is_number(name):
        try:
            return str(IPv4Address(name))
        except AddressValueError:
            raise ValueError(
                f"{_quote(text)} is an IP address only to some programs: write it as four decimal numbers"
            ) from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{_quote(text)} is not a valid host name")
    return name


def _quote(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}…")


# Which network addresses belong to the public internet, and which must not be reached for an agent.

_CLOSED_4 = tuple(
    ip_network(text)
    for text in (
        # Private, local, shared and documentation ranges (IANA special-purpose registry).
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *(
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
        ),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        # Answers a cloud's virtual machines only, though the number is a public one.
        "168.63.129.16/32",
    )
)
_OPEN_6 = ip_network("2000::/3")
"""The only part of IPv6 that is given to hosts of the internet."""
_CLOSED_6 = tuple(
    ip_network(text)
    for text in (
        # Teredo, which hides an IPv4 address, and other protocols.
        "2001::/23",
        *("2001:db8::/32", "3fff::/20"),  # for books
        # 6to4, which hides an IPv4 address
        "2002::/16",
    )
)


def address_refusal(address: str) -> str:
    """Return why a numeric address must not be reached, in words; empty for one of the public internet.

    An allow-list for IPv6 and an explicit deny-list for IPv4: what Python calls global differs between its
    versions.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return "is not a numeric address"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if isinstance(found, IPv4Address):
        closed = any(found in network for network in _CLOSED_4)
    else:
        closed = found not in _OPEN_6 or any(found in network for network in _CLOSED_6)
    if not closed:
        return ""
    kind = (
        "this machine"
        if found.is_loopback or found.is_unspecified
        else "link-local"
        if found.is_link_local
        else "private or reserved"
    )
    return f"is {kind}, not a public address"
