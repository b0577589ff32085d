"""The graph of a plan that is drawn, with finished growth folded away, and its layout.

Each step is to the right of all it waits for and near its neighbours; few lines cross.

Layers as in Sugiyama's method: columns by the longest chain, places in a column by barycentres, and a line
that passes a column has a place there like a step, so that no line runs through a step.
"""

from __future__ import annotations

import itertools
import unicodedata
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kestrel_lab.core.sanitize import sanitize_text

FOLD_FROM = 30
"""From this many steps on, what a step grew is drawn as one with it once all of it is done."""
_DONE = {"ok", "skipped"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A step as a drawing knows it."""

    id: str
    needs: tuple[str, ...] = ()
    """What it waits for; names of nothing drawn are ignored."""
    state: str = ""
    """`pending`, `running`, `waiting` (for a person), `ok`, `failed`, `skipped`, `stopped`, or empty."""
    work: str = ""
    stage: str = ""
    parent: str = ""
    exclusive: bool = False
    folded: int = 0
    """How many other steps are drawn as one with it."""


def fold_nodes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, with finished expansions folded into one node each; acyclic if `nodes` are."""
    if len(nodes) < FOLD_FROM:
        return tuple(nodes)
    into = _groups(nodes)
    members: dict[str, list[Node]] = {}
    for node in nodes:
        members.setdefault(into.get(node.id, node.id), []).append(node)
    kept = []
    for name, group in members.items():
        needs = dict.fromkeys(into.get(need, need) for node in group for need in node.needs)
        whole = next(node for node in group if node.id == name)
        kept.append(
            replace(whole, needs=tuple(need for need in needs if need != name), folded=len(group) - 1)
        )
    return tuple(kept) if len(_sort_nodes(kept)) == len(kept) else tuple(nodes)


def _groups(nodes: Sequence[Node]) -> dict[str, str]:
    """For each node that is not drawn by itself, the one it is drawn with."""
    known = {node.id: node for node in nodes}
    above = {node.id: _ancestors(node, known) for node in nodes}
    open_growth = {
        parent for node in nodes if node.state not in _DONE for parent in (node.id, *above[node.id])
    }
    tops = {node.id: [parent for parent in above[node.id] if parent not in open_growth] for node in nodes}
    return {name: parents[-1] for name, parents in tops.items() if parents}


def _ancestors(node: Node, known: Mapping[str, Node]) -> list[str]:
    found: list[str] = []
    while node.parent in known and node.parent not in found:
        found.append(node.parent)
        node = known[node.parent]
    return found


def _sort_nodes(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """The nodes, each after those it needs, with these needs; what waits in a circle is left out."""
    by_name = {node.id: node for node in nodes}
    waits = {name: {need for need in node.needs if need in by_name} for name, node in by_name.items()}
    dependants: dict[str, list[str]] = {name: [] for name in by_name}
    for name, needs in waits.items():
        for need in needs:
            dependants[need].append(name)
    found: dict[str, list[str]] = {}
    ready = [name for name, needs in waits.items() if not needs]
    for name in ready:
        found[name] = list(dict.fromkeys(need for need in by_name[name].needs if need in by_name))
        for other in dependants[name]:
            waits[other].discard(name)
            if not waits[other]:
                ready.append(other)
    return found


def reduced_edges(nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """For each node, in topological order, its needs without the implied ones; cycles are cut."""
    settled = _sort_nodes(nodes)
    for node in nodes:
        settled.setdefault(
            node.id, [need for need in dict.fromkeys(node.needs) if need in settled and need != node.id]
        )
    before: dict[str, set[str]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for name, needs in settled.items():
        implied = set().union(*(before[need] for need in needs))
        found[name] = tuple(need for need in needs if need not in implied)
        before[name] = implied | set(needs)
    return found


HEIGHT = 38
"""Of a step, like every length here in CSS pixels."""
HEADING = 22
"""Room above the steps where stages are named."""
_GAP_X, _GAP_Y, _MARGIN = 44, 14, 14
_CELLS, _CELL, _PADDING, _NARROWEST = 22, 7, 22, 78
_SWEEPS = 6
_MOST_BENDS = 2_000
"""With more lines through columns than this, they are drawn straight."""

_Item = tuple[str, str, int]
"""A step `(id, "", 0)`, or the place of a line in a column: `(from, to, column)`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A step in its place."""

    node: Node
    label: str
    column: int
    x: int
    y: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """From a step to one that waits for it: points in pairs (exit, entry); it may curve between pairs."""

    source: str
    target: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Neighbouring columns whose steps are of the same stage, or stages."""

    stages: tuple[str, ...]
    x: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A plan arranged; equal for equal nodes."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    bands: tuple[Band, ...]
    width: int
    height: int


def lay_out(nodes: Sequence[Node]) -> Layout:
    """Place the nodes; long plans are folded first, see `graph.folded`."""
    kept = fold_nodes(nodes)
    needs = reduced_edges(kept)
    shown = tuple(replace(node, needs=needs[node.id]) for node in kept)
    column = _columns(needs)
    paths = _paths(needs, column)
    layers = _reduce_crossings(_layers(shown, column, paths), paths)
    rows = _rows(layers, paths)
    labels = {node.id: _label(node) for node in shown}
    left, width = _column_widths(shown, column, labels)
    top = HEADING if any(node.stage for node in shown) else 0
    y = {item: round(row * (HEIGHT + _GAP_Y)) + _MARGIN + top for item, row in rows.items()}
    boxes = tuple(
        Box(
            node=node,
            label=labels[node.id],
            column=column[node.id],
            x=left[column[node.id]],
            y=y[node.id, "", 0],
            width=width[column[node.id]],
        )
        for node in shown
    )
    return Layout(
        boxes=boxes,
        lines=tuple(_line(path, column, left, width, y) for path in paths),
        bands=_bands(shown, column, left, width),
        width=left[-1] + width[-1] + _MARGIN if left else 0,
        height=max(y.values(), default=0) + HEIGHT + _MARGIN,
    )


def svg_path(line: Line) -> str:
    """The line as the `d` of an SVG path: numbers and letters only."""
    (x, y), *rest = line.points
    parts = [f"M{x} {y}"]
    for place, (to_x, to_y) in enumerate(rest):
        middle = (x + to_x) // 2
        parts.append(
            f"L{to_x} {to_y}" if place % 2 or y == to_y else f"C{middle} {y} {middle} {to_y} {to_x} {to_y}"
        )
        x, y = to_x, to_y
    return "".join(parts)


def text_width(text: str) -> int:
    """Return the width of `text` in letters; a Chinese or Japanese character is two wide."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def shorten_to_width(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` letters; keeps the end, where grown steps differ."""
    line = " ".join(sanitize_text(text).split())
    if text_width(line) <= limit:
        return line
    head, tail = "", ""
    for letter in line:
        if text_width(head + letter) > limit // 3:
            break
        head += letter
    for letter in reversed(line):
        if text_width(head + letter + tail) > limit - 1:
            break
        tail = letter + tail
    return f"{head}…{tail}"


def _label(node: Node) -> str:
    return shorten_to_width(
        f"{shorten_to_width(node.id, _CELLS - 10)} ({node.folded + 1} steps)" if node.folded else node.id,
        _CELLS,
    )


def _columns(needs: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    column: dict[str, int] = {}
    for name, waits in needs.items():
        column[name] = 1 + max((column[need] for need in waits), default=-1)
    return column


def _paths(needs: Mapping[str, tuple[str, ...]], column: Mapping[str, int]) -> list[list[_Item]]:
    """Each arrow as the items it goes through."""
    pairs = [(need, name) for name, waits in needs.items() for need in waits]
    bends = sum(column[name] - column[need] - 1 for need, name in pairs) <= _MOST_BENDS
    return [
        [
            (need, "", 0),
            *((need, name, at) for at in range(column[need] + 1, column[name]) if bends),
            (name, "", 0),
        ]
        for need, name in pairs
    ]


def _layers(
    shown: Sequence[Node], column: Mapping[str, int], paths: Sequence[Sequence[_Item]]
) -> list[list[_Item]]:
    layers: list[list[_Item]] = [[] for _ in range(1 + max(column.values(), default=-1))]
    for node in shown:
        layers[column[node.id]].append((node.id, "", 0))
    for path in paths:
        for item in path[1:-1]:
            layers[item[2]].append(item)
    return layers


def _neighbours(
    paths: Sequence[Sequence[_Item]],
) -> tuple[dict[_Item, list[_Item]], dict[_Item, list[_Item]]]:
    before: dict[_Item, list[_Item]] = {}
    after: dict[_Item, list[_Item]] = {}
    for path in paths:
        for source, target in itertools.pairwise(path):
            before.setdefault(target, []).append(source)
            after.setdefault(source, []).append(target)
    return before, after


def _reduce_crossings(layers: list[list[_Item]], paths: Sequence[Sequence[_Item]]) -> list[list[_Item]]:
    """The layers sorted so that few lines cross; the best of some sweeps."""
    before, after = _neighbours(paths)
    best, least = layers, _crossings(layers, after)
    now = layers
    for sweep in range(_SWEEPS):
        if least == 0:
            break
        near, order = (before, range(1, len(now))) if sweep % 2 == 0 else (after, range(len(now) - 2, -1, -1))
        now = [list(layer) for layer in now]
        place = {item: at for layer in now for at, item in enumerate(layer)}
        for at in order:
            # Used at once.
            now[at].sort(key=lambda item: _mean([place[other] for other in near.get(item, ())], place[item]))
            place.update({item: number for number, item in enumerate(now[at])})
        if (crossings := _crossings(now, after)) < least:
            best, least = now, crossings
    return best


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(layers: Sequence[Sequence[_Item]], after: Mapping[_Item, Sequence[_Item]]) -> int:
    total = 0
    for layer, following in itertools.pairwise(layers):
        place = {item: at for at, item in enumerate(following)}
        seen: list[int] = []
        for item in layer:
            ends = sorted(place[other] for other in after.get(item, ()) if other in place)
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _rows(layers: Sequence[Sequence[_Item]], paths: Sequence[Sequence[_Item]]) -> dict[_Item, float]:
    """Heights: ordered and apart within a layer, else as near to the neighbours as possible; the top is 0."""
    before, after = _neighbours(paths)
    rows = {item: float(at) for layer in layers for at, item in enumerate(layer)}
    for sweep in range(_SWEEPS if len(rows) > 1 else 0):
        near = before if sweep % 2 == 0 else after
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = [_mean([rows[other] for other in near.get(item, ())], rows[item]) for item in layer]
            rows.update(zip(layer, _separate(layer, wanted), strict=True))
    topmost = min(rows.values(), default=0.0)
    return {item: row - topmost for item, row in rows.items()}


def _separate(layer: Sequence[_Item], wanted: Sequence[float]) -> list[float]:
    """Least-squares heights that keep the order and the distances: pool adjacent violators."""
    offset, offsets = 0.0, []
    for at, item in enumerate(layer):
        # Lines need less room than steps.
        offset += (
            (0.25 if item[1] and layer[at - 1][1] else 0.7 if item[1] or layer[at - 1][1] else 1.0)
            if at
            else 0.0
        )
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for want, needed in zip(wanted, offsets, strict=True):
        mean, size = want - needed, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    means = [mean for mean, size in pools for _ in range(size)]
    return [mean + needed for mean, needed in zip(means, offsets, strict=True)]


def _column_widths(
    shown: Sequence[Node], column: Mapping[str, int], labels: Mapping[str, str]
) -> tuple[list[int], list[int]]:
    """Left edge and width of each column."""
    widest = [0] * (1 + max(column.values(), default=-1))
    for node in shown:
        widest[column[node.id]] = max(widest[column[node.id]], text_width(labels[node.id]))
    widths = [max(_NARROWEST, letters * _CELL + _PADDING) for letters in widest]
    lefts, x = [], _MARGIN
    for width in widths:
        lefts.append(x)
        x += width + _GAP_X
    return lefts, widths


def _line(
    path: Sequence[_Item],
    column: Mapping[str, int],
    left: Sequence[int],
    width: Sequence[int],
    y: Mapping[_Item, int],
) -> Line:
    first, last = path[0], path[-1]
    start, end = column[first[0]], column[last[0]]
    points = [(left[start] + width[start], y[first] + HEIGHT // 2)]
    for item in path[1:-1]:
        at = y[item] + HEIGHT // 2
        points += [(left[item[2]], at), (left[item[2]] + width[item[2]], at)]
    points.append((left[end], y[last] + HEIGHT // 2))
    return Line(source=first[0], target=last[0], points=tuple(points))


def _bands(
    shown: Sequence[Node], column: Mapping[str, int], left: Sequence[int], width: Sequence[int]
) -> tuple[Band, ...]:
    if not any(node.stage for node in shown):
        return ()
    stages: list[dict[str, None]] = [{} for _ in left]
    for node in shown:
        if node.stage:
            stages[column[node.id]][node.stage] = None
    found: list[tuple[tuple[str, ...], int, int]] = []
    for at, names in enumerate(map(tuple, stages)):
        if found and found[-1][0] == names:
            found[-1] = (names, found[-1][1], at)
        else:
            found.append((names, at, at))
    return tuple(
        Band(
            stages=names,
            x=left[first] - _GAP_X // 4,
            width=left[last] + width[last] - left[first] + _GAP_X // 2,
        )
        for names, first, last in found
        if names
    )
