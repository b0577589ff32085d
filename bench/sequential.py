"""How often comparisons in turns are wrong, and what they save: `python -m bench sequential`.

Simulated comparisons of two arms whose successes are correlated as in recorded runs of agents (.75 between
repeats of a scenario, .68 between arms). Each is decided by `GroupSequential` with both spending functions,
by `AnytimeValid`, by looking as often without a correction, and by one look at the end. A fixed design of
equal power is read off the power of one look after as many pairs, so that savings have their baseline.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean

from kestrel_lab.evals.commits.sequential_compare import Design
from kestrel_lab.evals.stats.intervals_and_tests import (
    ALPHA,
    group_by_cluster,
    proportion_of,
    sign_flip_test,
    wilson_interval,
)
from kestrel_lab.evals.stats.sequential import (
    ICC,
    RATE,
    SHARED,
    AnytimeValid,
    GroupSequential,
    LookErrors,
    SequentialTest,
    information_fractions,
    rate_variance,
)

LOOKS = 6
MATTERS = 0.05
SETTINGS = (
    (60, 1, 0.0),
    (60, 3, 0.0),
    (240, 1, 0.0),
    (60, 3, 0.1),
    (60, 3, 0.2),
    (240, 1, 0.05),
    (240, 1, 0.1),
    (240, 1, 0.2),
)
"""Scenarios, epochs and how much worse head truly is."""
METHODS: dict[str, Callable[[int], SequentialTest]] = {
    "pocock": lambda seed: GroupSequential(matters=MATTERS, spending="pocock", seed=seed),
    "obrien-fleming": lambda seed: GroupSequential(matters=MATTERS, spending="obrien-fleming", seed=seed),
    "no maximum": lambda _seed: AnytimeValid(matters=MATTERS),
}
NAIVE = "looking without correction"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one method does in one setting."""

    scenarios: int
    epochs: int
    worse_by: float
    method: str
    comparisons: int
    found: float
    """How often head is called worse."""
    wrong: float
    """How often head is called better, or worse where it is not."""
    stable: float
    pairs: float
    """Pairs of trials on average."""
    fixed_power: float
    """How often one look at all pairs calls head worse."""
    fixed_pairs: float
    """Pairs that one look needs to call head worse as often as this method; nan where it never does."""


def simulated_pairs(random: Random, scenarios: int, epochs: int, worse_by: float) -> list[list[int]]:
    """Return the difference of each pair, head minus base, by scenario and epoch."""
    normal = NormalDist()
    bounds = normal.inv_cdf(RATE), normal.inv_cdf(RATE - worse_by)
    icc, shared = (math.sin(one * math.pi / 2) for one in (ICC, SHARED))
    common, own, luck = math.sqrt(shared), math.sqrt(icc - shared), math.sqrt(1 - icc)
    found = []
    for _ in range(scenarios):
        both = common * random.gauss(0, 1)
        base, head = (bound - both - own * random.gauss(0, 1) for bound in bounds)
        found.append(
            [(luck * random.gauss(0, 1) < head) - (luck * random.gauss(0, 1) < base) for _ in range(epochs)]
        )
    return found


def looks_of(pairs: list[list[int]], counts: Sequence[int]) -> Iterator[dict[str, float]]:
    """Yield the mean difference by scenario after so many pairs."""
    size = len(pairs)
    for count in counts:
        whole, rest = divmod(count, size)
        yield {
            str(place): fmean(values[: whole + (place < rest)])
            for place, values in enumerate(pairs)
            if whole or place < rest
        }


def simulate(setting: tuple[int, int, float], comparisons: int) -> list[Figures]:
    """Return what each method does in one setting."""
    scenarios, epochs, worse_by = setting
    total = scenarios * epochs
    counts = [round(total * number / LOOKS) for number in range(1, LOOKS + 1)]
    fractions = information_fractions(counts, scenarios)
    random = Random(f"{setting}")
    ends: dict[str, list[tuple[str, int]]] = {name: [] for name in (*METHODS, NAIVE)}
    at_once = [0] * LOOKS
    for number in range(comparisons):
        pairs = simulated_pairs(random, scenarios, epochs, worse_by)
        looks = list(looks_of(pairs, counts))
        for name, make in METHODS.items():
            test = make(number)
            if name == "no maximum":  # its looks are rounds of all scenarios
                shown = [{str(i): float(row[e]) for i, row in enumerate(pairs)} for e in range(epochs)]
                ends[name].append(_end(test, shown, [scenarios * (e + 1) for e in range(epochs)], None))
            else:
                ends[name].append(_end(test, looks, counts, fractions))
        single = []
        for place, look in enumerate(looks):
            mean = fmean(look.values())
            shows = bool(mean) and sign_flip_test(list(look.values())) < ALPHA
            at_once[place] += shows and mean < 0
            single.append("" if not shows else "regression" if mean < 0 else "improvement")
        first = next((place for place, word in enumerate(single) if word), LOOKS - 1)
        ends[NAIVE].append((single[first] or "inconclusive", counts[first]))
    powers = [found / comparisons for found in at_once]
    return [_figures(setting, name, told, powers, counts) for name, told in ends.items()]


def _end(
    test: SequentialTest,
    looks: Sequence[dict[str, float]],
    counts: Sequence[int],
    fractions: Sequence[float] | None,
) -> tuple[str, int]:
    for place, (look, count) in enumerate(zip(looks, counts, strict=True)):
        fraction = math.nan if fractions is None else fractions[place]
        verdict = test.look(look, pairs=count, fraction=fraction).verdict
        if verdict != "inconclusive":
            return verdict, count
    return "inconclusive", counts[-1]


def _figures(
    setting: tuple[int, int, float],
    name: str,
    told: Sequence[tuple[str, int]],
    powers: Sequence[float],
    counts: Sequence[int],
) -> Figures:
    rate = {
        word: sum(one == word for one, _ in told) / len(told)
        for word in ("regression", "improvement", "stable")
    }
    same = not setting[2]
    return Figures(
        *setting,
        method=name,
        comparisons=len(told),
        found=rate["regression"],
        wrong=rate["improvement"] + (rate["regression"] if same else 0.0),
        stable=rate["stable"],
        pairs=fmean(count for _, count in told),
        fixed_power=powers[-1],
        fixed_pairs=math.nan if same else _pairs_for(rate["regression"], powers, counts),
    )


def _pairs_for(power: float, powers: Sequence[float], counts: Sequence[int]) -> float:
    """Return after how many pairs one look has this power, between those that were simulated; at most all."""
    if not power:
        return math.nan
    points = [(0.0, 0), *zip(powers, counts, strict=True)]
    for (low, before), (high, after) in pairwise(points):
        if high >= power:
            return before + (after - before) * (power - low) / max(high - low, 1e-9)
    return float(counts[-1])


GATES = (
    (60, 1, 0.8, 0.8),
    (60, 3, 0.8, 0.8),
    (240, 1, 0.9, 0.9),
    (60, 3, 0.8, 0.95),
    (60, 3, 0.8, 0.6),
    (240, 1, 0.8, 0.9),
)
"""Scenarios, epochs, the bound that the success rate is to keep, and the true rate."""


def simulate_gate(setting: tuple[int, int, float, float], number: int) -> list[str]:
    """Return a row of the table of gates: how often one is said to hold and to be violated in turns, by
    looking without correction and by one look, and after how many trials.
    """
    scenarios, epochs, bound, rate = setting
    total = scenarios * epochs
    counts = [round(total * place / LOOKS) for place in range(1, LOOKS + 1)]
    fractions = information_fractions(counts, scenarios, rate_variance)
    errors = LookErrors()
    spent = [errors.next(fraction) for fraction in fractions]
    random, threshold = Random(f"{setting}"), NormalDist().inv_cdf(rate)
    icc = math.sin(ICC * math.pi / 2)
    said: dict[str, list[tuple[str, int]]] = {"in turns": [], NAIVE: [], "one look": []}
    for _ in range(number):
        hard = [math.sqrt(icc) * random.gauss(0, 1) for _ in range(scenarios)]
        order = [place for _ in range(epochs) for place in random.sample(range(scenarios), scenarios)]
        trials = [
            (place, float(hard[place] + math.sqrt(1 - icc) * random.gauss(0, 1) < threshold))
            for place in order
        ]
        levels = {"in turns": spent, NAIVE: [ALPHA] * LOOKS, "one look": [1e-9] * (LOOKS - 1) + [ALPHA]}
        for name, alphas in levels.items():
            for count, alpha in zip(counts, alphas, strict=True):
                values = trials[:count]
                clusters = group_by_cluster([value for _, value in values], [place for place, _ in values])
                found = proportion_of(clusters, alpha=alpha)
                word = "holds" if found.low >= bound else "violated" if found.high < bound else ""
                if word or count == total:
                    said[name].append((word, count))
                    break
    told = [f"{scenarios} × {epochs}", f"{100 * bound:.0f} %", f"{100 * rate:.0f} %"]
    for name, ends in said.items():
        for word in ("holds", "violated"):
            told.append(f"{100 * sum(one == word for one, _ in ends) / number:.1f} %")
        if name == "in turns":
            told.append(f"{fmean(count for _, count in ends):.0f}")
    return told


def gate_table(rows: Sequence[Sequence[str]]) -> str:
    """Return what `simulate_gate` found as a Markdown table."""
    headings = ["scenarios × epochs", "bound", "true rate", "holds", "violated", "mean trials"]
    headings += [f"{name}: {word}" for name in (NAIVE, "one look") for word in ("holds", "violated")]
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PLANS = ((60, 1), (240, 1), (120, 2), (60, 3), (20, 5), (40, 4))
"""Scenarios and epochs of plans."""


def simulate_plan(plan: tuple[int, int], number: int) -> str:
    """Return a row of the table of plans: the drop that one states for a power of 80 %, and how often comparisons
    find it.
    """
    scenarios, epochs = plan
    total = scenarios * epochs
    drop = Design(trials=2 * total).detectable_with(scenarios, epochs)
    counts = [round(total * place / LOOKS) for place in range(1, LOOKS + 1)]
    fractions, random = information_fractions(counts, scenarios), Random(f"{plan}")
    found = 0
    for seed in range(number):
        looks = list(looks_of(simulated_pairs(random, scenarios, epochs, drop), counts))
        found += (
            _end(GroupSequential(matters=MATTERS, seed=seed), looks, counts, fractions)[0] == "regression"
        )
    return f"| {scenarios} × {epochs} | {100 * drop:.1f} points | {100 * found / number:.1f} % |"


def table(found: Sequence[Figures]) -> str:
    """Return the figures as a Markdown table; rates of false verdicts with their 95 % interval."""
    lines = [
        "| scenarios × epochs | head worse by | method | says worse | false verdicts | says stable | "
        "mean pairs | one look of equal power |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        low, high = wilson_interval(one.wrong * one.comparisons, one.comparisons)
        fixed = "" if math.isnan(one.fixed_pairs) else f"{one.fixed_pairs:.0f}"
        lines.append(
            f"| {one.scenarios} × {one.epochs} | {100 * one.worse_by:.0f} points | {one.method} | "
            f"{100 * one.found:.1f} % | {100 * one.wrong:.1f} % ({100 * low:.1f}–{100 * high:.1f}) | "
            f"{100 * one.stable:.1f} % | {one.pairs:.0f} | {fixed} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Simulate, print the table, and write it with the figures as JSON; returns 1 where a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench sequential", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=2000, help="per setting (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    asked = parser.parse_args(arguments)
    with ProcessPoolExecutor() as pool:
        every = pool.map(simulate, SETTINGS, [asked.comparisons] * len(SETTINGS))
        found = [figures for setting in every for figures in setting]
        gates = [*pool.map(simulate_gate, GATES, [asked.comparisons] * len(GATES))]
        plans = [*pool.map(simulate_plan, PLANS, [asked.comparisons] * len(PLANS))]
    planned = "\n".join(["| scenarios × epochs | planned drop | found |", "| --- | --- | --- |", *plans])
    text = f"{table(found)}\n\n{gate_table(gates)}\n\n{planned}"
    print(text)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "sequential.md").write_text(text + "\n", encoding="utf-8")
    (asked.out / "sequential.json").write_text(json.dumps([asdict(one) for one in found], indent=1))
    bad = [one for one in found if one.method != NAIVE and one.wrong > ALPHA]
    for one in bad:
        print(f"missed: {one.method}, {one.scenarios} × {one.epochs}: {one.wrong:.3f} false verdicts")
    return int(bool(bad))
