"""The receipt of a blame: the decisive turn as a set with its probability, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kestrel_lab.core.drawing.matplotlib_figure import shown_figure
from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.blame.rerun import Rerun, Turn
from kestrel_lab.evals.reports.result_view import ResultView, write_text
from kestrel_lab.evals.stats.decisive_step import DecisiveStep
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stats.intervals_and_tests import Interval, wilson_proportion
from kestrel_lab.runtime.workspace.removal import RECEIPTS
from kestrel_lab.views.formatting import format_count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Verdict = Literal["decisive", "no single step", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """A line that the model was given at the decisive turn, and how often the run succeeded with it."""

    change: str
    passed: int
    tried: int

    @property
    def rate(self) -> Interval:
        """The success rate with its interval."""
        return wilson_proportion(self.passed, self.tried)


@dataclass(frozen=True, kw_only=True, repr=False)
class Receipt(ResultView):
    """Which turn made a run fail, as far as re-runs show it."""

    run: str
    goal: str
    checks: tuple[str, ...]
    """What a re-run has to pass."""
    model: str
    """The model that answered in the re-runs."""
    turns: tuple[Turn, ...]
    reruns: tuple[Rerun, ...]
    """All of them, those with a line that may repair the run as well."""
    whole_runs: float
    """What the re-runs cost, as requests to the model, in runs like the one that failed."""
    cost_usd: float | None
    """`None` where prices are not known."""
    ended: str = ""
    """What ended the search before it was over."""
    replayed: Mapping[str, int] = field(default_factory=dict)
    """Calls that were answered from the log, by tool."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Calls outside of the private copies that were not made, by tool."""
    untried: Mapping[str, int] = field(default_factory=dict)
    """Lines that the budget left untried, or tried less often than asked: how many tries are missing."""

    @cached_property
    def forks(self) -> tuple[Rerun, ...]:
        """The re-runs in which the model had no line beside the conversation, and that did not break."""
        return tuple(one for one in self.reruns if one.outcome != "error" and not one.line)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What came of each line that was tried at the likeliest turn."""
        tried = group_values(
            (one.line, one.outcome == "pass")
            for one in self.reruns
            if one.line and one.turn == self.likeliest.number and one.outcome != "error"
        )
        return tuple(
            Repair(change=line, passed=sum(passed), tried=len(passed)) for line, passed in tried.items()
        )

    @cached_property
    def search(self) -> DecisiveStep:
        """What the re-runs say."""
        found = DecisiveStep(len(self.turns))
        for one in self.forks:
            found.add(one.turn, passed=one.outcome == "pass")
        return found

    @cached_property
    def posterior(self) -> tuple[float, ...]:
        """The probability that no single turn was decisive, then that of each turn."""
        return tuple(self.search.posterior())

    @property
    def steps(self) -> tuple[int, ...]:
        """The smallest set of turns that holds the decisive one with probability `DecisiveStep.sure`, the
        likeliest first; empty where none is accused.
        """
        return self.search.accused() if self.verdict == "decisive" else ()

    @cached_property
    def verdict(self) -> Verdict:
        """`decisive`, `no single step`, or `undecided` where the budget ended before either was shown."""
        if self.search.accused() and (self.search.over() or self.ended):
            return "decisive"
        return "no single step" if self.posterior[0] >= self.search.sure else "undecided"

    @property
    def likeliest(self) -> Turn:
        """The turn that is likeliest to be the decisive one, if one is."""
        return max(self.turns, key=lambda turn: self.posterior[turn.number])

    @property
    def before(self) -> Interval:
        """The success rate of re-runs that make the likeliest turn anew, with its 95 % interval."""
        return self._rate([one for one in self.forks if one.turn <= self.likeliest.number])

    @property
    def after(self) -> Interval:
        """The success rate of re-runs that keep the likeliest turn, with its 95 % interval."""
        return self._rate([one for one in self.forks if one.turn > self.likeliest.number])

    @property
    def exit_code(self) -> int:
        """0 where a turn or none was shown to be decisive, else 1."""
        return int(self.verdict == "undecided")

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.verdict == "decisive":
            sure = sum(self.posterior[step] for step in self.steps)
            names = ", ".join(map(str, sorted(self.steps)))
            which = f"turn {names}" if len(self.steps) == 1 else f"one of the turns {names}"
            return f"DECISIVE: {which} of {len(self.turns)} ({100 * sure:.0f} %)"
        if self.verdict == "no single step":
            return f"NO SINGLE STEP was decisive ({100 * self.posterior[0]:.0f} %)"
        return (
            f"UNDECIDED: none with {100 * self.posterior[0]:.0f} %, and if one was decisive, it is "
            f"turn {self.likeliest.number} with {100 * self.posterior[self.likeliest.number]:.0f} %"
        )

    def lines(self) -> list[str]:
        """Return what to read beside the table: rates, cost, model, and what was not re-run."""
        forks, broken = self.forks, [one for one in self.reruns if one.outcome == "error"]
        said = []
        if self.verdict == "decisive":
            said.append(
                f"success {_percent(self.before)} when turn {self.likeliest.number} is made anew, "
                f"{_percent(self.after)} when it is kept"
            )
        elif forks:
            said.append(f"success {_percent(self._rate(forks))} over all re-runs")
        last = self._rate([one for one in forks if one.turn == len(self.turns)])
        # If even the last turn succeeds in half of its forks, the run need not have failed at all.
        if self.verdict == "no single step" and last.mean >= 0.5:
            said.append(
                f"from before the last turn {_percent(last)} succeed: what failed was that turn or chance, "
                "which re-runs cannot tell apart"
            )
        price = "price unknown" if self.cost_usd is None else f"{self.cost_usd:.2f} dollars"
        said.append(
            f"{len(self.reruns)} re-runs by {self.model}, in private copies, cost {self.whole_runs:.1f} "
            f"whole runs ({price}); success is: {'; '.join(self.checks)}"
        )
        if broken:
            why = one_line(broken[0].reason, 200)
            said.append(f"{format_count(len(broken), 're-run')} broke, of which nothing is concluded: {why}")
        if self.replayed:
            said.append(f"answered from the log, not made again: {_counts(self.replayed)}")
        if self.refused:
            said.append(f"not made, since they reach outside of the copy: {_counts(self.refused)}")
        if self.ended:
            said.append(f"ended because {self.ended}; asked again with more, it goes on from here")
        said += [
            f"with “{one_line(one.change, 120)}” at turn {self.likeliest.number}: {_percent(one.rate)}, "
            f"{one.passed} of {one.tried}"
            for one in self.repairs
        ]
        said += [
            f"not tried for want of budget: {format_count(count, 'time')} more with “{one_line(line, 120)}”"
            for line, count in self.untried.items()
        ]
        return said

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return a row per turn: its probability, and the re-runs from there."""
        rows = []
        for turn in self.turns:
            tried = [one for one in self.forks if one.turn == turn.number]
            passed = sum(one.outcome == "pass" for one in tried)
            rows.append(
                [
                    ("▶ " if turn.number in self.steps else "") + str(turn.number),
                    str(turn.seq),
                    f"{100 * self.posterior[turn.number]:.0f} %",
                    f"{passed} of {len(tried)}" if tried else "",
                    sanitize_text(turn.did),
                ]
            )
        return ("turn", "event", "probability", "passed from here", "what it did"), rows

    @property
    def frame(self) -> pd.DataFrame:
        """One row per turn: `turn`, `event`, `probability`, `passed`, `tried`, `accused`, `did`."""
        import pandas as pd

        tried = self.search
        rows = [
            {
                "turn": turn.number,
                "event": turn.seq,
                "probability": self.posterior[turn.number],
                "passed": tried.passed[turn.number],
                "tried": tried.passed[turn.number] + tried.failed[turn.number],
                "accused": turn.number in self.steps,
                "did": turn.did,
            }
            for turn in self.turns
        ]
        return pd.DataFrame(rows).set_index("turn")

    def plot(self) -> Figure:
        """Draw the probability of each turn, and the success rate of re-runs from there."""
        figure = shown_figure()(figsize=(7.5, 3.4), layout="constrained")
        axes = figure.subplots()
        numbers = [turn.number for turn in self.turns]
        colours = ["C3" if number in self.steps else "0.7" for number in numbers]
        axes.bar(
            numbers,
            [100 * self.posterior[number] for number in numbers],
            color=colours,
            label="probability to be decisive",
        )
        for number in numbers:
            passed, failed = self.search.passed[number], self.search.failed[number]
            if passed + failed:
                rate = wilson_proportion(passed, passed + failed)
                axes.errorbar(
                    [number],
                    [100 * rate.mean],
                    yerr=[[100 * (rate.mean - rate.low)], [100 * (rate.high - rate.mean)]],
                    fmt="o",
                    color="C0",
                    capsize=3,
                    label="success from here" if number == min(one.turn for one in self.forks) else None,
                )
        axes.set_ylim(0, 104)
        axes.set_xlabel("turn made anew, with all after it")
        axes.set_ylabel("%")
        axes.set_title(sanitize_text(self.headline), fontsize=10)
        axes.locator_params(axis="x", integer=True)
        axes.legend(loc="best", fontsize=8)
        axes.grid(axis="y", alpha=0.3)
        return figure

    def as_json(self) -> dict[str, Json]:
        """Return the receipt with all that it rests on; `read_receipt` reads it."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept = {
            name: [asdict(one) for one in value] if name in ("turns", "reruns") else value
            for name, value in given.items()
        }
        said: dict[str, Any] = {
            "verdict": self.verdict,
            "steps": list(self.steps),
            "posterior": list(self.posterior),
            "before": _interval(self.before),
            "after": _interval(self.after),
            "repairs": [asdict(one) for one in self.repairs],
        }
        return {**said, **kept, "checks": list(self.checks)}

    def write(self, path: str | Path) -> Path:
        """Write the receipt as JSON."""
        return write_text(path, dumps(self.as_json()) + "\n")

    def _rate(self, reruns: Sequence[Rerun]) -> Interval:
        passed = sum(one.outcome == "pass" for one in reruns)
        return wilson_proportion(passed, len(reruns)) if reruns else Interval(mean=0.0, low=0.0, high=1.0)


def keep_receipt(home: Path, receipt: Receipt) -> None:
    """Keep a receipt as the newest one of its run."""
    receipt.write(home / RECEIPTS / f"{receipt.run}.json")


def read_receipt(home: Path, run: str) -> Receipt | None:
    """Return the newest receipt of a run, if any; raises `StoreError` for one that cannot be read."""
    file = home / RECEIPTS / f"{run}.json"
    if not file.is_file():
        return None
    try:
        body: dict[str, Any] = loads(file.read_text(encoding="utf-8"))  # type: ignore[assignment]
        # Those of before a field came do not have it.
        given = {name: body[name] for name in Receipt.__dataclass_fields__ if name in body}
        for name, kind in (("turns", Turn), ("reruns", Rerun)):
            given[name] = tuple(kind(**one) for one in given[name])
        return Receipt(**{**given, "checks": tuple(given["checks"])})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the receipt {file} cannot be read: remove it and blame the run again") from error


def _interval(rate: Interval) -> dict[str, Json]:
    return {"mean": rate.mean, "low": rate.low, "high": rate.high}


def _percent(rate: Interval) -> str:
    return f"{100 * rate.mean:.0f} % ({100 * rate.low:.0f}–{100 * rate.high:.0f} %)"


def _counts(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{tool} ({count})" for tool, count in sorted(calls.items()))
