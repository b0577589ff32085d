"""The parts of a benchmark: rows to compare, programs that measure them, and our bounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One number that programs tell of a row."""

    key: str
    heading: str
    unit: str = ""
    digits: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One way of doing the job."""

    name: str
    ours: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A program that measures one row or several; it is started anew in every round."""

    rows: tuple[Row, ...]
    command: tuple[str, ...]
    """Arguments for Python; `--quick`, if asked for, and a folder to work in are added."""
    peer: str = ""
    """Whose environment it runs in; empty for this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A bound on one of our own numbers."""

    row: str
    measure: str
    at_most: float
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """One question, the rows that answer it and what we want to reach."""

    name: str
    title: str
    measures: tuple[Measure, ...]
    """The first is compared between rows and drawn."""
    probes: tuple[Probe, ...]
    targets: tuple[Target, ...]
    rounds: int
    """How often each probe is started, unless told otherwise."""
    notes: tuple[str, ...] = ()
    log_scale: bool = True

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, ours first."""
        rows = [row for probe in self.probes for row in probe.rows]
        return tuple(sorted(rows, key=lambda row: not row.ours))
