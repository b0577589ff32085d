"""How much the confidences of a suite's stored trials are worth, shown and kept for the runs to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.stored.rescore import stored_rows
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.calibration import FEWEST, Calibration, Judged, calibration
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.review.calibration import Kept, keep
from kestrel_lab.runtime.session import Session
from kestrel_lab.verification.confidence import stated
from kestrel_lab.views.html.elements import paragraph_html


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Reliability:
    """The calibration of each configuration of a suite."""

    suite: str
    configs: dict[str, Calibration]
    rows: tuple[EvalRow, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n\n".join([*map(repr, self.configs.values()), *(["\n".join(self.notes)] if self.notes else [])])

    def _repr_html_(self) -> str:
        return "".join([*(each._repr_html_() for each in self.configs.values()), *map(paragraph_html, self.notes)])

    def write(self, path: Path) -> list[Path]:
        """Draw the reliability diagrams: to `path`, or where there are several configurations to one file each, named after them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        several = len(self.configs) > 1
        files = {name: path.with_name(f"{path.stem}-{_file_name(name)}{path.suffix}") if several else path for name in self.configs}
        for name, file in files.items():
            try:
                self.configs[name].plot().savefig(file)
            except ValueError as error:  # an ending that matplotlib does not know
                msg = f"{file} cannot be drawn: {error}"
                raise UsageError(msg) from error
        return list(files.values())


def reliability(
    session: Session, suite: str | Path | Suite, *, commit: str | None = None, configs: Sequence[str] | None = None
) -> Reliability:
    """The calibrations of a suite's newest stored trials of a commit, that of the newest trial by default; nothing is run.

    Raises `UsageError` when none are stored, or no configuration has enough trials that say how sure they are.
    """
    loaded = (suite if isinstance(suite, Suite) else load_suite(suite)).select(configs=configs)
    names = None if configs is None else {config.name for config in loaded.configs}
    rows = tuple(row for row in stored_rows(session, loaded, commit) if names is None or row.config in names)
    found = EvalResult(suite=loaded, rows=rows, store=session.store).calibration()
    left = sorted({row.config for row in rows} - set(found))
    few = (f"left out, fewer than {FEWEST} of their trials say how sure they are: {', '.join(left)}",) if left else ()
    return Reliability(suite=loaded.name, configs=found, rows=rows, notes=few)


def keep_calibrations(session: Session, found: Reliability) -> list[str]:
    """Keep them under the home for the badges of later runs of the same models; returns what was kept, in words.

    Trials are parted by the model that ran and by what their confidence rests on, for one says nothing of another; of
    configurations with the same model the one with most trials is kept.
    """
    best: dict[tuple[str, str], tuple[str, list[Judged]]] = {}
    for config in found.configs:
        groups = _groups(session.store, [row for row in found.rows if row.config == config])
        for key, judged in groups.items():
            if len(judged) >= max(FEWEST, len(best.get(key, ("", []))[1])):
                best[key] = config, judged
    told = []
    for (model, basis), (config, judged) in best.items():
        made = calibration(judged, config)
        most = max(each.confidence for each in judged)
        path = keep(session.home, model, basis, Kept(suite=found.suite, config=config, trials=made.trials, steps=made.steps, most=most))
        told.append(f"kept in {path}: answers of {model} whose confidence rests on {basis}, {made.trials} trials of {config}")
    return told or [f"nothing is kept: no model has {FEWEST} trials whose confidence rests on the same"]


def _groups(store: SessionStore, rows: Iterable[EvalRow]) -> dict[tuple[str, str], list[Judged]]:
    """Trials with a confidence, by model and by what it rests on, as the log has them."""
    found: dict[tuple[str, str], list[Judged]] = {}
    for row in rows:
        events = [record.event for record in store.records(str(row.result["run"]))]
        said = stated(events)
        model = next((event.model for event in events if isinstance(event, RunStarted)), "")
        if said is not None and row.result["outcome"] != "error":
            judged = Judged(confidence=said.value, passed=row.result["outcome"] == "pass", scenario=row.scenario)
            found.setdefault((model, said.basis), []).append(judged)
    return found


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in text)
