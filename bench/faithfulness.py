"""How far words alone tell supported claims from others: `python -m bench faithfulness FOLDER --out FOLDER`.

The first folder holds begin_dev, scifact_claims_train, wice_dev and summedits as JSON Lines. The gate is fitted anew in five folds, none of which shares evidence with another, so its numbers
are not of what it was fitted on; its shape was chosen on the same sets, so they are development numbers all the same.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.verification.support import ABSTAIN, NAMES, absent_numbers, features

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

FITTED: Final = ("BEGIN", "SciFact, evidence missing", "WiCE")
FOLDS: Final = 5
Row = tuple[str, list[str], bool]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def claims(folder: Path) -> dict[str, list[Row]]:
    """Claims with their evidence and whether it supports them, by set; sets that are not there are left out."""
    found: dict[str, list[Row]] = {}
    if (path := folder / "begin_dev.jsonl").is_file():
        found["BEGIN"] = [(row["response"], [row["knowledge"]], row["begin_label"] == "Fully attributable") for row in _lines(path)]
    if (path := folder / "scifact_claims_train.jsonl").is_file():
        rows = _lines(path)
        for name, other in (("missing", "NEI"), ("contradicted", "CONTRADICT")):
            kept = [row for row in rows if row["label"] in ("SUPPORT", other)]
            title = "SciFact, evidence missing" if name == "missing" else "SciFact, contradicted"
            found[title] = [(row["claim"], [row["abstract"]], row["label"] == "SUPPORT") for row in kept]
    if (path := folder / "wice_dev.jsonl").is_file():
        found["WiCE"] = [(row["claim"], row["evidence"], row["label"] == "supported") for row in _lines(path)]
    if (path := folder / "summedits_pairs.jsonl").is_file():
        documents = {row["doc_id"]: row["doc"] for row in _lines(folder / "summedits_docs.jsonl")}
        found["SummEdits"] = [(row["summary"], [documents[row["doc_id"]]], row["label"] == 1) for row in _lines(path)]
    return found


def auroc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The chance that a supported claim scores above another one."""
    from scipy.stats import rankdata

    ranks, positive = rankdata(scores), int(labels.sum())
    return float((ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


def fit(sets: Sequence[tuple[np.ndarray, np.ndarray]], ridge: float = 3.0) -> np.ndarray:
    """Weights of a logistic curve, the bias first; every set counts alike, and within it both kinds of claim."""
    import numpy as np
    from scipy.optimize import minimize

    rows, labels = np.concatenate([x for x, _ in sets]), np.concatenate([y for _, y in sets])
    share = np.concatenate([np.where(y == 1, 0.5 / y.mean(), 0.5 / (1 - y.mean())) / len(y) * 1_000 for _, y in sets])

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        total = rows @ weights[1:] + weights[0]
        error = share * (1 / (1 + np.exp(-total)) - labels)
        value = float(np.sum(share * (np.logaddexp(0, total) - labels * total)) + ridge * (weights[1:] @ weights[1:]) / 2)
        return value, np.r_[error.sum(), rows.T @ error + ridge * weights[1:]]

    return np.asarray(minimize(loss, np.zeros(rows.shape[1] + 1), jac=True, method="L-BFGS-B").x)


def folded(known: dict[str, list[Row]], measured: dict[str, tuple[np.ndarray, np.ndarray]], on: Sequence[str]) -> dict[str, np.ndarray]:
    """Scores of every set by curves that were fitted on other evidence of the sets `on`."""
    import numpy as np

    folds = {}
    for name, rows in known.items():
        rng, keys = random.Random(name), sorted({row[1][0][:200] for row in rows})
        place = {key: rng.randrange(FOLDS) for key in keys}
        folds[name] = np.array([place[row[1][0][:200]] for row in rows])
    scores = {name: np.zeros(len(rows)) for name, rows in known.items()}
    for fold in range(FOLDS):
        weights = fit([(measured[name][0][folds[name] != fold], measured[name][1][folds[name] != fold]) for name in on])
        for name, (rows, _) in measured.items():
            scores[name][folds[name] == fold] = rows[folds[name] == fold] @ weights[1:] + weights[0]
    return scores


def risk_coverage(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thresholds, the share of claims at or above each, and the share of those that is not supported; both kinds of claim count alike."""
    import numpy as np

    weight = np.where(labels == 1, 0.5 / labels.mean(), 0.5 / (1 - labels.mean())) / len(labels)
    order = np.argsort(-scores)
    covered = np.cumsum(weight[order])
    return scores[order], covered, np.cumsum(weight[order] * (labels[order] == 0)) / covered


def plot_risk_coverage(curves: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Figure:
    """A line per set, with the threshold below which an answer had better not be given."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, (thresholds, covered, risk) in curves.items():
        (line,) = axes.plot(covered, risk, label=name)
        place = int(np.searchsorted(-thresholds, -ABSTAIN, side="right")) - 1
        axes.plot(covered[place], risk[place], "o", color=line.get_color())
    axes.set(
        xlabel="claims kept (share)",
        ylabel="of these not supported (share)",
        ylim=(0, 0.6),
        title=f"Risk and coverage; dots: score ≥ {ABSTAIN:g}",
    )
    axes.legend(frameon=False)
    return figure


def show_claims(folder: Path, out: Path) -> dict[str, dict[str, float]]:
    """Print the table, the weights and the thresholds; draw the curves. Returns AUROC by set: `coverage` of words alone, `gate`, `apart`."""
    import numpy as np

    known = claims(folder)
    if not set(FITTED) <= set(known):
        print(f"claims are left out: {folder} has not all of {', '.join(FITTED)}")
        return {}
    measured = {
        name: (np.array([features(claim, evidence) for claim, evidence, _ in rows]), np.array([int(ok) for *_, ok in rows]))
        for name, rows in known.items()
    }
    ours, apart = folded(known, measured, FITTED), folded(known, measured, [name for name in FITTED if name != "BEGIN"])
    found = {
        name: {"coverage": auroc(rows[:, 0], labels), "gate": auroc(ours[name], labels), "apart": auroc(apart[name], labels)}
        for name, (rows, labels) in measured.items()
    }
    print(f"{'AUROC':28} {'claims':>7} {'coverage':>9} {'gate':>6} {'gate fitted without BEGIN':>26}")
    for name, one in found.items():
        print(f"{name:28} {len(known[name]):7,} {one['coverage']:9.3f} {one['gate']:6.3f} {one['apart']:26.3f}")
    for name, rows in known.items():
        flags = [[bool(absent_numbers(claim, evidence)) for claim, evidence, ok in rows if ok is kind] for kind in (True, False)]
        print(f"number absent, {name}: {np.mean(flags[0]):.1%} of supported, {np.mean(flags[1]):.1%} of others")
    weights = fit([measured[name] for name in FITTED])
    print("weights:", ", ".join(f"{name} {value:.3f}" for name, value in zip(("bias", *NAMES), weights, strict=True)))
    curves = {name: risk_coverage(1 / (1 + np.exp(-ours[name])), measured[name][1]) for name in FITTED}
    for threshold in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        told = []
        for name, (thresholds, covered, risk) in curves.items():
            place = int(np.searchsorted(-thresholds, -threshold, side="right")) - 1
            told.append(f"{name}: {covered[place]:.0%} kept, risk {risk[place]:.0%}")
        print(f"score ≥ {threshold:g}: {'; '.join(told)}")
    plot_risk_coverage(curves).savefig(out / "risk_coverage.png", dpi=120)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and write the numbers to `faithfulness.json`. Returns 1 if the gate is not better than the share of words on a set it is fitted for."""
    parser = argparse.ArgumentParser(prog="python -m bench faithfulness", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the sets of claims")
    parser.add_argument("--out", type=Path, default=Path("out/faithfulness"), help="folder for the plot (default: %(default)s)")
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    auc = show_claims(asked.data, asked.out)
    kept = {"auroc": auc}
    (asked.out / "faithfulness.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(any(auc[name]["gate"] <= auc[name]["coverage"] for name in FITTED if auc))


if __name__ == "__main__":
    sys.exit(main())
