"""Routers on public data: `python -m bench.routing FOLDER --out FOLDER`, where the first folder holds JSON Lines files of RouteLLM or nine models.

It shows that the measure can be believed (a router by the length of the prompt has a known result), not that our own router is good.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.routing_metrics import RouterCurve, chance_router, router_curve, routers_figure
from kestrel_lab.evals.importers.routing_data import read_routing
from kestrel_lab.models.router import kind_of_work

if TYPE_CHECKING:
    import pandas as pd

_HARD = {"code": 3.0, "analysis": 2.0, None: 1.0, "fast": 0.0, "simple": 0.0}


def two_models(frame: pd.DataFrame) -> list[RouterCurve]:
    """Routers between a strong and a weak model."""
    wide = frame.pivot_table(index="scenario", columns="config", values="success")
    prompts = frame.drop_duplicates("scenario").set_index("scenario")["prompt"].reindex(wide.index)
    strong, weak = wide["strong"].tolist(), wide["weak"].tolist()
    scores = {
        "length of the prompt": prompts.str.len().tolist(),
        "kind of work, by rules": [_HARD[kind_of_work(prompt)[0]] for prompt in prompts],
        "chance": chance_router(len(prompts)),
        "oracle": [a - b for a, b in zip(strong, weak, strict=True)],
    }
    return [router_curve(name, [float(s) for s in score], strong, weak) for name, score in scores.items()]


def main() -> None:
    """Print a table for each file and draw the routers."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with .jsonl files")
    parser.add_argument("--out", type=Path, default=Path("out/routing"), help="folder for the plots (default: %(default)s)")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for file in sorted(asked.data.glob("*.jsonl")):
        frame = read_routing(file)
        print(f"{file.name}: {frame['scenario'].nunique():,} prompts, {frame['config'].nunique()} models")
        if {"strong", "weak"} == set(frame["config"]):
            curves = two_models(frame)
            for curve in curves:
                print(f"  {curve!r}")
            routers_figure(curves).savefig(asked.out / f"{file.stem}.png", dpi=120)
        else:
            means = frame.groupby("config")["success"].mean().sort_values(ascending=False)
            best = frame.groupby("scenario")["success"].max().mean()
            print(f"  best single {means.index[0]} {means.iloc[0]:.3f}, oracle {best:.3f}")


if __name__ == "__main__":
    main()
