"""Scores of a sample of Inspect: one or several of each scorer, and which of them says whether the sample was
passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kestrel_lab.evals.importers.json_fields import JsonFields, UnreadNumber

_WORDS: Final = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""What scores that are words count, as Inspect counts them."""


def scores_by_scorer(sample: JsonFields) -> dict[str, Any]:
    """Return the values of scores by scorer; the oldest logs have one without a name."""
    scores: Mapping[str, Any] = sample.fields("scores")
    if not scores and sample.get("score"):
        scores = {"score": sample["score"]}
    return {
        str(name): score.get("value") if isinstance(score, Mapping) else score
        for name, score in scores.items()
    }


def parts_of_score(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the scores that a scorer gave: one under its own name, or several as `SCORER.NAME`."""
    if not isinstance(value, dict | list):
        yield name, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from parts_of_score(f"{name}.{key}", part)


def main_verdict(scores: dict[str, Any]) -> tuple[float, str]:
    """Return what the main scorer, which is the first, says of the sample, and why that is not known where it
    is not.

    Of several scores by one scorer, a length and a verdict perhaps, it is the one that is a verdict: true or
    false, or one of Inspect's words. There is none where no score or several are.
    """
    if not scores:
        return math.nan, "not scored"
    name, value = next(iter(scores.items()))
    parts = list(parts_of_score(name, value))
    verdicts = parts if len(parts) == 1 else [one for one in parts if _is_verdict(one[1])]
    if len(verdicts) == 1:
        mark = mark_of(verdicts[0][1])
        return mark, "not scored" if math.isnan(mark) else ""
    each = ", ".join(part.removeprefix(f"{name}.") for part, _ in parts)
    return (
        math.nan,
        f"not judged: the scorer {name} gives several scores ({each}), and no one of them alone is a verdict",
    )


def judgements(scores: dict[str, Any], headline: float) -> dict[str, float]:
    """Return the mark of each scorer that gave one; several scores of one scorer are no mark, save for the
    verdict of the main one.
    """
    found = {name: mark_of(value) for name, value in scores.items() if not isinstance(value, dict | list)}
    main = next(iter(scores), "")
    return found if main in found or math.isnan(headline) else {main: headline, **found}


def is_score(value: Any) -> bool:
    """Return whether a value is what a scorer may give: a number, a word, or several by name or in a list."""
    if isinstance(value, Mapping | list):
        parts = value.values() if isinstance(value, Mapping) else value
        return all(not isinstance(part, Mapping | list) and is_score(part) for part in parts)
    return not isinstance(value, UnreadNumber)


def _is_verdict(value: Any) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, str) and (value in _WORDS or value.lower() in _WORDS)
    )


def mark_of(value: Any) -> float:
    """Return a score as a number; not a number where it is none, or infinite."""
    text = str(value)
    try:
        found = (
            _WORDS[text]
            if text in _WORDS
            else _WORDS[text.lower()]
            if text.lower() in _WORDS
            else float(text)
        )
    except ValueError:
        return math.nan
    return found if math.isfinite(found) else math.nan
