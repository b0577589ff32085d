"""Descriptions of variables for a model: a list of all, or type, schema, statistics and head of one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.tools.kernel.state.boundary import is_a, read_or, type_name
from kestrel_lab.tools.kernel.variables import describe_value, short_repr, user_variables

MOST_LISTED = 100
MOST_CHARS = 3_000
"""Characters about one variable: well under a thousand tokens."""
_COLUMNS = 20
_HEAD = 5
_CELL = 24


def variable_lines(namespace: Mapping[str, Any]) -> str:
    """Return a line for each variable of the user: name, type and size or value."""
    found = user_variables(namespace)
    lines = [
        f"{name}: {(what := describe_value(value)).type}, {what.text[:120]}"
        for name, value in list(found.items())[:MOST_LISTED]
    ]
    if len(found) > MOST_LISTED:
        lines.append(f"… {len(found) - MOST_LISTED} more")
    return "\n".join(lines) or "there are no variables yet"


def inspect_name(namespace: Mapping[str, Any], name: str) -> str:
    """Return a description of a variable in at most `MOST_CHARS` characters; raises `KeyError`."""
    return inspect_value(name, namespace[name])


def inspect_value(name: str, value: object) -> str:
    """Return what is worth knowing of a value that is called `name`."""
    lines = read_or(list[str](), _list_lines, name, value)
    return head_tail("\n".join(lines or [f"{name}: {type_name(value)}, it cannot be read"]), MOST_CHARS)[0]


def _list_lines(name: str, value: object) -> list[str]:
    return list(_lines(name, value))


def _lines(name: str, value: Any) -> Iterator[str]:
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    what = describe_value(value)
    yield f"{name}: {what.type}, {what.text}"
    if pandas is not None and is_a(value, pandas.DataFrame):
        yield from _frame(value)
    elif pandas is not None and is_a(value, pandas.Series):
        yield _column(value.name, value)
        yield "head:"
        yield from (
            f"  {short_repr(label)}: {short_repr(item)[:_CELL]}" for label, item in value.head(_HEAD).items()
        )
    elif numpy is not None and is_a(value, numpy.ndarray) and value.dtype.kind in "biuf" and value.size:
        yield f"min {value.min():.6g}, mean {value.mean():.6g}, max {value.max():.6g}"
        yield f"begins {short_repr(value.ravel()[:8].tolist())}"
    elif is_a(value, dict):
        yield from (f"  {short_repr(key)}: {short_repr(item)}" for key, item in list(value.items())[:8])
    elif hasattr(value, "__dict__") and not is_a(value, type):
        attributes = ", ".join(list(vars(value))[:20])
        yield f"attributes: {attributes}" if attributes else "no attributes"


def _frame(frame: Any) -> Iterator[str]:
    yield (
        f"index: {frame.index.dtype}, {short_repr(frame.index[0])} to {short_repr(frame.index[-1])}"
        if len(frame)
        else "index: empty"
    )
    yield "columns:"
    yield from (
        f"  {_column(frame.columns[place], frame.iloc[:, place])}"
        for place in range(min(_COLUMNS, frame.shape[1]))
    )
    if frame.shape[1] > _COLUMNS:
        yield (
            f"  … {frame.shape[1] - _COLUMNS} more: "
            f"{', '.join(map(str, frame.columns[_COLUMNS : _COLUMNS + 40]))}"
        )
    yield f"first {min(_HEAD, len(frame))} rows:"
    for row in frame.iloc[:_HEAD, :_COLUMNS].itertuples(index=False):
        yield "  " + " | ".join(str(cell)[:_CELL] for cell in row)


def _column(name: object, column: Any) -> str:
    missing = int(column.isna().sum())
    facts = [str(column.dtype), *([f"{missing:,} missing"] if missing else [])]
    kind = column.dtype.kind
    if kind in "iuf" and len(column) > missing:
        facts.append(f"min {column.min():.6g}, mean {column.mean():.6g}, max {column.max():.6g}")
    elif kind in "mM" and len(column) > missing:
        facts.append(f"{column.min()} to {column.max()}")
    elif kind not in "bc" and len(column) > missing:
        sample = column if len(column) <= 50_000 else column.iloc[:: len(column) // 50_000]
        try:
            common = sample.value_counts().head(3)
        except TypeError:
            # Values that cannot be counted.
            return f"{name}: {', '.join(facts)}"
        facts.append("often " + ", ".join(short_repr(item)[:_CELL] for item in common.index))
    return f"{name}: {', '.join(facts)}"
