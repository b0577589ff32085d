"""Assertions of promptfoo as checks, those that cells of CSV files write among them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kestrel_lab.core.json_types import Json, dumps

RUN_ONE: Final = "a python_check with that function, beside the suite"
JUDGED_OTHERWISE: Final = {
    "similar": "a graded check: a model says whether both mean the same",
    "levenshtein": "similar by letters: edits by the length of the longer text",
    "factuality": "a graded check, which passes or does not",
    "llm-rubric": "a graded check, by another prompt; .5 or more passes",
    "contains-all": "answer_contains: a part of the texts gives a part of the score where scores count",
    "icontains-all": "answer_contains: a part of the texts gives a part of the score where scores count",
}
"""Kinds whose check is near and not the same."""
_DIALECTS: Final = {"postgresql": "postgres", "transactsql": "tsql", "mariadb": "mysql"}
_Made = dict[str, Json] | None


def way_of(kind: str) -> str:
    """Return the nearest way to an assertion that is not carried over."""
    name = kind.removeprefix("not-")
    if name in ("javascript", "python", "ruby", "webhook"):
        return RUN_ONE
    if name.startswith(("trajectory", "tool-call", "is-valid")):
        return "tool_used, tools_in_order or trajectory_match"
    if name in ("rouge-n", "bleu", "gleu", "meteor"):
        return "similar, which compares words"
    if name.startswith(("context-", "answer-", "model-graded", "conversation")):
        return "graded with a rubric that says the same"
    return "graded, or a python_check"


def is_graded(kind: str) -> bool:
    """Return whether a model judges an assertion here."""
    return kind.removeprefix("not-") in _GRADED


def check_of(kind: str, value: Json, threshold: Any, grader: str) -> _Made:
    """Return the check of an assertion, without its name and weight; `None` for a kind that ours has not, and
    for one without a value that it needs.
    """
    number = float(threshold) if isinstance(threshold, int | float) else None
    if kind in _GRADED:
        return _graded(kind, value, number, grader)
    make = _KINDS.get(kind)
    return None if make is None else make(kind, value, number)


def _equals(_: str, value: Json, __: float | None) -> _Made:
    if isinstance(value, dict | list):
        return {"is_json": {"schema": {"const": value}}}
    return {"answer_equals": {"text": text_of(value), "compare": "exact"}}


def _contains(kind: str, value: Json, _: float | None) -> _Made:
    texts: list[Json] = [*(texts_of(value) if "-" in kind else [text_of(value)])]
    mode: dict[str, Json] = {"mode": "any"} if kind.endswith("any") and len(texts) > 1 else {}
    compare = "caseless" if kind.startswith("i") else "exact"
    return {"answer_contains": {"texts": texts[0] if len(texts) == 1 else texts, **mode, "compare": compare}}


def _json(kind: str, value: Json, _: float | None) -> _Made:
    schema: dict[str, Json] = {"schema": value} if isinstance(value, dict) else {}
    return {"is_json": {"alone": kind == "is-json", **schema}}


def _xml(kind: str, value: Json, _: float | None) -> _Made:
    needed = value.get("requiredElements") if isinstance(value, dict) else value
    return {"is_xml": {"alone": kind == "is-xml", "elements": [*texts_of(needed)]}}


def _sql(kind: str, value: Json, _: float | None) -> _Made:
    given: Mapping[str, Any] = value if isinstance(value, dict) else {}
    dialect = str(given.get("databaseType") or "").lower()
    # They write a table as the access to it, its database and its name: select::null::orders.
    tables: list[Json] = [str(name).split("::")[-1] for name in given.get("allowedTables") or ()]
    return {
        "is_sql": {"alone": kind == "is-sql", "dialect": _DIALECTS.get(dialect, dialect), "tables": tables}
    }


def _levenshtein(_: str, value: Json, threshold: float | None) -> _Made:
    share = 1 - (5 if threshold is None else threshold) / max(len(text_of(value)), 1)
    return {"similar": {"texts": text_of(value), "by": "letters", "at_least": round(max(share, 0.01), 3)}}


_KINDS: Final[dict[str, Callable[[str, Json, float | None], _Made]]] = {
    "equals": _equals,
    **dict.fromkeys(
        [
            *("contains", "contains-any", "contains-all"),
            *("icontains", "icontains-any", "icontains-all"),
        ],
        _contains,
    ),
    "starts-with": lambda _, value, __: {"starts_with": {"texts": text_of(value), "compare": "exact"}},
    # JavaScript names groups (?<name>…), Python (?P<name>…).
    "regex": lambda _, value, __: {"answer_matches": re.sub(r"\(\?<(?![=!])", "(?P<", text_of(value))},
    **dict.fromkeys(["is-json", "contains-json"], _json),
    **dict.fromkeys(["is-xml", "contains-xml"], _xml),
    **dict.fromkeys(["is-sql", "contains-sql"], _sql),
    "levenshtein": _levenshtein,
    "cost": lambda _, __, most: None if most is None else {"cost_at_most": most},
    "latency": lambda _, __, most: None if most is None else {"seconds_at_most": most / 1000},
}
_GRADED: Final = (
    *("llm-rubric", "model-graded-closedqa", "g-eval", "factuality", "model-graded-factuality", "similar"),
)


def _graded(kind: str, value: Json, threshold: float | None, model: str) -> _Made:
    texts = texts_of(value) if isinstance(value, list) else [text_of(value)]
    if not texts or not all(text.strip() for text in texts):
        return None
    rubric = "\n".join(texts)
    if kind == "similar":
        rubric = f"The answer means the same as: {' — or as: '.join(texts)}"
    elif kind.endswith("factuality"):
        rubric = f"The answer agrees with the facts in this text and contradicts none of them: {rubric}"
    given: dict[str, Json] = {"rubric": rubric}
    if threshold is not None and 0 < threshold <= 1:
        given["at_least"] = threshold
    return {"graded": {**given, "model": model} if model else given}


# Tests in rows of CSV files: columns are variables, those that begin with two underscores say how to judge.

_WRITTEN: Final = re.compile(r"(not-)?([a-z-]+)(?:\(([\d.]+)\))?:\s*(.*)", re.DOTALL)
_WORDS: Final = {"grade": "llm-rubric", "fn": "javascript", "eval": "javascript"}
_NAMED: Final = frozenset(
    {
        *(_KINDS.keys() | set(_GRADED) | _WORDS.keys()),
        *("javascript", "python", "rouge-n", "webhook", "answer-relevance", "classifier", "moderation"),
    }
)


_CSV_KEYS: Final[dict[str, Callable[[dict[str, Any], str], object]]] = {
    "__prefix": lambda test, text: test["options"].update(prefix=text),
    "__suffix": lambda test, text: test["options"].update(suffix=text),
    "__description": lambda test, text: test.update(description=text),
    "__threshold": lambda test, text: text and test.update(threshold=_number_or_text(text)),
}


def _number_or_text(text: str) -> float | str:
    """Return the number in a cell; another text as it is, for its reader to name."""
    try:
        return float(text)
    except ValueError:
        return text


def csv_test(row: Mapping[str, str | None]) -> tuple[dict[str, Any], list[str]]:
    """Return the test of a row, and the columns of it that ours does not know."""
    test: dict[str, Any] = {"vars": {}, "assert": [], "options": {}, "metadata": {}}
    unknown, metric = [], ""
    for column, cell in row.items():
        name, text = (column or "").strip(), cell or ""
        if not name.startswith("__"):
            test["vars"][name] = text
        elif re.fullmatch(r"__expected\d*", name):
            test["assert"] += [_written_assert(text)] if text.strip() else []
        elif name in _CSV_KEYS:
            _CSV_KEYS[name](test, text)
        elif name.startswith("__metadata:"):
            test["metadata"][name.partition(":")[2].removesuffix("[]")] = text
        elif name == "__metric":
            metric = text
        elif text:
            unknown.append(name)
    if metric:
        test["assert"] = [{**one, "metric": metric} for one in test["assert"]]
    return test, unknown


def _written_assert(cell: str) -> dict[str, Any]:
    """Return the assertion that a cell writes: `contains: x`, `similar(0.8): x`; without a kind the whole
    cell has to be the answer.
    """
    cell = cell.strip()
    if cell.startswith("file://"):
        return {"type": "javascript", "value": cell}
    if cell.removeprefix("not-") in ("is-json", "contains-json", "is-xml", "contains-xml", "is-sql"):
        return {"type": cell}
    match = _WRITTEN.fullmatch(cell)
    if match is None or match[2] not in _NAMED:
        return {"type": "equals", "value": cell}
    number = match[3] or (match[4] if match[2] in ("cost", "latency") else "")
    made: dict[str, Any] = {"type": f"{match[1] or ''}{_WORDS.get(match[2], match[2])}", "value": match[4]}
    return {**made, "threshold": float(number)} if re.fullmatch(r"\d*\.?\d+", number) else made


def texts_of(value: Json) -> list[str]:
    """Return the texts of a list, or of a text with commas, in which quotes hold a comma."""
    if isinstance(value, list):
        return [text_of(one) for one in value]
    if not isinstance(value, str) or not value.strip():
        return []
    return [one.strip() for one in next(csv.reader([value], skipinitialspace=True))]


def text_of(value: Json) -> str:
    """Return a value as text: JSON of what is none, empty for nothing."""
    return value if isinstance(value, str) else "" if value is None else dumps(value)
