"""Parameters of a notebook: JSON values that become assignments, as syntax trees and never as formatted
text.
"""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.language.python_ast import tree_of

DECLARED: Final = "parameters"
"""Tag of the cell with the parameters and their default values."""
INJECTED: Final = "injected-parameters"
"""Tag of the cell that is put behind it."""


def parse_parameters(texts: Iterable[str]) -> dict[str, Json]:
    """Return the values of `NAME=VALUE` texts: JSON where the value is JSON, else text.

    Raises `UsageError` for one without a name, a name given twice, and what begins like JSON and is none.
    """
    found: dict[str, Json] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise UsageError(f"a parameter is written NAME=VALUE, not {one_line(text)!r}")
        if name in found:
            raise UsageError(f"parameter {name!r} is given twice")
        found[name] = _value(name, value)
    return found


def parameter_source(parameters: Mapping[str, Json]) -> str:
    """Return Python source that assigns the values; raises `UsageError` for names and values that cannot be
    written.
    """
    body: list[ast.stmt] = [
        ast.Assign([ast.Name(_identifier(name), ast.Store())], _literal(name, value))
        for name, value in parameters.items()
    ]
    return ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))


def inject_parameters(notebook: Any, parameters: Mapping[str, Json], name: str) -> None:
    """Put a cell with `parameters` behind the one tagged `parameters`, in the place of one injected before.

    Raises `UsageError` when there is no such cell, or it does not assign a name that is given.
    """
    # nbformat loads jsonschema.
    from nbformat.v4 import new_code_cell

    source = parameter_source(parameters)
    places = [
        place
        for place, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and DECLARED in _tags(cell)
    ]
    if len(places) != 1:
        raise UsageError(
            f"{name} has {format_count(len(places), 'cell') if places else 'no cells'} tagged {DECLARED!r}; "
            "tag the one cell that assigns the default values"
        )
    place = places[0]
    known = _assigned_names(notebook.cells[place].source, name)
    for given in parameters:
        if given not in known:
            raise UsageError(f"{name} has no parameter {given!r}; {did_you_mean(given, known)}")
    kept = [cell for cell in notebook.cells if INJECTED not in _tags(cell)]
    at = kept.index(notebook.cells[place]) + 1
    cell: Any = new_code_cell(source, metadata={"tags": [INJECTED]})  # type: ignore[no-untyped-call,unused-ignore]
    if notebook.nbformat_minor < 5:
        # Cells have none before format 4.5.
        cell.pop("id", None)
    notebook.cells = [*kept[:at], cell, *kept[at:]]


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _assigned_names(source: str, name: str) -> set[str]:
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        magics = TransformerManager()  # type: ignore[no-untyped-call,unused-ignore]
        body = tree_of(magics.transform_cell(source)).body
    except SyntaxError as error:
        raise UsageError(f"{name}: the cell tagged {DECLARED!r} is not Python: {error}") from error
    targets: list[ast.expr] = []
    for statement in body:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets.append(statement.target)
    return {
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _value(name: str, text: str) -> Json:
    try:
        return loads(text)
    except ValueError as error:
        if text[:1] in ("{", "[", '"'):
            raise UsageError(
                f"the value of parameter {name!r} begins like JSON and is none: {error}"
            ) from error
        return text


def _identifier(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"a parameter's name is a Python name, not {one_line(name)!r}")
    return name


def _literal(name: str, value: Json) -> ast.expr:
    match value:
        case None | bool() | int() | str():
            return ast.Constant(value)
        case float() if math.isfinite(value):
            return ast.Constant(value)
        case list():
            return ast.List([_literal(name, item) for item in value], ast.Load())
        case dict() if all(isinstance(key, str) for key in value):
            return ast.Dict(
                [ast.Constant(key) for key in value], [_literal(name, item) for item in value.values()]
            )
    raise UsageError(f"the value of parameter {name!r} is not JSON value: {one_line(repr(value))}")
