"""Whether the statistics keep what they state: `python -m bench coverage [--runs RUNS.tar.xz] [--plot FILE]`.

Simulated trials whose truth is known, and recorded runs that are drawn anew. Stated is: a difference of the
smallest detectable size is found in 80 % of comparisons, equal code is called different in 5 % at most, an
interval covers the truth in 95 %.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kestrel_lab.evals.stats.difference import compare_scenarios, judge_alike
from kestrel_lab.evals.stats.intervals_and_tests import Interval, mean_interval, proportion_interval
from kestrel_lab.evals.stats.label_correction import JudgedSample, corrected_difference, corrected_rate
from kestrel_lab.evals.stats.skewed_means import amount_interval
from kestrel_lab.views.text import table_text

Numbers = NDArray[Any]
PARTS = (
    "power",
    "broken",
    "alarms",
    "shocks",
    "rates",
    "gates",
    "divergence",
    "amounts",
    "corrected",
    "lenient",
)
ICC = 0.75
"""How much trials of one task resemble each other; that of recorded agents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """One measured share with the bounds that it has to keep."""

    what: str
    setting: str
    measured: float
    at_least: float = 0.0
    at_most: float = 1.0
    beside: str = ""
    """What another method has there."""

    def row(self) -> tuple[str, ...]:
        """Its texts in the table."""
        kept = self.at_least <= self.measured <= self.at_most
        wanted = f"{100 * self.at_least:g}–{100 * self.at_most:g} %"
        return (
            self.what,
            self.setting,
            f"{100 * self.measured:.1f} %",
            wanted,
            "yes" if kept else "no",
            self.beside,
        )


def task_rates(chance: np.random.Generator, tasks: int, rate: float, icc: float = ICC) -> Numbers:
    """Success rates of tasks with this mean and intra-class correlation."""
    size = (1 - icc) / icc
    return chance.beta(rate * size, (1 - rate) * size, tasks)


def trials_of(chance: np.random.Generator, rates: Numbers, epochs: int) -> dict[str, list[float]]:
    """Passes and failures by scenario."""
    passed = chance.random((len(rates), epochs)) < rates[:, None]
    return {str(place): row for place, row in enumerate(passed.astype(float).tolist())}


def power(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often a drop of the stated size is found: the same share of the passes of each task is lost."""
    for tasks, epochs, rate in (
        (20, 1, 0.7),
        (60, 1, 0.7),
        (60, 1, 0.9),
        (20, 4, 0.7),
        (60, 4, 0.7),
        (60, 4, 0.9),
    ):
        stated = []
        for _ in range(repeats):
            rates = task_rates(chance, tasks, rate)
            sides = [trials_of(chance, rates, epochs) for _ in range(2)]
            stated.append(compare_scenarios(*sides, weights={}, bounded=True).mde)
        drop, found = float(np.mean([size for size in stated if math.isfinite(size)])), 0
        for _ in range(repeats):
            rates = task_rates(chance, tasks, rate)
            sides = [
                trials_of(chance, rates, epochs),
                trials_of(chance, rates * (1 - drop / rates.mean()), epochs),
            ]
            difference = compare_scenarios(*sides, weights={}, bounded=True)
            (judged,) = judge_alike([difference], better=["higher"], margin=0.05, relative=False)
            found += judged.verdict == "regression"
        setting = f"{tasks} tasks × {epochs}, rate {rate:g}: {100 * drop:.1f} points"
        yield Stated(what="power", setting=setting, measured=found / repeats, at_least=0.78, at_most=0.85)


def broken(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often a drop of the stated size is found: some tasks fail for good, the others do not change."""
    for tasks, epochs, rate in ((20, 4, 0.7), (60, 1, 0.7), (60, 4, 0.7), (60, 4, 0.9)):
        stated = []
        for _ in range(repeats):
            rates = task_rates(chance, tasks, rate)
            sides = [trials_of(chance, rates, epochs) for _ in range(2)]
            stated.append(compare_scenarios(*sides, weights={}, bounded=True).mde_broken)
        drop, found = float(np.mean([size for size in stated if math.isfinite(size)])), 0
        for _ in range(repeats):
            rates = task_rates(chance, tasks, rate)
            survives = chance.random(tasks) >= drop / rate
            sides = [trials_of(chance, rates, epochs), trials_of(chance, rates * survives, epochs)]
            found += verdict_of(*sides) == "regression"
        setting = f"{tasks} tasks × {epochs}, rate {rate:g}: {100 * drop:.1f} points, some tasks break"
        yield Stated(what="power", setting=setting, measured=found / repeats, at_least=0.78, at_most=0.86)


def verdict_of(base: Sides, head: Sides, groups: dict[str, str] | None = None) -> str:
    """The verdict of a comparison of two sides, as `kestrel eval compare` gives it."""
    difference = compare_scenarios(base, head, weights={}, bounded=True, groups=groups)
    (judged,) = judge_alike([difference], better=["higher"], margin=0.05, relative=False)
    return judged.verdict


Sides = dict[str, list[float]]
"""Passes and failures of one side, by scenario."""
DIFFERENT = ("regression", "improvement")


def alarms(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often two agents are called different between which a coin decides, task by task: every scenario of
    a task goes to the winner of its coin.
    """
    for tasks, members in ((16, 9), (20, 3), (8, 10), (40, 2), (5, 12)):
        groups = {str(index): f"task {index // members}" for index in range(tasks * members)}
        called = {"by group": 0, "by scenario": 0}
        for _ in range(repeats):
            better, worse = (task_rates(chance, tasks, rate) for rate in (0.8, 0.5))
            heads = chance.random(tasks) < 0.5
            sides = [
                trials_of(chance, np.repeat(np.where(heads == side, better, worse), members), 1)
                for side in (True, False)
            ]
            called["by group"] += verdict_of(*sides, groups) in DIFFERENT
            called["by scenario"] += verdict_of(*sides) in DIFFERENT
        yield Stated(
            what="A/A alarms",
            setting=f"{tasks} tasks × {members} scenarios, a coin decides each task",
            measured=called["by group"] / repeats,
            at_most=0.05,
            beside=f"by scenario {100 * called['by scenario'] / repeats:.1f} %",
        )


def shocks(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often equal code is called different where a disturbance of the moment moves all trials of a family:
    trials of both sides are made side by side, or one side after the other.
    """
    for families, members, shock in ((12, 5, 0.15), (20, 3, 0.15), (4, 10, 0.15)):
        called = {"side by side": 0, "one after the other": 0}
        for _ in range(repeats):
            rates = np.repeat(task_rates(chance, families, 0.7, 0.3), members)
            moved = [np.repeat(chance.normal(0, shock, families), members) for _ in range(2)]
            for way, second in (("side by side", moved[0]), ("one after the other", moved[1])):
                sides = [
                    trials_of(chance, np.clip(rates + disturbance, 0, 1), 1)
                    for disturbance in (moved[0], second)
                ]
                called[way] += verdict_of(*sides) in DIFFERENT
        yield Stated(
            what="A/A alarms",
            setting=f"{families} families × {members}, shock {shock:g}, side by side",
            measured=called["side by side"] / repeats,
            at_most=0.05,
            beside=f"one after the other {100 * called['one after the other'] / repeats:.1f} %",
        )


def grouped_rates(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often the interval of a success rate covers the truth when tasks are drawn anew, each with several
    scenarios.
    """
    for tasks, members, rate in ((16, 9, 0.7), (20, 7, 0.7), (20, 7, 0.9), (8, 10, 0.7)):
        groups = [index // members for index in range(tasks * members)]
        covered = {"by group": 0, "by scenario": 0}
        for _ in range(repeats):
            rates = np.repeat(task_rates(chance, tasks, rate), members)
            passed = (chance.random(len(rates)) < rates).astype(float).tolist()
            covered["by group"] += not proportion_interval(passed, groups).excludes(rate)
            covered["by scenario"] += not proportion_interval(passed, range(len(passed))).excludes(rate)
        yield Stated(
            what="coverage of rates",
            setting=f"{tasks} tasks × {members} scenarios, rate {rate:g}",
            measured=covered["by group"] / repeats,
            at_least=0.92,
            beside=f"by scenario {100 * covered['by scenario'] / repeats:.1f} %",
        )


def gates_at_bound(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often a gate of the success rate is decided where the truth is exactly at its bound: with repeats,
    with groups, and with a disturbance of the moment that moves all trials of a task.
    """
    for tasks, members, bound, shock in (
        (20, 3, 0.8, 0.0),
        (20, 3, 0.9, 0.0),
        (60, 3, 0.9, 0.0),
        (60, 3, 0.95, 0.0),
        (16, 9, 0.8, 0.0),
        (40, 3, 0.8, 0.15),
    ):
        groups = [index // members for index in range(tasks * members)]
        said = {"violated": 0, "holds": 0}
        for _ in range(repeats):
            rates = task_rates(chance, tasks, bound)
            # As far as there is room both ways, so that the mean stays at the bound.
            room = np.minimum(shock, np.minimum(rates, 1 - rates))
            rates = np.repeat(rates + room * chance.choice([-1, 1], tasks), members)
            passed = (chance.random(len(rates)) < rates).astype(float).tolist()
            interval = proportion_interval(passed, groups)
            said["violated"] += interval.high < bound
            said["holds"] += interval.low >= bound
        for verdict, count in said.items():
            yield Stated(
                what="gate at its bound",
                setting=f"{verdict}: {tasks} tasks × {members}, bound {100 * bound:g} %, shock {shock:g}",
                measured=count / repeats,
                at_most=0.05,
            )


def divergence(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often a change is found where the trials of both sides share their beginning, up to the first
    request that differs, and where each side makes whole runs of its own.

    What a trial has done up to there decides half of the variance of its success, given its task; a change
    costs every trial the same share of its passes.
    """
    for tasks, epochs, drop in ((60, 1, 0.0), (60, 3, 0.0), (60, 1, 0.2), (60, 3, 0.15), (20, 4, 0.3)):
        found = {"shared": 0, "whole": 0}
        for _ in range(repeats):
            rates = np.clip(task_rates(chance, tasks, 0.7), 0.01, 0.99)[:, None]
            begun = [chance.beta(rates, 1 - rates, (tasks, epochs)) for _ in found]
            for way, beginnings in (("shared", begun[:1] * 2), ("whole", begun)):
                passed = [
                    chance.random((tasks, epochs)) < chances
                    for chances in (beginnings[0], beginnings[1] * (1 - drop / 0.7))
                ]
                sides = [
                    {str(place): row for place, row in enumerate(one.astype(float).tolist())}
                    for one in passed
                ]
                difference = compare_scenarios(*sides, weights={}, bounded=True)
                (judged,) = judge_alike([difference], better=["higher"], margin=0.05, relative=False)
                found[way] += judged.verdict in (("regression",) if drop else ("regression", "improvement"))
        whole = found["whole"] / repeats
        yield Stated(
            what="change found" if drop else "A/A alarms",
            setting=f"{tasks} tasks × {epochs}, shared beginnings, {100 * drop:g} points worse",
            measured=found["shared"] / repeats,
            at_least=whole - 0.05 if drop else 0.0,
            at_most=1.0 if drop else 0.05,
            beside=f"whole runs {100 * whole:.1f} %",
        )


def amounts(chance: np.random.Generator, repeats: int, runs: Path | None) -> Iterator[Stated]:
    """How often intervals of mean amounts cover the truth."""
    drawn: dict[str, tuple[Callable[[int], Numbers], float]] = {
        f"log-normal, spread {spread:g}": (
            lambda count, spread=spread: chance.lognormal(0, spread, count),
            math.exp(spread**2 / 2),
        )
        for spread in (0.7, 1.0, 1.5, 2.0)
    }
    drawn["exponential"] = (lambda count: chance.exponential(1, count), 1.0)
    for name, values in (recorded_amounts(runs) if runs else {}).items():
        drawn[name] = (lambda count, values=values: chance.choice(values, count), float(values.mean()))
    for name, (draw, truth) in drawn.items():
        for count in (20, 40):
            covered, by_t = 0, 0
            for _ in range(repeats):
                values = draw(count).tolist()
                covered += not amount_interval(values).excludes(truth)
                by_t += not mean_interval(values).excludes(truth)
            yield Stated(
                what="coverage of means",
                setting=f"{name}, {count} tasks",
                measured=covered / repeats,
                at_least=0.93,
                beside=f"Student {100 * by_t / repeats:.1f} %",
            )


def recorded_amounts(runs: Path) -> dict[str, Numbers]:
    """Mean tokens by task for each pipeline of recorded runs in AgentDojo's format.

    The files have no counts of tokens: a turn reads all that came before it, and a token has four characters.
    """
    tokens: dict[str, dict[str, list[float]]] = {}
    with tarfile.open(runs) as packed:
        for member in packed:
            if not member.name.endswith(".json") or "/user_task_" not in member.name:
                continue
            if (file := packed.extractfile(member)) is None:
                continue
            value, read, used = json.load(file), 0.0, 0.0
            for message in value["messages"]:
                size = len(json.dumps([message.get("content"), message.get("tool_calls")])) / 4
                used += read + size if message["role"] == "assistant" else 0.0
                read += size
            task = f"{value['suite_name']}/{value['user_task_id']}"
            tokens.setdefault(value["pipeline_name"], {}).setdefault(task, []).append(used)
    return {
        f"tokens of {name}": np.array([float(np.mean(each)) for each in tasks.values()])
        for name, tasks in sorted(tokens.items())
    }


def judged(chance: np.random.Generator, right: Numbers, sensitivity: float, specificity: float) -> Numbers:
    """The verdicts of a judge on trials that are right or not."""
    passes = np.where(right > 0, sensitivity, 1 - specificity)
    found: Numbers = (chance.random(len(right)) < passes).astype(float)
    return found


def sample_of(
    verdicts: Numbers, right: Numbers, labelled: Numbers, clusters: Numbers, chances: Numbers | None = None
) -> JudgedSample:
    """The sample in which only some trials have a label."""
    labels = [
        truth if there else None for truth, there in zip(right.tolist(), labelled.tolist(), strict=True)
    ]
    return JudgedSample(
        verdicts=verdicts.tolist(),
        labels=labels,
        clusters=clusters.tolist(),
        probabilities=() if chances is None else chances.tolist(),
    )


def drawn_sample(
    chance: np.random.Generator,
    rate: float,
    labels: int,
    *,
    epochs: int = 1,
    unsure: bool = False,
    trials: int = 400,
) -> JudgedSample:
    """Trials with the verdicts of a judge that is right in 85 %, and labels of some that were drawn at random.

    With `unsure` those that the judge failed are drawn three times as often.
    """
    tasks = np.repeat(np.arange(trials // epochs), epochs)
    rates = task_rates(chance, trials // epochs, rate)[tasks] if epochs > 1 else np.full(trials, rate)
    right = (chance.random(trials) < rates).astype(float)
    verdicts = judged(chance, right, 0.85, 0.85)
    if not unsure:
        taken = np.isin(np.arange(trials), chance.choice(trials, labels, replace=False))
        return sample_of(verdicts, right, taken, tasks)
    chances = np.where(verdicts > 0, 1.0, 3.0)
    chances *= labels / chances.sum()
    return sample_of(verdicts, right, chance.random(trials) < chances, tasks, chances)


def labels_alone(sample: JudgedSample) -> Interval:
    """Return the rate by the labels of a sample without its judge: each label weighs by how likely it was drawn."""
    there = [place for place, label in enumerate(sample.labels) if label is not None]
    weights = [1 / (sample.probabilities[place] or 1.0) for place in there] if sample.probabilities else None
    clusters = [sample.cluster(place) for place in there]
    return proportion_interval([sample.labels[place] or 0.0 for place in there], clusters, weights)


def corrected(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often intervals of corrected rates cover the truth."""
    ways: dict[str, dict[str, Any]] = {
        "": {},
        ", drawn where unsure": {"unsure": True},
        ", 4 epochs of a task": {"epochs": 4},
        ", 10 epochs of a task": {"epochs": 10},
    }
    for rate in (0.5, 0.7, 0.9, 0.95):
        for labels in (30, 50, 100):
            for way, more in ways.items():
                covered = naive = 0
                widths = np.zeros(2)
                for _ in range(repeats):
                    sample = drawn_sample(chance, rate, labels, **more)
                    interval = corrected_rate(sample).interval
                    covered += not interval.excludes(rate)
                    naive += not mean_interval(sample.verdicts, sample.clusters).excludes(rate)
                    alone = labels_alone(sample)
                    widths += (interval.high - interval.low, alone.high - alone.low)
                yield Stated(
                    what="width, of that of labels alone",
                    setting=f"rate {rate:g}, {labels} labels{way}",
                    measured=float(widths[0] / widths[1]),
                    at_most=1.02,
                )
                yield Stated(
                    what="coverage, corrected",
                    setting=f"rate {rate:g}, {labels} labels{way}",
                    measured=covered / repeats,
                    at_least=0.94,
                    beside=f"naive {100 * naive / repeats:.1f} %",
                )


def lenient_suite(chance: np.random.Generator, pairs: int, labels: int) -> tuple[JudgedSample, JudgedSample]:
    """Two configurations on the same tasks, the second 10 points worse and liked better by the judge."""
    common = chance.normal(size=pairs)
    sides = []
    taken = np.isin(np.arange(pairs), chance.choice(pairs, labels, replace=False))
    for bound, sensitivity, specificity in ((-0.5244, 0.85, 0.85), (-0.2533, 0.95, 0.71)):
        level = math.sqrt(0.6) * common + math.sqrt(0.4) * chance.normal(size=pairs)
        right = (level > bound).astype(float)  # rates .7 and .6, correlated within tasks
        verdicts = judged(chance, right, sensitivity, specificity)
        sides.append(sample_of(verdicts, right, taken, np.arange(pairs)))
    return sides[0], sides[1]


def lenient(chance: np.random.Generator, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return in which share of suites of 200 a worse configuration is called better, and worse, and the truth is
    covered, by method.
    """
    told: dict[str, list[tuple[bool, bool, bool]]] = {}
    for labels in (30, 60):
        for _ in range(repeats):
            base, head = lenient_suite(chance, 200, labels)
            moved = [b - a for a, b in zip(base.verdicts, head.verdicts, strict=True)]
            for method, found in (
                ("verdicts alone", mean_interval(moved)),
                (f"corrected, {labels} labelled pairs", corrected_difference(base, head)),
            ):
                told.setdefault(method, []).append((found.low > 0, found.high < 0, not found.excludes(-0.1)))
    return {method: tuple(np.mean(each, axis=0).tolist()) for method, each in told.items()}


def lenient_shares(found: dict[str, tuple[float, float, float]]) -> Iterator[Stated]:
    """The shares of suites in which the worse configuration is called better."""
    for method, (better, worse, covered) in found.items():
        yield Stated(
            what="10 points worse is called better",
            setting=method,
            measured=better,
            at_most=0.01 if method.startswith("corrected") else 1.0,
            beside=f"called worse {100 * worse:.1f} %, truth covered {100 * covered:.1f} %",
        )


def draw_lenient(found: dict[str, tuple[float, float, float]], path: Path) -> None:
    """Draw what is said of a configuration that is 10 points worse, with a judge that likes it."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "coverage"  # the same figure has the same bytes
    figure, axes = plt.subplots(figsize=(7.6, 2.5), layout="constrained")
    names = list(found)[::-1]
    parts = {
        "“B is better” (wrong)": [found[name][0] for name in names],
        "undecided": [1 - sum(found[name][:2]) for name in names],
        "“B is worse” (right)": [found[name][1] for name in names],
    }
    left = np.zeros(len(names))
    for (label, shares), colour in zip(parts.items(), ("#c0392b", "#d5d8dc", "#1f6f8b"), strict=True):
        axes.barh(names, [100 * share for share in shares], left=left, color=colour, label=label)
        for place, share in enumerate(shares):
            if share > 0.03:
                ink = "#333333" if label == "undecided" else "white"
                middle = left[place] + 50 * share
                axes.text(
                    middle, place, f"{100 * share:.0f} %", ha="center", va="center", color=ink, fontsize=9
                )
        left += 100 * np.array(shares)
    axes.set(xlim=(0, 100), xlabel="suites of 200 tasks, %")
    axes.set_title("B is 10 points worse, and the judge is lenient to B", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.28), ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench coverage", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=1000, help="simulations of each setting (default: %(default)s)"
    )
    parser.add_argument("--runs", type=Path, help="archive of recorded runs in AgentDojo's format")
    parser.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    parser.add_argument("--plot", type=Path, help="file for the figure of the lenient judge")
    asked = parser.parse_args(arguments)
    chance, found = np.random.default_rng(31), list[Stated]()
    parts: dict[str, Callable[[], Iterator[Stated]]] = {
        # Four times as many: with a thousand, the chance of the simulation alone is 2.5 points either way.
        "power": lambda: power(chance, 4 * asked.repeats),
        "broken": lambda: broken(chance, asked.repeats),
        "alarms": lambda: alarms(chance, asked.repeats),
        "shocks": lambda: shocks(chance, asked.repeats),
        "rates": lambda: grouped_rates(chance, asked.repeats),
        "gates": lambda: gates_at_bound(chance, asked.repeats),
        "divergence": lambda: divergence(chance, asked.repeats),
        "amounts": lambda: amounts(chance, asked.repeats, asked.runs),
        "corrected": lambda: corrected(chance, asked.repeats),
        "lenient": lambda: lenient_shares(liked),
    }
    liked = lenient(chance, asked.repeats) if "lenient" in (asked.only or PARTS) else {}
    if liked and asked.plot:
        draw_lenient(liked, asked.plot)
    for name in asked.only or parts:
        for one in parts[name]():
            found.append(one)
            print("  ".join(one.row()), file=sys.stderr, flush=True)
    headings = ("what", "setting", "measured", "bounds", "kept", "beside")
    print(table_text(headings, [one.row() for one in found]))
    return int(any(not one.at_least <= one.measured <= one.at_most for one in found))
