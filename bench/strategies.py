"""What each strategy reaches and what it costs, with one simulated reasoner: `python -m bench.strategies
--out FOLDER`.

It measures control flow, not models and not speed: the reasoner of `evals/strategies/reasoner.py` is the same
for all.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.machine import facts, in_words

if TYPE_CHECKING:
    import pandas as pd

SUITE = Path(__file__).parent.parent / "evals" / "strategies.yaml"
MEASURES = {"model_calls": "model calls", "tool_calls": "tool calls", "token_usage": "tokens"}
_COLOURS = {"react": "#b8b8b8", "pev": "#5fa3b9", "tree_of_thoughts": "#1f6f8b"}
_INK = "#333333"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What one strategy reached in one family of scenarios."""

    family: str
    strategy: str
    trials: int
    rate: float
    low: float
    high: float
    costs: dict[str, float]
    """Means per trial."""


def measured(frame: pd.DataFrame) -> list[Found]:
    """One entry per family and strategy, in the order of the suite."""
    from kestrel_lab.evals.stats.intervals_and_tests import proportion_interval

    found = []
    for (family, strategy), part in frame.groupby(["family", "config"], sort=False):
        rate = proportion_interval(
            (part["outcome"] == "pass").astype(float).tolist(), part["scenario"].tolist()
        )
        costs = {key: float(part[key].mean()) for key in MEASURES}
        found.append(
            Found(
                family=family,
                strategy=strategy,
                trials=len(part),
                rate=rate.mean,
                low=rate.low,
                high=rate.high,
                costs=costs,
            )
        )
    return found


def markdown(found: list[Found], line: str) -> str:
    """The results as a table."""
    heads = [
        "game",
        "strategy",
        "trials",
        "solved",
        "95 %",
        *(f"{word} per trial" for word in MEASURES.values()),
    ]
    rows = [
        [
            one.family,
            one.strategy,
            str(one.trials),
            f"{one.rate:.0%}",
            f"{one.low:.0%}–{one.high:.0%}",
            *(f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in one.costs.values()),
        ]
        for one in found
    ]
    lines = [heads, ["---"] * len(heads), *rows]
    note = "A simulated reasoner, no model: the same for all strategies. Intervals by scenario."
    return (
        f"# Strategies\n\n{note} {line}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
    )


def draw(path: Path, found: list[Found], line: str) -> None:
    """Write the figure: what is solved, and at how many calls."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    families = list(dict.fromkeys(one.family for one in found))
    figure = Figure(figsize=(9, 2.6 * len(families)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(families), 2, squeeze=False)
    for family, (left, right) in zip(families, axes, strict=True):
        ours = [one for one in found if one.family == family][::-1]
        colours = [_COLOURS.get(one.strategy, _INK) for one in ours]
        names = [one.strategy for one in ours]
        reach = [
            [max(0.0, one.rate - one.low) for one in ours],
            [max(0.0, one.high - one.rate) for one in ours],
        ]
        left.barh(names, [one.rate for one in ours], xerr=reach, color=colours, ecolor=_INK, capsize=2)
        left.set_xlim(0, 1.05)
        left.set_title(f"{family}: share solved, with 95 % interval", fontsize=10, loc="left")
        calls = [one.costs["model_calls"] for one in ours]
        tools = [one.costs["tool_calls"] for one in ours]
        right.barh(names, calls, color=colours)
        right.barh(names, tools, left=calls, color=colours, alpha=0.4)
        right.set_title("calls per trial: of the model (full), of tools (pale)", fontsize=10, loc="left")
        for axis in (left, right):
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
    figure.supxlabel(f"a simulated reasoner, the same for all; {line}", fontsize=7, color=_INK)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the suite and write `strategies.json`, `strategies.md` and `strategies.png`."""
    from kestrel_lab import Lab

    parser = argparse.ArgumentParser(
        prog="python -m bench.strategies", description="Compare strategies. Takes some minutes."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench"), help="folder for the results (default: %(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, help="how often each scenario is tried; the suite's number by default"
    )
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        lab = Lab(home, approve="auto", env={})
        found = measured(lab.eval_sync(SUITE, epochs=asked.epochs).frame)
        lab.close()
    machine = facts()
    content: dict[str, Any] = {"machine": machine, "found": [asdict(one) for one in found]}
    (asked.out / "strategies.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    text = markdown(found, in_words(machine))
    (asked.out / "strategies.md").write_text(text, encoding="utf-8")
    draw(asked.out / "strategies.png", found, in_words(machine))
    print(text)


if __name__ == "__main__":
    main()
