"""Which calls may go on by themselves, which are asked about, which are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kestrel_lab.core.calls import Call, Danger
from kestrel_lab.core.errors import UsageError, nearest

Verdict = Literal["allow", "ask", "deny"]

_MODES = ("ask", "auto", "deny")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A rule by danger level. Calls up to `allow` go on; the others get `otherwise`."""

    allow: Danger
    otherwise: Literal["ask", "deny"]
    text: str
    """As the user wrote it."""

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Read a policy.

        `ask`: SAFE and LOW calls go on, others are asked about. `deny`: the others are refused.
        `auto`: all but CRITICAL go on. `auto:LEVEL`: calls up to LEVEL go on, others are asked about.
        Raises `UsageError` for anything else.
        """
        mode, _, level = text.strip().lower().partition(":")
        if mode not in _MODES:
            msg = f"unknown approval policy {text!r}: {nearest(mode, _MODES)}"
            raise UsageError(msg)
        if level and mode != "auto":
            msg = f"approval policy {text!r}: only auto takes a level"
            raise UsageError(msg)
        if mode == "auto":
            return cls(allow=danger_named(level) if level else Danger.HIGH, otherwise="ask", text=text)
        return cls(allow=Danger.LOW, otherwise="deny" if mode == "deny" else "ask", text=text)

    @property
    def unattended(self) -> bool:
        """Whether it is meant for runs that nobody looks after: what only a person knows must not hold them up."""
        return self.text.strip().lower().startswith("auto") or self.otherwise == "deny"

    def verdict(self, call: Call) -> Verdict:
        """What to do with `call`."""
        return "allow" if call.danger <= self.allow else self.otherwise


def danger_named(name: str) -> Danger:
    """The danger level of that name, in any case; raises `UsageError` with the nearest one."""
    try:
        return Danger[name.strip().upper()]
    except KeyError:
        msg = f"unknown danger level {name!r}: {nearest(name.upper(), Danger.__members__)}"
        raise UsageError(msg) from None
