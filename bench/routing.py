"""Routers on public data: `python -m bench.routing FOLDER --out FOLDER`, where the first folder holds JSON
Lines files of RouteLLM or nine models.

The learned router is measured on prompts that it was not fitted on (nested cross-validation inside each
file), beside routers with known results. What kind of prompt it is (`domain`, `task`) is not used as a
feature; `--tasks` holds out whole tasks instead of random prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.routing_metrics import RouterCurve, chance_router, router_curve, routers_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.routing_data import read_routing
from kestrel_lab.evals.studies.router_fit import fit_router
from kestrel_lab.evals.studies.router_report import LENGTH
from kestrel_lab.models.router import classify_goal

if TYPE_CHECKING:
    import pandas as pd

_HARD = {"code": 3.0, "analysis": 2.0, None: 1.0, "fast": 0.0, "simple": 0.0}


def two_models(frame: pd.DataFrame, held_out: np.ndarray | None) -> list[RouterCurve]:
    """Routers between two models; `held_out` are predictions for strong and weak, by repetition."""
    wide = frame.pivot_table(index="scenario", columns="config", values="success", sort=False)
    prompts = frame.drop_duplicates("scenario").set_index("scenario")["prompt"].reindex(wide.index)
    strong, weak = wide["strong"].tolist(), wide["weak"].tolist()
    scores = {
        "length of the prompt": prompts.str.len().tolist(),
        "kind of work, by rules": [_HARD[classify_goal(prompt)[0]] for prompt in prompts],
        "chance": chance_router(len(prompts)),
        "oracle": [a - b for a, b in zip(strong, weak, strict=True)],
    }
    for number, one in enumerate([] if held_out is None else held_out, 1):
        scores[f"learned, repetition {number}"] = (one[:, 0] - one[:, 1]).tolist()
    return [router_curve(name, [float(s) for s in score], strong, weak) for name, score in scores.items()]


def unseen_tasks(frame: pd.DataFrame, *, vectors: bool) -> dict[str, float]:
    """What a router is worth on tasks of which it saw no prompt, in five parts: APGR of two models, else the
    score beside the best single.
    """
    wide = frame.pivot_table(index="scenario", columns="config", values="success", sort=False)
    first = frame.drop_duplicates("scenario").set_index("scenario").reindex(wide.index)
    tasks, marks = sorted(first["family"].unique()), wide.to_numpy()
    part = first["family"].map({task: number % 5 for number, task in enumerate(tasks)}).to_numpy()
    predicted, single = np.empty_like(marks), np.empty(len(marks))
    for number in range(5):
        own = part == number
        seen = frame[frame["scenario"].isin(wide.index[~own])]
        router = fit_router(seen, repeats=1, vectors=vectors).router
        columns = [router.models.index(str(name)) for name in wide.columns]
        predicted[own] = router.predict(first["prompt"][own].tolist())[:, columns]
        single[own] = marks[own, marks[~own].mean(axis=0).argmax()]
    if marks.shape[1] == 2:
        strong, weak = (marks[:, list(wide.columns).index(name)].tolist() for name in ("strong", "weak"))
        gain = (
            predicted[:, list(wide.columns).index("strong")] - predicted[:, list(wide.columns).index("weak")]
        )
        return {"apgr": router_curve("unseen tasks", gain.tolist(), strong, weak).apgr.mean}
    return {
        "routed": float(marks[np.arange(len(marks)), predicted.argmax(axis=1)].mean()),
        "single": float(single.mean()),
    }


def measure(file: Path, out: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """What the routers of one file reach."""
    frame = read_routing(file)
    prompts, models = frame["scenario"].nunique(), set(frame["config"])
    print(f"{file.name}: {prompts:,} prompts, {len(models)} models", flush=True)
    reported: dict[str, Any] = {"prompts": prompts}
    held_out = None
    try:
        fitted = fit_router(frame, repeats=asked.repeats, vectors=not asked.no_vectors)
    except UsageError as error:
        reported["learned"] = str(error)
        print(f"  {error}")
    else:
        print(f"  {fitted!r}".replace("\n", "\n  "), flush=True)
        held_out = fitted.held_out
        rows = {row["name"]: row for row in fitted.router.measured["rows"]}
        reported |= {
            "gain": rows["router"],
            "length": rows[LENGTH],
            "calibration": fitted.router.measured["calibration"],
        }
    if models == {"strong", "weak"}:
        curves = two_models(frame, held_out)
        for curve in curves:
            print(f"  {curve!r}")
        reported["apgr"] = {
            curve.name: [curve.apgr.mean, curve.apgr.low, curve.apgr.high] for curve in curves
        }
        routers_figure(curves).savefig(out / f"{file.stem}.png", dpi=120)
    if asked.tasks and held_out is not None:
        reported["unseen tasks"] = unseen_tasks(frame, vectors=not asked.no_vectors)
        print(f"  tasks that the router never saw: {reported['unseen tasks']}", flush=True)
    return reported


def main(words: Sequence[str] | None = None) -> int:
    """Print what each file's routers reach, draw two-model ones, write all to routing.json."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with .jsonl files")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/routing"),
        help="folder for routing.json and the plots (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="repetitions of the cross-validation (default: %(default)s)"
    )
    parser.add_argument("--tasks", action="store_true", help="hold out whole tasks, too")
    parser.add_argument(
        "--no-vectors", action="store_true", help="without word vectors, also where they are installed"
    )
    asked = parser.parse_args(words)
    asked.out.mkdir(parents=True, exist_ok=True)
    reported = {file.stem: measure(file, asked.out, asked) for file in sorted(asked.data.glob("*.jsonl"))}
    (asked.out / "routing.json").write_text(json.dumps(reported, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
