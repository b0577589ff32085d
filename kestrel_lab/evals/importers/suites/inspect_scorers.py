"""Scorers of Inspect as checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.evals.importers.suites.draft import as_list
from kestrel_lab.evals.importers.suites.static_values import Called


def right_letters(targets: list[str]) -> list[str]:
    """Return the letters of right choices: `B`, `["A", "C"]`, or `AC`."""
    joined = "".join(targets).replace(",", "").replace(" ", "")
    return list(joined) if joined.isalpha() and joined.isupper() else targets


def _match(scorer: Called, targets: list[str]) -> list[dict[str, Json]]:
    where = str(scorer.arg("location", 0, "end"))
    compare = "words" if scorer.arg("ignore_case", default=True) else "exact"
    numeric = bool(scorer.arg("numeric", default=False))
    single: list[Json] = [_match_one(one, where, compare, numeric=numeric) for one in targets]
    return [single[0] if len(single) == 1 else {"any_of": single}]  # type: ignore[list-item]  # a mapping


def _match_one(target: str, where: str, compare: str, *, numeric: bool) -> dict[str, Json]:
    bare = re.sub(r"[$,£€*_]", "", target.strip())
    if numeric and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", bare, re.IGNORECASE):
        which = {"begin": "first", "end": "last", "any": "any"}.get(where, "only")
        return {
            "number": {
                "value": float(bare) if "." in bare or "e" in bare.lower() else int(bare),
                "which": which,
            }
        }
    check = {"begin": "starts_with", "end": "ends_with", "any": "answer_contains"}.get(where)
    if check is None:
        return {"answer_equals": {"text": target, "compare": compare}}
    return {check: target if compare == "words" else {"texts": target, "compare": compare}}


def _pattern(scorer: Called, targets: list[str]) -> list[dict[str, Json]]:
    text = scorer.arg("pattern", 0)
    if not isinstance(text, str):
        raise UsageError("its pattern would have to be run")
    if scorer.arg("match_all", default=False):
        raise UsageError("match_all")
    flag = "(?i)" if scorer.arg("ignore_case", default=True) else ""
    return [{"answer_matches": {"pattern": f"{flag}{text}", "found": [*targets]}}]


_ANSWERS: Final = {"letter": r"([A-Za-z])\b", "word": r"(\w+)\b", "line": r"([^\n]*\S)"}


def _answer(scorer: Called, targets: list[str]) -> list[dict[str, Json]]:
    kind = str(scorer.arg("pattern", 0, "line"))
    found = _ANSWERS.get(kind)
    if found is None:
        raise UsageError(f"the kind of answer {kind!r}")
    return [{"answer_matches": {"pattern": rf"(?i)answer\s*:\s*{found}", "found": [*targets]}}]


def graded_check(scorer: Called, targets: list[str]) -> list[dict[str, Json]]:
    """Return a check by a model that the answer is what was expected."""
    own = scorer.arg("instructions")
    fact = scorer.name == "model_graded_fact"
    rubric = (
        "The answer has the same facts as what was expected."
        if fact
        else ("The answer meets what was expected: it is as right and as complete.")
    )
    if isinstance(own, str):
        rubric = f"{rubric}\n{own}"
    model = scorer.arg("model")
    names: list[Json] = [str(one) for one in as_list(model)] if isinstance(model, list | str) else []
    given: dict[str, Json] = {
        "rubric": rubric if not targets else f"{rubric} Expected: {' — or: '.join(targets)}"
    }
    if len(names) == 1:
        given["model"] = names[0]
    elif names:
        given["models"] = names
    return [{"graded": given}]


SCORERS: Final[dict[str, Callable[[Called, list[str]], list[dict[str, Json]]]]] = {
    "match": _match,
    "includes": lambda scorer, targets: [
        {
            "answer_contains": {
                "texts": targets[0] if len(targets) == 1 else [*targets],
                **({"mode": "any"} if len(targets) > 1 else {}),
                "compare": "caseless" if scorer.arg("ignore_case", 0, True) else "exact",
            }
        }
    ],
    "pattern": _pattern,
    "answer": _answer,
    "exact": lambda _, targets: [{"similar": {"texts": [*targets], "at_least": 1.0}}],
    "f1": lambda _, targets: [{"similar": {"texts": [*targets], "at_least": 0.5}, "name": "f1"}],
    "choice": lambda _, targets: [{"choice": {"right": [*right_letters(targets)], "strict": True}}],
    "model_graded_qa": graded_check,
    "model_graded_fact": graded_check,
}
SCORER_NOTES: Final = {
    "model_graded_qa": "a graded check with our prompt: a score of .5 passes, partial credit is its score",
    "model_graded_fact": "a graded check with our prompt: a score of .5 passes",
    "f1": "similar by words: passes from .5 on; the mean is the metric score:f1",
    "exact": "similar by words with at_least 1, which does not look at the order of words",
}
