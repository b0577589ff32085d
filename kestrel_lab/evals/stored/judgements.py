"""Labels and judges of the stored trials of a suite: what people say, and how far a model judge agrees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.evals.options import JudgeOptions, LabelOptions, StoredSelection
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.sync import blocking_twin

if TYPE_CHECKING:
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.evals.labels.judge_measures import JudgeReport
    from kestrel_lab.evals.labels.label_queue import Labelling
    from kestrel_lab.evals.labels.label_report import LabelReport
    from kestrel_lab.evals.suite import Suite


class Judging:
    """Labels and judges of suites."""

    _lab: Services

    @takes_options(LabelOptions, StoredSelection)
    def label(self, suite: str | Path | Suite, *, active: bool = False, **options: Any) -> Labelling:
        """Draw `number` of a suite's newest stored trials to be labelled by `who`, the user by default.

        `give(run, value)` labels `next()`, `undo()` takes the newest label back; in a notebook
        `EvalResult.label` shows a box with keys, in a terminal `kestrel eval label`. Trials are drawn alike;
        with `active` they are likelier where judges are unsure, and none has probability 0. Raises
        `UsageError` when no trials are stored.
        """
        trials = self._trials(suite, options)
        return trials.label(active=active, **options)

    def labels(self, suite: str | Path | Suite) -> LabelReport:
        """Return the labels of a suite with the agreement of people, and of each with themselves; `.frame`
        has a row per label.

        A suite whose file is gone is named by its name. Raises `UsageError` where nothing is labelled.
        """
        from kestrel_lab.evals.labels.label_csv import no_labels
        from kestrel_lab.evals.labels.label_report import label_report
        from kestrel_lab.evals.labels.stored_labels import stored_labels
        from kestrel_lab.evals.stored_trials import stored_trials

        name, store = self._name(suite), self._lab.store
        if not stored_labels(store, name):
            raise UsageError(no_labels(store, name))
        return label_report(store, name, {row.run: row.group for row in stored_trials(store, suite=name)})

    def write_labels(self, suite: str | Path | Suite, path: str | Path) -> Path:
        """Write the labels of a suite as CSV, from which `read_labels` makes the same ones."""
        from kestrel_lab.evals.labels.label_csv import labels_csv

        text, target = labels_csv(self._lab.store, self._name(suite)), Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="")
        return target

    def read_labels(self, suite: str | Path | Suite, path: str | Path) -> tuple[int, int]:
        """Record the labels of a CSV file; returns how many were new and how many were there.

        Raises `UsageError` that names the rows, and records nothing, for unknown trials and for rows that are
        there twice or contradict others.
        """
        from kestrel_lab.evals.labels.label_csv import import_labels
        from kestrel_lab.evals.stored_trials import stored_trials

        store, name = self._lab.store, self._name(suite)
        return import_labels(store, name, Path(path), (row.run for row in stored_trials(store, suite=name)))

    @takes_options(JudgeOptions, StoredSelection)
    async def judge(
        self,
        suite: str | Path | Suite,
        *models: str | Model,
        reporter: Reporter | None = None,
        **options: Any,
    ) -> JudgeReport:
        """Ask model judges about a suite's newest stored trials, and measure all of its judges by its labels.

        Without `models` nothing is asked: verdicts in the log are measured, those of `graded` checks among
        them. With `rounds` each is asked again, with `swap` once more in the reverse order, with `labelled`
        about labelled trials only. The rubric is that of the labels unless another one is given. Raises
        `UsageError` when no trials are stored, and `CheckError` for a judge that never gives a verdict.
        """
        trials = self._trials(suite, options)
        graders = [self._lab.registry.resolve_model(one) if isinstance(one, str) else one for one in models]
        return await trials.judge(*graders, reporter=reporter, **options)

    judge_sync = blocking_twin(judge)

    def _trials(self, suite: str | Path | Suite, options: dict[str, Any]) -> EvalResult:
        """Return the stored trials of a suite that are meant, and take what selects them out of `options`."""
        from kestrel_lab.evals.execution.result import EvalResult
        from kestrel_lab.evals.stored.rescore import selected_rows

        names = [name for name in options if name in StoredSelection.__annotations__]
        which = cast("StoredSelection", {name: options.pop(name) for name in names})
        loaded = self._loaded(suite)
        rows = tuple(selected_rows(self._lab, loaded, which))
        return EvalResult(suite=loaded, rows=rows, store=self._lab.store)

    def _loaded(self, suite: str | Path | Suite) -> Suite:
        """Load a suite; of one whose file is gone, say what is left of it."""
        from kestrel_lab.evals.labels.label_csv import labelled_suites
        from kestrel_lab.evals.suite import Suite
        from kestrel_lab.evals.suites.loader import load_suite

        if isinstance(suite, Suite):
            return suite
        if ":" not in str(suite) and not Path(suite).exists():
            left = labelled_suites(self._lab.store)
            more = (
                f"; the log has labels of {left}, which kestrel eval label NAME --csv FILE writes"
                if left
                else ""
            )
            raise UsageError(f"there is no suite file {str(suite)!r}{more}")
        return load_suite(suite)

    def _name(self, suite: str | Path | Suite) -> str:
        """Return the name under which trials of a suite are stored."""
        from kestrel_lab.evals.suite import Suite
        from kestrel_lab.evals.suites.loader import load_suite

        if isinstance(suite, Suite):
            return suite.name
        exists = ":" in str(suite) or Path(suite).exists()
        return load_suite(suite).name if exists else Path(suite).stem
