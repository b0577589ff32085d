"""How right recorded judges are on public pairs: `python -m bench judges FOLDER --out FOLDER`.

The first folder is a clone of princeton-nlp/LLMBar (MIT), which has labelled pairs and the verdicts of judges
on them in both orders, or holds `llmbar.jsonl` made from one. The pairs are written as `llmbar.jsonl`, which
`kestrel eval judge` reads; no model is asked, and nothing of the data belongs to this project.

With `--draws N` it also measures what the judges are worth beside labels: N suites for each judge, rate and
number of labels, whose trials are pairs drawn with their recorded verdict. The table has the mean width of
corrected intervals as a share of that of the labels alone, and how many cover the rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.coverage import labels_alone, sample_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stats.label_correction import corrected_rate
from kestrel_lab.evals.studies.judge_pairs import measure_pairs, read_pairs
from kestrel_lab.views.text import table_text


def converted(clone: Path) -> Iterator[dict[str, Any]]:
    """Pairs of all folders with a `dataset.json`, each with the verdicts of its judges."""
    for dataset in sorted((clone / "Dataset").rglob("dataset.json")):
        folder = dataset.parent
        name = str(folder.relative_to(clone / "Dataset")).removeprefix("LLMBar/")
        results = {
            "/".join(file.parts[-3:-1]): json.loads(file.read_text(encoding="utf-8"))
            for file in sorted(folder.glob("evaluators/*/*/result.json"))
        }
        for number, pair in enumerate(json.loads(dataset.read_text(encoding="utf-8"))):
            judges = {judge: _verdicts(rows[number]) for judge, rows in results.items() if number < len(rows)}
            texts = {key: pair[key] for key in ("input", "output_1", "output_2", "label")}
            yield {"id": f"{name}/{number}", **texts, "judges": judges}


def _verdicts(row: dict[str, Any]) -> list[int | None]:
    """The winner of both orders, which the recording has mapped back to output 1 or 2."""
    # Of a prompt in several stages the last one decides.
    last = row["results"][-1]
    winners = [(last.get(f"swap = {swap}") or {}).get("winner") for swap in (False, True)]
    return [int(winner) if winner in ("1", "2") else None for winner in winners]


TRIALS = 300
"""Of a drawn suite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelWorth:
    """What recorded judges are worth beside labels, at one rate and number of labels."""

    rate: float
    labels: int
    widths: list[float]
    """Of each judge, the mean width of its corrected intervals as a share of that of the labels alone."""
    covered: list[float]
    """Of each judge, the share of its intervals that hold the rate."""
    alone: float
    """The share of the labels' own intervals that hold the rate."""
    worth: float
    """How many labels they say to be worth, on average."""


def labels_worth(pairs: Sequence[Mapping[str, Any]], draws: int) -> Iterator[LabelWorth]:
    """Yield what the judges of the pairs are worth beside labels; `draws` suites for each judge and setting."""
    chance = np.random.default_rng(31)
    verdicts: dict[str, tuple[list[float], list[float]]] = {}
    for pair in pairs:
        for judge, (first, _) in pair["judges"].items():
            if first is not None:
                verdicts.setdefault(judge, ([], []))[pair["label"] == 1].append(float(first == 1))
    for rate, labels in product((0.5, 0.7, 0.8, 0.9, 0.95, 0.98), (30, 50, 100)):
        widths, covered, alone_covered, worth = [], [], [], []
        for of_wrong, of_right in verdicts.values():
            own, alone, hits = 0.0, 0.0, []
            for _ in range(draws):
                right = (chance.random(TRIALS) < rate).astype(float)
                said = np.where(right > 0, chance.choice(of_right, TRIALS), chance.choice(of_wrong, TRIALS))
                labelled = np.arange(TRIALS) < labels
                sample = sample_of(said, right, labelled, np.arange(TRIALS))
                corrected, plain = corrected_rate(sample), labels_alone(sample)
                own += corrected.interval.high - corrected.interval.low
                alone += plain.high - plain.low
                hits.append(not corrected.interval.excludes(rate))
                alone_covered.append(not plain.excludes(rate))
                worth.append(corrected.worth)
            widths.append(own / alone)
            covered.append(fmean(hits))
        yield LabelWorth(
            rate=rate,
            labels=labels,
            widths=widths,
            covered=covered,
            alone=fmean(alone_covered),
            worth=fmean(worth),
        )


def worth_table(worths: Iterable[LabelWorth]) -> str:
    """Return the table of what judges are worth beside labels."""
    rows = [
        [
            f"{one.rate:g}",
            str(one.labels),
            f"{fmean(one.widths):.3f}",
            f"{max(one.widths):.3f}",
            f"{100 * fmean(one.covered):.1f} %",
            f"{100 * min(one.covered):.1f} %",
            f"{100 * one.alone:.1f} %",
            f"{one.worth:.1f}",
        ]
        for one in worths
    ]
    headings = ("rate", "labels", "width", "widest", "covered", "least", "labels alone cover", "worth")
    return table_text(headings, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert the pairs, measure their judges, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench judges", description=__doc__)
    parser.add_argument(
        "data", type=Path, help="a clone of princeton-nlp/LLMBar, or a folder with llmbar.jsonl"
    )
    parser.add_argument("--out", type=Path, default=Path("out/judges"), help="folder (default: %(default)s)")
    parser.add_argument("--only", default="", help="only judges whose name has this in it, such as Vanilla")
    parser.add_argument(
        "--draws", type=int, default=0, help="suites for each judge, rate and number of labels"
    )
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.data / "llmbar.jsonl"
    if (asked.data / "Dataset").is_dir():
        file = asked.out / "llmbar.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in converted(asked.data)), encoding="utf-8")
    try:
        found = measure_pairs(read_pairs(file), file.name)
    except UsageError as error:
        parser.exit(2, f"{error}\n")
    chosen = [one for one in found.judges if asked.only in one.judge]
    found = type(found)(file=found.file, judges=tuple(chosen))
    print(found)
    (asked.out / "judges.json").write_text(found.frame.to_json(orient="records", indent=1), encoding="utf-8")
    if asked.draws:
        lines = file.read_text(encoding="utf-8").splitlines()
        print(worth_table(labels_worth([json.loads(line) for line in lines], asked.draws)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
