"""Import: files that other tools recorded become runs in the log, and trials beside our own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Event, Record
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.importers.formats import ENDINGS, files_in, read_file
from kestrel_lab.evals.importers.imported_run import Recording, Records, unreadable_record
from kestrel_lab.evals.importers.json_fields import UNREADABLE, Broken
from kestrel_lab.evals.importers.recorded_events import COMMIT, events_of, trial_of
from kestrel_lab.evals.importers.routing_data import is_routing, routing_rows
from kestrel_lab.evals.stats.intervals_and_tests import mean_interval
from kestrel_lab.evals.stored.rescore import Judge
from kestrel_lab.evals.stored_trials import EvalRow, store_run, store_trial, trials_by_ids
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.result_table import COLUMNS, summary_table
from kestrel_lab.evals.summaries.streaming_summary import Reducer
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd

_SHOWN: Final = 5
"""Broken records that are shown; all are in `Imported.broken`."""
_LARGE: Final = 8_000_000
"""Bytes of files whose import is reported from its beginning."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ImportResult(TableView):
    """Runs that were imported: `results` has their trials by suite, as `lab.eval` gives them; `frame` has all
    of them.
    """

    results: dict[str, EvalResult] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    """Ids of all runs in the files, those imported earlier among them."""
    added: int = 0
    """Runs that were not in the log before."""
    broken: tuple[Broken, ...] = ()
    """Records that could not be read, with their place; all others were imported."""
    notes: tuple[str, ...] = ()
    data: pd.DataFrame | None = None
    """Rows of public routing data, which has scores and no conversations."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per trial with the columns of `EvalResult.frame`, and one per prompt and model of routing
        data.
        """
        import pandas as pd

        frames = [result.frame for result in self.results.values()] + (
            [] if self.data is None else [self.data]
        )
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))

    def summary(self) -> pd.DataFrame:
        """Return a row of texts per suite and configuration: rate with 95 % interval, trials, broken trials,
        means.
        """
        headings, rows = self.table()
        return unit_frame(rows, columns=list(headings) or ["configuration"]).set_index("configuration")

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return headings and a row of texts per suite and configuration."""
        if not self.results:
            return _table_of(self.data) if self.data is not None else ((), [])
        several = len(self.results) > 1
        found = [(name, *_summary_columns(result.summaries())) for name, result in self.results.items()]
        # Suites that were tried once and more often have different columns: pass@k is there only for the
        # latter.
        headings = _joined_headings([own for _, own, _ in found])
        rows: list[list[str]] = []
        for name, own, cells in found:
            for row in cells:
                texts = dict(zip(own, row, strict=True))
                rows.append(
                    [
                        row[0],
                        *([name] if several else []),
                        *(texts.get(heading, "–") for heading in headings[1:]),
                    ]
                )
        return [*headings[:1], *(["suite"] if several else []), *headings[1:]], rows

    @property
    def headline(self) -> str:
        """What was imported, in one line."""
        there = len(self.runs) - self.added
        parts = [f"{format_count(self.added, 'run')} imported"] if self.runs or self.data is None else []
        parts += [f"{there:,} were there before"] if there else []
        parts += [f"{format_count(len(self.data), 'row')} of routing data"] if self.data is not None else []
        parts += [f"{format_count(len(self.broken), 'record')} could not be read"] if self.broken else []
        parts += [_trials_in_short(self.results.values())] if self.results else []
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """Return what to read beside the table: notes, and the first records that could not be read."""
        more = (
            [f"and {len(self.broken) - _SHOWN:,} more: .broken of what lab.evals.import_runs returns"]
            if len(self.broken) > _SHOWN
            else []
        )
        return [*self.notes, *map(str, self.broken[:_SHOWN]), *more]


def _trials_in_short(results: Collection[EvalResult]) -> str:
    """Return how many trials passed, and how many broke, of all that were in the files."""
    outcomes = [row.result["outcome"] for result in results for row in result.rows]
    broke = outcomes.count("error")
    text = f"{outcomes.count('pass'):,} of {format_count(len(outcomes), 'trial')} passed"
    if broke:
        text += f", {broke:,} of them broke"
        if all(result.suite.count_errors == "exclude" for result in results):
            text += " (in no rate)"
    return text


async def import_runs(
    lab: Services,
    paths: Sequence[str | Path | Sequence[str | Path]],
    *,
    suite: str | Path | Suite | None = None,
    reporter: Reporter | None = None,
) -> ImportResult:
    """Import what other tools recorded; see `Evaluations.import_runs`."""
    files = _files(paths)
    judge = None if suite is None else Judge(lab, suite if isinstance(suite, Suite) else load_suite(suite))
    work = _Import(lab, judge)
    sizes = [_size(path) for path in files]
    data: list[dict[str, Any]] = []
    done, began = 0, time.monotonic()

    def report() -> None:
        # A bar for an import that takes a moment would only flicker.
        if reporter is not None and time.monotonic() - began > 2.0:
            reporter(done // 1024, sum(sizes) // 1024, f"KB · {format_count(len(work.runs), 'run')}")

    if reporter is not None and sum(sizes) > _LARGE:
        # One record may take a minute, during which nothing else can be reported.
        reporter(0, sum(sizes) // 1024, "KB")
    for path, size in zip(files, sizes, strict=True):
        try:
            await work.read(path, data, report)
        except OSError as error:
            work.broken.append(Broken(shown_path(path), f"cannot be read: {error.strerror or error}"))
        except UsageError as error:
            work.broken.append(Broken(shown_path(path), str(error).removeprefix(f"{shown_path(path)}: ")))
        done += size
        report()
    lab.store.flush()
    if work.broken and not work.runs and not data:
        raise UsageError("\n".join(map(str, work.broken[: 2 * _SHOWN])))
    return work.imported(data)


class _Import:
    def __init__(self, lab: Services, judge: Judge | None) -> None:
        self._lab, self._judge = lab, judge
        self.runs: dict[str, None] = {}
        self.broken: list[Broken] = []
        self._added = 0
        self._unfit = 0
        self._unjudged = 0
        self._repeated = 0
        self._rows: dict[str, dict[str, EvalRow]] = {}
        self._goals: dict[tuple[str, str], str] = {}
        self._exclude: set[str] = set()
        self._named: set[Broken] = set()

    async def read(self, path: Path, data: list[dict[str, Any]], report: Callable[[], None]) -> None:
        """Store the records of a file, and add rows of routing data to `data`; raises `UsageError` for a file
        of which nothing can be read.
        """
        if is_routing(path):
            rows = list(routing_rows(path))
            self.broken += [row for row in rows if isinstance(row, Broken)]
            data += [row for row in rows if not isinstance(row, Broken)]
            return
        for number, found in enumerate(_readable(path)):
            await self.take(found)
            if number % 50 == 49:
                report()
                # Lets a bar be drawn and an interrupt arrive during a long file.
                await asyncio.sleep(0)

    async def take(self, found: Recording | Broken) -> None:
        """Store one record: its run, and a trial where it was judged."""
        if isinstance(found, Broken):
            self.broken.append(found)
            return
        try:
            scenario = None if self._judge is None else self._judge.scenario(found.scenario, found.goal)
            if self._judge is not None:
                named = (
                    {}
                    if scenario is None
                    else {"scenario": scenario.id, "family": scenario.family, "group": scenario.group}
                )
                found = replace(found, suite=self._judge.suite.name if scenario else "", **cast("Any", named))
                # A run is a trial of this suite, or of none.
                found = replace(found, scores=None if scenario is None else found.scores or ())
            events = events_of(found)
            row = trial_of(found, events)
        except UNREADABLE as error:
            self.broken.append(Broken(found.source, str(error)))
            return
        self.broken += [part for part in found.left_out if part not in self._named]
        self._named.update(found.left_out)
        if found.run_id in self.runs:
            self._repeated += 1
            return
        self.runs[found.run_id] = None
        self._added += store_run(self._lab.store, found.run_id, events)
        if self._judge is not None and scenario is None:
            self._unfit += 1
        elif scenario is None and found.scores is None:
            self._unjudged += not found.summary
        else:
            await self._trial(found, row, events, scenario)
        # Events wait for the disk in memory, and a file may hold any number of them.
        if self._lab.store.backlog > 4_000:
            await asyncio.wrap_future(self._lab.store.on_disk())

    async def _trial(
        self, found: Recording, made: EvalRow, events: list[tuple[float, Event]], scenario: Scenario | None
    ) -> None:
        suite_hash = None if self._judge is None else self._judge.suite_hash
        name = f"t{content_key(found.run_id, found.suite, suite_hash)[:16]}"
        row = next(iter(trials_by_ids(self._lab.store, [name])), None)
        if row is None:
            row = replace(made, id=name)
            if self._judge is not None and scenario is not None:
                records = [
                    Record(run_id=found.run_id, seq=n, eid="", at=at, event=event)
                    for n, (at, event) in enumerate(events, 1)
                ]
                row, _ = await self._judge.judged(row, scenario, records)
            store_trial(self._lab.store, row)
        self._rows.setdefault(row.suite, {})[row.id] = row
        self._goals[row.suite, row.scenario] = found.goal
        if found.format == "inspect":
            # Inspect leaves trials that broke out of its rates.
            self._exclude.add(row.suite)

    def imported(self, data: list[dict[str, Any]]) -> ImportResult:
        """Return what was imported."""
        import pandas as pd

        results = {
            name: EvalResult(suite=self._suite(name), rows=tuple(rows.values()), store=self._lab.store)
            for name, rows in self._rows.items()
        }
        notes = (
            [f"{format_count(self._unjudged, 'run')} without a score: judge them with --suite FILE"]
            if self._unjudged
            else []
        )
        if self._repeated:
            notes.append(
                f"{format_count(self._repeated, 'record')} equal to another one: imported and counted once"
            )
        if self._unfit:
            notes.append(
                f"{format_count(self._unfit, 'run')} fit no scenario of the suite, by id or goal: they "
                "are in the log, unjudged"
            )
        notes += [f"shown again by: kestrel eval summary SUITE --commit {COMMIT}"] if results else []
        return ImportResult(
            results=results,
            runs=tuple(self.runs),
            added=self._added,
            broken=tuple(self.broken),
            notes=tuple(notes),
            data=pd.DataFrame(data) if data else None,
        )

    def _suite(self, name: str) -> Suite:
        if self._judge is not None:
            return self._judge.suite
        rows = self._rows[name].values()
        scenarios = {row.scenario: row for row in rows}
        return Suite(
            name=name,
            scenarios=tuple(
                Scenario(
                    id=key,
                    goal=self._goals[name, key],
                    checks=(),
                    family=row.family,
                    # Only the format knows whether equal goals had equal files.
                    group=row.group,
                )
                for key, row in scenarios.items()
            ),
            configs=tuple(
                Config(name=config, model=model)
                for config, model in {row.config: row.result["model"] for row in rows}.items()
            ),
            epochs=max(row.epoch for row in rows),
            count_errors="exclude" if name in self._exclude else "fail",
        )


def _files(paths: Sequence[str | Path | Sequence[str | Path]]) -> list[Path]:
    found: list[Path] = []
    named = _flat(paths)
    if not named:
        raise UsageError("name a file or a folder to import")
    for path in map(Path, named):
        if path.is_dir():
            found += files_in(path)
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"there is no file {str(path)!r}")
    if not found:
        raise UsageError(
            f"{', '.join(map(repr, map(str, named)))} is a folder: name the files in it, or a folder "
            f"of files that end in {', '.join(ENDINGS)}"
        )
    return list(dict.fromkeys(found))


def _size(path: Path) -> int:
    return sum(one.stat().st_size for one in path.iterdir()) if path.is_dir() else path.stat().st_size


def _readable(path: Path) -> Records:
    """Yield the recordings in a file; what a reader stumbles over costs the rest of that file, and no
    other.
    """
    try:
        yield from read_file(path)
    except UsageError:
        raise
    except UNREADABLE as error:
        yield unreadable_record(shown_path(path), "the rest of the file cannot be read", error)


def _flat(paths: Sequence[object]) -> list[str | Path]:
    """Return the paths among those that were given, also in lists; raises `UsageError` for anything else."""
    found: list[str | Path] = []
    for path in paths:
        if isinstance(path, list | tuple):
            found += _flat(path)
        elif isinstance(path, str | Path):
            found.append(path)
        else:
            raise UsageError(f"import_runs takes paths of files and folders, not {path!r}")
    return found


def _table_of(frame: pd.DataFrame) -> tuple[Sequence[str], list[list[str]]]:
    """Return the summary of routing data; marks that are no shares, such as those from 1 to 10, are
    summarised as `mean (95 %)`.
    """
    given = cast("list[dict[str, Any]]", frame.to_dict(orient="records"))
    if any(row["success"] < 0 or row["success"] > 1 for row in given):
        kept = frame.dropna(subset=["success"]).groupby("config", sort=False)
        means = [
            (config, group, mean_interval(group["success"].tolist(), group["scenario"].tolist()))
            for config, group in kept
        ]
        rows = [
            [str(config), f"{mean.mean:.2f} ({mean.low:.2f}–{mean.high:.2f})", str(len(group))]
            for config, group, mean in means
        ]
        return ("configuration", "mean (95 %)", "trials"), rows
    defaults = {**dict.fromkeys(COLUMNS, math.nan), "outcome": "", "weight": 1.0, "model_kind": "real"}
    reducer = Reducer("exclude")
    for row in given:
        reducer.add_record(
            {
                **defaults,
                "model": row["config"],
                **{key: value for key, value in row.items() if value == value},
            }
        )
    return _summary_columns(reducer.summaries())


def _joined_headings(several: Sequence[Sequence[str]]) -> list[str]:
    """Return the headings of several tables, each once, each behind the one that it follows there."""
    joined: list[str] = []
    for headings in several:
        place = 0
        for heading in headings:
            if heading in joined:
                place = joined.index(heading) + 1
            else:
                joined.insert(place, heading)
                place += 1
    return joined


def _summary_columns(summaries: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a summary that say something of trials of others."""
    headings, rows = summary_table(summaries)
    kept = [
        place for place, name in enumerate(headings) if name not in ("model", "cache hits", "Pareto front")
    ]
    return [headings[place] for place in kept], [[row[place] for place in kept] for row in rows]
