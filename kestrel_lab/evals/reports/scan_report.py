"""Scan reports: how often scanners found something, by configuration, and what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.labels.stored_labels import labels_of
from kestrel_lab.evals.scanners.deterministic import SHIPPED
from kestrel_lab.evals.scanners.findings import Scan, Scanned, Scans, scan_runs, stored_scans
from kestrel_lab.evals.scanners.scanner import PREFIX, Looks
from kestrel_lab.evals.stats.intervals_and_tests import proportion_interval
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.corrected_rates import corrected_columns, sample_of, with_corrected
from kestrel_lab.evals.summaries.result_table import format_percent, label_kind, units_of_rows
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    import pandas as pd

    from kestrel_lab.evals.reports.cluster_report import ClusterReport
    from kestrel_lab.evals.suite import Suite

_TRIAL: Final = ("scenario", "config", "epoch", "outcome", "run")
_FOUND: Final = ("text", "value", "events")
_TEXT: Final = 160
_FAILED: Final = 3


@dataclass(frozen=True, kw_only=True, repr=False)
class ScanReport(PartsView):
    """What scanners say of some runs: `frame` has a row per finding, `rates` one per scanner and
    configuration.
    """

    what: str
    rows: Sequence[EvalRow]
    scans: Scans
    names: Sequence[str]
    """The scanners that were asked for."""
    done: Scanned = field(default_factory=Scanned)
    labels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By scanner and run, what people say by the scanner's rubric."""

    @property
    def headline(self) -> str:
        """How many runs, and how many of them were looked through now."""
        found = sum(any(one.findings for one in self._of(row)) for row in self.rows)
        now = f", {self.done.there} of them before" if self.done.there else ""
        runs = format_count(len(self.rows), "run")
        return f"{self.what}: {runs} scanned{now}, something found in {found:,}"

    @property
    def frame(self) -> pd.DataFrame:
        """One row per finding: `scanner`, the trial, a sentence `text`, `value`, ids of `events`, `run`,
        `version` of the scanner. A scanner that came to no end has a row without a value that says why.
        """
        return unit_frame([*self._findings()], columns=["scanner", *_TRIAL, *_FOUND, "version"])

    @property
    def rates(self) -> pd.DataFrame:
        """One row per scanner and configuration: `found`, the share of runs, with `low` and `high`, `passed`
        among those, `runs`, `failed` (runs that cost the scanner its end); `corrected_rate` with its interval
        where people labelled runs by the scanner's rubric.
        """
        return unit_frame(self._rates())

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return headings, and a row of texts per configuration and scanner that found anything."""
        silent = self._silent()
        rates = [one for one in self._rates() if one["scanner"] not in silent]
        cells = [
            [
                one["scanner"],
                label_kind(one["config"], one["model_kind"]),
                format_percent(one["found"], one["low"], one["high"]),
                f"{one['passed']} of {one['hits']}" if one["hits"] else "",
                str(one["runs"]) + (f", {one['failed']} failed" if one["failed"] else ""),
            ]
            for one in rates
        ]
        return with_corrected(
            ("scanner", "configuration", "found (95 %)", "of them passed", "runs"),
            cells,
            rates,
            after="found (95 %)",
        )

    def parts(self) -> Iterable[Part]:
        """Return rates, examples, and what could not be scanned."""
        headings, rates = self.table()
        if rates:
            yield Table(headings, rates)
        shown = [*self._shown()]
        if shown:
            yield from ("", Table(("scanner", "for example", "run"), shown))
        yield from self._notes()

    def _shown(self) -> Iterable[tuple[str, str, str]]:
        runs: dict[str, set[str]] = {}
        for one in self._findings():
            seen = runs.setdefault(one["scanner"], set())
            if one["value"] is not None and one["run"] not in seen and len(seen) < 3:
                seen.add(one["run"])
                yield one["scanner"], one_line(one["text"], _TEXT), one["run"]

    def _silent(self) -> list[str]:
        """Return the scanners that looked everywhere and found nothing."""
        rates = self._rates()
        loud = {one["scanner"] for one in rates if one["hits"] or one["failed"]}
        return [name for name in dict.fromkeys(one["scanner"] for one in rates) if name not in loud]

    def _notes(self) -> Iterable[str]:
        if silent := self._silent():
            yield f"nothing found in any run: {', '.join(silent)}"
        raised = [one for one in self._findings() if one["value"] is None]
        for one in raised[:_FAILED]:
            yield f"{one['scanner']} came to no end in run {one['run']}: {one['text']}"
        if len(raised) > _FAILED:
            yield f"… and {len(raised) - _FAILED} more: .frame"
        if self.done.missing:
            yield f"not in this log: {', '.join(self.done.missing[:_FAILED])}"
        yield "the rates are measures of the suite: found:NAME in frames, gates and compare"

    def _of(self, row: EvalRow) -> list[Scan]:
        mine = self.scans.get(row.run, {})
        return [mine[name] for name in self.names if name in mine]

    def _findings(self) -> Iterable[dict[str, Any]]:
        for name in self.names:
            for row in self.rows:
                scan = self.scans.get(row.run, {}).get(name)
                if scan is None:
                    continue
                trial = {what: getattr(row, what) for what in _TRIAL}
                common = {"scanner": name, **trial, "version": scan.version}
                if scan.failed:
                    yield common | {"text": scan.failed, "value": None, "events": []}
                for one in scan.findings:
                    yield common | {what: one[what] for what in _FOUND}

    def _rates(self) -> list[dict[str, Any]]:
        configs = dict.fromkeys((row.config, row.model_kind) for row in self.rows)
        found = []
        for name in self.names:
            for config, kind in configs:
                mine = [row for row in self.rows if row.config == config]
                scans = [(row, scan) for row in mine if (scan := self.scans.get(row.run, {}).get(name))]
                if scans:
                    found.append(
                        {"scanner": name, "config": config, "model_kind": kind} | self._rate(name, scans)
                    )
        return found

    def _rate(self, name: str, scans: Sequence[tuple[EvalRow, Scan]]) -> dict[str, Any]:
        finished = [(row, scan.found) for row, scan in scans if scan.found is not None]
        weights = [float(row.result["weight"]) for row, _ in finished]
        units = units_of_rows([row for row, _ in finished])
        rate = proportion_interval([value for _, value in finished], units, weights)
        labels = self.labels.get(name, {})
        judged = sample_of(
            [
                (unit, weight, value, label.value, label.probability)
                if (label := labels.get(row.run)) is not None
                else (unit, weight, value, None, None)
                for unit, (row, value), weight in zip(units, finished, weights, strict=True)
            ]
        )
        hits = [row for row, value in finished if value]
        return {
            "found": rate.mean,
            "low": rate.low,
            "high": rate.high,
            "hits": len(hits),
            "passed": sum(row.outcome == "pass" for row in hits),
            "runs": len(finished),
            "failed": len(scans) - len(finished),
            **corrected_columns(judged),
        }


async def scan_report(
    store: SessionStore,
    what: str,
    rows: Sequence[EvalRow],
    scanners: Sequence[Looks] = (),
    *,
    suite: str = "",
    reporter: Reporter | None = None,
) -> ScanReport:
    """Scan the runs of trials, by the shipped deterministic scanners unless others are named, and report.

    Raises `UsageError` for two scanners of one name, and where there is nothing to scan.
    """
    looking: Sequence[Looks] = scanners or [*SHIPPED.values()]
    names = [one.name for one in looking]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"two scanners are called {twice[0]}: give one of them another name")
    if not rows:
        raise UsageError(f"{what}: there is no run to scan")
    done = await scan_runs(store, [row.run for row in rows], looking, reporter)
    return ScanReport(
        what=what,
        rows=rows,
        scans=stored_scans(store, [row.run for row in rows]),
        names=names,
        done=done,
        labels={
            one.name: labels_of(store, suite, rubric_hash=one.rubric_hash)
            for one in looking
            if one.rubric_hash and suite
        },
    )


async def scan_for_gates(store: SessionStore, suite: Suite, rows: Sequence[EvalRow]) -> None:
    """Scan the runs of trials by the shipped scanners that gates of their suite are about."""
    gated = dict.fromkeys(gate.metric.removeprefix(PREFIX) for gate in suite.gates)
    if wanted := [SHIPPED[name] for name in gated if name in SHIPPED]:
        # A run is read as it is on disk.
        store.flush()
        await scan_runs(store, [row.run for row in rows], wanted)


class ScannedResult:
    """Base of a result whose runs can be scanned."""

    __slots__ = ()

    suite: Suite
    rows: tuple[EvalRow, ...]
    store: SessionStore

    async def scan(self, *scanners: Looks, reporter: Reporter | None = None) -> ScanReport:
        """Look through the runs by scanners, the shipped deterministic ones unless others are given; what is
        found is a column `found:NAME` of the frame from then on, for gates and comparisons too.
        """
        name = self.suite.name
        return await scan_report(
            self.store, f"suite {name}", self.rows, scanners, suite=name, reporter=reporter
        )

    async def clusters(self, *, model: Model | None = None) -> ClusterReport:
        """Group the failures of the result by their calls, errors and words: see `lab.evals.clusters`."""
        from kestrel_lab.evals.reports.cluster_report import cluster_report

        return await cluster_report(self.store, self.suite.name, self.rows, model=model)
