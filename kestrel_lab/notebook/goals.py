"""`@name` stands for a notebook variable; every other character of a goal is text."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType

from kestrel_lab.core.text import head_tail
from kestrel_lab.engine.run import Run

LONGEST = 20_000
"""Characters of one variable that go into a goal: beginning and end."""
ROWS = 20

_NAME = re.compile(r"(?<![\w@.])@([A-Za-z_]\w*)")


def filled(goal: str, variables: Mapping[str, object]) -> str:
    """`goal` with each `@name` of a known variable replaced by the variable's text.

    Unknown names, modules, functions and classes stay as they are written: `@dataclass` in a goal means
    the word.
    """

    def text(match: re.Match[str]) -> str:
        name = match[1]
        if name not in variables or isinstance(variables[name], ModuleType | FunctionType | BuiltinFunctionType | type):
            return match[0]
        return head_tail(as_text(variables[name]), LONGEST)[0]

    return _NAME.sub(text, goal)


def argument(text: str, variables: Mapping[str, object]) -> str:
    """An option's value or an argument with its `@name`s replaced; a run stands for its id."""
    name = text.removeprefix("@")
    if name != text and isinstance(run := variables.get(name), Run):
        return run.id
    return filled(text, variables)


def as_text(value: object) -> str:
    """What a model is given for `value`: a string itself, a path as one would type it, the head of a table, else its `repr`."""
    if isinstance(value, str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        rest = f"\n… {len(value):,} rows in all" if len(value) > ROWS else ""
        return f"{value.head(ROWS).to_string()}{rest}"
    return repr(value)
