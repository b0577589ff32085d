"""Python code in a command line: whether a call in it can start a program.

The answer is yes unless every module, name and attribute in the code is known to lead to none. So code that
builds names from texts, or reaches a module through another one, is never taken for harmless.
"""

from __future__ import annotations

import ast
import sys
from functools import lru_cache
from typing import Final

_MODULES: Final = frozenset(
    """
base64 binascii bisect calendar cmath collections colorsys csv datetime decimal difflib fractions
hashlib heapq html itertools json math pathlib pprint random re statistics string struct sys textwrap
time tomllib unicodedata urllib.parse zlib
""".split()
)
"""Modules without a function that starts a program or runs a text."""
_NAMES: Final = frozenset(
    """
exec eval compile __import__ getattr setattr delattr globals locals vars breakpoint help exit quit
""".split()
)
"""Built-in functions that run texts, reach anything by its name, or start a pager."""
_ATTRIBUTES: Final = frozenset(
    ["system", "popen", "modules", "meta_path", "path_hooks", "settrace", "setprofile"]
)
_LONGEST: Final = 20_000


@lru_cache(maxsize=256)
def starts_no_program(code: str) -> bool:
    """Return true if no call in the code can start a program."""
    if len(code) > _LONGEST:
        return False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return all(map(_is_harmless, ast.walk(tree)))


def _is_harmless(node: ast.AST) -> bool:
    match node:
        case ast.Import():
            return all(alias.name in _MODULES for alias in node.names)
        case ast.ImportFrom():
            names = [alias.name for alias in node.names]
            return node.level == 0 and node.module in _MODULES and all(map(_is_plain, names))
        case ast.Name():
            return node.id not in _NAMES and not node.id.startswith("__")
        case ast.Attribute():
            return _is_plain(node.attr) or (isinstance(node.value, ast.Name) and node.value.id == node.attr)
        case _:
            return True


def _is_plain(name: str) -> bool:
    """Return whether a name is neither hidden, nor that of a module that another one has imported."""
    if name.startswith("_") or name == "*" or name in _ATTRIBUTES:
        return False
    return name not in sys.stdlib_module_names or name in ("parse", "datetime", "time")
