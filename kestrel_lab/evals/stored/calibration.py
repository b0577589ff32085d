"""Calibration: whether a suite's stored trials were right as often as their confidence says, and its
reliability diagram.

Sources: M. Naeini, G. Cooper and M. Hauskrecht, Obtaining well calibrated probabilities using Bayesian
binning, AAAI (2015) for the expected calibration error; B. Zadrozny and C. Elkan, Transforming classifier
scores into accurate multiclass probability estimates, KDD (2002) for isotonic calibration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestrel_lab.answers.confidence import stated_confidence
from kestrel_lab.core.drawing.matplotlib_figure import escape_mathtext, save_figure, shown_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.evals.stats.intervals_and_tests import proportion_interval
from kestrel_lab.evals.stored.rescore import selected_rows
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.review.calibration import StoredCalibration, store_calibration
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, TableView

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

FEWEST: Final = 20
"""Trials below which nothing is said of calibration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedTrial:
    """One trial: the confidence of its answer, and whether it passed."""

    confidence: float
    passed: bool
    group: str
    source: tuple[str, str] = ("", "")
    """The model that ran and the basis of its confidence; confidences of different sources are not
    comparable.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Trials of similar confidence."""

    confidence: float
    """Their mean confidence."""
    passed: float
    """The share that passed."""
    low: float
    high: float
    trials: int


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Calibration(TableView):
    """How well the confidence of one configuration's answers predicts whether they pass."""

    config: str
    bins: tuple[Bin, ...]
    """By rising confidence, with about equally many trials each; equal confidences are in one bin."""
    error: float
    """Expected calibration error: the mean distance between confidence and share passed, weighted by trials.
    """
    trials: int
    steps: tuple[tuple[float, float], ...]
    """The share that passes from each confidence on, by isotonic regression: non-decreasing in both."""

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the headings, and a row of texts per bin."""
        rows = [
            (f"{b.confidence:.0%}", f"{b.passed:.0%} ({b.low:.0%}–{b.high:.0%})", str(b.trials))
            for b in self.bins
        ]
        return ("confidence", "passed (95 %)", "trials"), rows

    @property
    def headline(self) -> str:
        """The error in a sentence."""
        return (
            f"{self.config}: expected calibration error {self.error:.1%} over "
            f"{format_count(self.trials, 'trial')}"
        )

    def plot(self) -> Figure:
        """Draw the reliability diagram: the share passed against the confidence, with intervals; calibrated
        bins are on the diagonal.
        """
        figure = shown_figure()(figsize=(5.4, 4.6), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="perfectly calibrated")
        reach = [
            [max(0.0, b.passed - b.low) for b in self.bins],
            [max(0.0, b.high - b.passed) for b in self.bins],
        ]
        at, passed = [b.confidence for b in self.bins], [b.passed for b in self.bins]
        axes.errorbar(at, passed, yerr=reach, fmt="o", capsize=3, label="trials, 95 %")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="stated confidence", ylabel="share passed")
        axes.set_title(
            escape_mathtext(
                f"Calibration of {self.config}: error {self.error:.1%}, {format_count(self.trials, 'trial')}"
            ),
            fontsize=10,
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left")
        return figure


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Reliability(PartsView):
    """The calibration of each configuration of a suite."""

    suite: str
    configs: dict[str, Calibration]
    judged: dict[str, list[JudgedTrial]]
    """The trials with a confidence, by configuration."""
    notes: tuple[str, ...] = ()

    def parts(self) -> Iterable[Part]:
        """Return the calibration of each configuration, and the notes."""
        return [
            *(part for each in self.configs.values() for part in (each.headline, *each.parts(), "")),
            *self.notes,
        ]

    def write(self, path: Path) -> list[Path]:
        """Draw the reliability diagrams to `path`; several configurations get one file each, named after
        them.
        """
        several = len(self.configs) > 1
        files = {
            name: path.with_name(f"{path.stem}-{_file_name(name)}{path.suffix}") if several else path
            for name in self.configs
        }
        for name, file in files.items():
            save_figure(self.configs[name].plot(), file)
        return list(files.values())


def measure_calibration(trials: Sequence[JudgedTrial], config: str = "confidence") -> Calibration:
    """Return how well confidences and outcomes agree.

    Raises `UsageError` for fewer than `FEWEST` trials and for a confidence that is not from 0 to 1.
    """
    import numpy as np

    if len(trials) < FEWEST:
        raise UsageError(
            f"{config}: {len(trials)} trials have a confidence; calibration needs {FEWEST} at least, "
            "from verified answers (`verify: judge` of a configuration)"
        )
    if wrong := [each.confidence for each in trials if not 0 <= each.confidence <= 1]:
        raise UsageError(f"{config}: a confidence is from 0 to 1, not {wrong[0]!r}")
    sure = np.array([each.confidence for each in trials])
    bins = tuple(_bin([trials[number] for number in group]) for group in _groups(sure))
    return Calibration(
        config=config,
        bins=bins,
        error=math.fsum(abs(b.confidence - b.passed) * b.trials for b in bins) / len(trials),
        trials=len(trials),
        steps=_steps(sure, np.array([float(each.passed) for each in trials])),
    )


def stored_calibrations(
    lab: Services,
    suite: str | Path | Suite,
    *,
    commit: str | None = None,
    configs: Sequence[str] | None = None,
) -> Reliability:
    """Return the calibrations of a suite's newest stored trials at a commit, that of the newest trial by
    default; nothing is run.

    Raises `UsageError` when none are stored, or no configuration has enough trials with a confidence.
    """
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    judged: dict[str, list[JudgedTrial]] = {}
    for row in selected_rows(lab, loaded, {"configs": configs, "commit": commit}):
        found = judged.setdefault(row.config, [])
        events = [record.event for record in lab.store.records(row.run)]
        if row.outcome != "error" and (said := stated_confidence(events)) is not None:
            model = next((event.model for event in events if isinstance(event, RunStarted)), "")
            passed = row.outcome == "pass"
            found.append(
                JudgedTrial(confidence=said.value, passed=passed, group=row.group, source=(model, said.basis))
            )
    enough = {config: trials for config, trials in judged.items() if len(trials) >= FEWEST}
    # Where no configuration has enough trials, the first one raises the error that says so.
    made = {config: measure_calibration(trials, config) for config, trials in (enough or judged).items()}
    left = sorted(judged.keys() - enough.keys())
    few = (
        (f"left out, fewer than {FEWEST} of their trials say how sure they are: {', '.join(left)}",)
        if left
        else ()
    )
    return Reliability(suite=loaded.name, configs=made, judged=enough, notes=few)


def keep_calibrations(lab: Services, found: Reliability) -> list[str]:
    """Keep the calibrations under the session's home for the badges of later runs; returns what was kept, in
    words.

    They are kept by model and by the basis of the confidence; of configurations with the same model the one
    with most trials is kept.
    """
    best: dict[tuple[str, str], tuple[str, list[JudgedTrial]]] = {}
    for config, trials in found.judged.items():
        for source in dict.fromkeys(each.source for each in trials):
            mine = [each for each in trials if each.source == source]
            # Of configurations with the same model the one with most trials is kept.
            if len(mine) >= max(FEWEST, len(best.get(source, ("", []))[1])):
                best[source] = config, mine
    kept = []
    for (model, basis), (config, trials) in best.items():
        made, most = measure_calibration(trials, config), max(each.confidence for each in trials)
        path = store_calibration(
            lab.home,
            model,
            basis,
            StoredCalibration(
                suite=found.suite, config=config, trials=made.trials, steps=made.steps, most=most
            ),
        )
        kept.append(
            f"kept in {path}: answers of {model} whose confidence rests on {basis}, "
            f"{format_count(made.trials, 'trial')} of {config}"
        )
    return kept or [f"nothing is kept: no model has {FEWEST} trials whose confidence rests on the same"]


def _groups(sure: np.ndarray) -> Iterable[np.ndarray]:
    """Split the places of `sure` into groups of about equal size, by rising confidence; equal confidences
    stay together.
    """
    import numpy as np

    order = np.argsort(sure, kind="stable")
    number = max(1, min(10, len(sure) // 8))
    cuts = {round(len(sure) * k / number) for k in range(1, number)}
    moved = sorted({int(np.searchsorted(sure[order], sure[order[cut]], side="left")) for cut in cuts} - {0})
    return [group for group in np.split(order, moved) if len(group)]


def _bin(trials: Sequence[JudgedTrial]) -> Bin:
    found = proportion_interval([float(each.passed) for each in trials], [each.group for each in trials])
    return Bin(
        confidence=math.fsum(each.confidence for each in trials) / len(trials),
        passed=found.mean,
        low=0.0 if math.isnan(found.low) else found.low,
        high=1.0 if math.isnan(found.high) else found.high,
        trials=len(trials),
    )


def _steps(sure: np.ndarray, right: np.ndarray) -> tuple[tuple[float, float], ...]:
    import numpy as np
    from scipy.optimize import isotonic_regression

    values, inverse, counts = np.unique(sure, return_inverse=True, return_counts=True)
    fitted = isotonic_regression(np.bincount(inverse, weights=right) / counts, weights=counts).x
    kept = [0, *(place for place in range(1, len(values)) if fitted[place] != fitted[place - 1])]
    return tuple((float(values[place]), float(fitted[place])) for place in kept)


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in text)
