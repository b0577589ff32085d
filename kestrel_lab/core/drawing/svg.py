"""A plan as a self-contained SVG: no scripts, no style sheets; its inks follow the page it is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.drawing.layout import (
    HEADING,
    HEIGHT,
    Band,
    Box,
    Layout,
    Line,
    Node,
    shorten_to_width,
    svg_path,
)
from kestrel_lab.core.sanitize import sanitize_text

MARKS = {
    "pending": "·",
    "running": "…",
    "waiting": "?",
    "ok": "✓",
    "failed": "✗",
    "skipped": "»",
    "stopped": "-",
}
"""One character per state, shown beside the word, never instead of it."""
COLOURS = {
    "running": "#0277bd",
    "waiting": "#b26a00",
    "ok": "#2e7d32",
    "failed": "#c62828",
    "stopped": "#b26a00",
}
"""States by colour, dark enough for white paper and light enough for black."""
QUIET = "#7f7f7f"
_THEME = {"running": "info", "waiting": "warn", "ok": "success", "failed": "error", "stopped": "warn"}
_FONT = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"
_ALONE = (
    "<style>.kestrel-plan{color:#1f2328;background:#fff}"
    "@media (prefers-color-scheme:dark){.kestrel-plan{color:#e6edf3;background:#0d1117}}</style>"
)
_NOT_XML = {0xFFFE: "\\u{fffe}", 0xFFFF: "\\u{ffff}"}


def plan_svg(layout: Layout, *, alone: bool = False, stages: Mapping[str, str] | None = None) -> str:
    """The layout as one `<svg>` element.

    Where a page removes drawings, as notebooks do that nobody trusts yet, only text is left of it: strokes
    between the elements, which are not drawn, keep it readable.

    Args:
        layout: The places of nodes and lines.
        alone: Whether it is a file of its own, with a background, light or dark as its reader prefers.
        stages: The text after the name of a stage.
    """
    states = (box.node.state for box in layout.boxes for _ in range(1 + box.node.folded))
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" class="kestrel-plan" role="img" '
        f'aria-label="{_escape_xml(state_summary(states))}"'
        f' width="{layout.width}" height="{layout.height}" viewBox="0 0 {layout.width} {layout.height}"'
        f' font-size="12" style="{_FONT};max-width:none">',
        _ALONE if alone else "",
        "<title>Plan</title>" if alone else "",
        f"<desc>{_escape_xml(text_description(layout))}</desc>" if alone else "",
        *(f"{_band(band, layout.height, stages or {})} | " for band in layout.bands),
        *(_line(line) for line in layout.lines),
        *(f"{_box(box, tip=alone)} | " for box in layout.boxes),
        "</svg>",
    ]
    return "".join(parts)


def state_summary(states: Iterable[str]) -> str:
    """Return the number of steps by state: `Plan of 3 steps: 2 ok, 1 running`."""
    counts = Counter(states)
    total = counts.total()
    counted = ", ".join(f"{number} {state}" for state, number in counts.items() if state)
    return f"Plan of {format_count(total, 'step')}" + (f": {counted}" if counted else "")


def text_description(layout: Layout) -> str:
    """Every step with its state and what it waits for, in words."""
    return "; ".join(_node_text(box.node) for box in layout.boxes)


def _node_text(node: Node) -> str:
    state = f" ({node.state})" if node.state else ""
    return f"{node.id}{state}" + (f" after {', '.join(node.needs)}" if node.needs else "")


def _escape_xml(text: str) -> str:
    return escape(sanitize_text(text).translate(_NOT_XML))


def _ink(state: str) -> str:
    """Stroke of a state: the theme's colour where there is a theme, else our own."""
    colour = COLOURS.get(state, QUIET)
    themed = f";stroke:var(--jp-{_THEME[state]}-color1,{colour})" if state in _THEME else ""
    return f'stroke="{colour}" style="stroke-width:1.5{themed}"'


def _band(band: Band, height: int, states: Mapping[str, str]) -> str:
    title = ", ".join(f"{name} {states[name]}" if states.get(name) else name for name in band.stages)
    return (
        f'<g><rect x="{band.x}" y="2" width="{band.width}" height="{height - 4}" rx="6" fill="{QUIET}" '
        'fill-opacity=".1"/>'
        f'<text x="{band.x + 8}" y="{HEADING - 5}" fill="currentColor" fill-opacity=".75" '
        'font-size="11" font-weight="600">'
        f"{_escape_xml(shorten_to_width(title, band.width // 7))}</text></g>"
    )


def _line(line: Line) -> str:
    x, y = line.points[-1]
    return (
        f'<path d="{svg_path(line)}" fill="none" stroke="currentColor" stroke-opacity=".45" '
        'stroke-width="1.2"/>'
        f'<path d="M{x} {y}l-7 -3.5v7z" fill="currentColor" fill-opacity=".6"/>'
    )


def _box(box: Box, *, tip: bool) -> str:
    node, middle = box.node, box.x + box.width // 2
    dashed = ' stroke-dasharray="5 3"' if node.exclusive else ""
    colour = COLOURS.get(node.state, QUIET)
    faint = ' opacity=".6"' if node.state == "skipped" else ""
    state = (
        f'<text x="{middle}" y="{box.y + 31}" text-anchor="middle" font-size="11" fill="currentColor" '
        'fill-opacity=".8">'
        f"{MARKS.get(node.state, '')} {_escape_xml(shorten_to_width(node.state, 16))}</text>"
        if node.state
        else ""
    )
    right, below = box.x + box.width, box.y + HEIGHT
    edge = f"M{box.x + 8} {below + 4}H{right - 4}a8 8 0 0 0 8 -8V{box.y + 8}"
    behind = f'<path d="{edge}" fill="none" {_ink(node.state)}/>' if node.folded else ""
    work = f": {node.work}" if node.work else ""
    title = f"<title>{_escape_xml(shorten_to_width(f'{_node_text(node)}{work}', 400))}</title>" if tip else ""
    return (
        f"<g{faint}>{title}{behind}"
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{HEIGHT}" rx="7"{dashed}'
        f' fill="{colour}" fill-opacity=".12" {_ink(node.state)}/>'
        f'<text x="{middle}" y="{box.y + (16 if node.state else 23)}" text-anchor="middle" '
        'font-weight="600" fill="currentColor">'
        f"{_escape_xml(box.label)}</text> {state}</g>"
    )
