"""Filters and loops in templates of rows: `{{answers | split(";") | first}}`, `{% for item in items %}`.

A text with a filter or a tag is a template of jinja2 in its sandbox, with the filters named here and nothing
else to call. A text that is one expression becomes its value with its type. All other texts are templates of
`core.expressions.templates`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.templates import MAX_RENDERED
from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_TWO_NAMES: Final = re.compile(r"(\{%-?\s*for\s+\w+\s*,\s*\w+\s+in\s+)((?:(?!%\}).)+?)(\s*-?%\})", re.DOTALL)
_KEPT: Final = (
    *("default", "first", "float", "int", "join", "last", "length", "list", "lower", "replace", "reverse"),
    *("round", "sort", "title", "trim", "unique", "upper"),
)
"""Filters of jinja2 that templates may use."""


def is_filtered(text: str) -> bool:
    """Return whether a text has filters or tags."""
    return re.search(r"\{\{[^{}]*\||\{%", text) is not None


def render_filtered(text: str, scope: Mapping[str, Json], *, lenient: bool = False) -> Json:
    """Return the text with the values of `scope`; where `lenient`, what is not there is empty.

    Raises `UsageError` for a mistake in it, a name that is not in `scope` and has no `default`, and for a
    result of more than `MAX_RENDERED` characters.
    """
    from jinja2 import TemplateError
    from jinja2.runtime import Undefined

    environment = _environment(lenient=lenient)
    # Their loops over two names take apart objects, too.
    if lenient:
        text = _TWO_NAMES.sub(r"\1\2 | pairs\3", text)
    try:
        if match := re.fullmatch(r"\s*\{\{((?:(?!\}\}|\{\{).)*)\}\}\s*", text, re.DOTALL):
            value = environment.compile_expression(match[1], undefined_to_none=False)(**scope)
            if isinstance(value, Undefined):
                # `StrictUndefined` raises on use, and names the variable.
                str(value)
            return loads(dumps(value))
        pieces, size = [], 0
        for piece in environment.from_string(text).generate(**scope):
            size += len(piece)
            if size > MAX_RENDERED:
                raise UsageError(f"{one_line(text, 60)!r} makes more than {MAX_RENDERED:,} characters")
            pieces.append(piece)
        return "".join(pieces)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UsageError(f"{one_line(text, 60)!r}: {one_line(str(error), 160)}") from error


def needed_names(text: str) -> set[str]:
    """Return the names that a text uses and gives no `default`; raises `UsageError` for a mistake in it."""
    from jinja2 import TemplateError, meta, nodes

    try:
        tree = _environment(lenient=False).parse(text)
        used = meta.find_undeclared_variables(tree)
    except TemplateError as error:
        raise UsageError(f"{one_line(text, 60)!r}: {one_line(str(error), 160)}") from error
    spared = {
        name.name
        for one in tree.find_all(nodes.Filter)
        if one.name == "default" and one.node is not None
        for name in [one.node, *one.node.find_all(nodes.Name)]
        if isinstance(name, nodes.Name)
    }
    tested = {
        name.name
        for one in tree.find_all(nodes.Test)
        if one.name in ("defined", "undefined")
        for name in [one.node]
        if isinstance(name, nodes.Name)
    }
    return used - spared - tested


@cache
def _environment(*, lenient: bool) -> ImmutableSandboxedEnvironment:
    # Loading jinja2 takes some 30 ms, too long for an import of this package.
    from jinja2 import ChainableUndefined, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    unknown = ChainableUndefined if lenient else StrictUndefined
    made = ImmutableSandboxedEnvironment(undefined=unknown, keep_trailing_newline=True)
    made.globals = {}
    made.filters = {name: made.filters[name] for name in _KEPT} | {
        "split": lambda text, by=None: _text(text, "split").split(by),
        "strip": lambda text, signs=None: _text(text, "strip").strip(signs),
        "lines": lambda text: _text(text, "lines").splitlines(),
        "json": dumps,
        # What templates of promptfoo call them.
        "dump": dumps,
        "pairs": lambda value: [*value.items()] if isinstance(value, dict) else value,
        "load": lambda text: loads(_text(text, "load")),
        "from_json": lambda text: loads(_text(text, "from_json")),
    }
    return made


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"the filter {name} takes text, not {one_line(repr(value), 60)}")
    return value
