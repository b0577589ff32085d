"""`%kestrel` and `%%kestrel`: a run as a line or a cell of a notebook, and its result as a value."""

from __future__ import annotations

import inspect
import re
import sys
from collections import deque
from collections.abc import Awaitable, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakSet

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from kestrel_lab.cli.frontend import files_named
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.lab import Lab
from kestrel_lab.notebook.command_line import Fill, carry_out
from kestrel_lab.notebook.frontend import NotebookFace, surface
from kestrel_lab.notebook.panel import Panel
from kestrel_lab.runtime.run import Run

# `@name` stands for a notebook variable; every other character of a goal is text.

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


LOOKED_AT: Final = 8
"""Panels whose citations are looked at again."""


@magics_class
class KestrelMagics(Magics):
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._own_lab: Lab | None = None
        self.shown: WeakSet[Run] = WeakSet()
        """Runs that the running cell has shown: as the cell's result one line of them is enough."""
        self.panels: deque[Panel] = deque(maxlen=LOOKED_AT)
        """The newest ones. Whether their citations still stand is looked at after each cell, which is when files have changed."""

    @no_var_expand
    @line_cell_magic
    def kestrel(self, line: str, cell: str | None = None) -> object:
        """Run, watch and steer agents: `%kestrel --help`."""
        return _shown(self._carry_out(line, cell, awaited=False))

    @no_var_expand
    @line_cell_magic
    def kestrel_await(self, line: str, cell: str | None = None) -> Awaitable[object]:
        """What `%kestrel` becomes at the top of a cell: the same, to be awaited."""
        return _result(self._carry_out(line, cell, awaited=True))

    def _carry_out(self, line: str, cell: str | None, *, awaited: bool) -> Any:
        where = surface(self.shell)

        def started(run: Run, name: str) -> None:
            if where != "terminal":
                self.shown.add(run)
            if name:
                self._variables[name] = run

        face = NotebookFace(find_lab=self.lab, started=started, shown=self.panels.append, surface=where, awaited=awaited)
        fill = Fill(lambda goal: filled(goal, self._variables), lambda text: argument(text, self._variables))
        with files_named():
            return carry_out(line, cell, face, fill)

    def runs(self) -> list[str]:
        """Names of variables that hold runs."""
        return [name for name, value in self._variables.items() if isinstance(value, Run) and not name.startswith("_")]

    def lab(self) -> Lab:
        """The notebook's `lab` if it has one, else one of our own."""
        theirs = self._variables.get("lab")
        if isinstance(theirs, Lab):
            return theirs
        if self._own_lab is None:
            self._own_lab = Lab()
        return self._own_lab

    @property
    def _variables(self) -> dict[str, Any]:
        namespace: dict[str, Any] = self.shell.user_ns  # type: ignore[union-attr]  # a registered magic has a shell
        return namespace


async def _result(found: Any) -> object:
    with files_named():
        return _shown(await found if inspect.isawaitable(found) else found)


def _shown(found: object) -> object:
    """What a cell gives; a sentence is printed instead."""
    if isinstance(found, str):
        print(found)  # noqa: T201  # a notebook shows what is printed
        return None
    return found
