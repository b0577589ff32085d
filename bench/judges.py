"""How right recorded judges are on public pairs: `python -m bench judges FOLDER --out FOLDER`.

The first folder is a clone of princeton-nlp/LLMBar (MIT), which has labelled pairs and the verdicts of judges
on them in both orders, or holds `llmbar.jsonl` made from one. The pairs are written as `llmbar.jsonl`, which
`kestrel eval judge` reads; no model is asked, and nothing of the data belongs to this project.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.studies.judge_pairs import measure_pairs, read_pairs


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert the pairs, measure their judges, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench judges", description=__doc__)
    parser.add_argument(
        "data", type=Path, help="a clone of princeton-nlp/LLMBar, or a folder with llmbar.jsonl"
    )
    parser.add_argument("--out", type=Path, default=Path("out/judges"), help="folder (default: %(default)s)")
    parser.add_argument("--only", default="", help="only judges whose name has this in it, such as Vanilla")
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
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
