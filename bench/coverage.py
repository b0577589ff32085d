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
from kestrel_lab.evals.stats.intervals_and_tests import mean_interval
from kestrel_lab.evals.stats.skewed_means import amount_interval
from kestrel_lab.views.text import table_text

Numbers = NDArray[Any]
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
        yield Stated(what="power", setting=setting, measured=found / repeats, at_least=0.75, at_most=0.87)


def alarms(chance: np.random.Generator, repeats: int) -> Iterator[Stated]:
    """How often equal code is called different where a disturbance moves all scenarios of a family."""
    for groups, members, shock in ((12, 5, 0.0), (12, 5, 0.15), (20, 3, 0.15), (6, 10, 0.15), (4, 10, 0.15)):
        families = {str(place): f"family {place // members}" for place in range(groups * members)}
        told = {"by family": 0, "by scenario": 0}
        for _ in range(repeats):
            rates = np.repeat(task_rates(chance, groups, 0.7, 0.3), members)
            sides = [
                trials_of(
                    chance, np.clip(rates + np.repeat(chance.normal(0, shock, groups), members), 0, 1), 1
                )
                for _ in range(2)
            ]
            for way, grouped in (("by family", families), ("by scenario", {})):
                difference = compare_scenarios(*sides, weights={}, bounded=True, families=grouped)
                (judged,) = judge_alike([difference], better=["higher"], margin=0.05, relative=False)
                told[way] += judged.verdict in ("regression", "improvement")
        setting = f"{groups} families × {members} scenarios, shock {shock:g}"
        beside = f"by scenario {100 * told['by scenario'] / repeats:.1f} %"
        yield Stated(
            what="A/A alarms",
            setting=setting,
            measured=told["by family"] / repeats,
            at_most=0.05,
            beside=beside,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench coverage", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=1000, help="simulations of each setting (default: %(default)s)"
    )
    parser.add_argument("--runs", type=Path, help="archive of recorded runs in AgentDojo's format")
    parser.add_argument(
        "--only", action="append", choices=("power", "alarms", "amounts"), help="may be repeated"
    )
    asked = parser.parse_args(arguments)
    chance, found = np.random.default_rng(31), list[Stated]()
    parts: dict[str, Callable[[], Iterator[Stated]]] = {
        "power": lambda: power(chance, asked.repeats),
        "alarms": lambda: alarms(chance, asked.repeats),
        "amounts": lambda: amounts(chance, asked.repeats, asked.runs),
    }
    for name in asked.only or parts:
        for one in parts[name]():
            found.append(one)
            print("  ".join(one.row()), file=sys.stderr, flush=True)
    headings = ("what", "setting", "measured", "bounds", "kept", "beside")
    print(table_text(headings, [one.row() for one in found]))
    return int(any(not one.at_least <= one.measured <= one.at_most for one in found))
