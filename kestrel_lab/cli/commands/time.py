"""`kestrel time`: what time it is, what a time expression means, and how that was read."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

import typer

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.durations import normalize_timezone, read_moment, time_arithmetic
from kestrel_lab.tools.timeparse.parse import parse_relative
from kestrel_lab.tools.timeparse.session_time import Handshake, session_time
from kestrel_lab.tools.timeparse.types import Preferences, Reading
from kestrel_lab.tools.timeparse.zones import Zone, local_zone, zone_named

clock = typer.Typer()


@clock.command(
    epilog="Example: kestrel time next friday at 15:30 --zone Europe/Vienna. After -- an expression may "
    "begin with a minus: -- -2h"
)
def time(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TIME]...", help="A time expression; without one, the time now."),
    ] = None,
    *,
    reference: Annotated[
        str | None, typer.Option(metavar="ISO", help="The reference time; now by default.")
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The time zone, e.g. Europe/Vienna; this machine's by default."),
    ] = None,
    add: Annotated[
        str | None, typer.Option(metavar="DISTANCE", help="Add a duration, e.g. '+2 days' or '-90 minutes'.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="NAME", help="Show the time in another zone.")] = None,
    prefer: Annotated[
        Literal["future", "past"], typer.Option(help="Whether `Friday` is the coming one or the last.")
    ] = "future",
    order: Annotated[
        Literal["MDY", "DMY"] | None,
        typer.Option(help="Whether 3/4/2030 has the month or the day first; refused unless said."),
    ] = None,
    disambiguate: Annotated[
        Literal["earlier", "later"] | None,
        typer.Option(help="Which moment is meant when clocks are put back or forward."),
    ] = None,
    language: Annotated[
        str, typer.Option(metavar="CODE", help="Language of the expression, e.g. de; English by default.")
    ] = "en",
) -> Handshake | Reading:
    """Show the time, or read an expression such as `next Friday at 15:30` and show how it was understood."""
    words = " ".join(text or ()).strip()
    met = _reference(reference, zone)
    if not words and not add and not to:
        return met
    if not words:
        found = Reading(
            text="",
            start=met.now,
            end=met.now,
            precision="second",
            interpretation="the reference",
            zone=met.zone,
            reference=met.now,
        )
    else:
        found = parse_relative(
            words,
            met.now,
            zone=met.zone,
            preferences=Preferences(prefer=prefer, order=order, disambiguate=disambiguate),
            language=language,
        )
    if add:
        day = found.precision == "day" and not found.instant
        if not (day or found.instant):
            raise UsageError(f"{words!r} is a {found.precision}: --add counts on from a day or a moment")
        found = _chain_reading(
            found,
            time_arithmetic(
                f"{found.start:%Y-%m-%d}" if day else found.start,
                add,
                zone=found.zone,
                disambiguate=disambiguate,
            ),
        )
    if to:
        if not found.instant:
            msg = (
                f"{words or add!r} is a whole {found.precision}, and days of other zones begin at "
                "other moments: add a time of day"
            )
            raise UsageError(msg)
        found = _chain_reading(found, normalize_timezone(found.start, to))
    return found


def _reference(reference: str | None, name: str | None) -> Handshake:
    """The time that an expression is relative to: as asked for, as written, or this machine's."""
    zone = None if name is None else zone_named(name, "--zone")
    if reference is None:
        return session_time(zone=zone)
    written = f"{reference.strip()}T00:00" if len(reference.strip()) == 10 else reference
    try:
        bare = datetime.fromisoformat(written.strip().upper()).tzinfo is None
    except ValueError:
        bare = False  # `read_moment` says what is wrong with it
    place: Zone | None = (zone or local_zone()) if bare else None
    moment, place, _ = read_moment(written, place)
    return Handshake(now=moment if zone is None else moment.astimezone(zone.rules), zone=zone or place)


def _chain_reading(first: Reading, then: Reading) -> Reading:
    """Return the second of two readings, with both interpretations in order."""
    said = f"{first.interpretation}; then {then.interpretation}"
    precision = then.precision if not then.instant or first.precision == "day" else first.precision
    notes = tuple(dict.fromkeys((*first.notes, *then.notes)))
    return replace(
        then,
        text=first.text,
        precision=precision,
        interpretation=said,
        reference=first.reference,
        notes=notes,
        read_by=first.read_by,
    )
