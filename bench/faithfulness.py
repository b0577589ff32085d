"""How often a model judge of claims is right on public labels: `python -m bench faithfulness FOLDER --model
NAME --out FOLDER`.

The first folder holds begin_dev, scifact_claims_train, wice_dev and summedits as JSON Lines. Without
`--model` the claims are only written, as `claims.jsonl`, which `kestrel eval judge` reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kestrel_lab.evals.studies.judge_accuracy import LabelledClaim, judge_accuracy, sample_claims
from kestrel_lab.lab import Lab


def _lines(path: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if path.is_file()
        else []
    )


def claims(folder: Path) -> Iterator[LabelledClaim]:
    """Claims with their evidence and whether it supports them; sets that are not there are left out."""
    for row in _lines(folder / "begin_dev.jsonl"):
        yield _labelled(
            "BEGIN", row["response"], [row["knowledge"]], supported=row["begin_label"] == "Fully attributable"
        )
    for row in _lines(folder / "scifact_claims_train.jsonl"):
        for name, other in (("SciFact, evidence missing", "NEI"), ("SciFact, contradicted", "CONTRADICT")):
            if row["label"] in ("SUPPORT", other):
                yield _labelled(name, row["claim"], [row["abstract"]], supported=row["label"] == "SUPPORT")
    for row in _lines(folder / "wice_dev.jsonl"):
        yield _labelled("WiCE", row["claim"], row["evidence"], supported=row["label"] == "supported")
    documents = {row["doc_id"]: row["doc"] for row in _lines(folder / "summedits_docs.jsonl")}
    for row in _lines(folder / "summedits_pairs.jsonl"):
        yield _labelled("SummEdits", row["summary"], [documents[row["doc_id"]]], supported=row["label"] == 1)


def _labelled(name: str, claim: str, evidence: list[str], *, supported: bool) -> LabelledClaim:
    return LabelledClaim(set=name, claim=claim, evidence=tuple(evidence), supported=supported)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the claims, judge them where a model is named, and write `faithfulness.json`."""
    parser = argparse.ArgumentParser(prog="python -m bench faithfulness", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the sets of claims")
    parser.add_argument("--model", help="the judge, as for any run")
    parser.add_argument("--limit", type=int, help="claims of each set")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/faithfulness"),
        help="folder for the results (default: %(default)s)",
    )
    asked = parser.parse_args(arguments)
    rows = sample_claims(claims(asked.data), asked.limit)
    asked.out.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"set": row.set, "claim": row.claim, "evidence": row.evidence, "supported": row.supported})
        for row in rows
    ]
    (asked.out / "claims.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    sets = Counter(row.set for row in rows)
    print(
        f"written: {asked.out / 'claims.jsonl'}: "
        f"{', '.join(f'{count:,} of {name}' for name, count in sets.items()) or 'no claims'}"
    )
    found: list[dict[str, Any]] = []
    if asked.model and rows:
        with Lab(asked.out / "home") as session:
            reported = asyncio.run(judge_accuracy(session.registry.resolve_model(asked.model), rows))
        print(reported)
        found = json.loads(reported.frame.to_json(orient="records"))
    (asked.out / "faithfulness.json").write_text(
        json.dumps({"claims": sets, "judge": found}, indent=1) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
