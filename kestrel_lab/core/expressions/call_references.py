"""References of a call to the answers of the calls before it in its turn: `${previous.content}`, `${steps[0].content.key}`.

Only an argument that is such a reference and nothing else is one: within a longer text, code for example, `${…}` stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.templates import render
from kestrel_lab.core.json_types import Json

_REFERENCE = re.compile(r"\$\{(?:previous|steps\[\d{1,3}\])\.content(?:\.[\w-]+|\[\d{1,9}\])*\}")


def is_chained(args: Json) -> bool:
    """Return whether a value anywhere in `args` refers to an earlier answer."""
    todo = [args]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            if _REFERENCE.fullmatch(value):
                return True
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return False


def with_answers(args: Json, before: Mapping[str, Json | None]) -> Json:
    """Return `args` with the references replaced by values; `before` has the calls before it in order, `None` for one that failed.

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
    return render(args, {"previous": steps[-1], "steps": steps})
