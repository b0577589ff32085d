"""Approval policy: which calls are allowed, which are asked about and which are denied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kestrel_lab.core.calls import Call, Danger
from kestrel_lab.core.errors import UsageError, did_you_mean

Verdict = Literal["allow", "ask", "deny"]
VERDICTS: tuple[Verdict, ...] = ("allow", "ask", "deny")


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict on a call and its source: one or more rules, or the danger of the call."""

    verdict: Verdict
    by: str
    """`rule 2 of kestrel.toml`, or `policy auto:medium`."""
    why: str
    how: Literal["rule", "policy"] = "rule"
    args: frozenset[str] = frozenset()
    """The arguments that a rule which allows names, with patterns that they fit."""


Rules = Callable[[Call], Ruling | None]
"""Decides by rules; returns `None` if no rule applies."""


def no_rules(_: Call) -> Ruling | None:
    """Return no ruling: the danger of the call decides."""
    return None


_MODES = ("ask", "auto", "deny")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Rules, plus a danger level: calls without a rule are allowed up to `allow`, others get `otherwise`."""

    allow: Danger
    otherwise: Literal["ask", "deny"]
    text: str
    """As the user wrote it."""
    rules: Rules = no_rules

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Read a policy.

        `ask`: SAFE and LOW calls go on, others are asked about. `deny`: the others are refused.
        `auto`: all but CRITICAL go on. `auto:LEVEL`: calls up to LEVEL go on, others are asked about.
        Raises `UsageError` for anything else.
        """
        mode, _, level = text.strip().lower().partition(":")
        if mode not in _MODES:
            raise UsageError(f"unknown approval policy {text!r}: {did_you_mean(mode, _MODES)}")
        if level and mode != "auto":
            raise UsageError(f"approval policy {text!r}: only auto takes a level")
        if mode == "auto":
            return cls(allow=danger_named(level) if level else Danger.HIGH, otherwise="ask", text=text)
        return cls(allow=Danger.LOW, otherwise="deny" if mode == "deny" else "ask", text=text)

    @property
    def unattended(self) -> bool:
        """True if the policy is for unattended runs, which must not wait for a person."""
        return self.text.strip().lower().startswith("auto") or self.otherwise == "deny"

    def verdict(self, call: Call) -> Verdict:
        """Return the verdict on `call`."""
        return self.ruling(call).verdict

    def ruling(self, call: Call) -> Ruling:
        """Return the verdict on `call` and its source: a rule if one matches the call, otherwise its danger.

        No level of danger allows code in the user's own kernel: a harmless preview proves little, because
        code can notice that it is previewed. Under `deny` nobody is asked, so calls that a rule would ask
        about are refused.
        """
        ruling = self.rules(call)
        if ruling is None:
            verdict: Verdict = "allow" if call.danger <= self.allow and not call.in_kernel else self.otherwise
            return _ruling_by_danger(verdict, self.text)
        if ruling.verdict == "ask" and self.otherwise == "deny":
            return Ruling(
                "deny", ruling.by, f"{ruling.why}; and the approval policy is {self.text!r}, nobody is asked"
            )
        return ruling


@lru_cache(maxsize=32)
def _ruling_by_danger(verdict: Verdict, policy: str) -> Ruling:
    return Ruling(verdict, f"policy {policy}", f"the approval policy is {policy!r}", "policy")


def danger_named(name: str) -> Danger:
    """Return the danger level of that name, in any case; raises `UsageError` with the nearest one."""
    try:
        return Danger[name.strip().upper()]
    except KeyError:
        raise UsageError(
            f"unknown danger level {name!r}: {did_you_mean(name.upper(), Danger.__members__)}"
        ) from None
