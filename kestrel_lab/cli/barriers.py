"""What keeps agents from harm, tried out: each barrier is asked to stop something, and says whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kestrel_lab.core.filesystem import is_shared, kind_of_filesystem
from kestrel_lab.core.redaction import REDACTED, Redactor, secret_values
from kestrel_lab.lab import Lab
from kestrel_lab.tools.confine import has_openat2
from kestrel_lab.tools.web.address import refusal

_CLOSED = ("127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00::1")  # noqa: S104  # not bound to
_OPEN = "93.184.215.14"
_PROBE = "a-secret-that-nobody-has"


@dataclass(frozen=True, kw_only=True, slots=True)
class Barrier:
    """One barrier after it was tried."""

    name: str
    holds: bool
    found: str
    advice: str = ""


def barriers(lab: Lab) -> list[Barrier]:
    """Each barrier but the sandbox, which has a canary of its own; talks to nothing, and starts nothing."""
    return [secrets_hidden(lab), web_closed(), paths_held(), log_place(lab.store.path)]


def secrets_hidden(lab: Lab) -> Barrier:
    """Values of secret variables do not come out of the redactor; without any, one of our own does not."""
    known = secret_values(lab.env)
    redactor = lab.redactor if known else Redactor.of({"PROBE_API_KEY": _PROBE})
    leaks = [value for value in known or {_PROBE} if redactor.text(f"<{value}>") != f"<{REDACTED}>"]
    count = f"{len(known)} secret variable{'' if len(known) == 1 else 's'} known"
    return Barrier(
        name="secrets",
        holds=not leaks,
        found=f"{count}; hidden in what tools say" if not leaks else f"{count}; {len(leaks)} come through",
        advice="" if not leaks else "do not run agents: keys would be written into the log. Please report this",
    )


def web_closed() -> Barrier:
    """This machine, its network and a cloud's metadata are refused to the web tools, and a public address is not."""
    let_in = [address for address in _CLOSED if not refusal(address)]
    shut = refusal(_OPEN)
    return Barrier(
        name="web tools",
        holds=not let_in and not shut,
        found=f"{len(_CLOSED)} private addresses refused" if not let_in else f"would reach {', '.join(let_in)}",
        advice="" if not let_in and not shut else "do not let agents use the web. Please report this",
    )


def paths_held() -> Barrier:
    """Links are followed by the kernel's own rules, or not at all."""
    found = "held in by the kernel (openat2)" if has_openat2() else "links are refused (the kernel has no openat2)"
    return Barrier(name="paths", holds=True, found=found)


def log_place(path: Path) -> Barrier:
    """The log lies where locks and syncing mean what they say."""
    kind = kind_of_filesystem(path)
    return Barrier(
        name="log's disk",
        holds=not is_shared(kind),
        found=kind or "not known",
        advice=""
        if not is_shared(kind)
        else "a log on a network disk may be damaged: set KESTREL_HOME to a folder on this machine's own disk",
    )
