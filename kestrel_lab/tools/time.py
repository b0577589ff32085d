"""Time tools `parse_relative`, `time_arithmetic` and `normalize_timezone`; deterministic for a reference."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.timeparse.session_time import from_json as handshake_of
from kestrel_lab.tools.timeparse.zones import rules_version, zone_named
from kestrel_lab.tools.tool import ToolContext

if TYPE_CHECKING:
    from kestrel_lab.tools.timeparse.zones import Zone


def _with_reference(args: dict[str, Json], ctx: ToolContext) -> str | None:
    """Answers hold for good where the arguments alone settle them; else they hang on the run's beginning."""
    given = str(args.get("reference", ""))
    return rules_version() if given and (args.get("zone") or not _is_naive(given)) else None


def _with_zone(args: dict[str, Json], ctx: ToolContext) -> str | None:
    return rules_version() if args.get("zone") or not _is_naive(str(args.get("base", ""))) else None


@tool(
    danger_level=Danger.SAFE,
    effect="pure",
    version="1",
    fingerprint=_with_reference,
    reads="",
    reaches="nothing",
)
def parse_relative(
    text: str,
    ctx: ToolContext,
    reference: str = "",
    zone: str = "",
    prefer: Literal["future", "past"] = "future",
    order: Literal["", "MDY", "DMY"] = "",
) -> dict[str, Json]:
    """Find the date and time that words like `next Friday` or `tomorrow at 15:30` mean. What is ambiguous is
    refused.

    Args:
        text: The time expression alone.
        ctx: The run it works for.
        reference: ISO 8601 time with offset that it is told from; the beginning of the session if left out.
        zone: IANA time zone such as Europe/Vienna; the session's if left out.
        prefer: Whether `Friday` is the coming one or the last.
        order: Whether 3/4/2030 has the month or the day first.

    """
    # The grammars of time are loaded when a tool first reads some.
    from kestrel_lab.tools.timeparse.durations import (
        read_moment,
    )
    from kestrel_lab.tools.timeparse.parse import parse_relative as read
    from kestrel_lab.tools.timeparse.types import Preferences

    session = handshake_of(ctx.time)
    place = zone_named(zone, "the arguments") if zone else None
    if reference:
        moment, stated, _ = read_moment(reference, place if _is_naive(reference) else None)
        place = place or (session.zone if session is not None and _is_naive(reference) else stated)
    elif session is None:
        raise UsageError(
            "outside a run there is no reference time: give reference, such as 2030-12-31T20:15:00+01:00"
        )
    else:
        moment, place = session.now, place or session.zone
    return read(
        text, moment, zone=place, preferences=Preferences(prefer=prefer, order=order or None)
    ).as_json()


@tool(
    danger_level=Danger.SAFE, effect="pure", version="1", fingerprint=_with_zone, reads="", reaches="nothing"
)
def time_arithmetic(base: str, offset: str, ctx: ToolContext, zone: str = "") -> dict[str, Json]:
    """Move a date or time by a distance such as `+2 days`, `-1 month`, `90 minutes` or `5 business days`.

    Args:
        base: ISO 8601 date or time.
        offset: How far; a sign holds up to the next one.
        ctx: The run it works for.
        zone: IANA time zone whose clocks are moved; that of the base, else the session's, if left out.

    """
    from kestrel_lab.tools.timeparse.durations import time_arithmetic as count_on

    place: Zone | None = zone_named(zone, "the arguments") if zone else None
    if place is None and _is_naive(base) and (session := handshake_of(ctx.time)) is not None:
        place = session.zone
    return count_on(base, offset, zone=place).as_json()


@tool(
    danger_level=Danger.SAFE,
    effect="pure",
    version="1",
    fingerprint=lambda _args, _ctx: rules_version(),
    reads="",
    reaches="nothing",
)
def normalize_timezone(time: str, to_zone: str, from_zone: str = "") -> dict[str, Json]:
    """Tell what clocks in another time zone show at a moment.

    Args:
        time: ISO 8601 time.
        to_zone: IANA name such as Asia/Tokyo, UTC, or an offset such as +05:30.
        from_zone: The zone of a time that has no offset.

    """
    from kestrel_lab.tools.timeparse.durations import normalize_timezone as change_zone

    return change_zone(time, to_zone, from_zone=from_zone or None).as_json()


def _is_naive(text: str) -> bool:
    try:
        return datetime.fromisoformat(text.strip().upper()).tzinfo is None
    except ValueError:
        return True
