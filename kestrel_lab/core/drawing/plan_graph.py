"""The graph of a plan that is drawn: its steps, without arrows that others imply, with finished growth folded away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """`pending`, `running`, `waiting` (for a person), `ok`, `failed`, `skipped`, `stopped`, or empty where nothing runs."""
    work: str = ""
    stage: str = ""
    parent: str = ""
    exclusive: bool = False
    folded: int = 0
    """How many steps it stands for beside itself."""


def folded(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, each with all that came of it in one place if all of that is done; always without a circle if `nodes` are."""
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
        kept.append(replace(whole, needs=tuple(need for need in needs if need != name), folded=len(group) - 1))
    return tuple(kept) if len(_settled(kept)) == len(kept) else tuple(nodes)


def _groups(nodes: Sequence[Node]) -> dict[str, str]:
    """For each node that is not drawn by itself, the one it is drawn with."""
    known = {node.id: node for node in nodes}
    above = {node.id: _ancestors(node, known) for node in nodes}
    open_growth = {parent for node in nodes if node.state not in _DONE for parent in (node.id, *above[node.id])}
    tops = {node.id: [parent for parent in above[node.id] if parent not in open_growth] for node in nodes}
    return {name: parents[-1] for name, parents in tops.items() if parents}


def _ancestors(node: Node, known: Mapping[str, Node]) -> list[str]:
    found: list[str] = []
    while node.parent in known and node.parent not in found:
        found.append(node.parent)
        node = known[node.parent]
    return found


def _settled(nodes: Iterable[Node]) -> dict[str, list[str]]:
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


def arrows(nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """For each node, after those it needs, the needs that no other need of it implies; a circle is cut open."""
    settled = _settled(nodes)
    for node in nodes:
        settled.setdefault(node.id, [need for need in dict.fromkeys(node.needs) if need in settled and need != node.id])
    before: dict[str, set[str]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for name, needs in settled.items():
        implied = set().union(*(before[need] for need in needs))
        found[name] = tuple(need for need in needs if need not in implied)
        before[name] = implied | set(needs)
    return found
