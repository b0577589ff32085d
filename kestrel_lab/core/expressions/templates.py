"""Templates: `{{path}}` or `${path}` in JSON is replaced by a value.

A text that is one reference becomes the value with its type; within a longer text the value is
written: text as it is, anything else as compact JSON. Inserted values are not rendered again, so a
value cannot bring references of its own. There are no expressions, attributes, filters or loops.
`{{{{` writes `{{`, and `$${` writes `${`. `${{` is a `$` before a reference in braces.

Calls of one turn refer to the answers of the calls before them in the same way, `${previous.content}` or
`${steps[0].content.key}`: only an argument that is such a reference and nothing else is one; within a longer
text, code for example, `${…}` stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.json_paths import JsonPath
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line

_J = TypeVar("_J", bound=Json)
MAX_TEMPLATE = 100_000
"""Characters of all texts of a template together."""
MAX_RENDERED = 1_000_000
"""Characters of all inserted values together, as JSON."""
MAX_DEPTH = 32
"""How deep a template may be nested."""

_TOKEN = re.compile(
    r"(?P<escape>\{\{\{\{|\$\$\{(?!\{))"
    r"|\{\{(?P<braces>[^{}]*+)\}\}"
    r"|\$\{(?!\{)(?P<dollar>[^{}]*+)\}"
    r"|(?P<stray>\{\{|\$\{(?!\{))"
)
_OPENER = re.compile(r"\{\{|\$\{(?!\{)")


def referenced_names(value: Json) -> frozenset[str]:
    """Return the first names of all references in `value`; keys of objects are not templates.

    Raises `UsageError` for an invalid reference, and for a template that is too long or too deep.
    """
    return frozenset(path.root for path in references_in(value))


def references_in(value: Json) -> tuple[JsonPath, ...]:
    """Return every reference in `value`, in order. Raises as `referenced_names` does."""
    return tuple(
        piece for text in _texts(value) for piece in template_parts(text) if isinstance(piece, JsonPath)
    )


def render_template(value: Json, scope: Mapping[str, Json]) -> Json:
    """Return `value` with each reference replaced by its value in `scope`; shares no list or object with
    either.

    Raises `UsageError` for a reference to nothing, and for a template or result that is too long or too deep.
    """
    for _ in _texts(value):
        pass
    return _Rendering(scope).render(value)


def escape_template(value: _J) -> _J:
    """Return a template that renders to `value`: texts that look like references are escaped.

    Raises `UsageError` for a value that is too long or too deep for a template.
    """
    for _ in _texts(value):
        pass
    return cast("_J", _escape(value))


def _escape(value: Json) -> Json:
    if isinstance(value, str):
        return _OPENER.sub(lambda match: "{{{{" if match[0] == "{{" else "$${", value)
    if isinstance(value, list):
        return [_escape(item) for item in value]
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    return value


class _Rendering:
    """One rendering: the scope, and the characters that may still be inserted."""

    def __init__(self, scope: Mapping[str, Json]) -> None:
        self._scope = scope
        self._room = MAX_RENDERED

    def render(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.render(item) for item in value]
        if isinstance(value, dict):
            return {key: self.render(item) for key, item in value.items()}
        return value

    def _text(self, text: str) -> Json:
        parts = list(template_parts(text))
        if len(parts) == 1 and isinstance(parts[0], JsonPath):
            return self._find(parts[0])[0]
        return "".join(piece if isinstance(piece, str) else self._written(piece) for piece in parts)

    def _written(self, path: JsonPath) -> str:
        found, written = self._find(path)
        return found if isinstance(found, str) else written

    def _find(self, path: JsonPath) -> tuple[Json, str]:
        """Return a copy of the value and its JSON text, whose length counts against `MAX_RENDERED`."""
        found = path.find(self._scope)
        try:
            written = json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            copy = json.loads(written) if isinstance(found, (list, dict)) else found
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(
                f"the value of {one_line(str(path), 100)!r} cannot be put in: {error}"
            ) from error
        self._room -= len(written)
        if self._room < 0:
            msg = (
                f"what {one_line(str(path), 100)!r} puts in makes more than {MAX_RENDERED:,} "
                "characters: refer to a part of it"
            )
            raise UsageError(msg)
        return copy, written


def _texts(value: Json) -> Iterator[str]:
    """Yield every text in `value` that is not a key, in order; raises `UsageError` beyond the caps."""
    room = MAX_TEMPLATE
    todo: list[tuple[Json, int]] = [(value, 0)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, str):
            room -= len(item)
            if room < 0:
                raise UsageError(
                    f"a template has at most {MAX_TEMPLATE:,} characters: put long texts into an argument"
                )
            yield item
        elif isinstance(item, (list, dict)):
            if depth >= MAX_DEPTH:
                raise UsageError(f"a template is nested at most {MAX_DEPTH} deep")
            inner = item if isinstance(item, list) else list(item.values())
            todo += [(part, depth + 1) for part in reversed(inner)]


def template_parts(text: str) -> Iterator[str | JsonPath]:
    """Yield the literals and references of a template in order; raises `UsageError` for a bad reference."""
    end = 0
    for match in _TOKEN.finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        end = match.end()
        if match["escape"]:
            yield match["escape"][-2:]
        elif match["stray"]:
            shown = one_line(text[match.start() :], 60)
            msg = (
                f"{shown!r} begins a reference that does not end: write {{{{path}}}} or ${{path}}; "
                f"{{{{{{{{ and $${{ stand for themselves"
            )
            raise UsageError(msg)
        else:
            yield JsonPath.parse((match["braces"] or match["dollar"] or "").strip())
    if end < len(text):
        yield text[end:]


_REFERENCE = re.compile(r"\$\{(?:previous|steps\[\d{1,3}\])\.content(?:\.[\w-]+|\[\d{1,9}\])*\}")


def is_chained(args: Json) -> bool:
    """Return whether a value anywhere in `args` refers to an earlier answer."""
    todo = [args]
    # The list grows while it is read: each value adds those within it.
    for value in todo:
        if isinstance(value, str):
            # Asked of every argument of every call: hardly one begins like a reference.
            if value.startswith("${") and _REFERENCE.fullmatch(value):
                return True
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return False


def with_answers(args: Json, before: Mapping[str, Json | None]) -> Json:
    """Return `args` with the references replaced by values; `before` has the calls before it in order, `None`
    for one that failed.

    Raises `UsageError` for a call that is not there or failed, and for a part that its answer has not.
    """
    if isinstance(args, dict):
        return {key: with_answers(value, before) for key, value in args.items()}
    if isinstance(args, list):
        return [with_answers(value, before) for value in args]
    if not isinstance(args, str) or not _REFERENCE.fullmatch(args):
        return args
    steps: list[Json] = [{} if value is None else {"content": value} for value in before.values()]
    if not steps:
        raise UsageError(f"{args} refers to a call before it in the same turn, and there is none")
    return render_template(args, {"previous": steps[-1], "steps": steps})
