"""Which network addresses belong to the public internet, and which must not be reached for an agent."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_CLOSED_4 = tuple(
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # answers a cloud's virtual machines only, though the number is a public one
    )
)
_OPEN_6 = ip_network("2000::/3")
"""The only part of IPv6 that is given to hosts of the internet."""
_CLOSED_6 = tuple(
    ip_network(text)
    for text in (
        "2001::/23",  # Teredo, which hides an IPv4 address, and other protocols
        *("2001:db8::/32", "3fff::/20"),  # for books
        "2002::/16",  # 6to4, which hides an IPv4 address
    )
)


def refusal(address: str) -> str:
    """Why a numeric address must not be reached, in words; empty for one of the public internet.

    An allow-list for IPv6 and an explicit deny-list for IPv4: what Python calls global differs between its versions.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return "is no numeric address"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if isinstance(found, IPv4Address):
        closed = any(found in network for network in _CLOSED_4)
    else:
        closed = found not in _OPEN_6 or any(found in network for network in _CLOSED_6)
    if not closed:
        return ""
    kind = "this machine" if found.is_loopback or found.is_unspecified else "link-local" if found.is_link_local else "private or reserved"
    return f"is {kind}, not a public address"
