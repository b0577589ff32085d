"""Python text becomes a syntax tree, in any thread.

CPython 3.11 counts the depth of all trees that are being made in one place: when threads take turns in the
middle of it, `ast.parse` raises a `SystemError` for text that nothing is wrong with (python/cpython#106905).
"""

from __future__ import annotations

import ast
import threading
from typing import Final

_ONE_AT_A_TIME: Final = threading.Lock()
_TIMES: Final = 5
"""Others, such as a notebook's kernel, make trees without asking for the lock."""


def tree_of(text: str) -> ast.Module:
    """The tree of `text`, the only way here to come to one.

    Raises `SyntaxError` or `ValueError` for what is not Python, and `RecursionError` for what is nested too
    deeply.
    """
    for _ in range(_TIMES - 1):
        try:
            return _tree(text)
        except SystemError:
            continue
    return _tree(text)


def _tree(text: str) -> ast.Module:
    with _ONE_AT_A_TIME:
        try:
            return ast.parse(text)
        except MemoryError:
            # The parser of CPython says with it that a text is nested too deeply.
            raise RecursionError from None
