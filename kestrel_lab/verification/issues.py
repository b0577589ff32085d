"""Issues of an answer: severity, place, problem and fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line, sanitize_text

Severity = Literal["critical", "major", "minor"]
"""`critical` and `major` refuse the answer, `minor` is only reported."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong with an answer."""

    severity: Severity
    place: str
    """The sentence or the block that it is in, in one line."""
    what: str
    fix: str
    """How to fix it."""
    check: str = ""
    """The check that found it."""

    def __post_init__(self) -> None:
        # One line each, without signs that a terminal acts upon: they quote the answer.
        for name, most in (("place", 160), ("what", 300), ("fix", 300)):
            object.__setattr__(self, name, one_line(sanitize_text(getattr(self, name)), most))

    @property
    def refuses(self) -> bool:
        """True if it refuses the answer."""
        return self.severity != "minor"

    def __str__(self) -> str:
        return f"{self.what} (in: {self.place}); {self.fix}" if self.place else f"{self.what}; {self.fix}"

    def as_json(self) -> dict[str, Json]:
        """The issue as JSON."""
        return {
            "severity": self.severity,
            "place": self.place,
            "what": self.what,
            "fix": self.fix,
            "check": self.check,
        }
