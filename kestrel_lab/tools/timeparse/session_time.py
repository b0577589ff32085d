"""Start time of a session, with zone: the reference for `today` and `now`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.timeparse.zones import Zone, local_zone, offset_name, zone_named, zone_of
from kestrel_lab.views.html.fact_tables import FactsView


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Handshake(FactsView):
    """A moment and its zone. Renders as a table."""

    now: datetime
    zone: Zone

    @property
    def iso_week(self) -> str:
        """Year and week by ISO 8601, such as 2026-W47."""
        return f"{self.now:%G-W%V}"

    @property
    def line(self) -> str:
        """One sentence for an agent."""
        words = (
            f"{self.now.isoformat(timespec='seconds')}, a {self.now:%A}, ISO week {self.iso_week}, "
            f"time zone {self.zone.name}"
        )
        return f"When this session began it was {words}. Take today and now from that."

    def as_json(self) -> dict[str, Json]:
        """Return it for the log, a model or a program; `from_json` reads it again."""
        return {
            "now_iso": self.now.isoformat(timespec="seconds"),
            "timezone": self.zone.name,
            "weekday": f"{self.now:%A}",
            "date": f"{self.now:%Y-%m-%d}",
            "iso_week": self.iso_week,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values for a table."""
        offset = self.now.utcoffset()
        return [
            ("now", self.now.isoformat(timespec="seconds")),
            ("weekday", f"{self.now:%A}"),
            ("date", f"{self.now:%Y-%m-%d}"),
            ("ISO week", self.iso_week),
            ("zone", f"{self.zone.name}, from {self.zone.origin}"),
            ("from UTC", offset_name(offset) if offset is not None else ""),
        ]


def session_time(now: datetime | None = None, zone: Zone | None = None) -> Handshake:
    """Return the time in whole seconds: `now`, or this machine's, on the clocks of `zone`, or of its own
    zone.

    Raises `UsageError` for a `now` without a zone: this machine's is never taken for it.
    """
    if now is None:
        now = machine_now()
        chosen = zone or local_zone()
    else:
        own = zone_of(now, "the reference")
        chosen = zone or own
    return Handshake(now=now.astimezone(chosen.rules).replace(microsecond=0), zone=chosen)


def machine_now() -> datetime:
    """Return this machine's time, with its zone's rules if known."""
    return datetime.now(local_zone().rules)


def from_json(kept: Mapping[str, Json]) -> Handshake | None:
    """Return the handshake in `as_json` form; `None` if there is none."""
    now, name = kept.get("now_iso"), kept.get("timezone")
    if not isinstance(now, str) or not isinstance(name, str):
        return None
    moment = datetime.fromisoformat(now)
    try:
        zone = zone_named(name, "the session")
    # A zone that this machine's database does not have: its offset from UTC is in the time itself.
    except UsageError:
        zone = zone_of(moment, "the session")
    return Handshake(now=moment.astimezone(zone.rules), zone=zone)
