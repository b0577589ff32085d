"""The graph of notes and entities as an SVG: notes in a column on the left, entities on the right, lines between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from kestrel_lab.core.sanitize import AS_TEXT, one_line, plain

_ROW, _TOP, _LEFT, _RIGHT, _WIDTH = 22.0, 24.0, 470.0, 700.0, 1_000.0
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#9d755d", "#d4a017")
"""Seen on light and on dark; what they mean is said in words too."""
_SWEEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """Something that is drawn."""

    id: str
    label: str
    kind: str
    """On the left shown by a colour, which the key explains; on the right written beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tie:
    """A line between two of them; one between two on the left has a word."""

    source: str
    target: str
    label: str = ""


def web_svg(left: Sequence[Spot], right: Sequence[Spot], ties: Sequence[Tie]) -> str:
    """The drawing, the same each time for the same things; text only, no scripts and no references."""
    if not left:
        return ""
    ours, theirs = _ordered(left, right, ties)
    places = {spot.id: (_LEFT, _TOP + _ROW * row) for row, spot in enumerate(ours)}
    lowest = _TOP - _ROW
    for spot in theirs:  # beside what names it, where there is room
        tied = [places[tie.source][1] for tie in ties if tie.target == spot.id and tie.source in places]
        lowest = max(lowest + _ROW, sum(tied) / len(tied) if tied else 0.0)
        places[spot.id] = (_RIGHT, lowest)
    height = max(y for _, y in places.values()) + _ROW + 20
    colours = {kind: _COLOURS[at % len(_COLOURS)] for at, kind in enumerate(sorted({spot.kind for spot in left}))}
    parts = [_tie(tie, places) for tie in ties if tie.source in places and tie.target in places]
    parts += [_namer(spot, places[spot.id], colours[spot.kind]) for spot in ours]
    parts += [_named(spot, places[spot.id]) for spot in theirs]
    parts += _key(colours, height)
    return (
        f'<svg {AS_TEXT} xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height + 10:g}" role="img" '
        f'aria-label="{len(left)} notes and {len(right)} things that they name" '
        f'style="max-width:{_WIDTH:g}px;width:100%;font:12px sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


def _ordered(left: Sequence[Spot], right: Sequence[Spot], ties: Sequence[Tie]) -> tuple[list[Spot], list[Spot]]:
    """Both columns so that lines are short: each in the order of the middle of what it is tied to; what is not tied last."""
    ours, theirs = list(left), list(right)
    for _ in range(_SWEEPS):
        for column, other in ((theirs, ours), (ours, theirs)):
            rows = {spot.id: row for row, spot in enumerate(other)} | {spot.id: row for row, spot in enumerate(column)}
            near = {spot.id: [row for tie in ties for row in _beside(spot, tie, rows)] for spot in column}
            column.sort(key=lambda spot: (sum(near[spot.id]) / len(near[spot.id]) if near[spot.id] else len(rows), spot.id))  # used at once
    return ours, theirs


def _beside(spot: Spot, tie: Tie, rows: Mapping[str, int]) -> list[int]:
    other = tie.target if tie.source == spot.id else tie.source if tie.target == spot.id else ""
    return [rows[other]] if other in rows else []


def _tie(tie: Tie, places: Mapping[str, tuple[float, float]]) -> str:
    (x, y), (u, v) = places[tie.source], places[tie.target]
    if x == u:  # two on the left
        out = x + 18 + min(90.0, abs(v - y) / 3)
        path = f"M{x + 8:.1f} {y:.1f}C{out:.1f} {y:.1f} {out:.1f} {v:.1f} {u + 8:.1f} {v:.1f}"
        word = f'<text x="{x + 14 + (out - x) * 0.55:.1f}" y="{(y + v) / 2 + 4:.1f}" font-style="italic">{_safe(tie.label)}</text>'
        return f'<path d="{path}" fill="none" stroke="currentColor" stroke-dasharray="4 3"/>{word}'
    middle = (x + u) / 2
    path = f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {v:.1f} {u:.1f} {v:.1f}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".35"/>'


def _namer(spot: Spot, place: tuple[float, float], colour: str) -> str:
    x, y = place
    mark = f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" fill="{colour}"/>'
    label = f'<text x="{x - 12:.1f}" y="{y + 4:.1f}" text-anchor="end">{_safe(one_line(spot.label, 66))}</text>'
    return f"<g><title>{_safe(spot.label)}</title>{label}{mark}</g>"


def _named(spot: Spot, place: tuple[float, float]) -> str:
    x, y = place
    kind = f' <tspan font-style="italic" opacity=".7">{_safe(spot.kind)}</tspan>'
    label = f'<text x="{x + 10:.1f}" y="{y + 4:.1f}">{_safe(one_line(spot.label, 34))}{kind}</text>'
    return f'<g><title>{_safe(spot.label)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="5"/>{label}</g>'


def _key(colours: Mapping[str, str], height: float) -> list[str]:
    parts, x = [], 10.0
    for kind, colour in colours.items():
        parts.append(f'<rect x="{x:g}" y="{height - 8:g}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14:g}" y="{height + 2:g}">{_safe(kind)}</text>')
        x += 34.0 + 7 * len(kind)
    return parts


def _safe(text: str) -> str:
    return escape(plain(text))
