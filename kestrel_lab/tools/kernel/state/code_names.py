"""Names in code: attributes and globals that it sets, and dotted paths that it reads."""

from __future__ import annotations

import ast
import dis
import re
import sys
from collections.abc import Container, Iterator
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType

_MOST_TEXT = 200
_STORES_GLOBAL = ("STORE_GLOBAL", "DELETE_GLOBAL")
_BY_TEXT = frozenset(
    {
        "setattr",
        "delattr",
        "patch",
        "object",
        "dict",
        "monkeypatch",
        "__setattr__",
        "__dict__",
        "vars",
        "exec",
        "eval",
    }
)
_SETTER = re.compile(r"(?:^|_)(?:un)?(?:register|set|put|bind|install|enable|disable|add|freeze)")
_READ_BY_PROBES = frozenset(
    "builtins sys atexit _csv decimal _decimal _socket _operator _random _locale.setlocale gc.set_debug "
    "gc.set_threshold gc.enable gc.disable _signal.setitimer signal.setitimer faulthandler.enable "
    "faulthandler.disable resource.setrlimit".split()
)
"""Modules in C, and functions of them, whose settings have probes, or that set their arguments alone."""


_RESULTS_READ = frozenset({"getcontext", "get_ipython", "getLogger"})
"""Functions whose results have probes."""


def sets_unseen(module: str, name: str) -> bool:
    """Return true if a function in C sets, by its name, what Python does not show."""
    return bool(_SETTER.search(name)) and not {module, f"{module}.{name}"} & _READ_BY_PROBES


def set_on_results(tree: ast.AST, classes: Container[str] = ()) -> Iterator[str]:
    """Yield attributes that code sets on what a call gives: `threading.current_thread().name`.

    What a class gives is new: of `classes`, and of those that the code defines.
    """
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
            continue
        base: ast.expr = node.value
        while isinstance(base, ast.Attribute | ast.Subscript):
            base = base.value
        if not isinstance(base, ast.Call):
            continue
        function = ast.unparse(base.func)
        is_new = base is node.value and (function in defined or function in classes)
        if not is_new and function.rpartition(".")[2] not in _RESULTS_READ:
            yield ast.unparse(node)


def stored_names(tree: ast.AST) -> set[str]:
    """Return attribute names that code sets or deletes, also from texts if it can set by text."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    stored = {node.attr for node in nodes if not isinstance(node.ctx, ast.Load)}
    return stored | {text.rpartition(".")[2] for text in _texts(tree)}


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield texts in code that can set attributes by name."""
    nodes = list(ast.walk(tree))
    called = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
    if called & _BY_TEXT:
        yield from (
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < _MOST_TEXT
        )


def dotted_paths(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield each `a.b.c` in code by parts; imported names are expanded."""
    imported = dict[str, tuple[str, ...]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {one.asname: (one.name,) for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {one.asname or one.name: (node.module, one.name) for one in node.names}
    for node in ast.walk(tree):
        rest: list[str] = []
        while isinstance(node, ast.Attribute):
            rest.insert(0, node.attr)
            node = node.value  # down the chain  # noqa: PLW2901
        if isinstance(node, ast.Name):
            yield (*imported.get(node.id, (node.id,)), *rest)
    yield from (tuple(text.split(".")) for text in _texts(tree))


def paths_of(function: FunctionType) -> Iterator[tuple[str, ...]]:
    """Yield module attributes a compiled function may name: each name on each module among its names."""
    names = names_of(function.__code__)
    for name in names:
        found = function.__globals__.get(name, sys.modules.get(name))
        if isinstance(found, ModuleType):
            yield from ((found.__name__, other) for other in names)
    yield from (tuple(name.split(".")) for name in names if "." in name)


@lru_cache(maxsize=4_096)
def names_of(code: CodeType) -> tuple[str, ...]:
    """Return the names in code, and its texts if it can set attributes by text."""
    found = [*code.co_names]
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found += names_of(const)
        elif isinstance(const, str) and len(const) < _MOST_TEXT and set(code.co_names) & _BY_TEXT:
            found.append(const)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=4_096)
def stored_globals(code: CodeType) -> frozenset[str]:
    """Return the names of globals that compiled code sets or deletes."""
    names = [str(one.argval) for one in dis.get_instructions(code) if one.opname in _STORES_GLOBAL]
    return frozenset(names)


@lru_cache(maxsize=4_096)
def stored_attributes(code: CodeType) -> frozenset[str]:
    """Return the names of attributes that compiled code sets or deletes, also by text."""
    stored = {
        str(one.argval) for one in dis.get_instructions(code) if one.opname in ("STORE_ATTR", "DELETE_ATTR")
    }
    inner = [stored_attributes(const) for const in code.co_consts if isinstance(const, CodeType)]
    return frozenset(
        stored.union(*inner, (name.rpartition(".")[2] for name in set(names_of(code)) - set(code.co_names)))
    )
