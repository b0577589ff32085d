"""Findings: what scanners found in runs, as events of these runs; each version of a scanner looks once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from kestrel_lab.core.errors import CheckError, StoreError, error_boundary
from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.events.union import RunScanned, decode_event
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.scanners.scanner import PREFIX, Finding, Looks
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.transcripts.transcript import Transcript, transcript_of
from kestrel_lab.eventlog.store import SessionStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What the newest version of one scanner says of one run."""

    scanner: str
    version: str
    upto: int
    findings: tuple[Mapping[str, Any], ...] = ()
    """`text`, `events` and `value` each."""
    failed: str = ""
    """Why it came to no end."""
    rubric: str = ""

    @property
    def found(self) -> float | None:
        """1 where it found something, 0 where nothing, `None` where it came to no end."""
        return None if self.failed else float(bool(self.findings))


Scans = Mapping[str, Mapping[str, Scan]]
"""By run and scanner, the newest scan."""


def stored_scans(store: SessionStore, runs: Iterable[str]) -> Scans:
    """Return the newest scan of each of these runs by each scanner that has looked through it."""
    # The words of the index `scans`, without which SQLite reads all events of the runs.
    if not store.query("SELECT 1 FROM events WHERE type = 'run_scanned' LIMIT 1"):
        return {}
    sql = (
        "SELECT run_id, body FROM events WHERE type = 'run_scanned' AND run_id IN (SELECT value FROM "
        "json_each(?)) ORDER BY run_id, seq"
    )
    found: dict[str, dict[str, Scan]] = {}
    for run, body in store.query(sql, (dumps(list(dict.fromkeys(runs))),)):
        event = decode_event(RunScanned.type, body)
        if not isinstance(event, RunScanned):
            raise StoreError(f"a scan of run {run} cannot be read. See: kestrel doctor")
        found.setdefault(run, {}).update({scan.scanner: scan for scan in _scans_in(event)})
    return found


def _scans_in(event: RunScanned) -> Iterable[Scan]:
    for name, version in event.scanners.items():
        yield Scan(
            scanner=name,
            version=version,
            upto=event.upto,
            findings=tuple(one for one in event.findings if one.get("scanner") == name),
            failed=event.failed.get(name, ""),
            rubric=event.rubrics.get(name, ""),
        )


@dataclass(kw_only=True, slots=True)
class Scanned:
    """What came of scanning."""

    looked: int = 0
    """Runs that a scanner looked through now."""
    there: int = 0
    """Runs of which all was known."""
    missing: list[str] = field(default_factory=list)
    """Runs that the log does not have."""


async def scan_runs(
    store: SessionStore, runs: Iterable[str], scanners: Sequence[Looks], reporter: Reporter | None = None
) -> Scanned:
    """Let scanners look through runs, and store what they find as it comes.

    A run that this version of a scanner has looked through, and that has not gone on since, is not scanned
    again unless the scanner failed. A scanner that raises loses that run and no other: why is stored.
    """
    wanted = list(dict.fromkeys(runs))
    # A model's answers take time, and the log commits many events together.
    known, done, gate, ended = stored_scans(store, wanted), Scanned(), asyncio.Semaphore(16), 0

    async def scan(run: str) -> None:
        nonlocal ended
        async with gate:
            await _scan_run(store, run, scanners, known.get(run, {}), done)
        ended += 1
        if reporter is not None:
            reporter(ended, len(wanted), run)

    await asyncio.gather(*map(scan, wanted))
    return done


async def _scan_run(
    store: SessionStore, run: str, scanners: Sequence[Looks], known: Mapping[str, Scan], done: Scanned
) -> None:
    transcript = transcript_of(run, store.records(run))
    if not transcript.records:
        done.missing.append(run)
        return
    upto = transcript.records[-1].seq
    todo = [
        one
        for one in scanners
        if (scan := known.get(one.name)) is None
        or (scan.version, scan.upto) != (one.version, upto)
        or scan.failed
    ]
    if not todo:
        done.there += 1
        return
    done.looked += 1
    found: list[dict[str, Json]] = []
    failed: dict[str, str] = {}
    for one in todo:
        outcome = await _look(one, transcript)
        if isinstance(outcome, str):
            failed[one.name] = outcome
        else:
            found += [each.as_json(one.name) for each in outcome]
    said = RunScanned(
        scanners={one.name: one.version for one in todo},
        upto=upto,
        findings=found,
        failed=failed,
        rubrics={one.name: one.rubric_hash for one in todo if one.rubric_hash},
    )
    await asyncio.to_thread(store.decide, run, said)


async def _look(scanner: Looks, run: Transcript) -> Sequence[Finding] | str:
    """Return what a scanner finds, or why it came to no end."""
    try:
        # Foreign code: whatever it raises costs this run only.
        with error_boundary(CheckError, f"the scanner {scanner.name}"):
            return await scanner(run)
    except CheckError as error:
        return one_line(str(error), 400)


def with_findings(rows: Iterable[EvalRow], store: SessionStore | None) -> Iterable[EvalRow]:
    """Yield the rows; those whose runs were scanned are copies that have `found:NAME` among their metrics: 1
    where the scanner found something, 0 where not. One that came to no end says nothing.
    """
    rest = iter(rows)
    # Of any number of trials few are held.
    while page := list(islice(rest, 1_000)):
        yield from _with_findings(page, store)


def _with_findings(rows: Sequence[EvalRow], store: SessionStore | None) -> Iterable[EvalRow]:
    scans = _read_scans(store, [row.run for row in rows]) if store is not None else {}
    for row in rows:
        said = {
            f"{PREFIX}{name}": scan.found
            for name, scan in scans.get(row.run, {}).items()
            if scan.found is not None and name != BLAME
        }
        yield replace(row, metrics={**row.metrics, **said}) if said else row


def _read_scans(store: SessionStore, runs: Sequence[str]) -> Scans:
    """Return the scans of runs; results are often shown when the lab that made them is closed."""
    if not store.closed:
        return stored_scans(store, runs)
    if not store.path.exists():
        return {}
    with closing(SessionStore(store.path)) as opened:
        return stored_scans(opened, runs)
