"""Syntax trees are made in any thread."""

from __future__ import annotations

import ast
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kestrel_lab.language.python_ast import tree_of

TEXT = "\n".join(f"def f{number}(a, b):\n    return a + b * {number}" for number in range(150))


def _faults(parse: Callable[[str], ast.Module]) -> int:
    """How often `parse` raises a `SystemError` in threads that take turns in the middle of it."""

    def fails(_: int) -> bool:
        try:
            return len(parse(TEXT).body) != 150
        except SystemError:
            return True

    def pause(*_: object) -> None:
        time.sleep(0.0001)

    before = gc.get_threshold()
    gc.callbacks.append(pause)
    gc.set_threshold(200)
    try:
        with ThreadPoolExecutor(3) as pool:
            return sum(pool.map(fails, range(12)))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(pause)


def test_threads_do_not_disturb_each_other() -> None:
    """However threads take turns, every text that is Python has its tree; `ast.parse` by itself is disturbed
    on CPython 3.11.
    """
    assert _faults(tree_of) == 0


def test_what_is_no_python_is_said() -> None:
    """Errors are those of `ast.parse`."""
    with pytest.raises(SyntaxError):
        tree_of("def (")
