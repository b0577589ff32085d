"""Gates under a budget: trials are made in turns until every gate holds, or one does not.

After each look the gates are decided as ever, by intervals that hold at all looks together
(`LookErrors`), so that who looks often is not misled more often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.commits.sequential_compare import (
    Design,
    Pair,
    PairRows,
    draw_in_turns,
    draw_order,
    refuse_judged,
)
from kestrel_lab.evals.execution.progress import EvalProgress
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.runner import TrialsToRun, run_suite, run_trials
from kestrel_lab.evals.reports.gate_decisions import Decision, GateReport, can_hold, decide_gates, gate_trials
from kestrel_lab.evals.stats.label_correction import ENOUGH_LABELS
from kestrel_lab.evals.stats.sequential import LookErrors, rate_variance
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count


class GateLooks:
    """The looks at the gates of a suite, and why they ended."""

    def __init__(self, design: Design, suite: Suite, progress: EvalProgress) -> None:
        """Raise `UsageError` for a suite whose trials a model judge decides."""
        refuse_judged(
            suite,
            "a gate in turns",
            f"Run the suite, label {ENOUGH_LABELS} trials (kestrel eval label), and decide without a budget",
        )
        self.suite, self.design, self.progress = suite, design, progress
        self.arms = len(suite.configs)
        self.planned = draw_order(suite, design.look_counts(suite, self.arms)[-1])
        self.looks: list[tuple[int, tuple[Decision, ...]]] = []
        self.ended = ""
        self._errors = LookErrors(design.spending, design.error)

    def look(self, rows: dict[Pair, PairRows], _drawn: object, fraction: float) -> bool:
        """Decide the gates by all trials so far; return whether that is the end."""
        every = [row for made in rows.values() for row in made]
        if not every:
            return False
        decided = decide_gates(self.suite, every, alpha=self._errors.next(fraction))
        self.looks.append((len(rows), decided))
        self.progress.look(self._remark(decided), self.report().plot)
        verdict = self.report().verdict
        if verdict in ("ok", "regression", "unrecorded"):
            return True
        self.ended = "" if self.design.open_ended else self._out_of_reach(every, rows)
        return bool(self.ended)

    def report(self, ended: str = "") -> GateReport:
        """Return the gates as the last look decided them; `ended` says what ended the trials before that."""
        trials = format_count(self.looks[-1][0] if self.looks else 0, "trial")
        why = self.ended or ended
        end = f"decided at look {len(self.looks)}" if not why else f"ended at look {len(self.looks)}: {why}"
        limit = "" if self.design.open_ended else f" of at most {len(self.planned)}"
        error = f"{100 * self.design.error:g} % error over all looks"
        return GateReport(
            suite=self.suite.name,
            decisions=self.looks[-1][1] if self.looks else (),
            notes=(f"Made in turns, {error}: {trials}{limit} of each configuration, {end}.",),
            looks=tuple(self.looks),
        )

    def _out_of_reach(self, made: Sequence[EvalRow], rows: Iterable[Pair]) -> str:
        """Return which gate cannot hold any more, even if everything that is left goes well: the rest is
        skipped. It says nothing of the rate, which is of the trials that were made.
        """
        left = set(self.planned).difference(rows)
        known = {one.id: one for one in self.suite.scenarios}
        for gate, config, records in gate_trials(self.suite, made):
            to_come = [known[name] for name, _ in sorted(left) if gate.covers(config, known[name].family)]
            # No look has a narrower interval than one that spends all of the error.
            if not can_hold(self.suite, gate, records, to_come, alpha=self.design.error):
                skipped = format_count(len(left) * self.arms, "trial")
                return (
                    f"{gate.text} [{config}] cannot hold any more, whatever the rest gives; {skipped} "
                    "skipped, which count in no rate"
                )
        return ""

    def _remark(self, decided: Sequence[Decision]) -> str:
        decisions = [f"{one.gate} [{one.config}] {one.cells()[2]} {one.verdict}" for one in decided]
        return f"look {len(self.looks)}: {'; '.join(decisions)}"


async def gate_in_turns(
    lab: Services, suite: str | Path | Suite, *, design: Design, **options: Any
) -> EvalResult:
    """Run a suite in turns until its gates are decided; see `Evaluations.gate_in_turns`."""
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    parts = {key: options.get(key) for key in ("scenarios", "families", "tags")}
    chosen = loaded.select(**parts, configs=options.get("configs"))
    if not chosen.gates:
        raise UsageError(f"suite {loaded.name} declares no gates to decide: write some under 'gates'")
    arms = len(chosen.configs)
    decided = GateReport(suite=loaded.name, decisions=())
    rows: dict[Pair, PairRows] = {}

    async def make(work: TrialsToRun) -> list[EvalRow]:
        nonlocal decided, rows
        assert work.progress is not None
        ready, progress = work.ready.suite, work.progress
        todo = {(ask.scenario.id, ask.epoch, ask.config.name): ask for ask in work.asks}
        made = list(progress.stored)
        names = [config.name for config in ready.configs]

        async def draw(pairs: Sequence[Pair]) -> dict[Pair, PairRows]:
            wanted = [todo[*pair, name] for pair in pairs for name in names if (*pair, name) in todo]
            if wanted:
                made.extend(await run_trials(replace(work, asks=wanted)))
            found = {(row.scenario, row.epoch, row.config): row for row in made}
            return {
                pair: tuple(found[*pair, name] for name in names)
                for pair in pairs
                if all((*pair, name) in found for name in names)
            }

        looks = GateLooks(design, ready, progress)
        rows, ended = await draw_in_turns(
            design, ready, draw, progress, looks.look, arms=len(names), what="trial", variance=rate_variance
        )
        decided = looks.report(ended)
        return made[len(progress.stored) :]

    found = await run_suite(
        lab,
        suite,
        epochs=design.epochs(chosen, arms),
        reuse=True,
        outside_git=True,
        make=make,
        **options,
    )
    used = replace(found, rows=tuple(row for made in rows.values() for row in made))
    return replace(used, decided=replace(decided, notes=(*decided.notes, *used.run_notes())))
