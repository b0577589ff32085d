"""The cell of a notebook that failed last, as a goal for an agent: `%kestrel fix`."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kestrel_lab.core.run_types import FilledGoal
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.tools.kernel.inspection import inspect_value
from kestrel_lab.tools.kernel.variables import user_variables

_MOST_VARIABLES = 8
_CODE_CHARS = 8_000
_TRACE_CHARS = 4_000
_NAMED_CHARS = 12_000
"""Characters of the cell, of its traceback, and of the variables that it names."""


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that raised, and what it raised."""

    source: str
    error: BaseException

    def goal(self, variables: Mapping[str, Any], wish: str = "") -> FilledGoal:
        """Return the goal to fix it: the cell, its traceback and the variables that it names.

        `wish` is what the person adds.
        """
        name, text = type(self.error).__name__, one_line(str(self.error), 200)
        said = f"Fix the cell that failed with {name}: {text}" + (f"\n{wish}" if wish else "")
        named = _described(self.source, variables)
        parts = [
            f"{said}\n\nFind the cause. Fix the cell itself if you can edit cells of this notebook, else "
            "show the corrected code, and say in a sentence what was wrong.",
            f"The cell:\n{_fenced(head_tail(self.source, _CODE_CHARS)[0], 'python')}",
            f"Its traceback:\n{_fenced(self._trace())}",
            *([f"Variables that it names:\n{_fenced(named)}"] if named else []),
        ]
        return FilledGoal.of("\n\n".join(parts), said)

    def _trace(self) -> str:
        # The first frames are those of the shell, of which this function runs every cell.
        trace = frame = self.error.__traceback__
        while frame is not None:
            trace = frame.tb_next if frame.tb_frame.f_code.co_name == "run_code" else trace
            frame = frame.tb_next
        lines = traceback.format_exception(type(self.error), self.error, trace)
        return head_tail("".join(lines).rstrip(), _TRACE_CHARS)[0]


def _described(source: str, variables: Mapping[str, Any]) -> str:
    """Return a description of each variable of the user that `source` names."""
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:
        # With a magic in it, or because of this it failed.
        return ""
    known = user_variables(variables)
    used = dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name))
    texts = [inspect_value(name, known[name]) for name in used if name in known][:_MOST_VARIABLES]
    return head_tail("\n\n".join(texts), _NAMED_CHARS)[0]


def _fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"
