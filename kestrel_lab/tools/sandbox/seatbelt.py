"""Sandbox of macOS: a profile for `sandbox-exec` that refuses all but what it lists.

Written after Apple's own profiles and never run on macOS by those who wrote it: whether it holds is for the canary
to find out on the machine, and where it does not, the level is not used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kestrel_lab.host.programs import resolve
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.sandbox.mounts import pythons, secret_places

_PROGRAMS = (
    *("/System", "/Library", "/usr", "/bin", "/sbin", "/opt/homebrew", "/opt/local", "/nix/store", "/Applications/Xcode.app"),
    *("/private/etc", "/private/var/db/dyld", "/private/var/db/timezone", "/private/var/select", "/dev"),
)
_WRITTEN = ("/dev/null", "/dev/zero", "/dev/tty", "/dev/dtracehelper", "/dev/fd")
_GUARDED = (".git/hooks", ".git/config", ".kestrel")
_HEAD = """(version 1)
(deny default)
(allow process-fork)
(allow process-exec)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
(allow file-read-metadata)
(allow file-read-data (literal "/"))
(allow ipc-posix-sem)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow mach-lookup (global-name "com.apple.system.logger"))
(allow mach-lookup (global-name "com.apple.bsd.dirhelper"))"""


def can_seatbelt() -> bool:
    """Return whether this system has the program that such a profile is for."""
    return sys.platform == "darwin" and resolve("sandbox-exec") is not None


def profile(*, read: Sequence[Path], write: Sequence[Path], private: Path, sandbox: Sandbox) -> str:
    """Return the profile for a command that reads and writes these places, and has `private` for its temporary files.

    Of several rules that fit, the last one holds: what is hidden or guarded comes behind what is allowed.
    """
    readable = [*_PROGRAMS, *map(_real, (*pythons(), *read, *write, private))]
    lines = [_HEAD, _rule("allow file-read*", readable), _rule("allow file-write*", [*map(_real, (*write, private))])]
    lines.append(_rule("allow file-write-data", _WRITTEN))
    if hidden := [_real(place) for place in (*secret_places(), *sandbox.hidden)]:
        lines.append(_rule("deny file-read* file-write*", hidden))
    guarded = [_real(place / name) for place in write for name in _GUARDED]
    if guarded:
        lines.append(_rule("deny file-write*", guarded))
    if kept := [_real(place / ".kestrel") for place in write]:
        lines.append(_rule("deny file-read*", kept))
    if sandbox.network:
        lines.append("(allow network-outbound (remote ip))\n(allow network-inbound (local ip))\n(allow network-bind (local ip))")
        lines.append('(allow system-socket)\n(allow mach-lookup (global-name "com.apple.dnssd.service"))')
        lines.append('(allow network-outbound (literal "/private/var/run/mDNSResponder"))')
    return "\n".join(lines) + "\n"


def seatbelt_launch(
    argv: Sequence[str],
    *,
    read: Sequence[Path],
    write: Sequence[Path],
    private: Path,
    folder: Path,
    env: Mapping[str, str],
    sandbox: Sandbox,
) -> Launch:
    """Return how a command is started with such a profile; whoever starts it makes `private` and takes it away."""
    text = profile(read=read, write=write, private=private, sandbox=sandbox)
    kept = {**env, "HOME": str(private), "TMPDIR": str(private)}
    return Launch(argv=("/usr/bin/sandbox-exec", "-p", text, *argv), cwd=str(folder), env=kept)


def _real(place: Path) -> str:
    return os.path.realpath(place)


def _rule(what: str, places: Sequence[str]) -> str:
    """Return a rule for places and all beneath them."""
    return f"({what}\n" + "\n".join(f"  (subpath {_quoted(place)})" for place in places) + ")"


def _quoted(text: str) -> str:
    r"""Return a string of the profile's language; raises `PermissionError` for a path that it cannot name with certainty."""
    if any(ord(sign) < 0x20 or 0xD800 <= ord(sign) <= 0xDFFF or ord(sign) == 0x7F for sign in text):
        raise PermissionError(f"the path {text!r} has characters that a sandbox profile cannot name")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
