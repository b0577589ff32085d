"""The health of everything watched, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from kestrel_lab.engine.health import BreakerState, HealthState
from kestrel_lab.views.html import paragraph_html, table_html
from kestrel_lab.views.text import table_text
from kestrel_lab.views.wording import duration

_COLUMNS = ("dependency", "kind", "state", "for", "breaker", "tried again in", "restarts left", "reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthRow:
    """One dependency as it stands."""

    dependency: str
    kind: str
    state: HealthState
    seconds: float
    """How long it has been in that state."""
    breaker: BreakerState
    retry_in_s: float
    """Seconds until it is tried again; 0 when it may be used."""
    restarts_left: int | None
    """`None` where it cannot be restarted."""
    reason: str


class HealthTable(tuple[HealthRow, ...]):
    """Rows that render as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return table_text(_COLUMNS, map(_cells, self)) if self else "nothing is watched: models are from their first call on"

    def _repr_html_(self) -> str:
        return table_html(_COLUMNS, map(_cells, self)) if self else paragraph_html(repr(self))


def _cells(row: HealthRow) -> tuple[str, ...]:
    again = duration(row.retry_in_s) if row.retry_in_s else ""
    left = "" if row.restarts_left is None else str(row.restarts_left)
    return (row.dependency, row.kind, row.state, duration(row.seconds), row.breaker, again, left, row.reason)
