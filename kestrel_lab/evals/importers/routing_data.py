"""Public routing data as a tidy frame: how well each model answered each prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import shown_path

if TYPE_CHECKING:
    import pandas as pd


def read_routing(path: str | Path) -> pd.DataFrame:
    """One row per prompt and model: `scenario` (the prompt's number), `family`, `prompt`, `config` (the model) and `success` (its score).

    Reads two forms of JSON Lines: `{prompt, domain, strong, weak}`, two models as in the evaluation data of RouteLLM (Ong et al.,
    "RouteLLM: Learning to Route LLMs with Preference Data", 2024, arXiv:2406.18665), and `{prompt, task, scores: {MODEL: SCORE}, costs: {MODEL: COST}}`, where the
    costs, if there are any, become `cost_estimate`.
    Prompts marked as `contaminated` are left out, as there. Raises `UsageError` with file and line for anything else.
    """
    import pandas as pd  # takes half a second, and only frames need it

    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    rows = [
        row
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)  # not splitlines: a prompt may hold U+2028
        if line.strip()
        for row in _rows(path, number, line)
    ]
    if not rows:
        raise UsageError(f"{shown_path(path)}: it contains no prompts")
    return pd.DataFrame(rows)


def is_routing(path: Path) -> bool:
    """Return whether the first line of a file looks like a prompt with scores."""
    with path.open("rb") as file:
        try:
            first = json.loads(file.readline(1 << 20)) if path.suffix in (".jsonl", ".ndjson") else None
        except ValueError:
            return False
    return isinstance(first, dict) and "prompt" in first and bool({"scores", "strong", "weak"} & first.keys())


def _rows(path: Path, number: int, line: str) -> Iterator[dict[str, Any]]:
    try:
        item = json.loads(line)
        prompt = str(item["prompt"])
        scores = item["scores"] if "scores" in item else {name: item[name] for name in ("strong", "weak")}
        marks = {str(model): float(score) for model, score in scores.items()}
        costs = {str(model): float(cost) for model, cost in item.get("costs", {}).items()}
        family = str(item.get("domain") or item.get("task") or "")
        left_out = bool(item.get("contaminated"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{shown_path(path)}:{number}: not a prompt with scores ({error}): expected {{prompt, strong, weak}} or {{prompt, scores}}"
        raise UsageError(msg) from error
    if not left_out:
        for model, score in marks.items():
            row = {"scenario": number, "family": family, "prompt": prompt, "config": model, "success": score}
            yield row | ({"cost_estimate": costs[model]} if model in costs else {})
