"""Datasets: rows of a file become scenarios by a template."""

from __future__ import annotations

import csv
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.expressions.templates import references_in, render_template
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.suites.row_filters import is_filtered, needed_names, render_filtered

MAX_ROWS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row, and its place in the file."""

    place: str
    """For messages: `row 3 (line 4)`."""
    number: int
    """From 1."""
    values: dict[str, Json]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table, by its file's ending: `.jsonl` or `.ndjson`, `.json` (a list), `.csv`,
    `.tsv`, `.parquet`.

    Cells of CSV are text. Raises `UsageError` that names the file and the row for what cannot be read.
    """
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise UsageError(
            f"{path.name} is not a table that can be read; {did_you_mean(kind or path.name, _READERS)}"
        )
    try:
        rows = list(_READERS[kind](path))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text (byte {error.start + 1})") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not rows:
        raise UsageError(f"{path}: has no rows")
    if len(rows) > MAX_ROWS:
        raise UsageError(f"{path}: has more than {MAX_ROWS:,} rows")
    return rows


def select_rows(
    rows: Sequence[Row], *, limit: int | None = None, sample: int | None = None, seed: int = 0
) -> list[Row]:
    """Return the first `limit` rows, or of these `sample` at random, the same ones for the same `seed`, in
    their order.
    """
    kept = list(rows[:limit])
    if sample is None:
        return kept
    if sample > len(kept):
        raise UsageError(f"a sample of {sample} cannot be drawn from {format_count(len(kept), 'row')}")
    places = sorted(random.Random(seed).sample(range(len(kept)), sample))  # meant to be the same each time  # noqa: S311
    return [kept[place] for place in places]


def check_columns(template: Json, rows: Sequence[Row]) -> None:
    """Raise `UsageError` for a name in the template that no row has, once and not for every row."""
    known = {name for row in rows for name in _scope(row)}
    for shown, name in _columns_in(template):
        if name not in known:
            raise UsageError(f"{shown}: there is no column {name!r}; {did_you_mean(name, known)}")


def _columns_in(template: Json) -> Iterator[tuple[str, str]]:
    """Yield each column that a template needs, behind what names it."""
    if isinstance(template, str):
        if is_filtered(template):
            yield from ((one_line(template, 60), name) for name in sorted(needed_names(template)))
        else:
            yield from ((f"{{{{{path}}}}}", path.root) for path in references_in(template))
    elif isinstance(template, list | dict):
        for item in template if isinstance(template, list) else template.values():
            yield from _columns_in(item)


def fill_template(template: dict[str, Json], row: Row) -> dict[str, Json]:
    """Return the template with the row's values for `{{column}}`, `{{column.key[0]}}` and
    `{{column | default("none")}}`; raises `UsageError` that names the row.

    A column whose name holds blanks or signs is called by it with `_` in their place; for filters and loops
    see `row_filters`.
    """
    return cast("dict[str, Json]", _filled(template, _scope(row)))


def _filled(template: Json, scope: dict[str, Json]) -> Json:
    if isinstance(template, str):
        return render_filtered(template, scope) if is_filtered(template) else render_template(template, scope)
    if isinstance(template, list):
        return [_filled(item, scope) for item in template]
    if isinstance(template, dict):
        return {key: _filled(item, scope) for key, item in template.items()}
    return template


def _scope(row: Row) -> dict[str, Json]:
    return (
        {re.sub(r"[^\w-]+", "_", name).strip("_") or "_": value for name, value in row.values.items()}
        | row.values
        | {"row_number": row.number}
    )


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        number = 0
        for line, text in enumerate(file, 1):
            if text.strip():
                number += 1
                yield _row(_value(path, text, f"line {line}"), path, number, f"row {number} (line {line})")


def _json(path: Path) -> Iterator[Row]:
    found = _value(path, path.read_text(encoding="utf-8-sig"), "")
    if not isinstance(found, list):
        raise UsageError(f"{path}: must be a list of objects; for one object per line call it .jsonl")
    for number, value in enumerate(found, 1):
        yield _row(value, path, number, f"row {number}")


def _value(path: Path, text: str, place: str) -> Json:
    try:
        return loads(text)
    except ValueError as error:
        raise UsageError(f"{path}{': ' + place if place else ''}: not JSON: {error}") from error


def _row(value: Json, path: Path, number: int, place: str) -> Row:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {place}: must be an object, not {one_line(repr(value), 60)}")
    return Row(place=place, number=number, values=value)


def _csv(path: Path, delimiter: str = ",") -> Iterator[Row]:
    # The library refuses cells of more than 131,072 characters, and a row may hold a document.
    csv.field_size_limit(10_000_000)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            names = next(reader, [])
            _check_names(path, names)
            before = reader.line_num
            number = 0
            for cells in reader:
                line, before = before + 1, reader.line_num
                if not cells:
                    continue
                number += 1
                if len(cells) > len(names):
                    raise UsageError(
                        f"{path}: row {number} (line {line}) has {format_count(len(cells), 'cell')} for "
                        f"{format_count(len(names), 'column')}"
                    )
                yield Row(
                    place=f"row {number} (line {line})",
                    number=number,
                    # A row may end early: what it lacks a template asks for in vain, or with a default.
                    values=dict(zip(names, cells, strict=False)),
                )
        except csv.Error as error:
            raise UsageError(f"{path}: line {reader.line_num}: not CSV: {error}") from error


def _check_names(path: Path, names: Sequence[str]) -> None:
    if not any(names):
        raise UsageError(f"{path}: the first line names no columns")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"{path}: the first line names columns, and {', '.join(map(repr, twice))} is there twice"
        )


def _parquet(path: Path) -> Iterator[Row]:
    try:
        # pyarrow comes with an extra, and it is heavy.
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException
    except ImportError as error:
        raise UsageError(
            f"{path.name}: Parquet files need pyarrow: pip install 'kestrel-lab[parquet]'"
        ) from error
    try:
        found = parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise UsageError(f"{path}: cannot be read: {one_line(str(error), 200)}") from error
    for number, values in enumerate(found, 1):
        yield Row(place=f"row {number}", number=number, values=cast("dict[str, Json]", _plain_json(values)))


def _plain_json(value: Any) -> Json:
    """Return a value as JSON: dates and decimals become texts, as in a file of text; what is not a number
    becomes null.
    """
    if isinstance(value, dict):
        return {str(key): _plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


_READERS: Final[dict[str, Callable[[Path], Iterator[Row]]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
}
TABLES: Final = tuple(_READERS)
"""Endings of files that hold tables."""
