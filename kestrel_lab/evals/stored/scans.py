"""Scans and clusters of stored runs, and runs aligned with each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.core.run_types import RunReference, run_id_of
from kestrel_lab.evals.options import StoredSelection
from kestrel_lab.evals.stored.judgements import Judging
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.sync import blocking_twin

if TYPE_CHECKING:
    from kestrel_lab.evals.reports.aligned_runs import AlignedRuns
    from kestrel_lab.evals.reports.cluster_report import ClusterReport
    from kestrel_lab.evals.reports.scan_report import ScanReport
    from kestrel_lab.evals.scanners.scanner import Looks
    from kestrel_lab.evals.suite import Suite


class Reading(Judging):
    """Looks through stored runs."""

    @takes_options(StoredSelection)
    async def scan(
        self,
        what: str | Path | Suite | RunReference | Sequence[RunReference],
        *scanners: str | Looks,
        model: str | Model | None = None,
        rubric: str = "",
        reporter: Reporter | None = None,
        **which: Unpack[StoredSelection],
    ) -> ScanReport:
        """Look through the newest stored trials of a suite, or through runs, for what scanners
        know.

        Scanners are objects, names of shipped ones (all of them by default) or `FILE.py:NAME`. With a `model`
        names are those of shipped rubrics, all by default, which the model reads each run by, or one name for
        a `rubric` of your own; such a scanner is called `NAME_judged`. What is found is stored with the run.
        Raises `UsageError` for a scanner that is not there and where there is nothing to scan.
        """
        from kestrel_lab.evals.reports.scan_report import scan_report
        from kestrel_lab.evals.stored.selected_trials import selected_trials

        suite, rows = selected_trials(self._lab, what, which)
        chosen = self._scanners(scanners, model, rubric)
        looked_at = f"suite {suite}" if suite else "runs"
        return await scan_report(self._lab.store, looked_at, rows, chosen, suite=suite, reporter=reporter)

    scan_sync = blocking_twin(scan)

    @takes_options(StoredSelection)
    async def clusters(
        self,
        what: str | Path | Suite | RunReference | Sequence[RunReference],
        *,
        model: str | Model | None = None,
        **which: Unpack[StoredSelection],
    ) -> ClusterReport:
        """Group the failures of a suite, or of runs, by their calls, errors and words.

        Each cluster has a name that stays while most of what tells it apart stays, its most telling words,
        counts by configuration and three examples; a `model` puts into a sentence what they have in common.
        Raises `UsageError` where nothing failed.
        """
        from kestrel_lab.evals.reports.cluster_report import cluster_report
        from kestrel_lab.evals.stored.selected_trials import selected_trials

        suite, rows = selected_trials(self._lab, what, which)
        grader = self._lab.registry.resolve_model(model) if isinstance(model, str) else model
        return await cluster_report(self._lab.store, suite, rows, model=grader)

    clusters_sync = blocking_twin(clusters)

    def align(self, *runs: RunReference) -> AlignedRuns:
        """Align two and more runs of the log: which steps correspond, where they differ first, and what each
        did from there.

        Runs that are forks of each other are aligned exactly up to where they part, others by their calls and
        texts. Shown in a terminal and a notebook; `report(path)` writes a page, `frame` has a row per step.
        Raises `UsageError` for fewer than two runs and one that the log does not have.
        """
        from kestrel_lab.evals.reports.aligned_runs import align_runs

        return align_runs(self._lab.store, [run_id_of(run) for run in runs])

    def _scanners(self, wanted: Sequence[str | Looks], model: str | Model | None, rubric: str) -> list[Looks]:
        from kestrel_lab.evals.scanners.deterministic import SHIPPED
        from kestrel_lab.evals.scanners.model_scanner import RUBRICS, ModelScanner
        from kestrel_lab.evals.scanners.scanner import Scanner
        from kestrel_lab.evals.suites.python_files import load_object

        if model is None:
            if rubric:
                raise UsageError("a rubric is read by a model: name one, model= or --model")
            found: list[Looks] = []
            for one in wanted:
                if not isinstance(one, str):
                    found.append(one)
                elif ".py:" in one:
                    path, _, name = one.rpartition(":")
                    found.append(load_object(Path(path), name, Scanner))
                elif one in SHIPPED:
                    found.append(SHIPPED[one])
                else:
                    by_model = f"; with a model there is {one}, too" if one in RUBRICS else ""
                    raise UsageError(f"there is no scanner {one!r}; {did_you_mean(one, SHIPPED)}{by_model}")
            return found
        names = [one for one in wanted if isinstance(one, str)]
        if rubric and len(names) > 1:
            raise UsageError(f"a rubric is that of one scanner, not of {len(names)}: {', '.join(names)}")
        if unknown := [name for name in names if name not in RUBRICS and not rubric]:
            raise UsageError(f"there is no rubric {unknown[0]!r}; {did_you_mean(unknown[0], RUBRICS)}")
        grader = self._lab.registry.resolve_model(model) if isinstance(model, str) else model
        return [
            *(one for one in wanted if not isinstance(one, str)),
            *(
                ModelScanner(name=f"{name}_judged", rubric=rubric or RUBRICS[name], model=grader)
                for name in names or (["rubric"] if rubric else RUBRICS)
            ),
        ]
