"""What people and judges say of the trials of a result at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.evals.options import JudgeOptions, LabelOptions
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.views.formatting import format_count

if TYPE_CHECKING:
    from kestrel_lab.evals.labels.judge_measures import JudgeReport
    from kestrel_lab.evals.labels.label_queue import Labelling
    from kestrel_lab.evals.labels.label_report import LabelReport


class LabelledResult:
    """Base of a result whose trials can be labelled and judged."""

    __slots__ = ()

    suite: Suite
    rows: tuple[EvalRow, ...]
    store: SessionStore

    @takes_options(LabelOptions)
    def label(self, *, active: bool = False, **how: Any) -> Labelling:
        """Draw trials of this result to be labelled by keys, in a notebook in a box below the cell.

        `who` labels, `number` trials, `seed` of the draw, `rubric`, `active` are those of
        `lab.evals.label`. Broken trials are left out.
        """
        from kestrel_lab.evals.labels.label_queue import begin_labelling

        return begin_labelling(self.store, self.suite, self.rows, LabelOptions(**how), active=active)

    def labels(self) -> LabelReport:
        """Return the labels of the suite, with the agreement of people and of each with themselves."""
        from kestrel_lab.evals.labels.label_report import label_report

        return label_report(self.store, self.suite.name, {row.run: row.group for row in self.rows})

    @takes_options(JudgeOptions)
    async def judge(self, *judges: Model, reporter: Reporter | None = None, **how: Any) -> JudgeReport:
        """Ask these judges about the trials, and measure all judges of them by labels: see
        `lab.evals.judge`, which takes names of models, too.
        """
        from kestrel_lab.evals.labels.judge_measures import judge_report
        from kestrel_lab.evals.labels.label_queue import suite_rubric
        from kestrel_lab.evals.labels.stored_labels import current_rubric, labels_of
        from kestrel_lab.evals.labels.verdicts import judge_trials

        store, name, asked = self.store, self.suite.name, JudgeOptions(**how)
        notes = list[str]()
        if judges:
            rubric = asked.rubric or current_rubric(store, name) or suite_rubric(self.suite)
            wanted = labels_of(store, name) if asked.labelled else {row.run for row in self.rows}
            rows = [row for row in self.rows if row.run in wanted]
            done = await judge_trials(
                store, name, rows, judges, replace(asked, rubric=rubric), reporter=reporter
            )
            notes = [f"{format_count(done.asked, 'verdict')} asked for, {done.there} in the log"]
            if done.refused:
                run, why = next(iter(done.refused.items()))
                notes.append(
                    f"no verdict on {format_count(len(done.refused), 'trial')}, run {run} for one: {why}"
                )
        return judge_report(store, name, self.rows, notes=notes)
