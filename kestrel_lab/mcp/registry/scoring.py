"""The rubric that scores candidate servers. Points help a person to decide; they never install anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kestrel_lab.core.json_types import Json
from kestrel_lab.mcp.registry.catalogue import Entry
from kestrel_lab.tools.tool_search import count_covered
from kestrel_lab.views.html.table_view import TableView

OFFERED = 40
"""Least points of a server that a model may ask for."""
FITTING = 10
"""Least points for the match, of 30, of a server that is listed."""
_OFFICIAL = ("io.github.modelcontextprotocol/", "io.modelcontextprotocol/")
_OWNER = re.compile(r"https://github\.com/([A-Za-z0-9-]+)/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One line of the rubric."""

    criterion: str
    points: int
    most: int
    """0 for a criterion that only subtracts."""
    why: str

    def as_json(self) -> dict[str, Json]:
        """Return the line for an event."""
        return {"criterion": self.criterion, "points": self.points, "most": self.most, "why": self.why}


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ScoredEntry(TableView):
    """A scored entry."""

    entry: Entry
    points: tuple[Point, ...]

    @property
    def score(self) -> int:
        """From 0 to 100."""
        return max(0, min(100, sum(point.points for point in self.points)))

    @property
    def match(self) -> int:
        """The points of the first criterion, the match."""
        return self.points[0].points

    @property
    def usable(self) -> bool:
        """True if it can be installed and scores at least `OFFERED` points."""
        return self.entry.package is not None and self.score >= OFFERED

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons that subtract points."""
        return tuple(point.why for point in self.points if point.points < 0)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings and a row of texts per criterion."""
        rows = [
            (point.criterion, f"{point.points}{f' of {point.most}' if point.most else ''}", point.why)
            for point in self.points
        ]
        return ("criterion", "points", "why"), [*rows, ("in all", f"{self.score} of 100", "")]


def score_entry(
    entry: Entry, need: str, known: Iterable[str] = (), env: Mapping[str, str] | None = None
) -> ScoredEntry:
    """Score `entry` by the rubric.

    Args:
        entry: The server.
        need: What the server is needed for.
        known: Names of packages in the catalogue: a name that is nearly one of them is suspicious.
        env: Environment variables, to name those it needs that are not set.
    """
    package, known = entry.package, tuple(known)
    hit, wanted = count_covered(need, " ".join((entry.name, entry.description, *entry.tools)))
    hashed, found = package is not None and bool(package.sha256), entry.repository.startswith("https://")
    how = {
        "pypi": "wheels only, so nothing of it runs while it is installed",
        "npm": "scripts of packages are not run",
    }
    no_hash = "the entry has no hash: it is taken from the package index, and held from then on"
    points = [
        _make_point(
            "match",
            30,
            hit / wanted if wanted else 0,
            f"{hit} of {wanted} words of the need" if wanted else "nothing was asked for",
        ),
        _namespace(entry),
        _make_point("version", 15, bool(package), f"exactly {package.version}" if package else entry.problem),
        _make_point("hash", 10, hashed, "the entry has the file's hash" if hashed else no_hash),
        _make_point("repository", 10, found, entry.repository if found else "not known"),
        _make_point("licence", 5, bool(entry.licence), entry.licence or "not known"),
        _make_point(
            "package",
            10,
            bool(package),
            f"{package.kind}: {how[package.kind]}" if package else "there is none that could be installed",
        ),
    ]
    return ScoredEntry(entry=entry, points=(*points, *_deductions(entry, known, env or {})))


def _make_point(criterion: str, most: int, share: float, why: str) -> Point:
    return Point(criterion=criterion, points=round(most * share), most=most, why=why)


def _namespace(entry: Entry) -> Point:
    owner = _OWNER.match(entry.repository + "/")
    space = entry.name.partition("/")[0].lower()
    if entry.name.lower().startswith(_OFFICIAL):
        points, why = 20, "the protocol's own namespace"
    elif owner is not None and space == f"io.github.{owner[1].lower()}":
        points, why = 10, "the namespace is that of the repository's owner"
    else:
        points, why = 0, "nothing ties the namespace to the repository"
    if entry.source.startswith("http") and points == 20:
        points, why = 15, "the protocol's own namespace, as a registry says"
    return Point(criterion="namespace", points=points, most=20, why=why)


def _deductions(entry: Entry, known: tuple[str, ...], env: Mapping[str, str]) -> list[Point]:
    package, found = entry.package, []
    if package is not None and package.variables:
        missing = [name for name in package.variables if not env.get(name)]
        found.append(
            Point(
                criterion="secrets",
                points=-10,
                most=0,
                why=f"is given {', '.join(package.variables)} of your environment"
                + (f"; not set: {', '.join(missing)}" if missing else ""),
            )
        )
    if package is not None and (near := imitated_name(package.name, known)):
        found.append(
            Point(
                criterion="name",
                points=-50,
                most=0,
                why=f"{package.name} looks like {near}, which the catalogue knows",
            )
        )
    if entry.hidden:
        found.append(
            Point(
                criterion="text", points=-50, most=0, why="its description has characters that cannot be seen"
            )
        )
    if entry.status != "active":
        found.append(
            Point(criterion="status", points=-40, most=0, why=f"the registry says that it is {entry.status}")
        )
    return found


def imitated_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that `name` imitates; empty for none."""
    plain = _comparable_name(name)
    for other in known:
        if name == other:
            return ""
    for other in known:
        if _is_near(plain, _comparable_name(other), 1 if len(other) < 12 else 2):
            return other
    return ""


def _comparable_name(name: str) -> str:
    """Return `name` without easily overlooked differences."""
    return re.sub(r"[-_.]", "", name.lower()).translate(str.maketrans("01358", "olesb"))


def _is_near(one: str, other: str, most: int) -> bool:
    """Return whether the Damerau–Levenshtein distance is at most `most`."""
    if abs(len(one) - len(other)) > most:
        return False
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1] <= most
