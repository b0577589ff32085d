"""Things and the lines between them as an SVG: for graphs that have no beginning and no end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from kestrel_lab.core.text import one_line, plain

_WIDTH, _MARGIN = 960.0, 70.0
_SHAPES = {"round": 9.0, "square": 6.0}
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#d4a017")
"""Seen on light and on dark; what they mean is said in words too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """A thing that is drawn."""

    id: str
    label: str
    kind: str
    """Things of one kind have one colour, which the key explains."""
    shape: str = "round"
    title: str = ""
    """Shown by whoever points at it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tie:
    """A line between two things."""

    source: str
    target: str
    label: str = ""


def web_svg(spots: Sequence[Spot], ties: Sequence[Tie]) -> str:
    """The drawing, the same each time for the same graph; text only, no scripts and no references."""
    if not spots:
        return ""
    height = max(240.0, min(1_000.0, 120.0 + 16.0 * len(spots)))
    places = _places(spots, ties, height)
    colours = {kind: _COLOURS[at % len(_COLOURS)] for at, kind in enumerate(sorted({spot.kind for spot in spots}))}
    parts = [_tie(tie, places) for tie in ties if tie.source in places and tie.target in places]
    parts += [_spot(spot, places[spot.id], colours[spot.kind]) for spot in spots]
    parts += _key(colours, height)
    size = f"0 0 {_WIDTH:g} {height + 30:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="graph of {len(spots)} things" '
        f'style="max-width:{_WIDTH:g}px;width:100%;font:11px sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


def _places(spots: Sequence[Spot], ties: Sequence[Tie], height: float) -> Mapping[str, tuple[float, float]]:
    import networkx as nx  # arranges; half a second

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(spot.id for spot in spots)
    graph.add_edges_from((tie.source, tie.target) for tie in ties)
    found = nx.spring_layout(graph, seed=7, k=2.2 / max(1.0, len(spots) ** 0.5), iterations=120)
    left, right = min(x for x, _ in found.values()), max(x for x, _ in found.values())
    top, bottom = min(y for _, y in found.values()), max(y for _, y in found.values())
    wide, high = (right - left) or 1.0, (bottom - top) or 1.0
    return {
        name: (
            _MARGIN + (x - left) / wide * (_WIDTH - 3 * _MARGIN) if right > left else _WIDTH / 3,
            25.0 + (y - top) / high * (height - 50.0) if bottom > top else height / 2,
        )
        for name, (x, y) in found.items()
    }


def _tie(tie: Tie, places: Mapping[str, tuple[float, float]]) -> str:
    (x, y), (u, v) = places[tie.source], places[tie.target]
    line = (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="currentColor" stroke-opacity="{0.8 if tie.label else 0.25}"/>'
    )
    if not tie.label:
        return line
    return f'{line}<text x="{(x + u) / 2:.1f}" y="{(y + v) / 2 - 3:.1f}" text-anchor="middle" font-style="italic">{_safe(tie.label)}</text>'


def _spot(spot: Spot, place: tuple[float, float], colour: str) -> str:
    x, y = place
    size = _SHAPES[spot.shape]
    mark = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" fill="{colour}"/>'
        if spot.shape == "round"
        else f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size:g}" height="{2 * size:g}" fill="{colour}"/>'
    )
    label = f'<text x="{x + size + 3:.1f}" y="{y + 4:.1f}">{_safe(one_line(spot.label, 34))}</text>'
    return f"<g><title>{_safe(spot.title or spot.label)}</title>{mark}{label}</g>"


def _key(colours: Mapping[str, str], height: float) -> list[str]:
    parts, x = [], 10.0
    for kind, colour in colours.items():
        parts.append(f'<rect x="{x:g}" y="{height + 10:g}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14:g}" y="{height + 19:g}">{_safe(kind)}</text>')
        x += 30.0 + 6.5 * len(kind)
    return parts


def _safe(text: str) -> str:
    return escape(plain(text))
