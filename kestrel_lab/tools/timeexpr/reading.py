"""A time expression as it was read: from when to when, how exactly, in which zone, and what was not sure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kestrel_lab.core.jsontypes import Json
from kestrel_lab.tools.timeexpr.zones import Zone
from kestrel_lab.views.facts import facts_html, facts_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a time expression means. Renders as a table."""

    text: str
    start: datetime
    """With its zone."""
    end: datetime
    """The first moment behind it; equal to `start` for an instant."""
    precision: str
    """`second`, `minute`, `hour`, `part of a day`, `day`, `week`, `month`, `quarter`, `year` …"""
    interpretation: str
    zone: Zone
    reference: datetime | None = None
    """What it was told from."""
    notes: tuple[str, ...] = ()
    """What was not sure and how it was settled."""
    read_by: str = "grammar"

    @property
    def instant(self) -> bool:
        """Whether it is a moment and no stretch of time."""
        return self.start == self.end

    def as_json(self) -> dict[str, Json]:
        """For models and programs: times as ISO 8601 with their distance from UTC."""
        found: dict[str, Json] = {"text": self.text, "start": self.start.isoformat()}
        if not self.instant:
            found["end"] = self.end.isoformat()
        found |= {
            "kind": "instant" if self.instant else "range",
            "precision": self.precision,
            "weekday": f"{self.start:%A}",
            "interpretation": self.interpretation,
            "zone": self.zone.name,
            "zone_from": self.zone.origin,
        }
        if self.reference is not None:
            found["reference"] = self.reference.isoformat()
        if self.notes:
            found["notes"] = [*self.notes]
        return found

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, for a table."""
        shown = [("text", self.text)] if self.text else []
        if self.instant:
            shown.append(("moment", _shown(self.start)))
        else:
            last = self.end - timedelta(microseconds=1)
            shown += [("from", _shown(self.start)), ("until before", _shown(self.end))]
            if self.precision == "day" and self.start.date() == last.date():
                shown.insert(1, ("day", f"{self.start:%A} {self.start:%Y-%m-%d}"))
        shown += [("precision", self.precision), ("read as", self.interpretation), ("zone", f"{self.zone.name}, from {self.zone.origin}")]
        if self.reference is not None:
            shown.append(("told from", _shown(self.reference.astimezone(self.zone.rules))))
        if self.read_by != "grammar":
            shown.append(("read by", self.read_by))
        return shown + [("note", note) for note in self.notes]

    def __repr__(self) -> str:
        return facts_text(self.rows())

    def _repr_html_(self) -> str:
        return facts_html(self.rows())


def _shown(moment: datetime) -> str:
    return f"{moment.isoformat()} ({moment:%a})"
