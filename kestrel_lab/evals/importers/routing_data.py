"""Public routing data as a tidy frame: how well each model answered each prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.json_fields import (
    UNREADABLE,
    Broken,
    numbered_lines,
    parse_json,
    parse_line,
    read_number,
)

if TYPE_CHECKING:
    import pandas as pd

_MOST: Final = 1e100
"""What is larger has no mean in double precision."""


def read_routing(path: str | Path) -> pd.DataFrame:
    """One row per prompt and model: `scenario` (the prompt's number), `family`, `prompt`, `config` (the
    model) and `success` (its score).

    Reads two forms of JSON Lines: `{prompt, domain, strong, weak}`, two models as in the evaluation data of
    RouteLLM (Ong et al., "RouteLLM: Learning to Route LLMs with Preference Data", 2024, arXiv:2406.18665),
    and `{prompt, task, scores: {MODEL: SCORE}, costs: {MODEL: COST}}`, where the costs, if there are any,
    become `cost_estimate`. Prompts marked as `contaminated` are left out, as there. Raises `UsageError` with
    file and line for anything else.
    """
    # pandas takes half a second to load, and only frames need it.
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    rows = []
    for found in routing_rows(path):
        if isinstance(found, Broken):
            raise UsageError(str(found))
        rows.append(found)
    if not rows:
        raise UsageError(f"{shown_path(path)}: it contains no prompts")
    return pd.DataFrame(rows)


def routing_rows(path: Path) -> Iterator[dict[str, Any] | Broken]:
    """Yield a row for each prompt and model of a file, and the lines that are none."""
    with path.open("rb") as file:
        for number, line in numbered_lines(file):
            if line.strip():
                item = parse_line(line, f"{shown_path(path)}:{number}")
                if isinstance(item, Broken):
                    yield item
                    continue
                try:
                    yield from _rows(number, item)
                except UNREADABLE as error:
                    why = (
                        f"not a prompt with scores ({one_line(str(error), 100)}): expected {{prompt, "
                        f"strong, weak}} or {{prompt, scores}}"
                    )
                    yield Broken(f"{shown_path(path)}:{number}", why)


def is_routing(path: Path) -> bool:
    """Return whether the first line of a file looks like a prompt with scores."""
    if path.suffix not in (".jsonl", ".ndjson"):
        return False
    with path.open("rb") as file:
        try:
            first = parse_json(file.readline(1 << 20))
        except ValueError:
            return False
    return isinstance(first, dict) and "prompt" in first and bool({"scores", "strong", "weak"} & first.keys())


def _rows(number: int, item: Any) -> list[dict[str, Any]]:
    prompt = str(item["prompt"])
    scores = item["scores"] if "scores" in item else {name: item[name] for name in ("strong", "weak")}
    marks = {str(model): _number(score) for model, score in scores.items()}
    costs = {str(model): _number(cost) for model, cost in item.get("costs", {}).items()}
    family = str(item.get("domain") or item.get("task") or "")
    if item.get("contaminated"):
        return []
    rows = [
        {"scenario": number, "family": family, "prompt": prompt, "config": model, "success": score}
        for model, score in marks.items()
    ]
    return [
        row | ({"cost_estimate": costs[model]} if model in costs else {})
        for row, model in zip(rows, marks, strict=True)
    ]


def _number(value: Any) -> float:
    if not abs(number := read_number(value)) < _MOST:
        raise ValueError(f"{value!r} is no number")
    return number
