"""Imports of code: which modules it names, and which of them an adoption may import."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from kestrel_lab.tools.kernel.state.boundary import is_a, raw_dict
from kestrel_lab.tools.kernel.state.libraries import in_library, is_own
from kestrel_lab.tools.kernel.values import NotPlain


def _tree_of(code: str) -> ast.AST:
    try:
        tree = compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
    return cast("ast.AST", tree)


def imported_modules(code: str) -> list[str]:
    """Return the modules that the import statements of code name, each behind its packages."""
    names: list[str] = []
    for node in ast.walk(_tree_of(code)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    packages = [name.split(".") for name in names]
    return list(
        dict.fromkeys(".".join(parts[:end]) for parts in packages for end in range(1, len(parts) + 1))
    )


def import_sources(name: str, code: str) -> Iterator[tuple[str, str]]:
    """Yield the modules from which code imports `name`, each with its name there."""
    for node in ast.walk(_tree_of(code)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name or alias.name == "*":
                    yield node.module, name if alias.name == "*" else alias.name


def imported_attribute(module: str, name: str) -> Any:
    """Return what a loaded module has under a name; raises `AttributeError` or `KeyError`."""
    loaded = sys.modules[module]
    attributes = raw_dict(loaded)
    # Only a library may make it now: a module of the user would run code that was not approved.
    return getattr(loaded, name) if name not in attributes and not is_own(module) else attributes[name]


def is_installed(name: str) -> bool:
    """Return true if the module to be loaded is Python's or of an installed library."""
    return _library_file(name) is not None


def check_installed(name: str, workspace: str) -> None:
    """Raise `NotPlain` unless an adoption may import a module: it is installed, out of reach of what works in
    the workspace, and no program.
    """
    file = _library_file(name)
    if file is None:
        raise NotPlain(f"it imports {name}, which is not loaded yet")
    if os.path.realpath(file).startswith(os.path.join(os.path.realpath(workspace), "")):
        raise NotPlain(f"it imports {name} out of the workspace, which is not loaded yet")
    if name.rpartition(".")[2] == "__main__":
        raise NotPlain(f"it imports {name}, which is a program")


def import_installed(name: str, workspace: str) -> None:
    """Import a module that passes `check_installed`; raises `NotPlain` or what the import raises."""
    if name not in sys.modules:
        check_installed(name, workspace)
        importlib.import_module(name)


def import_before(names: Sequence[str], workspace: str) -> None:
    """Import installed libraries before code runs; what cannot be imported is left to the code.

    Only libraries are found meanwhile: a file of the workspace may have the name of what one of them imports.
    """
    search_path = list(sys.path)
    sys.path[:] = [folder for folder in search_path if in_library(os.path.join(folder, ""))]
    try:
        for name in names:
            # The boundary to code of libraries, which may raise anything.
            with suppress(Exception):
                import_installed(name, workspace)
    finally:
        sys.path[:] = search_path


def _library_file(name: str) -> str | None:
    """Return where a module to be loaded is, by its package; `None` for one that is not a library's."""
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    if is_a(loaded, ModuleType):
        about = raw_dict(loaded)
        file = about.get("__file__") or getattr(about.get("__spec__"), "origin", None)
        return None if is_own(top) else str(file or "built-in")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    where = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    return str(where) if where and in_library(str(where)) else None
