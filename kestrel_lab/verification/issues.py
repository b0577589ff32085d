"""Issues of an answer: severity, place, problem and fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line, sanitize_text

Severity = Literal["critical", "major", "minor"]
"""`critical` and `major` refuse the answer, `minor` is only reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
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


def make_issue(severity: Severity, place: str, what: str, fix: str, *, check: str = "") -> Issue:
    """An issue, its texts in one line each and without signs that a terminal acts upon."""
    return Issue(
        severity=severity,
        place=one_line(sanitize_text(place), 160),
        what=one_line(sanitize_text(what), 300),
        fix=one_line(sanitize_text(fix), 300),
        check=check,
    )
