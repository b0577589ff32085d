"""Sandbox denials: recognise output of a command that failed because of the sandbox, and say so."""

from __future__ import annotations

import re

from kestrel_lab.tools.sandbox.levels import Level, Sandbox

NETWORK = re.compile(
    r"\b(?:EAI_AGAIN|ENOTFOUND|ENETUNREACH|ECONNREFUSED)\b|(?i:getaddrinfo|name resolution|name or service not known|could not resolve"
    r"|network is unreachable|fetch failed|connect(?:ion)? ?error|connection refused|failed to (?:connect|fetch|download)|no address associated"
    r"|socket: operation not permitted)"
)
"""How programs say that they have no network."""
_WRITING = re.compile(r"(?i)read-only file system")


def denial(level: Level, sandbox: Sandbox, said: str) -> str:
    """Return which part of `said`, the output of a command that failed, the sandbox caused; empty where nothing sounds like it."""
    if level is Level.S0:
        return ""
    if not sandbox.network and NETWORK.search(said):
        return f"the sandbox ({level.name}) lets commands have no network; a person can allow it with the setting network = true"
    if _WRITING.search(said):
        return f"the sandbox ({level.name}) lets commands write the workspace and /tmp only"
    return ""
