"""Comparison under a budget: pairs of trials are drawn in turns until the difference is decided.

All scenarios get their first pair before any gets its second, in an order drawn by the suite's name, so that
a comparison that is asked again goes on where it was. `evals.stats.sequential` decides after each look.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.progress import EvalProgress
from kestrel_lab.evals.reports.plots import sequence_figure
from kestrel_lab.evals.stats.difference import Difference
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval
from kestrel_lab.evals.stats.label_correction import ENOUGH_LABELS
from kestrel_lab.evals.stats.sequential import (
    ICC,
    RATE,
    SHARED,
    AnytimeValid,
    Boundary,
    GroupSequential,
    Look,
    SequentialTest,
    Spending,
    detectable_by,
    information_fractions,
    no_difference_variance,
)
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import MOST_EPOCHS, Suite
from kestrel_lab.evals.summaries.corrected_rates import asks_judge
from kestrel_lab.evals.summaries.streaming_summary import known_cost
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LOOKS: Final = 6
_OPEN_ROUNDS: Final = 200
"""Rounds after which a comparison without a maximum gives up."""
_BUDGET: Final = re.compile(
    r"(?:(?P<trials>\d+(?:_\d+)*)\s*trials?|\$?(?P<cost>\d+(?:\.\d+)?)\s*usd|(?P<open>open))",
    re.IGNORECASE | re.ASCII,
)

Pair = tuple[str, int]
"""A scenario and an epoch: one trial on each side."""
PairRows = tuple[EvalRow, ...]
"""The trials of a pair, base first; of a gate, one of each configuration."""
Draw = Callable[[Sequence[Pair]], Awaitable[dict[Pair, PairRows]]]
"""Makes the trials of pairs, or finds them stored; pairs that one side cannot run are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """What a comparison may take, and what it is to tell apart."""

    trials: int | None = None
    """The most trials of both sides together, stored ones included; neither this nor `cost`: no maximum."""
    cost: float | None = None
    """US dollars after which no pair is begun, stored trials included."""
    error: float = 0.05
    """How often a difference is reported where there is none, over all looks together."""
    power: float = 0.8
    """How often a difference of the detectable size is to be found."""
    matters: float = 0.05
    """The smallest difference of the success rate that anybody would act on."""
    looks: int = LOOKS
    spending: Spending = "pocock"

    def __post_init__(self) -> None:
        """Raise `UsageError` for a design that cannot decide anything."""
        for name, low, high in (("error", 0, 0.5), ("power", 0.5, 1), ("matters", 0, 1)):
            value = getattr(self, name)
            if not low < value < high:
                raise UsageError(f"{name} is a share above {low} and below {high}, not {value:g}")
        if self.trials is not None and self.trials < 4:
            raise UsageError(f"a budget of {self.trials} trials is too small: two pairs are four trials")
        if self.cost is not None and not 0 < self.cost < math.inf:
            raise UsageError(f"a budget is an amount of US dollars above 0, not {self.cost:g}")
        if not 1 <= self.looks <= 50:
            raise UsageError(f"a comparison has 1 to 50 looks, not {self.looks}")

    @property
    def open_ended(self) -> bool:
        """Whether there is no maximum of trials."""
        return self.trials is None and self.cost is None

    def epochs(self, suite: Suite, arms: int = 2) -> int:
        """Return how often each scenario may be tried on each of the `arms`."""
        if self.open_ended:
            return _OPEN_ROUNDS
        if self.trials is None:
            return suite.epochs
        needed = math.ceil(self.trials // arms / len(suite.scenarios))
        if needed > MOST_EPOCHS:
            raise UsageError(
                f"{self.trials:,} trials are more than {MOST_EPOCHS:,} of each scenario: add scenarios, "
                "they tell more than repeats do"
            )
        return needed

    def look_counts(self, suite: Suite, arms: int = 2) -> list[int]:
        """Return after how many trials of each arm to look; two arms make pairs."""
        size = len(suite.scenarios)
        if self.open_ended:
            return [size * number for number in range(1, _OPEN_ROUNDS + 1)]
        epochs = self.epochs(suite, arms)
        most = size * epochs if self.trials is None else self.trials // arms
        # Fewer than five scenarios show nothing, and a look that cannot decide only spends error.
        looks = max(1, min(self.looks, most // min(5, size)))
        return sorted({round(most * number / looks) for number in range(1, looks + 1)})

    def detectable(self, suite: Suite) -> float:
        """Return the drop of the success rate that this budget finds with the asked power; nan without a
        maximum, `inf` where none is large enough.
        """
        if self.open_ended:
            return math.nan
        pairs = self.look_counts(suite)[-1]
        units = min(unit_count(suite), pairs)
        return self.detectable_with(units, pairs // units)

    def detectable_with(self, scenarios: int, epochs: int) -> float:
        """Return the same for so many scenarios and epochs; scenarios of one group count as its repeats."""
        counts = [max(1, scenarios * epochs * number // self.looks) for number in range(1, self.looks + 1)]
        boundary = Boundary(self.spending, self.error)
        looks = [(one, boundary.next(one)) for one in information_fractions(counts, scenarios)]
        return detectable_by(scenarios, epochs, power=self.power, looks=looks)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrialPlan(TableView):
    """What a budget can tell apart, before the first trial, with scenarios and epochs of equal cost."""

    suite: Suite
    design: Design

    @property
    def headline(self) -> str:
        """What the suite as it is can tell apart with this budget."""
        if self.design.open_ended:
            return (
                f"Suite {self.suite.name} without a maximum: trials go on until a difference is shown, or "
                f"shown to be below {100 * self.design.matters:g} points"
            )
        pairs, found = self.design.look_counts(self.suite)[-1], self.design.detectable(self.suite)
        power = f"{100 * self.design.power:g} %"
        reach = (
            f"too few to find a drop of any size in {power} of comparisons"
            if math.isinf(found)
            else f"a drop of {100 * found:.0f} points is found in {power} of comparisons"
        )
        return (
            f"Suite {self.suite.name}, {format_count(pairs, 'pair')} of trials, "
            f"{format_count(self.design.looks, 'look')}: {reach}"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings, and a row per way to spend the same number of pairs."""
        pairs = self.design.look_counts(self.suite)[-1]
        size = min(unit_count(self.suite), pairs)
        rows = []
        for epochs in sorted({1, 2, 3, 5, 10, max(1, pairs // size)}):
            scenarios = pairs // epochs
            if scenarios < 2:
                continue
            found = self.design.detectable_with(scenarios, epochs)
            here = "as it is" if epochs == pairs // size and scenarios // size == 1 else ""
            shown = "none" if math.isinf(found) else f"{100 * found:.0f} points"
            rows.append([str(scenarios), str(epochs), shown, here])
        return [
            "scenarios" if unit_count(self.suite) == len(self.suite.scenarios) else "tasks",
            "epochs" if unit_count(self.suite) == len(self.suite.scenarios) else "trials of each",
            "smallest drop found",
            "this suite",
        ], [] if self.design.open_ended else rows

    def lines(self) -> list[str]:
        """Return what to do, and what the plan rests on."""
        lines = []
        if not self.design.open_ended and self.design.detectable(self.suite) > self.design.matters:
            lines.append(
                f"That is more than the {100 * self.design.matters:g} points that matter: a drop in between "
                "will mostly stay undecided."
            )
        lines.append(
            "Scenarios tell more than repeats: of 5,251 recorded runs of agents the successes of one "
            f"scenario's repeats correlate by {ICC:g}. The plan reckons with that, with {SHARED:g} between "
            f"both sides and a success rate of {100 * RATE:g} %."
        )
        return lines


def unit_count(suite: Suite) -> int:
    """Return how many things a suite has that were drawn apart: its groups, or its scenarios where all are of
    one group.
    """
    groups = len(set(suite.groups.values()))
    return groups if groups > 1 else len(suite.scenarios)


def parse_budget(text: str) -> tuple[int | None, float | None]:
    """Return trials and US dollars of a budget such as `200trials`, `3usd` or both with a comma; `open` is no
    maximum at all. Raises `UsageError` for anything else.
    """
    said: dict[str, str] = {}
    for part in text.split(","):
        found = _BUDGET.fullmatch(part.strip())
        if found is None or found.lastgroup in said:
            raise UsageError(f"a budget is written as 200trials, 3usd or open, not {text!r}")
        said[found.lastgroup or ""] = found[found.lastgroup or 0]
    if "open" in said and len(said) > 1:
        raise UsageError(f"a budget that is open has no maximum beside it, as {text!r} has")
    return (
        int(said["trials"]) if "trials" in said else None,
        float(said["cost"]) if "cost" in said else None,
    )


@dataclass(kw_only=True, repr=False)
class SequentialRun(TableView):
    """The looks of one comparison, and why it ended."""

    design: Design
    planned: int
    """Pairs at most."""
    looks: list[Look] = field(default_factory=list)
    ended: str = ""
    """What ended it before a decision; empty where it was decided."""
    broken: int = 0
    """Pairs with a trial that broke."""

    @property
    def pairs(self) -> int:
        """Pairs of trials that were looked at."""
        return self.looks[-1].pairs if self.looks else 0

    @property
    def remark(self) -> str:
        """The last look in a few words."""
        if not self.looks:
            return ""
        return f"look {len(self.looks)}: {format_points(self.looks[-1].interval)} points"

    @property
    def headline(self) -> str:
        """How and why the trials ended."""
        most = "" if self.design.open_ended else f" of at most {self.planned}"
        end = f"not decided: {self.ended}" if self.ended else f"decided at look {len(self.looks)}"
        error = f"{100 * self.design.error:g} % error over all looks"
        return f"Made in turns, {error}: {format_count(self.pairs, 'pair')}{most}, {end}"

    @property
    def frame(self) -> pd.DataFrame:
        """A row per look: `pairs`, `fraction` of the information, `difference` with its interval `low` and
        `high`, which holds at all looks together, and `verdict`.
        """
        return unit_frame(
            [
                {
                    "look": number,
                    "pairs": one.pairs,
                    "fraction": one.fraction,
                    "difference": one.interval.mean,
                    "low": one.interval.low,
                    "high": one.interval.high,
                    "verdict": one.verdict,
                }
                for number, one in enumerate(self.looks, 1)
            ]
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings, and a row of texts per look."""
        rows = [
            [str(number), str(one.pairs), format_points(one.interval), one.verdict]
            for number, one in enumerate(self.looks, 1)
        ]
        return ["look", "pairs", "difference, points", "verdict"], rows

    def plot(self) -> Figure:
        """Draw the difference after each look with its interval, and what counts as no difference."""
        return sequence_figure(self.looks, matters=self.design.matters, planned=self.planned)


def format_points(interval: Interval) -> str:
    """Return a difference of rates with its interval, in points."""
    mean, low, high = (f"{100 * one:+.0f}" for one in (interval.mean, interval.low, interval.high))
    return f"{mean} ({low} to {high})"


def decided_in_turns(found: Difference, sequence: SequentialRun, *, primary: bool) -> Difference:
    """Return a difference as a comparison in turns decides it: of the success rate (`primary`) by its looks;
    of others there is no verdict, since how many trials there are depends on what was seen.
    """
    if not primary:
        why = "not tested: trials were made only until the success rate was decided"
        return replace(
            found, p=math.nan, p_holm=math.nan, mde=math.nan, verdict="inconclusive", note=found.note or why
        )
    last = sequence.looks[-1] if sequence.looks else None
    verdict, why = last.verdict if last else "inconclusive", ""
    if last and sequence.broken and verdict != "inconclusive":
        # Each pair with a trial that broke could move the mean by one pair, one way or the other.
        reach = sequence.broken / last.pairs
        low, high = last.interval.low - reach, last.interval.high + reach
        matters = sequence.design.matters
        if (low < -matters or high > matters) if verdict == "stable" else low <= 0.0 <= high:
            pairs = format_count(sequence.broken, "pair")
            why = f"no verdict ({verdict}): {pairs} of {last.pairs} broke, and could turn it over"
            verdict = "inconclusive"
    return replace(
        found,
        note=why or found.note,
        interval=last.interval if last else NOTHING,
        p=math.nan,
        p_holm=math.nan,
        mde=math.nan,
        verdict=verdict,
        test="bets" if sequence.design.open_ended else "sign flips in turns",
    )


async def run_in_turns(
    design: Design, suite: Suite, draw: Draw, progress: EvalProgress
) -> tuple[SequentialRun, dict[Pair, PairRows]]:
    """Draw pairs look by look until the difference is decided or the budget is used up.

    `progress` shows each look. Returns the looks and the trials that they were of. Raises `UsageError` for
    scenarios with unequal weights, and for a budget of money where prices are not known.
    """
    if len({scenario.weight for scenario in suite.scenarios}) > 1:
        raise UsageError(
            "the scenarios of this suite have weights: a comparison in turns counts all alike. Compare "
            "without a budget, or leave the weights out"
        )
    refuse_judged(
        suite,
        "a comparison in turns",
        f"Run the suite, label {ENOUGH_LABELS} trials of each side (kestrel eval label), and compare without "
        "a budget",
    )
    test: SequentialTest = (
        AnytimeValid(matters=design.matters, alpha=design.error)
        if design.open_ended
        else GroupSequential(matters=design.matters, alpha=design.error, spending=design.spending)
    )
    run = SequentialRun(design=design, planned=design.look_counts(suite)[-1])

    def look(rows: dict[Pair, PairRows], drawn: dict[Pair, PairRows], fraction: float) -> bool:
        run.broken += sum(any(row.outcome == "error" for row in pair) for pair in drawn.values())
        differences = _differences(suite, drawn if design.open_ended else rows)
        if not differences:
            return False
        run.looks.append(test.look(differences, pairs=len(rows), fraction=fraction))
        progress.look(run.remark, run.plot)
        return run.looks[-1].verdict != "inconclusive"

    rows, run.ended = await draw_in_turns(design, suite, draw, progress, look)
    return run, rows


async def draw_in_turns(
    design: Design,
    suite: Suite,
    draw: Draw,
    progress: EvalProgress,
    look: Callable[[dict[Pair, PairRows], dict[Pair, PairRows], float], bool],
    *,
    arms: int = 2,
    what: str = "pair",
    variance: Callable[[int], float] = no_difference_variance,
) -> tuple[dict[Pair, PairRows], str]:
    """Draw trials of all arms until `look` says that they are enough, or the budget is used up.

    `look` is given all trials, the new ones, and the share of all information that is there (nan without a
    maximum). Returns the trials, and what ended them; empty where `look` did.
    """
    counts = design.look_counts(suite, arms)
    order = draw_order(suite, counts[-1])
    fractions = (
        [math.nan] * len(counts)
        if design.open_ended
        else information_fractions(counts, unit_count(suite), variance)
    )
    progress.total = arms * counts[-1]
    rows: dict[Pair, PairRows] = {}
    for before, count, fraction in zip([0, *counts], counts, fractions, strict=False):
        drawn = await draw(order[before:count])
        rows |= drawn
        spent = known_cost(row for pair in rows.values() for row in pair) if design.cost is not None else 0.0
        used = spent / design.cost if design.cost is not None else 0.0
        step = (count - before) / count * spent
        # The next ones would go over the budget, so that this is the last look.
        last = design.cost is not None and spent + step > design.cost
        reached = fraction if design.open_ended else 1.0 if last else min(1.0, max(fraction, used))
        if look(rows, drawn, reached):
            return rows, ""
        if last:
            return (
                rows,
                f"${spent:.2f} of ${design.cost:.2f} are spent, and the next {what}s take ${step:.2g}",
            )
    made = format_count(len(rows), what)
    return rows, f"all {made} were made" if rows else "none could be made"


def refuse_judged(suite: Suite, what: str, instead: str) -> None:
    """Raise `UsageError` where a model judge has a say in whether trials pass: people's labels correct its
    verdicts, and there are none of trials that are not made yet. `instead` says what to do.
    """
    judged = [one.id for one in suite.scenarios if any(map(asks_judge, one.checks))]
    if judged:
        raise UsageError(
            f"{what} is decided by verdicts while trials are made, and in "
            f"{format_count(len(judged), 'scenario')} ({judged[0]} for one) a model judge gives them, which "
            f"nobody has corrected. {instead}"
        )


def draw_order(suite: Suite, pairs: int) -> list[Pair]:
    """Return the first pairs in the order in which they are made: at random, epoch by epoch, and within an
    epoch one scenario of each group before the second one of any.
    """
    ids = [scenario.id for scenario in suite.scenarios]
    order: list[Pair] = []
    for epoch in range(1, math.ceil(pairs / len(ids)) + 1):
        chance = Random(f"{suite.name}/{epoch}")  # an order to repeat, not a secret  # noqa: S311
        shuffled = chance.sample(ids, len(ids))
        members_before: Counter[str] = Counter()
        rank = dict.fromkeys(ids, 0)
        for scenario, unit in zip(shuffled, _units(suite, shuffled), strict=True):
            rank[scenario] = members_before[unit]
            members_before[unit] += 1
        order += [(scenario, epoch) for scenario in sorted(shuffled, key=rank.__getitem__)]
    return order[:pairs]


def _differences(suite: Suite, rows: dict[Pair, PairRows]) -> dict[str, float]:
    """Return how much more often head passed than base, by group, or by scenario where all are of one group;
    pairs with a trial that broke count as the suite says.

    The mean over what is returned is the mean over scenarios, so a large group weighs as its scenarios do.
    """
    differences: dict[str, list[int]] = {}
    for (scenario, _), pair in rows.items():
        base, head = pair
        if suite.count_errors == "fail" or "error" not in (base.outcome, head.outcome):
            differences.setdefault(scenario, []).append((head.outcome == "pass") - (base.outcome == "pass"))
    units = _units(suite, list(differences))
    share = len(set(units)) / max(1, len(differences))
    totals = dict.fromkeys(units, 0.0)
    for unit, values in zip(units, differences.values(), strict=True):
        totals[unit] += share * sum(values) / len(values)
    return totals


def _units(suite: Suite, scenarios: Sequence[str]) -> Sequence[str]:
    """Return what each of these scenarios counts with."""
    if len(set(suite.groups.values())) == 1:
        return scenarios
    return [suite.groups[scenario] for scenario in scenarios]
